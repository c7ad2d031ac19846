"""Errors that mean something to the user: a fault in what was asked for, and a run that cannot go on."""


class UserError(ValueError):
    """Something the user wrote or did is wrong and the message says how to put it right.

    The command line prints the message without a traceback and leaves with exit code 2. `problems` holds
    one sentence per fault; each names the field, its value, the rule and the fix.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class RunFault(RuntimeError):  # noqa: N818 - a result of the experiment
    """A run cannot go on for a reason of its own, and ends as invalid."""
