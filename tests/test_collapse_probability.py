import math

import numpy as np
import pytest
from published_runs import TINY, extended_cells, oracle

from analysis.boundary import Cell
from analysis.collapse_probability import cap_explains, clopper_pearson, exponent_estimate, product_curve


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [
        (0, 3, 0.0, 1 - 0.025 ** (1 / 3)),  # 71%
        (3, 3, 0.025 ** (1 / 3), 1.0),
        (0, 1, 0.0, 0.975),
        (5, 10, 0.1871, 0.8129),
    ],
)
def test_clopper_pearson(events, trials, low, high):
    assert clopper_pearson(events, trials) == pytest.approx((low, high), abs=1e-4)


def test_clopper_pearson_refuses_impossible_counts():
    with pytest.raises(ValueError, match="events=4 of trials=3"):
        clopper_pearson(4, 3)


def test_product_curve_of_the_published_runs():
    intercept, slope, half_product = oracle("estimators")["boundary"]["firth"]
    found = product_curve(extended_cells())
    assert found.slope == pytest.approx(slope, rel=1e-6)
    assert found.half_product == pytest.approx(half_product, rel=1e-6)
    centre = np.mean([math.log(cell.product) for cell in extended_cells()])
    assert found.slope * (centre - math.log(found.half_product)) == pytest.approx(intercept, rel=1e-6)
    low, high = found.half_product_range
    assert low < half_product < high


def test_penalised_fit_of_a_saturated_pair_adds_half_a_run_to_each_count():
    """Two products and two coefficients: Firth's estimate is the log odds with 1/2 added to every count."""
    cells = [Cell(2, 1.0, 1, 6, True), Cell(2, 4.0, 5, 6, True)]
    found = product_curve(cells)
    odds_low, odds_high = math.log(1.5 / 5.5), math.log(5.5 / 1.5)
    assert found.slope == pytest.approx((odds_high - odds_low) / math.log(4), rel=1e-6)
    assert found.half_product == pytest.approx(4.0, rel=1e-6)


def test_exponent_of_a_tiny_sweep():
    found = exponent_estimate(TINY)
    assert found.p == pytest.approx(0.5, abs=0.01)
    assert 0.2 < found.range[0] < 0.4 and 0.6 < found.range[1] < 0.8
    assert cap_explains(TINY, 1.0) is None
    assert cap_explains(TINY, 0.5) is not None


def test_exponent_does_not_depend_on_the_unit_of_the_rate():
    scaled = [Cell(c.sync_interval, c.learning_rate * 1e-4, c.collapsed, c.runs, c.qualified) for c in TINY]
    first, second = exponent_estimate(TINY), exponent_estimate(scaled)
    assert (second.p, *second.range) == pytest.approx((first.p, *first.range), rel=1e-5)


def test_a_cap_at_small_sync_intervals_is_recognised():
    """η_max = min(4, 64/S) with 40 seeds a cell: flat up to S = 16, then p = 1."""
    cells = [
        Cell(interval, rate, round(40 / (1 + (min(4, 64 / interval) / rate) ** 3)), 40, True)
        for interval in (2, 4, 8, 16, 32, 64, 128)
        for rate in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    ]
    assert exponent_estimate(cells).range[1] < 1
    assert cap_explains(cells, 1.0) == pytest.approx(16, rel=0.3)


def test_separated_cells_give_a_finite_exponent_with_an_honest_interval():
    cells = [
        Cell(S, rate, int(S * rate > 0.03), 1, True) for S in (4, 16, 64) for rate in (1e-3, 4e-3, 1.6e-2)
    ]
    found = exponent_estimate(cells)
    assert math.isfinite(found.p) and found.range[0] < 1 < found.range[1]


def test_a_rate_without_effect_leaves_the_exponent_open():
    cells = [Cell(S, rate, 1, 2, True) for S in (4, 16) for rate in (1e-3, 2e-3)]
    assert exponent_estimate(cells).range == (-math.inf, math.inf)
    assert product_curve(cells).half_product_range == (0.0, math.inf)


def test_unqualified_cells_do_not_count_as_stable():
    short = [Cell(16, 1e-2, 0, 4, False), Cell(64, 1e-2, 1, 4, False)]
    assert exponent_estimate(TINY + short) == exponent_estimate(TINY)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [Cell(4, 1e-3, 1, 2, True)],
        [Cell(S, rate, 0, 1, True) for S in (4, 16) for rate in (1e-3, 2e-3)],
        [Cell(S, rate, 1, 1, True) for S in (4, 16) for rate in (1e-3, 2e-3)],
        [Cell(1, rate, int(rate > 1e-3), 1, True) for rate in (1e-3, 2e-3)],
        [Cell(4, rate, int(rate > 1e-3), 1, True) for rate in (1e-3, 2e-3)],  # one S
        [Cell(S, 0.016 / S, int(S > 4), 1, True) for S in (4, 8, 16)],  # one product
    ],
)
def test_cells_that_cannot_carry_an_exponent_give_none(cells):
    assert exponent_estimate(cells) is None
    assert cap_explains(cells, 1.0) is None
