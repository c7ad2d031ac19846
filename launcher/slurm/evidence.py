"""What Slurm says of jobs: one call of squeue, one of sacct for those that left the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Observation:
    """What Slurm said at one moment."""

    jobs: Mapping[str, Evidence] = field(default_factory=dict)
    answered: bool = True
    """Whether squeue did; if not, nothing is known of any job."""
    accounting: bool = True
    """Whether there is accounting that answers."""

    def of(self, job: str) -> Evidence | None:
        return self.jobs.get(job)


def observe(slurm: Slurm, jobs: Mapping[str, float]) -> Observation:
    """Ask about array tasks (job → when it was sent): squeue, and sacct for those that left the queue."""
    from launcher.slurm.commands import NoAnswer

    try:
        queue = slurm.queue()
    except (NoAnswer, UserError):  # or there is no Slurm on this machine
        return Observation(answered=False)
    found = {job: queue[job] for job in jobs if job in queue}
    gone = {job: sent for job, sent in jobs.items() if job not in queue}
    if not gone:
        return Observation(found)
    ended = slurm.accounting(sorted({job.partition("_")[0] for job in gone}), min(gone.values()))
    found |= {job: ended[job] for job in gone if job in (ended or {})} if ended else {}
    return Observation(found, accounting=ended is not None)
