"""A grid against the sweep folder on disk: what is new, kept, left, grown or refused; and writing it.

A sweep keeps the meaning of its name: its axes and fixed fields never change, only values on the axes come
and go. What a run was started with never changes either, so for runs that exist

* scientific fields are part of the run id; another value on a fixed field is refused;
* resource fields keep their old values, with a notice (`config.yaml` is the same for every attempt);
* the horizon and the updates after a collapse may grow; smaller ones are refused;
* the collapse rule is frozen: another one is refused, since one sweep is judged by one rule;
* cadences keep their old values, with a notice.

`compare` only reads. `apply` writes run folders first, each complete or absent, and `sweep.yaml` last, so
that a kill in between leaves nothing that names a run without a folder.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.grid_diff import field_changes, retyped, run_changes
from launcher.ledger import sweep_lock
from trainer.budget import Budget
from trainer.errors import UserError
from trainer.record import (
    Cell,
    RunPaths,
    SweepFile,
    SweepPaths,
    read_budget,
    read_sweep,
    write_budget,
    write_config,
    write_sweep,
)

if TYPE_CHECKING:
    from sweeps.grid import Grid, GridCell

PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Growth:
    """A budget to be replaced by a larger one."""

    run_id: str
    old: Budget | None
    """None when the file is missing."""
    new: Budget


@dataclass(frozen=True, slots=True)
class Changes:
    """What submitting a grid means for the sweep folder."""

    new: tuple[GridCell, ...]
    """Cells without a run folder."""
    kept: tuple[GridCell, ...]
    """Cells whose run folder exists."""
    left: tuple[Cell, ...]
    """Runs on disk that the grid no longer holds; they are kept."""
    grown: tuple[Growth, ...]
    refused: tuple[str, ...]
    """Why the grid does not fit the folder; empty when it does."""
    notices: tuple[str, ...]
    sweep: SweepFile
    """`sweep.yaml` as it will be, without an entry for this submission."""
    altered: bool
    """Whether there is anything to write besides that entry."""

    def require_accepted(self) -> None:
        """Raise `UserError` with everything that is refused."""
        if self.refused:
            raise UserError(*self.refused)


def compare(paths: SweepPaths, grid: Grid) -> Changes:
    """The grid against the folder. Reads only; refusals are in the result."""
    old = read_sweep(paths) if paths.sweep.is_file() else None
    sweep = _merged(old, grid, paths.folder.name)
    existing = {cell.run_id for cell in grid.cells if _exists(paths.run(cell.run_id), old)}
    kept = tuple(cell for cell in grid.cells if cell.run_id in existing)
    refused: list[str] = []
    notices: list[str] = []
    grown: list[Growth] = []
    if old is not None:
        changes = field_changes(old, grid)
        if changes:
            refused.append(_refusal(paths, changes))
    if not refused:
        grown, refused, notices = _budgets(paths, old, grid, kept)
        problems, more = run_changes(paths, kept)
        refused += problems
        notices += more
    return Changes(
        new=tuple(cell for cell in grid.cells if cell.run_id not in existing),
        kept=kept,
        left=tuple(sweep.kept),
        grown=tuple(grown),
        refused=tuple(refused),
        notices=tuple(notices),
        sweep=sweep,
        altered=bool(grown) or len(existing) < len(grid.cells) or sweep != old,
    )


def apply(paths: SweepPaths, changes: Changes, entry: Mapping[str, Any]) -> None:
    """Write run folders, grown budgets and `sweep.yaml` with `entry` (see `history_entry`) in its history."""
    changes.require_accepted()
    with sweep_lock(paths):
        for partial in paths.runs.glob(f".*{PARTIAL}"):
            shutil.rmtree(partial)
        for cell in changes.new:
            _write_run(paths.run(cell.run_id), cell)
        for growth in changes.grown:
            write_budget(paths.run(growth.run_id), growth.new)
        history = [*changes.sweep.history, dict(entry)]
        write_sweep(paths, changes.sweep.model_copy(update={"history": history}))


def grow(paths: SweepPaths, growths: Sequence[Growth], entry: Mapping[str, Any]) -> None:
    """Replace budgets by larger ones and note it in the sweep's history."""
    with sweep_lock(paths):
        for growth in growths:
            write_budget(paths.run(growth.run_id), growth.new)
        append_history(paths, entry)


def append_history(paths: SweepPaths, entry: Mapping[str, Any]) -> None:
    """Add an entry to the history; the caller holds the sweep's lock."""
    sweep = read_sweep(paths)
    write_sweep(paths, sweep.model_copy(update={"history": [*sweep.history, dict(entry)]}))


