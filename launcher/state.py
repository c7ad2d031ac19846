"""What happened to the job of each run, put together from what is on disk. Reading never writes.

Three witnesses, in the order in which they are believed: the lock that the kernel keeps for a training
process, the job's own `state.json`, and the launcher's ledger, which alone knows of jobs that died before
they could write. The latest attempt wins over all earlier ones.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.failures import AT_SUBMIT, Failure, class_of_text
from launcher.ledger import End, Ledger, SlurmTask, Start
from launcher.process import is_alive
from launcher.slurm.task_state import task_state
from trainer.attempts import read_attempts
from trainer.budget import Budget
from trainer.record import (
    Exit,
    JobState,
    Outcome,
    RunPaths,
    RunState,
    Summary,
    SweepPaths,
    is_training,
    read_state,
    read_summary,
)

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation

OPEN_OUTCOMES = (Outcome.STABLE, Outcome.PENDING, Outcome.UNDETECTABLE)
"""Outcomes that hold up to the horizon reached: a larger horizon continues the run."""

TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Job state and record of one run."""

    run_id: str
    job: JobState
    attempt: int
    """The attempt that `job` speaks of; 0 before the first."""
    state: RunState | None
    summary: Summary | None
    """Only of a finished run: the numbers of an earlier attempt do not count."""
    detail: str | None = None
    """Why it failed or was killed: last lines of the traceback, or the signal and the log's last lines."""
    log: Path | None = None
    failure: Failure | None = None
    """Class of a job that ended without a finished record."""
    job_id: str | None = None
    """Of its last job in Slurm, as squeue has it: `17_3`."""
    node: str | None = None
    """Where its last job in Slurm ran or runs, as Slurm names it."""
    time_left: float | None = None
    """Seconds to the time limit of its job in Slurm, while it runs."""

    @property
    def outcome(self) -> Outcome | None:
        return self.summary.outcome if self.summary else None

    def to_run(self, budget: Budget, retry: Collection[Failure] = AT_SUBMIT) -> bool:
        """Whether a submission that retries these failures has to start this run.

        It has to where the run never ran, was stopped, failed in one of these ways, or where its budget has
        grown since it finished; a job that exists, or may exist, is never doubled.
        """
        if self.job == JobState.FINISHED and self.summary is not None:
            return self.summary.outcome in OPEN_OUTCOMES and self.summary.updates < budget.horizon
        if self.failure is not None:
            return self.failure in retry
        stopped = (JobState.PLANNED, JobState.WAITING, JobState.INTERRUPTED)
        # a queue of a launcher here ends with that launcher
        return self.job in stopped or (self.job == JobState.QUEUED and self.job_id is None)


def job_state(paths: RunPaths, ledger: Ledger, observation: Observation | None = None) -> RunStatus:
    """State of one run; `observation` is what Slurm said, where its last job is one of Slurm's.

    A state file that says running under a free lock is that of a killed job, where the job ran here.
    """
    task = ledger.tasks.get(paths.run_id)
    status = _local(paths, ledger) if task is None else _in_slurm(paths, task, observation)
    idle = (JobState.PLANNED, JobState.INTERRUPTED, JobState.KILLED, JobState.FAILED, JobState.LOST)
    if paths.run_id in ledger.no_room and status.job in idle:
        return replace(status, job=JobState.WAITING, failure=None)
    return status


def job_states(
    runs: Iterable[RunPaths], ledger: Ledger, observation: Observation | None = None
) -> dict[str, RunStatus]:
    """State of every run, by run id, in the order given."""
    return {paths.run_id: job_state(paths, ledger, observation) for paths in runs}


def ask_slurm(ledger: Ledger, runs: Iterable[RunPaths]) -> Observation | None:
    """What Slurm says of the tasks of runs that have no finished record; None where there are none."""
    jobs: dict[str, float] = {}
    for paths in runs:
        task = ledger.tasks.get(paths.run_id)
        if task is not None and task.job is not None and not is_finished(paths, task):
            jobs[task.job] = task.sent
    if not jobs:
        return None
    from launcher.slurm.commands import Slurm
    from launcher.slurm.evidence import observe

    return observe(Slurm(), jobs)


