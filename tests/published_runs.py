"""Rebuilt published tables and worked examples that the estimator tests compare with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.boundary import Cell
from analysis.clock import CollapseInterval

ORACLES = Path(__file__).parent / "oracles"


def oracle(name: str) -> dict[str, Any]:
    return json.loads((ORACLES / f"{name}.json").read_text())


def collapsed_rows(model: str) -> list[CollapseInterval]:
    return [
        CollapseInterval(run["S"], run["eta"], *run["t_interval"])
        for run in oracle("sc_table1")[model]
        if run["outcome"] == "collapsed"
    ]


def main_cells(model: str = "llama_3_2_3b") -> list[Cell]:
    """The horizons of stable cells are not printed; the paper calls them past the clock."""
    return [
        Cell(run["S"], run["eta"], int(run["outcome"] == "collapsed"), 1, True)
        for run in oracle("sc_table1")[model]
    ]


def extended_cells() -> list[Cell]:
    runs = [run for run in oracle("sc_extended")["runs"] if run["horizon_updates"] == 1400]
    return main_cells() + [Cell(run["S"], run["eta"], 0, 1, True) for run in runs]


# Collapsed runs of four seeds in a tiny setting, S = 1, 4, 16, 64.
TINY_TABLE = {1e-3: (0, 0, 0, 1), 2e-3: (0, 0, 1, 4), 4e-3: (0, 1, 4, 4), 8e-3: (1, 4, 4, 4)}
TINY = [
    Cell(interval, rate, collapsed, 4, True)
    for rate, row in TINY_TABLE.items()
    for interval, collapsed in zip((1, 4, 16, 64), row, strict=True)
]
