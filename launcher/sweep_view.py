"""What is known of a sweep at one moment, for commands that look. Reading writes nothing.

A `Reader` looks again cheaply: what finished runs left is read once, the ledger when it has changed, and
Slurm is asked at most every `SLURM_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.ledger import Ledger, read_ledger
from launcher.selectors import select
from launcher.state import RunStatus, ask_slurm, job_state
from trainer.files import is_locked
from trainer.record import Cell, JobState, RunPaths, SweepFile, SweepPaths, read_sweep

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation

SLURM_SECONDS = 10.0
"""Between two questions to Slurm: its controller has others to serve."""

NO_ACCOUNTING = "Slurm's accounting does not answer: how jobs ended is told by their own records alone"

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class View:
    """A sweep, or what selectors leave of it."""

    paths: SweepPaths
    sweep: SweepFile
    """With the selected cells alone."""
    statuses: dict[str, RunStatus]
    """Of these cells, in the order of the grid."""
    indices: dict[str, int]
    """Run id → index in the whole grid."""
    ledger: Ledger
    notices: tuple[str, ...] = ()
    """Why something is not known."""

    @property
    def active(self) -> bool:
        """Whether something may still change by itself."""
        return any(is_active(status) for status in self.statuses.values())


class Reader:
    """Looks at one sweep, as often as it is asked to."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._sweep: tuple[Stamp, SweepFile] | None = None
        self._ledger: tuple[tuple[Stamp, bool], Ledger] | None = None
        self._finished: dict[str, tuple[object, RunStatus]] = {}
        self._observation: Observation | None = None
        self._asked: set[str | None] = set()
        self._next_question = 0.0
        self._notices: tuple[str, ...] = ()

    def look(self, words: Sequence[str] = (), only: Collection[str] | None = None) -> View:
        """The runs that `words` select and `only` holds; raises `UserError` for words that mean nothing."""
        sweep, ledger = self._read_sweep(), self._read_ledger()
        runs = [self.paths.run(cell.run_id) for cell in sweep.cells]
        kept = {run.run_id: self._known(run, ledger) for run in runs}
        observation = self._ask(ledger, [run for run in runs if kept[run.run_id] is None])
        statuses = {run.run_id: kept[run.run_id] or self._look_at(run, ledger, observation) for run in runs}
        indices = {cell.run_id: index for index, cell in enumerate(sweep.cells)}
        if words or only is not None:
            chosen = set(select(words, sweep.cells, statuses, sweep.axes))
            chosen &= chosen if only is None else set(only)
            statuses = {run: status for run, status in statuses.items() if run in chosen}
            cells: list[Cell] = [cell for cell in sweep.cells if cell.run_id in chosen]
            sweep = sweep.model_copy(update={"cells": cells})
        return View(self.paths, sweep, statuses, indices, ledger, self._notices)

    def _read_sweep(self) -> SweepFile:
        stamp = _stamp(self.paths.sweep)
        if self._sweep is None or self._sweep[0] != stamp:
            self._sweep = (stamp, read_sweep(self.paths))
        return self._sweep[1]

    def _read_ledger(self) -> Ledger:
        # a launcher that ends leaves no line, but nobody waits for it any more
        key = (_stamp(self.paths.submissions), is_locked(self.paths.runner_lock))
        if self._ledger is None or self._ledger[0] != key:
            self._ledger = (key, read_ledger(self.paths))
        return self._ledger[1]

    def _ask(self, ledger: Ledger, runs: Sequence[RunPaths]) -> Observation | None:
        jobs = {task.job for run in runs if (task := ledger.tasks.get(run.run_id)) is not None}
        if time.monotonic() < self._next_question and jobs <= self._asked:
            return self._observation
        found = self._observation = ask_slurm(ledger, runs)
        without = found is not None and found.answered and not found.accounting
        self._notices = (NO_ACCOUNTING,) if without else ()
        self._asked = jobs
        self._next_question = time.monotonic() + SLURM_SECONDS
        return self._observation

    def _known(self, run: RunPaths, ledger: Ledger) -> RunStatus | None:
        """Status of a run that was finished at the last look and whose record is the same."""
        found = self._finished.get(run.run_id)
        return found[1] if found is not None and found[0] == _record_key(run, ledger) else None

    def _look_at(self, run: RunPaths, ledger: Ledger, observation: Observation | None) -> RunStatus:
        key = _record_key(run, ledger)
        status = job_state(run, ledger, observation)
        if status.job == JobState.FINISHED:
            self._finished[run.run_id] = (key, status)
        return status


def is_active(status: RunStatus) -> bool:
    """Whether the run may change by itself: a job of it exists, or may."""
    # a job whose sending Slurm has not answered is settled by the next submission alone
    unknown = status.job == JobState.UNKNOWN and status.job_id is not None
    return unknown or status.job in (JobState.RUNNING, JobState.QUEUED, JobState.FINISHING)


def _record_key(run: RunPaths, ledger: Ledger) -> object:
    """Changes whenever the record of a finished run may say something else."""
    files = (run.state, run.summary, run.attempts)
    return (*map(_stamp, files), ledger.last.get(run.run_id), ledger.tasks.get(run.run_id))


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
