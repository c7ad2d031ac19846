"""Which runs a command starts again: by class of failure, within budgets, or because it was asked to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from launcher.failures import AT_RESUME, AT_SUBMIT, Failure
from launcher.ledger import Ledger
from launcher.state import RunStatus
from trainer.budget import Budget
from trainer.errors import UserError
from trainer.schema import nearest

ALIASES = {"oom": Failure.OUT_OF_MEMORY, "import": Failure.CONFIG, "timeout": Failure.TIME_LIMIT}
EVERY = "failed"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a command retries."""

    retry: Collection[Failure] = AT_SUBMIT
    asked: Collection[Failure] = ()
    """Named with --retry: retried whatever the budgets."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Failure class → how often a run is started again after it."""
    only: Collection[str] | None = None
    """Run ids; None for all."""

    def to_run(self, status: RunStatus, budget: Budget, ledger: Ledger) -> bool:
        """Whether the run is to be started."""
        if self.only is not None and status.run_id not in self.only:
            return False
        return status.to_run(budget, {*self.retry, *self.asked}) and not self.spent(status, ledger)

    def spent(self, status: RunStatus, ledger: Ledger) -> bool:
        """Whether the run has failed like this as often as is allowed."""
        if status.failure is None or status.failure in self.asked:
            return False
        most = self.budgets.get(status.failure)
        return most is not None and ledger.again.get((status.run_id, status.failure), 0) >= most


def resume_policy(words: str | None, budgets: Mapping[str, int], only: Collection[str] | None) -> Policy:
    """The policy of `resume --retry WORDS`; raises `UserError` for a class that does not exist."""
    return Policy(AT_RESUME, retried(words), budgets, only)


def retried(words: str | None) -> frozenset[Failure]:
    """The classes in `oom,exception`; `failed` means every class.

    >>> sorted(retried("oom, exception"))
    [<Failure.EXCEPTION: 'exception'>, <Failure.OUT_OF_MEMORY: 'out_of_memory'>]
    """
    found: set[Failure] = set()
    for word in filter(None, (piece.strip() for piece in (words or "").split(","))):
        if word == EVERY:
            found |= set(Failure)
        elif word in ALIASES:
            found.add(ALIASES[word])
        elif word in set(Failure):
            found.add(Failure(word))
        else:
            known = [*Failure, *ALIASES, EVERY]
            raise UserError(f"--retry {word}: no class of failure{nearest(word, known)}")
    return frozenset(found)
