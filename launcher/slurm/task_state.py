"""The state of a run whose last job is an array task of Slurm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.failures import Failure, classify
from launcher.ledger import SlurmTask
from launcher.slurm.evidence import SETTLING as SETTLING
from launcher.slurm.evidence import STATES, Evidence, Observation, after_queue, queue_state
from trainer.attempts import AttemptRecord
from trainer.record import JobState, RunState

NOT_OVER = (JobState.QUEUED, JobState.RUNNING, JobState.FINISHING)
UNKNOWN = (JobState.UNKNOWN, None)


@dataclass(frozen=True, slots=True)
class TaskState:
    """What became of a task, as far as one of its runs is concerned."""

    job: JobState
    failure: Failure | None = None
    detail: str | None = None
    node: str | None = None
    time_left: float | None = None


def task_state(
    task: SlurmTask,
    observation: Observation | None,
    attempts: Sequence[AttemptRecord],
    state: RunState | None,
    finished: bool,
    texts: Callable[[], str],
    now: float,
) -> TaskState:
    """State of a run from what Slurm says of its task and what its last attempt wrote.

    The record of a finished run is the last word. `finished`: state.json says so and there is a summary.
    `texts` reads what the job printed last, and is called only where it decides.
    """
    latest = attempts[-1] if attempts else None
    own = latest if latest is not None and latest.job == task.job else None
    node = str(own.started["node"]) if own and own.started and own.started.get("node") else None
    if finished and own is not None:
        return TaskState(JobState.FINISHED, node=node)
    if task.job is None:
        return TaskState(
            JobState.UNKNOWN, detail="sbatch had not answered: the next submit or resume asks again"
        )
    if observation is None or not observation.answered:
        return TaskState(JobState.UNKNOWN, detail="squeue does not answer", node=node)
    evidence = observation.of(task.job)
    if evidence is not None and evidence.queued:
        found = _in_queue(evidence, own)
        if found is not None:
            return found
        evidence = None  # the task goes on with other runs
    elif evidence is not None and STATES.get(evidence.word, UNKNOWN)[0] in NOT_OVER:
        evidence = None  # accounting has not heard of its end, and may never
    gone = evidence is None and (own is None or own.left is None)
    if gone and after_queue(_last_sign(task, own, state), now) == JobState.FINISHING:
        return TaskState(JobState.FINISHING, node=node)
    job, failure, detail = classify(evidence, own, state if own else None, texts())
    return TaskState(job, failure, detail or None, (evidence.nodes if evidence else None) or node)


def _in_queue(evidence: Evidence, own: AttemptRecord | None) -> TaskState | None:
    """State of a run whose task squeue shows; None when the run itself has ended and others go on."""
    job = queue_state(evidence)
    over = own is not None and own.left is not None and not own.left.get("requeue")
    if over and job == JobState.RUNNING:
        return None
    detail = evidence.reason if job == JobState.QUEUED else None
    if evidence.word not in STATES:
        detail = f"squeue says {evidence.word}, which this version does not know"
    return TaskState(job, None, detail, evidence.nodes, evidence.time_left)


def _last_sign(task: SlurmTask, own: AttemptRecord | None, state: RunState | None) -> float:
    """Unix time of the last sign of life of a task."""
    signs = [task.sent]
    for line in (own.started, own.ended, own.left) if own else ():
        if line is not None:
            signs.append(float(line["time"]))
    if own is not None and state is not None and state.attempt == own.number:
        signs.append(state.heartbeat)
    return max(signs)
