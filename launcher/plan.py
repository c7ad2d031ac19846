"""`plan`: what `submit` would do, and what it would cost. Writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from launcher.board import axis_label, value_text
from launcher.locate import sweep_paths
from launcher.messages import change_lines, say
from launcher.submit import Settings, find_work
from launcher.sweep_folder import Changes, compare
from trainer.record import SweepPaths

if TYPE_CHECKING:
    from sweeps.grid import Grid

MOST_ROWS = 60


def plan(grid: Grid, name: str | None, outputs: Path, settings: Settings, console: Console) -> int:
    """Print the cells, how they stand to what is on disk, and the estimated cost. Returns the exit code."""
    paths = sweep_paths(outputs, name or grid.name)
    changes = compare(paths, grid)
    changes.require_accepted()
    say(console, *grid.notices, *change_lines(paths, changes))
    console.print(_table(paths, grid, changes))
    hidden = len(grid.cells) - MOST_ROWS
    say(console, *([f"… and {hidden} more"] if hidden > 0 else []))
    return 0


def _table(paths: SweepPaths, grid: Grid, changes: Changes) -> Table:
    work = find_work(paths, changes.sweep)
    new = {cell.run_id for cell in changes.new}
    grown = {growth.run_id: growth.new for growth in changes.grown}
    wide = [field for field in changes.sweep.axes if len(changes.sweep.axes[field]) > 1] or ["seed"]
    table = Table(box=None, pad_edge=False)
    for heading in ("run", *map(axis_label, wide), "horizon", "on disk", "to do"):
        table.add_column(heading)
    for cell, entry in list(zip(grid.cells, changes.sweep.cells, strict=True))[:MOST_ROWS]:
        status = work.statuses[cell.run_id]
        budget = grown.get(cell.run_id) or cell.config.budget.resolve(cell.config.run())
        disk = "new" if cell.run_id in new else str(status.outcome or status.job)
        runs = cell.run_id in new or cell.run_id in work.todo or status.to_run(budget)
        todo = "wait" if status.job == "running" else "run" if runs else "-"
        values = [value_text(entry.values.get(field)) for field in wide]
        table.add_row(cell.run_id, *values, str(budget.horizon), disk, todo)
    return table
