"""What Slurm says of jobs: one call of squeue, one of sacct for those that left the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from launcher.failures import Failure
from trainer.errors import UserError
from trainer.record import JobState

if TYPE_CHECKING:
    from launcher.slurm.commands import Slurm


@dataclass(frozen=True, slots=True)
class Evidence:
    """What Slurm says of one job or array task."""

    word: str
    """Its state in one word, as Slurm's long form has it: RUNNING, NODE_FAIL, …"""
    queued: bool
    """Whether squeue says so; else accounting does."""
    reason: str | None = None
    """Why it waits, or the controller's remark."""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str | None = None
    time_left: float | None = None
    """Seconds to its time limit, while it runs."""


QUEUED, RUNNING, FINISHING = JobState.QUEUED, JobState.RUNNING, JobState.FINISHING
STATES: Mapping[str, tuple[JobState | None, Failure | None]] = {
    # waiting
    "PENDING": (QUEUED, None),
    "REQUEUED": (QUEUED, None),  # the old process may still be ending
    "REQUEUE_FED": (QUEUED, None),
    "REQUEUE_HOLD": (QUEUED, None),
    "RESV_DEL_HOLD": (QUEUED, None),
    "SPECIAL_EXIT": (QUEUED, None),  # requeued by an epilog, and held
    # on nodes
    "CONFIGURING": (RUNNING, None),
    "POWER_UP_NODE": (RUNNING, None),
    "RUNNING": (RUNNING, None),
    "RESIZING": (RUNNING, None),
    "SIGNALING": (RUNNING, None),
    "STAGE_OUT": (RUNNING, None),
    "SUSPENDED": (RUNNING, None),  # it keeps its place and goes on
    "STOPPED": (RUNNING, None),
    "EXPEDITING": (RUNNING, None),
    "UPDATE_DB": (RUNNING, None),
    "COMPLETING": (FINISHING, None),
    # over; the run's record says whether it finished
    "COMPLETED": (None, None),
    "FAILED": (None, None),
    # over
    "BOOT_FAIL": (JobState.KILLED, Failure.NODE_FAILURE),
    "CANCELLED": (JobState.INTERRUPTED, Failure.CANCELLED),
    "DEADLINE": (JobState.INTERRUPTED, Failure.TIME_LIMIT),
    "LAUNCH_FAILED": (JobState.FAILED, Failure.CONFIG),
    "NODE_FAIL": (JobState.KILLED, Failure.NODE_FAILURE),
    "OUT_OF_MEMORY": (JobState.KILLED, Failure.OUT_OF_MEMORY),
    "PREEMPTED": (JobState.INTERRUPTED, Failure.PREEMPTED),
    "RECONFIG_FAIL": (JobState.KILLED, Failure.NODE_FAILURE),
    "REVOKED": (JobState.INTERRUPTED, Failure.CANCELLED),  # a sibling cluster of a federation runs it
    "TIMEOUT": (JobState.INTERRUPTED, Failure.TIME_LIMIT),
}
"""Every state that a Slurm command may name → what it means here; (None, None): the record decides."""


OVER = frozenset(word for word, (job, failure) in STATES.items() if failure is not None or job is None)
"""Words of jobs that do not go on; COMPLETING is not among them."""

HELD = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "held")
"""In a reason: the job waits for somebody to let it go. So say `launch failed requeued held` and the like."""
HELD_WORDS = ("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
SETTLING = 30.0
"""Seconds for which a job that left the queue may be unknown to accounting."""


def queue_state(evidence: Evidence) -> JobState:
    """State of a job that is in the queue.

    A word for an end, which the controller may show while it cleans up or puts the job back, is no end yet.
    """
    job, _ = STATES.get(evidence.word, (JobState.UNKNOWN, None))
    return JobState.FINISHING if evidence.word in OVER or job is None else job


def after_queue(last_sign: float, now: float) -> JobState:
    """State of a job that neither squeue nor accounting knows, by its last sign of life (Unix seconds)."""
    return JobState.FINISHING if now - last_sign < SETTLING else JobState.LOST


def with_release(job: str, evidence: Evidence) -> Evidence:
    """The evidence, with what lets a held job go in its reason."""
    reason = evidence.reason or ""
    if queue_state(evidence) != JobState.QUEUED:
        return evidence
    if evidence.word not in HELD_WORDS and not any(words in reason for words in HELD):
        return evidence
    who = "an administrator can let it go: " if reason == "JobHeldAdmin" else ""
    why = f"held ({reason or evidence.word}): {who}`scontrol release {job}`"
    return replace(evidence, reason=why)


@dataclass(frozen=True, slots=True)
class Observation:
    """What Slurm said at one moment."""

    jobs: Mapping[str, Evidence] = field(default_factory=dict)
    answered: bool = True
    """Whether squeue did; if not, nothing is known of any job."""
    accounting: bool = True
    """Whether there is accounting that answers."""
    notices: tuple[str, ...] = ()
    """What the user should know of the answers, each once."""

    def of(self, job: str) -> Evidence | None:
        return self.jobs.get(job)


def observe(slurm: Slurm, jobs: Mapping[str, float]) -> Observation:
    """Ask about array tasks that have no finished record (job → when it was sent): squeue once, and sacct
    once for those that left the queue.

    What accounting calls pending or running though it is not in the queue has ended, and accounting has yet
    to hear of it: that is no evidence.
    """
    from launcher.slurm.commands import NoAnswer

    try:
        queue = slurm.queue()
    except (NoAnswer, UserError) as fault:  # or there is no Slurm on this machine
        return Observation(answered=False, notices=(f"Slurm does not answer ({fault}): states are unknown",))
    found = {job: with_release(job, queue[job]) for job in jobs if job in queue}
    gone = {job: sent for job, sent in jobs.items() if job not in queue}
    if not gone:
        return Observation(found)
    ended = slurm.accounting({job.partition("_")[0] for job in gone}, min(gone.values()))
    if ended is None:
        notice = f"{slurm.no_accounting}: how jobs ended is told from what they wrote"
        return Observation(found, accounting=False, notices=(notice,))
    for job in gone:
        evidence = ended.get(job)
        if evidence is not None and (evidence.word in OVER or evidence.word not in STATES):
            found[job] = evidence
    return Observation(found)
