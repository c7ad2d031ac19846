"""The one error type that is meant for the user rather than for a developer."""


class UserError(ValueError):
    """Something the user wrote or did is wrong and the message says how to put it right.

    The command line prints the message without a traceback and leaves with exit code 2. `problems` holds
    one sentence per fault; each names the field, its value, the rule and the fix.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))
