"""What happened to the job of each run, put together from what is on disk. Reading never writes.

Three witnesses, in the order in which they are believed: the lock that the kernel keeps for a training
process, the job's own `state.json`, and the launcher's ledger, which alone knows of jobs that died before
they could write. The latest attempt wins over all earlier ones.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.ledger import End, Ledger, Start
from launcher.process import is_alive
from trainer.budget import Budget
from trainer.record import (
    JobState,
    Outcome,
    RunPaths,
    RunState,
    Summary,
    is_training,
    read_state,
    read_summary,
)

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

    @property
    def outcome(self) -> Outcome | None:
        return self.summary.outcome if self.summary else None

    def to_run(self, budget: Budget, *, retry_failed: bool = False) -> bool:
        """Whether a submission has to start this run: it never ended, or its budget has grown since."""
        if self.job == JobState.FAILED:
            return retry_failed
        if self.job != JobState.FINISHED or self.summary is None:
            return self.job != JobState.RUNNING
        return self.summary.outcome in OPEN_OUTCOMES and self.summary.updates < budget.horizon


def job_state(paths: RunPaths, ledger: Ledger) -> RunStatus:
    """State of one run. A state file that says running under a free lock is that of a killed job."""
    state, training = _observe(paths)
    start = ledger.last.get(paths.run_id)
    recorded = state.attempt if state else 0
    attempt = max(recorded, start.attempt if start else 0)
    log = paths.log(attempt) if attempt and paths.log(attempt).is_file() else None
    begun = start if start is not None and start.attempt == attempt else None
    if begun is not None and begun.end is None and recorded < attempt:
        training = training or is_alive(begun.pid, begun.born, begun.host)
    if training:
        return RunStatus(paths.run_id, JobState.RUNNING, attempt, state, None, None, log)
    job, detail = _ended(paths, state if recorded == attempt else None, begun, log)
    summary = read_summary(paths) if job == JobState.FINISHED else None
    if job not in (JobState.FINISHED, JobState.FAILED) and paths.run_id in ledger.waiting:
        job = JobState.QUEUED
    return RunStatus(paths.run_id, job, attempt, state, summary, detail, log)


def job_states(runs: Iterable[RunPaths], ledger: Ledger) -> dict[str, RunStatus]:
    """State of every run, by run id, in the order given."""
    return {paths.run_id: job_state(paths, ledger) for paths in runs}


def _observe(paths: RunPaths) -> tuple[RunState | None, bool]:
    """State file and lock that belong together: a job may start or end between two looks."""
    state, training = read_state(paths), is_training(paths)
    if state is not None and state.state == "running" and not training:
        state, training = read_state(paths), is_training(paths)
    return state, training


def _ended(
    paths: RunPaths, state: RunState | None, start: Start | None, log: Path | None
) -> tuple[JobState, str | None]:
    """State and reason of a run that nobody trains; `state` and `start` are those of its latest attempt."""
    if state is not None and state.state == "finished":
        if paths.summary.is_file():
            return JobState.FINISHED, None
        return JobState.FAILED, "the job says it finished but left no summary.json"
    if state is not None and state.state == "failed":
        return JobState.FAILED, state.error or tail(log)
    if state is not None and state.state == "interrupted":
        return JobState.INTERRUPTED, None
    if start is None:
        return (JobState.PLANNED, None) if state is None else (JobState.KILLED, _killed(None, log))
    if start.end == End.INTERRUPTED:
        return JobState.INTERRUPTED, None
    if start.end in (None, End.KILLED):
        return JobState.KILLED, _killed(start.signal, log)
    reason = f"exit code {start.exit_code} without a finished record"
    return JobState.FAILED, "\n".join(filter(None, (reason, tail(log))))


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
