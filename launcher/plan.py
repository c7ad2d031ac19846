"""`plan`: what `submit` would do, and what it would cost. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from launcher.board import axis_label, value_text
from launcher.executors import available_slots
from launcher.locate import sweep_paths
from launcher.messages import change_lines, say
from launcher.pending import of_grid
from launcher.pilot_record import read_pilot
from launcher.progress import duration
from launcher.submit import Settings, Work, find_work
from launcher.sweep_folder import Changes, compare
from sweeps.cost import estimate
from trainer.record import JobState, SweepPaths

if TYPE_CHECKING:
    from sweeps.grid import Grid

MOST_ROWS = 60


def plan(grid: Grid, name: str | None, outputs: Path, settings: Settings, console: Console) -> int:
    """Print the cells, how they stand to what is on disk, and the estimated cost. Returns the exit code."""
    paths = sweep_paths(outputs, name or grid.name)
    changes = compare(paths, grid)
    changes.require_accepted()
    work = find_work(paths, changes.sweep)
    todo = {run.run_id: run.updates for run in of_grid(grid, changes).runs(work)}
    say(console, *grid.notices, *change_lines(paths, changes), "")
    console.print(_table(grid, changes, work, todo))
    hidden = len(grid.cells) - MOST_ROWS
    say(
        console,
        *([f"… and {hidden} more"] if hidden > 0 else []),
        "",
        _cost(paths, grid, work, todo, settings),
    )
    if settings.site is not None:
        _for_site(paths, grid, changes, work, settings, console)
    return 0


def _for_site(
    paths: SweepPaths, grid: Grid, changes: Changes, work: Work, settings: Settings, console: Console
) -> None:
    """What a submission to Slurm would check first, and what it would cost there; raises `UserError`."""
    from launcher.slurm.ask import show
    from launcher.slurm.site import load_site

    assert settings.site is not None
    site, runs = load_site(settings.site), of_grid(grid, changes).runs(work)
    if runs:
        show(paths, runs, work, grid.cost, site, settings, console, opening=f"on {settings.site}")


def _cost(paths: SweepPaths, grid: Grid, work: Work, todo: Mapping[str, int], settings: Settings) -> str:
    """One line on updates and time; speeds measured in this sweep go before the preset's."""
    if not todo:
        return "nothing to do"
    threads = max(cell.config.resources.threads for cell in grid.cells)
    slots = available_slots(settings.executor, threads=threads, jobs=settings.jobs)
    updates = [(cell.config, todo[cell.run_id]) for cell in grid.cells if cell.run_id in todo]
    ran = [(cell.config, paths.run(cell.run_id)) for cell in grid.cells if work.statuses[cell.run_id].state]
    pilot = read_pilot(paths)
    speed = None if pilot is None else pilot.speed
    cost = estimate(updates, ran, grid.cost, slots=slots, pilot=speed)
    start = f"to run: {cost.runs} runs, {cost.updates} updates"
    if cost.core_seconds is None or cost.wall_seconds is None:
        return f"{start}; {cost.basis}"
    gpus = f", {cost.gpu_hours:.3g} GPU hours" if cost.gpu_hours else ""
    return (
        f"{start}; at most {duration(cost.core_seconds)} of core time{gpus}, "
        f"about {duration(cost.wall_seconds)} with {slots} at a time ({cost.basis})"
    )


def _table(grid: Grid, changes: Changes, work: Work, todo: Mapping[str, int]) -> Table:
    new = {cell.run_id for cell in changes.new}
    axes = changes.sweep.axes
    wide = [field for field in axes if len(axes[field]) > 1] or ["seed"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("#", "run", *map(axis_label, wide), "on disk", "updates to do"):
        table.add_column(heading)
    cells = list(zip(grid.cells, changes.sweep.cells, strict=True))[:MOST_ROWS]
    for index, (cell, entry) in enumerate(cells):
        status = work.statuses[cell.run_id]
        disk = "new" if cell.run_id in new else str(status.outcome or status.job)
        count = str(todo.get(cell.run_id, "wait" if status.job == JobState.RUNNING else "-"))
        values = [value_text(entry.values.get(field)) for field in wide]
        table.add_row(str(index), cell.run_id, *values, disk, count)
    return table
