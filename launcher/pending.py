"""What a command is about to run: the runs of a grid that may not be on disk yet, or those of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.sweep_folder import Changes
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.record import SweepPaths, read_config

if TYPE_CHECKING:
    from launcher.submit import Work
    from sweeps.cost import CostFigures
    from sweeps.grid import Grid


@dataclass(frozen=True, slots=True)
class Pending:
    """One run that is to be started."""

    run_id: str
    config: RunConfig
    budget: Budget
    updates: int
    """Still to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, once the state of the sweep is known."""

    runs: Callable[[Work], Sequence[Pending]]
    figures: CostFigures
    """What the preset says about speed."""


def of_grid(grid: Grid, changes: Changes) -> Plan:
    """The runs of a grid, those to be written included."""

    def runs(work: Work) -> list[Pending]:
        grown = {growth.run_id: growth.new for growth in changes.grown}
        new = {cell.run_id for cell in changes.new}
        found = []
        for cell in grid.cells:
            status = work.statuses[cell.run_id]
            config = cell.config.run()
            if cell.run_id in new:
                budget = cell.config.budget.resolve(config)
                found.append(Pending(cell.run_id, config, budget, budget.horizon))
                continue
            present = grown.get(cell.run_id) or work.budgets.get(cell.run_id)
            if present is not None and status.to_run(present):
                done = status.state.step if status.state else 0
                found.append(Pending(cell.run_id, config, present, max(0, present.horizon - done)))
        return found

    return Plan(runs, grid.cost)


def on_disk(paths: SweepPaths) -> Plan:
    """The runs that the sweep's state says are to be started."""
    from sweeps.cost import CostFigures

    def runs(work: Work) -> list[Pending]:
        found = []
        for run_id in work.todo:
            budget, state = work.budgets[run_id], work.statuses[run_id].state
            left = max(0, budget.horizon - (state.step if state else 0))
            found.append(Pending(run_id, read_config(paths.run(run_id)), budget, left))
        return found

    return Plan(runs, CostFigures())
