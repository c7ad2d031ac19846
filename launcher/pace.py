"""How fast the runs of a sweep go, how long they still take, and which have not been heard of for long."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from launcher.state import OPEN_OUTCOMES, RunStatus
from launcher.sweep_view import View
from sweeps.cost import seconds_per_update
from trainer.record import Cell, JobState, RunPaths, RunState, read_budget

PACE_SECONDS = 60.0
"""Between two measurements of the speed of runs, which read whole journals."""
FIRST_SECONDS = 10.0
"""The same while some kind of run has no speed yet."""
LEAST_SILENCE = 60.0
SILENT_UPDATES = 20
NO_COST = ("sync_interval", "learning_rate", "seed")
"""Axes that decide nothing about the time of an update, or little."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a sweep still costs up to the horizons of its runs; collapses end them earlier."""

    runs: int
    updates: int
    core_seconds: float | None
    """Of the runs whose speed is known; None when it is known of none."""
    unmeasured: int
    """Runs whose speed is not known."""


class Paces:
    """Measured seconds per update of each kind of run, measured again now and then."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, float | None] = {}
        self._next = 0.0

    def measure(self, view: View) -> Mapping[str, float | None]:
        """Run id → seconds per update of runs of its kind; None where none has done an update."""
        if time.monotonic() >= self._next:
            kinds: dict[Hashable, list[RunPaths]] = {}
            for cell in view.sweep.cells:
                runs = kinds.setdefault(_kind(cell), [])
                if view.statuses[cell.run_id].state is not None:
                    runs.append(view.paths.run(cell.run_id))
            self._kinds = {kind: seconds_per_update(runs) for kind, runs in kinds.items()}
            pause = FIRST_SECONDS if None in self._kinds.values() else PACE_SECONDS
            self._next = time.monotonic() + pause
        return {cell.run_id: self._kinds.get(_kind(cell)) for cell in view.sweep.cells}


def _kind(cell: Cell) -> Hashable:
    return tuple((axis, str(value)) for axis, value in cell.values.items() if axis not in NO_COST)


def remaining(view: View, paces: Mapping[str, float | None]) -> Remaining:
    """Updates and core time that are left, runs in progress included."""
    runs = updates = unmeasured = 0
    seconds: list[float] = []
    for run_id, status in view.statuses.items():
        if status.outcome is not None and status.outcome not in OPEN_OUTCOMES:
            continue
        run = view.paths.run(run_id)
        if not run.budget.is_file():
            continue
        step = status.state.step if status.state else 0
        left = read_budget(run).horizon - (status.summary.updates if status.summary else step)
        if left <= 0:
            continue
        pace = paces.get(run_id)
        runs, updates, unmeasured = runs + 1, updates + left, unmeasured + (pace is None)
        seconds += [] if pace is None else [left * pace]
    return Remaining(runs, updates, sum(seconds) if seconds else None, unmeasured)


def to_horizon(status: RunStatus) -> float | None:
    """Seconds until a running run reaches its horizon, at its speed of now; None when that is not known."""
    state = _current(status)
    if state is None or not state.updates_per_second or not state.horizon:
        return None
    return max(0, state.horizon - state.step) / state.updates_per_second


def silent_for(status: RunStatus, pace: float | None, now: float) -> float | None:
    """Seconds without a sign of life of a running run, where they are many for its speed.

    A suspicion and no more: a job that hangs and one whose file system does look the same from here.
    """
    state = _current(status)
    if state is None:
        return None
    seconds = 1 / state.updates_per_second if state.updates_per_second else pace or 0.0
    age = now - state.heartbeat
    return age if age > max(LEAST_SILENCE, SILENT_UPDATES * seconds) else None


def _current(status: RunStatus) -> RunState | None:
    """The state file of a running run, if it is of the attempt that runs."""
    own = status.state is not None and status.state.attempt == status.attempt
    return status.state if own and status.job == JobState.RUNNING else None
