"""Differences between a grid and the settings a sweep was submitted with, in words. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.budget import CellConfig
from trainer.record import SweepFile, SweepPaths, read_config
from trainer.schema import field_paths, flatten

if TYPE_CHECKING:
    from sweeps.grid import Grid, GridCell

FREE = ("budget.", "resources.")
"""Fields that may differ between submissions; `sweep_folder` says what becomes of each."""
FROZEN = ("budget.collapse.",)


def field_changes(old: SweepFile, grid: Grid) -> list[str]:
    """`field: old → new` for every new axis and changed fixed field.

    A field that one side does not have (the schema grew or shrank) counts with its default.
    """
    defaults = dict(field_paths(CellConfig))
    changes = []
    for field in sorted({*old.axes, *old.fixed, *grid.axes, *grid.fixed}):
        if field in old.axes:
            continue
        before = old.fixed.get(field, defaults.get(field))
        if field in grid.axes:
            changes.append(f"{field}: {_text(before)} → {_values(grid.axes[field])} (a new axis)")
            continue
        after = grid.fixed.get(field, defaults.get(field))
        if not same(before, after) and not _is_free(field):
            changes.append(f"{field}: {_text(before)} → {_text(after)}")
    gone = [field for field in old.axes if field not in grid.axes and field not in grid.fixed]
    return changes + [f"{field}: {_values(old.axes[field])} → (no such field)" for field in gone]


def retyped(old: SweepFile | None, grid: Grid, prefix: str) -> bool:
    """Whether fields with this prefix differ from the last submission."""
    if old is None:
        return False
    names = {field for field in (*old.fixed, *grid.fixed) if field.startswith(prefix)}
    return any(not same(old.fixed.get(name), grid.fixed.get(name)) for name in names)


def run_changes(paths: SweepPaths, kept: Sequence[GridCell]) -> tuple[list[str], list[str]]:
    """Refusals for run folders that hold another run than their name says, and notices about resources."""
    refused: list[str] = []
    resources: dict[str, int] = {}
    for cell in kept:
        run = paths.run(cell.run_id)
        present = flatten(read_config(run).model_dump(mode="json"))
        wanted = flatten(cell.config.run().model_dump(mode="json"))
        different = [name for name in wanted if not same(present.get(name), wanted[name])]
        scientific = [name for name in different if not _is_free(name)]
        for name in set(different) - set(scientific):
            resources[name] = resources.get(name, 0) + 1
        if scientific:
            shown = ", ".join(
                f"{name}: {_text(present.get(name))} → {_text(wanted[name])}" for name in scientific
            )
            refused.append(
                f"{run.config} is not the run its folder is named after ({shown}): it was edited; "
                "restore it, or use --name NAME"
            )
    notices = [
        f"{count} {'run that exists keeps its' if count == 1 else 'runs that exist keep their'} {name} "
        "(a run's configuration never changes)"
        for name, count in sorted(resources.items())
    ]
    return refused, notices


def same(left: object, right: object) -> bool:
    """Equal as written to YAML: a tuple is a list, 1 is 1.0, but true is not 1."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _is_free(field: str) -> bool:
    return field.startswith(FREE) and not field.startswith(FROZEN)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + _values(value) + "]"
    return "null" if value is None else str(value)


def _values(values: Sequence[object]) -> str:
    return ", ".join(map(_text, values))