def _local(paths: RunPaths, ledger: Ledger) -> RunStatus:
    state, training = _observe(paths)
    start = ledger.last.get(paths.run_id)
    recorded = state.attempt if state else 0
    attempt = max(recorded, start.attempt if start else 0)
    log = _log(paths, attempt)
    begun = start if start is not None and start.attempt == attempt else None
    if begun is not None and begun.end is None and recorded < attempt:
        training = training or is_alive(begun.pid, begun.born, begun.host)
    if training:
        return RunStatus(paths.run_id, JobState.RUNNING, attempt, state, None, None, log)
    job, failure, detail = _ended(paths, state if recorded == attempt else None, begun, log)
    summary = read_summary(paths) if job == JobState.FINISHED else None
    if job not in (JobState.FINISHED, JobState.FAILED) and paths.run_id in ledger.waiting:
        job, failure = JobState.QUEUED, None
    return RunStatus(paths.run_id, job, attempt, state, summary, detail, log, failure)


def _in_slurm(paths: RunPaths, task: SlurmTask, observation: Observation | None) -> RunStatus:
    state, attempts = read_state(paths), read_attempts(paths)
    finished = state is not None and state.state == "finished" and paths.summary.is_file()
    number = attempts[-1].number if attempts else 0
    log = _log(paths, number)
    output = task.output(SweepPaths(paths.folder.parent.parent))

    def texts() -> str:
        own = tail(log) if number else None
        return "\n".join(filter(None, (tail(output if output.is_file() else None), own)))

    found = task_state(task, observation, attempts, state, finished, texts, time.time())
    return RunStatus(
        paths.run_id,
        found.job,
        number,
        state,
        read_summary(paths) if found.job == JobState.FINISHED else None,
        found.detail,
        log or (output if output.is_file() else None),
        found.failure,
        task.job,
        found.node,
        found.time_left,
    )


def is_finished(paths: RunPaths, task: SlurmTask) -> bool:
    """Whether the run's record says that this task finished it."""
    state = read_state(paths)
    if state is None or state.state != "finished" or not paths.summary.is_file():
        return False
    attempts = read_attempts(paths)
    return bool(attempts) and attempts[-1].job == task.job


def _log(paths: RunPaths, attempt: int) -> Path | None:
    return paths.log(attempt) if attempt and paths.log(attempt).is_file() else None


def _observe(paths: RunPaths) -> tuple[RunState | None, bool]:
    """State file and lock that belong together: a job may start or end between two looks."""
    state, training = read_state(paths), is_training(paths)
    if state is not None and state.state == "running" and not training:
        state, training = read_state(paths), is_training(paths)
    return state, training


def _ended(
    paths: RunPaths, state: RunState | None, start: Start | None, log: Path | None
) -> tuple[JobState, Failure | None, str | None]:
    """State, class and reason of a run that nobody trains; `state` and `start` are of its latest attempt."""
    if state is not None and state.state == "finished":
        if paths.summary.is_file():
            return JobState.FINISHED, None, None
        reason = "the job says it finished but left no summary.json"
        return JobState.FAILED, Failure.EXCEPTION, reason
    if state is not None and state.state == "failed":
        reason = state.error or tail(log) or ""
        return JobState.FAILED, class_of_text(reason) or Failure.EXCEPTION, reason
    if state is not None and state.state == "interrupted":
        return JobState.INTERRUPTED, None, None
    if start is None:
        killed = (JobState.KILLED, Failure.KILLED, _killed(None, log))
        return (JobState.PLANNED, None, None) if state is None else killed
    if start.end == End.INTERRUPTED:
        return JobState.INTERRUPTED, None, None
    if start.end in (None, End.KILLED):
        return JobState.KILLED, Failure.KILLED, _killed(start.signal, log)
    reason = "\n".join(filter(None, (f"exit code {start.exit_code} without a finished record", tail(log))))
    failure = Failure.CONFIG if start.exit_code == Exit.USER_ERROR else class_of_text(reason)
    return JobState.FAILED, failure or Failure.EXCEPTION, reason


def _killed(number: int | None, log: Path | None) -> str:
    """One line on the signal, then what the job had printed last."""
    if number is None:
        reason = "killed, with no word of how"
    else:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        reason = f"killed by {name}" + (" (often: out of memory)" if number == signal.SIGKILL else "")
    return "\n".join(filter(None, (reason, tail(log))))


def tail(log: Path | None, lines: int = TAIL_LINES) -> str | None:
    """The last lines of a log, read from its end; None when there is nothing in it."""
    if log is None:
        return None
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 16_384))
        text = file.read().decode(errors="replace").strip()
    return "\n".join(text.splitlines()[-lines:]) or None
