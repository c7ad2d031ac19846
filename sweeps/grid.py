"""From a preset and overrides to the cells of a grid, every one of them validated.

Hydra composes once per combination of group choices (tens of milliseconds each); scalar fields are set
afterwards, so a thousand cells cost no more compositions than one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeps.identity import run_id
from sweeps.overrides import Assignment, parse_overrides
from trainer.config import CellConfig
from trainer.errors import UserError
from trainer.schema import field_paths, flatten, nearest, parse

CONF = Path(__file__).resolve().parent / "conf"
PRESET_KEYS = ("description", "axes", "report", "cost")


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
    """All other fields of the cells, flat and dotted, budget included."""
    cells: tuple[GridCell, ...]
    notices: tuple[str, ...]
    overrides: tuple[str, ...]
    """As typed."""
    report: dict[str, Any]
    cost: dict[str, Any]


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> Grid:
    """The grid that a preset and overrides describe.

    `config_dir` adds presets and groups of the user's own. Raises `UserError` with one
    message per fault; nothing is returned unless every cell is valid.
    """
    assignments = parse_overrides(overrides)
    options = group_options(config_dir)
    preset = _preset(assignments, options)
    groups, scalars = _split(assignments, options)
    presets = {choice: _compose(choice, config_dir) for choice in _choices(preset, groups)}
    first = next(iter(presets.values()))
    _refuse_unknown(first, scalars, preset)
    axes, settings, notices = _axes(first, groups, scalars, preset)
    cells, more = _cells(presets, axes, settings, [item for item in groups if len(item.values) > 1], preset)
    axis_names = set(axes)
    fixed = {
        key: value
        for key, value in flatten(cells[0].config.model_dump(mode="json")).items()
        if key not in axis_names and key.split(".")[0] not in axis_names
    }
    return Grid(
        name=preset,
        preset=preset,
        description=str(first.get("description", "")),
        axes={name: _seen([cell.values[name] for cell in cells]) for name in axes},
        fixed=fixed,
        cells=tuple(cells),
        notices=(*notices, *more),
        overrides=tuple(overrides),
        report=dict(first.get("report") or {}),
        cost=dict(first.get("cost") or {}),
    )


def group_options(config_dir: Path | None) -> dict[str, list[str]]:
    """Group → names of its options, the product's and the user's."""
    options: dict[str, set[str]] = {}
    if config_dir is not None and not config_dir.is_dir():
        raise UserError(f"--config-dir={config_dir} is not a folder: give the folder that holds sweep/*.yaml")
    for root in filter(None, (CONF, config_dir)):
        for path in sorted(root.glob("*/*.yaml")):
            names = options.setdefault(path.parent.name, set())
            if path.stem in names:
                raise UserError(f"{path} has the name of one of the product's own: rename it")
            names.add(path.stem)
    return {group: sorted(names) for group, names in options.items()}


def _preset(assignments: list[Assignment], options: Mapping[str, list[str]]) -> str:
    chosen = [item for item in assignments if item.key == "sweep"]
    if not chosen or len(chosen[0].values) != 1:
        raise UserError(f"say which preset to run with sweep=NAME: there are {', '.join(options['sweep'])}")
    return str(chosen[0].values[0])


def _split(
    assignments: list[Assignment], options: Mapping[str, list[str]]
) -> tuple[list[Assignment], list[Assignment]]:
    """Group choices and fields apart; raises for an option that a group does not have."""
    groups = [item for item in assignments if item.key in options]
    problems = [
        f"{item.typed}: {item.key} has no {value!r}{nearest(str(value), options[item.key])}"
        for item in groups
        for value in item.values
        if value not in options[item.key]
    ]
    if problems:
        raise UserError(*problems)
    return groups, [item for item in assignments if item.key not in options]


def _choices(preset: str, groups: list[Assignment]) -> Iterator[tuple[str, ...]]:
    others = [item for item in groups if item.key != "sweep"]
    for values in itertools.product(*(item.values for item in others)):
        yield (
            f"sweep={preset}",
            *(f"{item.key}={value}" for item, value in zip(others, values, strict=True)),
        )


def _compose(choice: tuple[str, ...], config_dir: Path | None) -> dict[str, Any]:
    search = f"hydra.searchpath=[{json.dumps(f'file://{config_dir.resolve()}')}]" if config_dir else ""
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = compose("config", overrides=[*choice, *filter(None, [search])])
        plain = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{' '.join(choice)}: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{' '.join(choice)}: the preset is not a mapping")
    return {str(key): value for key, value in plain.items()}


def _refuse_unknown(composed: dict[str, Any], scalars: list[Assignment], preset: str) -> None:
    known = [path for path, _ in field_paths(CellConfig)]
    sections = {path.rsplit(".", depth)[0] for path in known for depth in (1, 2)}
    problems = [
        f"{item.typed}: unknown field {item.key}{nearest(item.key, known)}"
        for item in scalars
        if item.key not in known and item.key not in sections
    ]
    problems += [
        f"preset {preset}: axis {name} is not a field{nearest(name, known)}"
        for name in composed.get("axes") or {}
        if name not in known
    ]
    if problems:
        raise UserError(*problems)


def _axes(
    composed: dict[str, Any], groups: list[Assignment], scalars: list[Assignment], preset: str
) -> tuple[dict[str, list[Any]], dict[str, Any], list[str]]:
    """Axes, fixed settings and notices. The preset's axes stay axes, as does `seed`, even with one value."""
    axes: dict[str, list[Any]] = {}
    for name, values in (composed.get("axes") or {}).items():
        axes[name] = list(values) if isinstance(values, list) else [values]
    settings: dict[str, Any] = {}
    for item in scalars:
        if len(item.values) > 1 or item.key == "seed":
            axes[item.key] = list(item.values)
        else:
            axes.pop(item.key, None)
            settings[item.key] = item.values[0]
    if "seed" not in axes:
        axes["seed"] = [settings.pop("seed", composed.get("seed", 0))]
    for item in groups:
        if len(item.values) > 1:
            axes[item.key] = list(item.values)
    notices: list[str] = []
    for name, values in axes.items():
        if not values:
            raise UserError(f"axis {name} of preset {preset} has no value: give at least one")
        distinct = _seen(values)
        if len(distinct) < len(values) and name == "seed":
            raise UserError(f"seed={','.join(map(str, values))} repeats a seed: give each seed once")
        if len(distinct) < len(values):
            notices.append(f"{name}: {len(values) - len(distinct)} repeated value(s) left out")
        axes[name] = distinct
    return axes, settings, notices


