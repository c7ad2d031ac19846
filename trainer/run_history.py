"""What a run's record says on whether it is to be started, or started again. Standard library alone."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from trainer.attempts import Asked, AttemptRecord, Exit, read_attempts
from trainer.files import read_json
from trainer.paths import RunPaths


def is_finished(run: RunPaths) -> bool:
    """Whether a trainer would find nothing to do; False where the record leaves any doubt.

    The same rule as `trainer.lockstep.Lockstep.done`, from the files alone.
    """
    try:
        state, summary, budget = (read_json(file) for file in (run.state, run.summary, run.budget))
        if not (state and summary and budget) or state["state"] != "finished":
            return False
        if summary.get("reason") is not None:
            # a run that could not go on ends there, whatever its horizon
            return True
        target = budget["horizon"]
        confirmed = summary["collapse"].get("confirmed_step")
        if confirmed is not None:
            target = min(target, confirmed + 1 + budget["updates_after_collapse"])
        return bool(summary["updates"] >= target)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def failed_in(run: RunPaths, job: str) -> bool:
    """Whether the run's last attempt failed by itself in this very job: requeueing it is no second chance."""
    attempts = read_attempts(run)
    left = attempts[-1].left if attempts else None
    if left is None or left.get("job") != job or left.get("requeue"):
        return False
    return left.get("exit_code") not in (Exit.FINISHED, Exit.INTERRUPTED, Exit.BUSY)


def attempt_of(run: RunPaths, pid: int | None, expected: int) -> int:
    """Number of the attempt that this machine's process `pid` started; `expected` where it started none."""
    host = socket.gethostname()
    for attempt in reversed(read_attempts(run)):
        started = attempt.started
        if started is not None and started.get("pid") == pid and started.get("host") == host:
            return attempt.number
    return expected


def is_superseded(run: RunPaths, number: int) -> bool:
    """Whether this attempt stopped because a newer one of another job writes the run's record."""
    return any(
        attempt.number == number and attempt.ended is not None and attempt.ended.get("how") == "superseded"
        for attempt in read_attempts(run)
    )


def why_not_again(run: RunPaths, job: str, number: int, max_timeouts: int) -> str | None:
    """Why a run that attempt `number` did not finish within the time limit is not to be run once more."""
    attempts = [attempt for attempt in read_attempts(run) if attempt.number <= number]
    earlier = [attempt for attempt in attempts if attempt.number < number and _timed_out(attempt, job)]
    if len(earlier) >= max_timeouts:
        return f"it has reached its time limit {len(earlier) + 1} times (max_timeouts={max_timeouts})"
    if earlier and not _progressed(attempts, number) and not _progressed(attempts, earlier[-1].number):
        return (
            "it made no progress between its last two time limits: raise the time limit, or make the part of "
            "its work that does not fit in smaller"
        )
    return None


def _timed_out(attempt: AttemptRecord, job: str) -> bool:
    left = attempt.left
    return left is not None and left.get("job") == job and left.get("asked") == Asked.TIME_LIMIT


def _progressed(attempts: Sequence[AttemptRecord], number: int) -> bool:
    """Whether an attempt ended at a later update than all attempts before it."""
    steps = {attempt.number: int((attempt.ended or {}).get("step") or 0) for attempt in attempts}
    before = max((step for other, step in steps.items() if other < number), default=0)
    return steps.get(number, 0) > before
