"""Why a job did not finish, and which commands run it again by themselves."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
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
    (Failure.NODE_FAILURE, r"\bNODE FAILURE\b|error: Node failure"),
    (Failure.CONFIG, r"^(?:ModuleNotFoundError|ImportError): |: command not found$|No module named "),
)
"""What tells a class in the text that a job printed, the surest first."""
STEP_ENDED = re.compile(r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
"""What Slurm writes into a job's output when it ends it; of those of a requeued job the last one counts."""
DUE_TO = {
    "TIME LIMIT": Failure.TIME_LIMIT,
    "PREEMPTION": Failure.PREEMPTED,
    "NODE FAILURE": Failure.NODE_FAILURE,
}
STEP_KILLED = re.compile(r"error: \S+: tasks? [\d,-]+: Killed")
"""srun says so of a step whose node died, and of one that somebody killed."""

HINTS = {
    Failure.OUT_OF_MEMORY: "raise mem_per_run in the site profile, or lower resources.micro_batch_tokens",
    Failure.DISK_FULL: "free space or raise the quota, then `grposweep resume`",
    Failure.NODE_FAILURE: "`grposweep resume` starts it again, away from that node",
    Failure.LOST: "`grposweep resume` starts it again",
}
REQUEUE_FAILED = 85
"""Exit code of a script that could not requeue its task."""
SIGNAL_53 = 53
"""Not a signal: so Slurm says that it could not open the output file, or enter the folder, on the node."""


def class_of_text(text: str) -> Failure | None:
    """The class that the last lines of a job tell; None when they tell none.

    >>> class_of_text("OSError: [Errno 28] No space left on device")
    <Failure.DISK_FULL: 'disk_full'>
    """
    for failure, pattern in SIGNS:
        if re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return failure
    return None


def class_of_ending(text: str) -> Failure | None:
    """As `class_of_text`, of a job that Slurm may have ended, where it said why in the job's output.

    >>> class_of_ending("error: *** JOB 20 ON n1 CANCELLED AT 2026-11-30T21:05:44 DUE TO TIME LIMIT ***")
    <Failure.TIME_LIMIT: 'time_limit'>
    """
    told = class_of_text(text)
    ends = STEP_ENDED.findall(text)
    if not ends or told in (Failure.OUT_OF_MEMORY, Failure.DISK_FULL):
        return told
    due = ends[-1].strip()
    return next((found for words, found in DUE_TO.items() if due.startswith(words)), Failure.CANCELLED)


def classify(
    evidence: Evidence | None,
    attempt: AttemptRecord | None,
    state: RunState | None,
    text: str,
    *,
    finished: bool = False,
) -> tuple[JobState, Failure | None, str]:
    """Job state, class and reason of a task that is over.

    `attempt` and `state` are those of the attempt that this task made, None where it never made one; `text`
    is what script and trainer printed last. `finished`: the run has a finished record: the last word.
    """
    from launcher.slurm.evidence import STATES

    if finished:
        return JobState.FINISHED, None, ""
    if evidence is not None and evidence.word not in STATES:
        return JobState.UNKNOWN, None, f"Slurm says {evidence.word}, which this version does not know"
    left = attempt.left if attempt else None
    failure = _class(evidence, attempt, left, state, text)
    if failure is None:
        return JobState.INTERRUPTED, None, _stopped(attempt)
    said = state.error if state is not None and state.state == "failed" else None
    if not said or failure not in (Failure.EXCEPTION, Failure.CONFIG):
        said = None
    reason = said or _reason(evidence, left, failure, attempt is not None)
    lines = [reason, _hint(evidence, failure), "" if said else text]
    return JOBS[failure], failure, "\n".join(filter(None, lines))


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
    code = left.get("exit_code") if left else None
    if (state is not None and state.state == "failed") or code == Exit.FAILED:
        return class_of_text((state.error if state else None) or text) or Failure.EXCEPTION
    if code == Exit.USER_ERROR:
        return Failure.CONFIG
    told = STATES[word][1] if word else None
    if told is not None:
        return told
    if left is not None:
        return _class_of_exit(left, text)
    return _class_without_supervisor(evidence, attempt, text)


def _class_of_exit(left: Any, text: str) -> Failure | None:
    """From how the trainer's process ended, as its supervisor saw it."""
    asked, code = left.get("asked"), left.get("exit_code")
    if asked in ("time_limit", "preempted", "cancelled"):
        return Failure(asked)
    if asked is not None or code == Exit.INTERRUPTED:
        return None
    return class_of_text(text) or (Failure.KILLED if left.get("signal") is not None else Failure.EXCEPTION)


def _class_without_supervisor(
    evidence: Evidence | None, attempt: AttemptRecord | None, text: str
) -> Failure | None:
    """Of a task whose supervisor wrote no last line: it died with its task, or never began."""
    code, number = (evidence.exit_code, evidence.signal) if evidence else (None, None)
    ended: Mapping[str, Any] = (attempt.ended if attempt else None) or {}
    how = ended.get("how")
    if how in ("interrupted", "superseded") or code == REQUEUE_FAILED:
        return None
    told = class_of_ending(text)
    if told is not None:
        return told
    if how == "exception":
        return class_of_text(str(ended.get("reason"))) or Failure.EXCEPTION
    if STEP_KILLED.search(text):
        # a step that is killed while its script gets SIGTERM is what a dying node looks like; with SIGKILL
        # alone somebody, or the kernel, killed it
        asked = code == 128 + signal.SIGTERM or number == signal.SIGTERM
        return Failure.NODE_FAILURE if asked else Failure.KILLED
    if evidence is None:
        return Failure.LOST
    real = number is not None and number != SIGNAL_53
    if real or code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return Failure.KILLED
    if evidence.word == "COMPLETED" or (attempt is not None and code != Exit.USER_ERROR):
        return Failure.EXCEPTION
    return Failure.CONFIG


def _hint(evidence: Evidence | None, failure: Failure) -> str:
    if failure == Failure.CONFIG and evidence is not None and evidence.signal == SIGNAL_53:
        return "Slurm could not enter the sweep's folder or open the output file there: is it on every node?"
    return HINTS.get(failure, "")


def _reason(evidence: Evidence | None, left: Any, failure: Failure, begun: bool) -> str:
    """One sentence on what is known; `begun`: an attempt was made."""
    parts = []
    if evidence is not None:
        by = f" {evidence.reason}" if evidence.reason else ""
        by = re.sub(r"^ by (\d+)$", r" by user \1", by)
        where = f" on {evidence.nodes}" if evidence.nodes else ""
        parts.append(f"Slurm says {evidence.word}{by}{where}{_exit(evidence)}")
    if left is not None:
        number, code = left.get("signal"), left.get("exit_code")
        how = f"was ended by signal {number}" if number is not None else f"left with exit code {code}"
        asked = f" after it was asked to stop ({left['asked']})" if left.get("asked") else ""
        parts.append(f"the trainer {how}{asked}")
    if parts:
        return "; ".join(parts)
    if failure != Failure.LOST:
        return "its job is gone from Slurm; its output tells"
    lost = "its job is gone from Slurm, and neither accounting nor the run says how it ended"
    return (
        lost if begun else f"{lost} (one task of an array that is cancelled while it waits leaves no trace)"
    )


def _exit(evidence: Evidence) -> str:
    if evidence.signal:
        return f", signal {evidence.signal}"
    return f", exit code {evidence.exit_code}" if evidence.exit_code else ""


def _stopped(attempt: AttemptRecord | None) -> str:
    ended = attempt.ended if attempt else None
    return str(ended["reason"]) if ended and ended.get("reason") else ""