def history_entry(
    command: str, overrides: Sequence[str], provenance: Mapping[str, object]
) -> dict[str, object]:
    """What `sweep.yaml` keeps of one submission."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"time": now, "command": command, "overrides": list(overrides), **provenance}


def _exists(run: RunPaths, old: SweepFile | None) -> bool:
    """Whether the run folder is there to stay.

    Without a sweep file the first submission was killed before it was complete: folders that never ran
    are written again, since they may come from a grid that was given up.
    """
    return run.config.is_file() and (old is not None or run.attempts.exists())


def _merged(old: SweepFile | None, grid: Grid, name: str) -> SweepFile:
    """`sweep.yaml` for this grid. An axis that the grid narrows to one value stays an axis."""
    axes = {field: list(values) for field, values in grid.axes.items()}
    fixed = dict(grid.fixed)
    narrowed = {field: fixed.pop(field) for field in (old.axes if old else {}) if field in fixed}
    axes |= {field: [value] for field, value in narrowed.items()}
    order = [field for field in (old.axes if old else {}) if field in axes]
    axes = {field: axes[field] for field in [*order, *(field for field in axes if field not in order)]}
    cells = [
        Cell(run_id=cell.run_id, values={field: (cell.values | narrowed)[field] for field in axes})
        for cell in grid.cells
    ]
    here = {cell.run_id for cell in cells}
    before = {cell.run_id: cell for cell in [*old.kept, *old.cells]} if old else {}
    return SweepFile(
        name=name,
        preset=grid.preset,
        description=grid.description,
        axes=axes,
        fixed=fixed,
        cells=cells,
        kept=[cell for run_id, cell in before.items() if run_id not in here],
        history=old.history if old else [],
        report=grid.report,
    )


def _refusal(paths: SweepPaths, changes: Sequence[str]) -> str:
    return "\n".join(
        [
            f"sweep {paths.folder.name!r} was submitted with other settings (there → here):",
            *(f"  {change}" for change in changes),
            "  keep both: give this one a name of its own with --name NAME; or take the old settings again",
        ]
    )


def _budgets(
    paths: SweepPaths, old: SweepFile | None, grid: Grid, kept: Sequence[GridCell]
) -> tuple[list[Growth], list[str], list[str]]:
    """Budgets that grow, budgets that would shrink, and notices about what stays."""
    grown: list[Growth] = []
    shrunk: dict[str, list[tuple[int, int]]] = {}
    longer = cadences = 0
    typed = {
        "horizon": retyped(old, grid, "budget.horizon."),
        "updates_after_collapse": retyped(old, grid, "budget.updates_after_collapse"),
    }
    for cell in kept:
        run = paths.run(cell.run_id)
        wanted = cell.config.budget.resolve(cell.config.run())
        if not run.budget.is_file():
            grown.append(Growth(cell.run_id, None, wanted))
            continue
        present = read_budget(run)
        smaller = [name for name in typed if getattr(wanted, name) < getattr(present, name)]
        for name in smaller:
            if typed[name]:
                shrunk.setdefault(name, []).append((getattr(present, name), getattr(wanted, name)))
        longer += bool(smaller)
        larger = present.grown_to(wanted)
        if larger != present:
            grown.append(Growth(cell.run_id, present, larger))
        cadences += larger.model_copy(update={name: getattr(wanted, name) for name in typed}) != wanted
    refused = [_shrunk(name, pairs) for name, pairs in shrunk.items()]
    notices = []
    if longer and not refused:
        notices.append(f"{_runs(longer)} extended earlier keep the larger budget")
    if cadences:
        notices.append(f"{_runs(cadences)} that exist keep the cadences of checkpoints and samples they have")
    return grown, refused, notices


def _shrunk(name: str, pairs: Sequence[tuple[int, int]]) -> str:
    present, wanted = max(pairs)
    return (
        f"{name}={wanted} is below the {present} that {_runs(len(pairs))} of this sweep already "
        f"{'has' if len(pairs) == 1 else 'have'}: budgets only grow; use {present} or more, or --name NAME"
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _write_run(run: RunPaths, cell: GridCell) -> None:
    """A whole run folder, or none."""
    partial = RunPaths(run.folder.with_name(f".{run.run_id}.{os.getpid()}{PARTIAL}"))
    write_config(partial, cell.config.run())
    write_budget(partial, cell.config.budget.resolve(cell.config.run()))
    if run.folder.exists():
        shutil.rmtree(run.folder)
    partial.folder.rename(run.folder)
