"""Why a job did not finish, and which commands run it again by themselves."""

from __future__ import annotations

import re
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainer.record import Exit, JobState, RunState

if TYPE_CHECKING:
    from launcher.slurm.evidence import Evidence
    from trainer.attempts import AttemptRecord


class Failure(StrEnum):
    """Class of a job that ended without a finished record."""

    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE_FAILURE = "node_failure"
    CANCELLED = "cancelled"
    CONFIG = "config"
    """The job could not begin: a module is missing, a package has another version, a folder is not valid."""
    EXCEPTION = "exception"
    KILLED = "killed"
    """A signal of unknown origin ended it."""
    LOST = "lost"
    """Its job is gone without a word."""


AT_SUBMIT = frozenset({Failure.PREEMPTED, Failure.TIME_LIMIT, Failure.CANCELLED, Failure.KILLED})
"""Run again by `submit`: nothing was wrong with the run."""
AT_RESUME = AT_SUBMIT | {Failure.NODE_FAILURE, Failure.LOST, Failure.DISK_FULL}
"""Run again by `resume`. The others would fail the same way again, so `--retry` has to name them."""

JOBS = {
    Failure.OUT_OF_MEMORY: JobState.KILLED,
    Failure.DISK_FULL: JobState.FAILED,
    Failure.TIME_LIMIT: JobState.INTERRUPTED,
    Failure.PREEMPTED: JobState.INTERRUPTED,
    Failure.NODE_FAILURE: JobState.KILLED,
    Failure.CANCELLED: JobState.INTERRUPTED,
    Failure.CONFIG: JobState.FAILED,
    Failure.EXCEPTION: JobState.FAILED,
    Failure.KILLED: JobState.KILLED,
    Failure.LOST: JobState.LOST,
}
"""Job state of a run that ended in a way."""

SIGNS = (
    (
        Failure.OUT_OF_MEMORY,
        r"oom[-_ ]?kill|Out Of Memory|OutOfMemoryError|CUDA out of memory|\bMemoryError\b|"
        r"Cannot allocate memory|exceeded (?:job|step) memory limit|can't allocate memory",
    ),
    (Failure.DISK_FULL, r"No space left on device|Disk quota exceeded|\bENOSPC\b|\bEDQUOT\b"),
    (Failure.NODE_FAILURE, r"\bNODE FAILURE\b|error: Node failure|error: \S+: tasks? [\d,-]+: Killed"),
    (Failure.CONFIG, r"^(?:ModuleNotFoundError|ImportError): |: command not found$|No module named "),
)
"""What tells a class in the text that a job printed, the surest first."""

HINTS = {
    Failure.OUT_OF_MEMORY: "raise mem_per_run in the site profile, or lower resources.micro_batch_tokens",
    Failure.DISK_FULL: "free space (`grposweep gc` says what can go)",
}


def class_of_text(text: str) -> Failure | None:
    """The class that the last lines of a job tell; None when they tell none.

    >>> class_of_text("OSError: [Errno 28] No space left on device")
    <Failure.DISK_FULL: 'disk_full'>
    """
    for failure, pattern in SIGNS:
        if re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return failure
    return None


def classify(
    evidence: Evidence | None, attempt: AttemptRecord | None, state: RunState | None, text: str
) -> tuple[JobState, Failure | None, str | None]:
    """Job state, class and reason of a task that is over and whose run has no finished record.

    `attempt` and `state` are those of the attempt that this task made, None where it never made one; `text`
    is what script and trainer printed last.
    """
    left = attempt.left if attempt else None
    failure = _class(evidence, attempt, left, state, text)
    if failure is None:
        return JobState.INTERRUPTED, None, _stopped(attempt)
    said = state.error if state is not None and state.state == "failed" else None
    reason = (
        said if said and failure in (Failure.EXCEPTION, Failure.CONFIG) else _reason(evidence, left, failure)
    )
    lines = [reason, HINTS.get(failure, ""), "" if said else text]
    return JOBS[failure], failure, "\n".join(filter(None, lines)) or None


def _class(
    evidence: Evidence | None,
    attempt: AttemptRecord | None,
    left: Any,
    state: RunState | None,
    text: str,
) -> Failure | None:
    """None: it was asked to stop, by nobody in particular, and did."""
    from launcher.slurm.evidence import STATES

    word = evidence.word if evidence else None
    if word == "OUT_OF_MEMORY":
        return Failure.OUT_OF_MEMORY
    failed = state is not None and state.state == "failed"
    if failed or (left and left.get("exit_code") == Exit.FAILED):
        return class_of_text((state.error if failed and state else None) or text) or Failure.EXCEPTION
    told = STATES.get(word, (None, None))[1] if word else None
    if told is not None:
        return told
    if left is not None:
        return _class_of_exit(left, text)
    if attempt is None:  # it never came to an attempt
        if evidence is None:
            return Failure.LOST
        return class_of_text(text) or Failure.CONFIG
    if attempt.ended is not None and attempt.ended.get("how") == "interrupted":
        return None
    killed = evidence is not None and (evidence.signal == signal.SIGKILL or evidence.exit_code in (137, 143))
    if evidence is None:
        return class_of_text(text) or Failure.LOST
    return class_of_text(text) or (Failure.KILLED if killed else Failure.EXCEPTION)


def _class_of_exit(left: Any, text: str) -> Failure | None:
    """From how the trainer's process ended, as its supervisor saw it."""
    asked, code = left.get("asked"), left.get("exit_code")
    if asked in ("time_limit", "preempted", "cancelled"):
        return Failure(asked)
    if code == Exit.USER_ERROR:
        return Failure.CONFIG
    if asked is not None or code == Exit.INTERRUPTED:
        return None
    if left.get("signal") is not None:
        return class_of_text(text) or Failure.KILLED
    return class_of_text(text) or Failure.EXCEPTION


def _reason(evidence: Evidence | None, left: Any, failure: Failure) -> str:
    """One sentence on what is known."""
    if failure == Failure.LOST:
        return "its job is gone from Slurm, and neither accounting nor the run says how it ended"
    parts = []
    if evidence is not None:
        by = f" {evidence.reason}" if evidence.reason else ""
        parts.append(f"Slurm says {evidence.word}{by}" + (f" on {evidence.nodes}" if evidence.nodes else ""))
    if left is not None:
        number, code = left.get("signal"), left.get("exit_code")
        how = f"was ended by signal {number}" if number is not None else f"left with exit code {code}"
        asked = f" after it was asked to stop ({left['asked']})" if left.get("asked") else ""
        parts.append(f"the trainer {how}{asked}")
    return "; ".join(parts)


def _stopped(attempt: AttemptRecord | None) -> str | None:
    ended = attempt.ended if attempt else None
    return str(ended["reason"]) if ended and ended.get("reason") else None
