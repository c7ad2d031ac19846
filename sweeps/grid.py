"""From a preset and overrides to the cells of a grid, every one of them validated.

Hydra composes once per combination of group choices (tens of milliseconds each); scalar fields are set
afterwards, so a thousand cells cost no more compositions than one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.cost import CostFigures
from sweeps.identity import run_id
from sweeps.overrides import Assignment, parse_overrides
from sweeps.presets import SWEEP, ConfigTree, Preset, unknown_field
from trainer.budget import CellConfig
from trainer.errors import UserError
from trainer.schema import flatten, nearest, parse

MOST_CELLS = 100_000
"""Cells of one grid; more is a slip."""
NO_AXIS = {"budget": "how long runs go on", "resources": "how runs are computed"}
"""Sections outside the run id: cells that differ only there would be one run."""


@dataclass(frozen=True, slots=True)
class GridCell:
    """One run of the grid."""

    run_id: str
    values: dict[str, Any]
    """Axis → value."""
    config: CellConfig


@dataclass(frozen=True, slots=True)
class Grid:
    """A validated grid."""

    name: str
    preset: str
    description: str
    axes: dict[str, list[Any]]
    """Axis (dotted field, or group) → values, in order."""
    fixed: dict[str, Any]
    """All other fields that do not vary, flat and dotted, budget included."""
    cells: tuple[GridCell, ...]
    """In the order of the axes, the last one fastest."""
    notices: tuple[str, ...]
    overrides: tuple[str, ...]
    """As typed."""
    report: dict[str, Any]
    cost: CostFigures


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> Grid:
    """The grid that a preset and overrides describe.

    `config_dir` adds presets and groups of the user's own. Raises `UserError` with one
    message per fault; nothing is returned unless every cell is valid.
    """
    tree = ConfigTree(config_dir)
    assignments, problems = parse_overrides(overrides, tree.options)
    problems += _faults(assignments, tree.options)
    if problems:
        raise UserError(*problems)
    name = next(str(item.values[0]) for item in assignments if item.key == SWEEP)
    typed = [item for item in assignments if item.key != SWEEP]
    chosen = {item.key: item.values[0] for item in typed if item.key in tree.options}
    preset = tree.compose(name, chosen)
    axes, settings, notices = _axes(preset, typed, tree.options)
    groups = [axis for axis in axes if axis in tree.options]
    presets = {
        choice: tree.compose(name, chosen | dict(zip(groups, choice, strict=True)))
        for choice in itertools.product(*(axes[group] for group in groups))
    }
    cells, twins = _cells(presets, groups, axes, settings, typed)
    return Grid(
        name=name,
        preset=name,
        description=preset.description,
        axes={axis: _distinct(cell.values[axis] for cell in cells) for axis in axes},
        fixed=_fixed(cells, axes, groups, settings),
        cells=tuple(cells),
        notices=(*notices, *twins),
        overrides=tuple(overrides),
        report=preset.report,
        cost=preset.cost,
    )


def _faults(assignments: Sequence[Assignment], options: Mapping[str, list[str]]) -> list[str]:
    """What is wrong with the assignments as such, before any preset is read."""
    problems = []
    sweeps = [item for item in assignments if item.key == SWEEP]
    if not sweeps or len(sweeps[0].values) != 1:
        problems.append(f"say which preset to run with sweep=NAME: there are {', '.join(options[SWEEP])}")
    for item in assignments:
        if item.key in options:
            problems += [
                f"{item.typed}: {item.key} has no {value!r}{nearest(value, options[item.key])}"
                for value in item.values
                if value not in options[item.key]
            ]
        elif unknown := unknown_field(item.key, list(options)):
            problems.append(f"{item.typed}: {unknown}")
        elif len(item.values) > 1 and (meaning := NO_AXIS.get(item.key.split(".")[0])):
            problems.append(
                f"{item.typed}: {meaning} is one setting of the sweep, not an axis; give one value"
            )
    return problems


def _axes(
    preset: Preset, typed: Sequence[Assignment], options: Mapping[str, list[str]]
) -> tuple[dict[str, list[Any]], dict[str, Any], list[str]]:
    """Axes, fixed settings and notices.

    An axis has several values, or is listed by the preset, or is `seed`. The preset's come first, in its
    order, then those typed.
    """
    _check_axes(preset, options)
    axes = dict(preset.axes)
    settings: dict[str, Any] = {}
    origin = {axis: f"{preset.place}, axis {axis}" for axis in axes}
    for item in typed:
        if len(item.values) > 1 or item.key in axes or item.key == "seed":
            axes[item.key] = list(item.values)
            origin[item.key] = item.typed
        elif item.key not in options:
            settings[item.key] = item.values[0]
    axes.setdefault("seed", [preset.fields.get("seed", 0)])
    notices: list[str] = []
    for axis, values in axes.items():
        axes[axis] = _distinct(values)
        repeated = len(values) - len(axes[axis])
        if repeated and axis == "seed":
            raise UserError(f"{origin[axis]} repeats a seed: give each seed once")
        if repeated:
            notices.append(
                f"{origin[axis]}: {repeated} repeated {'value' if repeated == 1 else 'values'} left out"
            )
    count = math.prod(map(len, axes.values()))
    if count > MOST_CELLS:
        raise UserError(f"the grid has {count} cells, more than {MOST_CELLS}: give an axis fewer values")
    return axes, settings, notices


def _check_axes(preset: Preset, options: Mapping[str, list[str]]) -> None:
    problems = []
    for axis, values in preset.axes.items():
        if axis == SWEEP:
            problems.append(f"{preset.place}: a preset is no axis: make a preset for each")
        elif axis in options:
            problems += [
                f"{preset.place}: axis {axis} has no {value!r}{nearest(str(value), options[axis])}"
                for value in values
                if value not in options[axis]
            ]
        elif unknown := unknown_field(axis, list(options)):
            problems.append(f"{preset.place}: axis {axis}: {unknown}")
        elif meaning := NO_AXIS.get(axis.split(".")[0]):
            problems.append(
                f"{preset.place}: axis {axis}: {meaning} is one setting of the sweep, not an axis"
            )
    if problems:
        raise UserError(*problems)


def _cells(
    presets: Mapping[tuple[str, ...], Preset],
    groups: Sequence[str],
    axes: Mapping[str, list[Any]],
    settings: Mapping[str, Any],
    typed: Sequence[Assignment],
) -> tuple[list[GridCell], list[str]]:
    """The valid cells, equal ones once, and a notice about those; raises `UserError` if any is not valid."""
    cells: dict[str, GridCell] = {}
    faults: dict[str, int] = {}
    points = list(itertools.product(*axes.values()))
    for values in points:
        point = dict(zip(axes, values, strict=True))
        preset = presets[tuple(point[group] for group in groups)]
        fields = {axis: value for axis, value in point.items() if axis not in groups}
        try:
            config = parse(CellConfig, _nested({**preset.fields, **settings, **fields}))
        except UserError as error:
            for problem in error.problems:
                text = f"{problem} ({_origin(problem, typed) or preset.place}"
                faults[text] = faults.get(text, 0) + 1
            continue
        flat = flatten(config.model_dump(mode="json"))
        cell = GridCell(run_id(config.run()), {axis: flat.get(axis, point[axis]) for axis in axes}, config)
        cells.setdefault(cell.run_id, cell)
    if faults:
        raise UserError(
            *(
                f"{text}; {'every cell' if n == len(points) else f'{n} of {len(points)} cells'})"
                for text, n in faults.items()
            )
        )
    twins = len(points) - len(cells)
    one = twins == 1
    notice = (
        f"{twins} {'cell equals' if one else 'cells equal'} another cell in every scientific field and "
        f"{'was' if one else 'were'} left out"
    )
    return list(cells.values()), [notice] if twins else []


def _origin(problem: str, typed: Sequence[Assignment]) -> str:
    """The overrides as typed that a message speaks of; empty when it speaks of none."""
    found = []
    for item in typed:
        section, _, leaf = item.key.rpartition(".")
        within = problem.startswith(f"{section}: ") and re.search(rf"(?<![\w.]){re.escape(leaf)}=", problem)
        if within or re.search(rf"(?<![\w.]){re.escape(item.key)}(=|\.|: )", problem):
            found.append(item.typed)
    return "given as " + " ".join(found) if found else ""


def _fixed(
    cells: Sequence[GridCell],
    axes: Mapping[str, object],
    groups: Sequence[str],
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Fields with one value in all cells. What the options of a varied group decide is no fixed field,
    even where they agree: the next option may not.
    """
    flats = [flatten(cell.config.model_dump(mode="json")) for cell in cells]
    return {
        field: value
        for field, value in flats[0].items()
        if field not in axes
        and (field in settings or field.split(".")[0] not in groups)
        and all(flat[field] == value for flat in flats)
    }


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted fields as nested sections. A value where a section is meant stays, for the schema to refuse."""
    data: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split(".")
        section: Any = data
        for name in parents:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                break
        else:
            section[leaf] = value
    return data


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Distinct values in order; 1 and 1.0 are one value, 1 and true are not."""
    distinct: dict[tuple[bool, Any], Any] = {}
    for value in values:
        distinct.setdefault((isinstance(value, bool), value), value)
    return list(distinct.values())