def _cells(
    presets: dict[tuple[str, ...], dict[str, Any]],
    axes: dict[str, list[Any]],
    settings: dict[str, Any],
    varied: list[Assignment],
    preset: str,
) -> tuple[list[GridCell], list[str]]:
    cells: dict[str, GridCell] = {}
    faults: dict[str, int] = {}
    twins = 0
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        wanted = {f"{item.key}={point[item.key]}" for item in varied}
        composed = next(data for choice, data in presets.items() if wanted <= set(choice))
        group_names = {item.key for item in varied}
        fields = {key: value for key, value in point.items() if key not in group_names}
        try:
            config = parse(CellConfig, _merged(composed, settings | fields))
        except UserError as error:
            for problem in error.problems:
                faults[problem] = faults.get(problem, 0) + 1
            continue
        flat = flatten(config.model_dump(mode="json"))
        cell = GridCell(run_id(config.run()), {key: flat.get(key, point[key]) for key in point}, config)
        twins += cell.run_id in cells
        cells.setdefault(cell.run_id, cell)
    if faults:
        raise UserError(*(f"{text} (preset {preset}, {n} cell{'s' * (n > 1)})" for text, n in faults.items()))
    notices = (
        [f"{twins} cells equal another cell in every scientific field and were left out"] if twins else []
    )
    return list(cells.values()), notices


def _merged(composed: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    data = json.loads(json.dumps({key: value for key, value in composed.items() if key not in PRESET_KEYS}))
    for path, value in fields.items():
        *parents, leaf = path.split(".")
        section = data
        for name in parents:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise UserError(f"{path}: {name} is not a section of fields")
        section[leaf] = value
    return dict(data)


def _seen(values: Sequence[Any]) -> list[Any]:
    """Distinct values in order; 1 and 1.0 are one value, 1 and true are not."""
    distinct: dict[tuple[bool, Any], Any] = {}
    for value in values:
        distinct.setdefault(
            (isinstance(value, bool), value if not isinstance(value, list) else str(value)), value
        )
    return list(distinct.values())
