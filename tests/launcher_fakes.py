"""Stand-ins for what the launcher calls: a grid without presets, and the places to put it."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.cost import CostFigures
from sweeps.identity import flatten, run_id
from trainer.budget import CellConfig
from trainer.schema import parse

FAKE_JOB = (sys.executable, "-P", str(Path(__file__).with_name("launcher_fake_job.py")))


@dataclass(frozen=True)
class GridCell:
    run_id: str
    values: dict[str, Any]
    config: CellConfig


@dataclass(frozen=True)
class Grid:
    name: str
    preset: str | None
    description: str
    axes: dict[str, list[Any]]
    fixed: dict[str, Any]
    cells: tuple[GridCell, ...]
    notices: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)
    cost: CostFigures = field(default_factory=CostFigures)


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> Grid:
    """`field=1,2` is an axis, `field=1` a fixed field; the preset is 20 updates of S=1."""
    settings: dict[str, list[Any]] = {"budget.horizon.updates": [20], "seed": [0]}
    for override in overrides:
        name, _, text = override.partition("=")
        settings[name] = [_value(piece) for piece in text.split(",")]
    sweep = str(settings.pop("sweep", ["tiny"])[0])
    axes = {name: values for name, values in settings.items() if len(values) > 1 or name == "seed"}
    plain = {name: values[0] for name, values in settings.items() if name not in axes}
    cells = []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        config = parse(CellConfig, _nested(plain | point))
        cells.append(GridCell(run_id(config.run()), point, config))
    fixed = {
        name: value
        for name, value in flatten(cells[0].config.model_dump(mode="json")).items()
        if name not in axes
    }
    return Grid(
        sweep,
        sweep,
        "",
        axes,
        fixed,
        tuple(cells),
        (),
        tuple(overrides),
        {"table": "S"},
        CostFigures(seconds_per_update=0.5),
    )


def install(modules: dict[str, Any]) -> None:
    """Put the stand-ins where the launcher imports from."""
    grid = types.ModuleType("sweeps.grid")
    grid.expand = expand  # type: ignore[attr-defined]
    sync = types.ModuleType("launcher.mlflow_sync")
    sync.default_uri = lambda paths: "sqlite:///mlflow.db"  # type: ignore[attr-defined]
    sync.ui_command = lambda uri: f"mlflow ui --backend-store-uri {uri}"  # type: ignore[attr-defined]
    modules["sweeps.grid"], modules["launcher.mlflow_sync"] = grid, sync


def _value(text: str) -> Any:
    try:
        return float(text) if set(text) & set(".e") else int(text)
    except ValueError:
        return text


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return data
