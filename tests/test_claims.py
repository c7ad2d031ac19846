import math

import numpy as np
import pytest
from published_runs import TINY, collapsed_rows, extended_cells, main_cells

from analysis.boundary import Cell, boundary
from analysis.claims import TELLING_WIDTH, boundary_law, clock_law
from analysis.clock import CollapseInterval

RATES = np.geomspace(1e-8, 2e-6, 14)


def clean(edge, intervals=(4, 8, 16, 32, 64, 128)):
    return [Cell(S, float(rate), int(rate > edge(S)), 1, True) for S in intervals for rate in RATES]


@pytest.mark.parametrize("cells", [main_cells(), extended_cells()])
def test_the_published_grids_cannot_tell_the_exponent(cells):
    found = boundary_law(boundary(cells))
    assert found.verdict == "cannot tell"
    assert found.intervals["p"][0] <= 0.5 and found.intervals["p"][1] >= 1.32
    assert "[0.50, " in found.reason


def test_a_fine_clean_grid_is_consistent_with_a_constant_product():
    found = boundary_law(boundary(clean(lambda S: 3e-6 / S)))
    low, high = found.intervals["p"]
    assert found.verdict == "consistent"
    assert low < 1 < high and high - low <= TELLING_WIDTH
    assert f"[{low:.2f}, {high:.2f}]" in found.reason


def test_a_square_root_boundary_is_inconsistent_with_a_constant_product():
    assert boundary_law(boundary(clean(lambda S: 1e-6 / S**0.5))).verdict == "inconsistent"
    assert boundary_law(boundary(TINY)).verdict == "inconsistent"


def test_a_cap_is_not_held_against_the_law():
    found = boundary_law(boundary(clean(lambda S: min(4e-7, 8e-6 / S))))
    assert found.verdict == "cannot tell"
    assert "cap" in found.reason


@pytest.mark.parametrize(
    "cells", [[], main_cells()[:1], [Cell(4, 1e-3, 0, 3, True), Cell(8, 2e-3, 0, 3, True)]]
)
def test_too_few_cells_cannot_tell(cells):
    found = boundary_law(boundary(cells))
    assert (found.verdict, found.intervals["p"]) == ("cannot tell", (-math.inf, math.inf))


def test_the_published_clock_is_consistent():
    found = clock_law(collapsed_rows("llama_3_2_3b"), spread_scale=0.1)
    assert found.verdict == "consistent"
    assert found.intervals["a"] == pytest.approx((0.954, 1.314), abs=0.01)
    assert found.intervals["b"] == pytest.approx((-0.096, 0.322), abs=0.01)
    assert "[0.95, 1.31]" in found.reason and "confirm" not in found.reason


def rows(a, b, rates=(1e-3, 2e-3, 4e-3, 8e-3), intervals=(2, 4, 8)):
    made = []
    for rate in rates:
        for interval in intervals:
            snapshots = math.ceil(1 / rate * (rate / 1e-3) ** (1 - a) * (interval / 4) ** -b / interval)
            made.append(CollapseInterval(interval, rate, (snapshots - 1) * interval, snapshots * interval))
    return made


@pytest.mark.parametrize(
    ("a", "b", "verdict", "named"),
    [
        (1.0, 0.0, "consistent", "hold 1 and 0"),
        (0.5, 0.0, "inconsistent", "a = 1"),
        (1.0, -0.6, "inconsistent", "b = 0"),
    ],
)
def test_clock_verdicts_on_noise_free_runs(a, b, verdict, named):
    found = clock_law(rows(a, b))
    assert found.verdict == verdict
    assert named in found.reason


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([], "No run collapsed"),
        ([CollapseInterval(16, 1e-3, 0, 16)] * 3, "first snapshot"),
        (rows(1.0, 0.0, intervals=(4,)), "one S leaves b open"),
        (rows(1.0, 0.0, rates=(1e-3,)), "One η leaves a open"),
        (rows(1.0, 0.0)[:2], "not known to within"),
        (collapsed_rows("qwen3_8b"), "one S leaves b open"),
    ],
)
def test_clock_that_cannot_be_told(runs, reason):
    found = clock_law(runs)
    assert found.verdict == "cannot tell"
    assert reason in found.reason
