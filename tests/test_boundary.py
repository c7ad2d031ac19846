import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_runs import extended_cells, main_cells, oracle

from analysis.boundary import Cell, boundary, capped_exponent_set, product_bracket, rate_brackets


def cells_at(sync_interval, outcomes, runs=4):
    """Cells at η = 1, 2, 4, … for outcomes such as "smc" (u: unqualified)."""
    collapsed = {"s": 0, "u": 0, "m": 1, "c": runs}
    return [
        Cell(sync_interval, float(2**k), collapsed[kind], runs, kind != "u")
        for k, kind in enumerate(outcomes)
    ]


# Published grids


@pytest.mark.parametrize(("name", "cells"), [("main", main_cells()), ("extended", extended_cells())])
def test_published_exponents(name, cells):
    expected, found = oracle("estimators")["boundary"][name], boundary(cells)
    assert found.exponent.hull == pytest.approx(expected["p"], abs=1e-9)
    assert found.mean_lag_exponent.hull == pytest.approx(expected["p_Sminus1"], abs=1e-9)


def test_published_brackets():
    expected = oracle("estimators")["boundary"]["main"]["brackets"]
    found = {str(bracket.sync_interval): list(bracket.bounds) for bracket in boundary(main_cells()).rates}
    assert found == expected
    assert boundary(main_cells()).rates[-1].stable_rate is None


@pytest.mark.parametrize(
    ("cells", "product", "mean_lag"),
    [
        (main_cells(), (1.6e-6, 3.2e-6), (0.75e-6, 1.5e-6)),
        (main_cells("llama_3_2_1b"), (1.6e-6, 3.2e-6), (0.75e-6, 1.5e-6)),
        (main_cells("qwen3_8b"), (1.6e-6, 3.2e-6), (0.75e-6, 1.5e-6)),
        (extended_cells(), (2.56e-6, 3.2e-6), (1.24e-6, 1.5e-6)),
    ],
)
def test_published_product_brackets(cells, product, mean_lag):
    found = boundary(cells)
    assert (found.product.stable_max, found.product.collapsed_min) == pytest.approx(product)
    assert (found.mean_lag_product.stable_max, found.mean_lag_product.collapsed_min) == pytest.approx(
        mean_lag
    )
    assert found.product.overlap is None
    assert found.constant_product == pytest.approx(product)


# Cells and brackets


@pytest.mark.parametrize(
    ("collapsed", "qualified", "outcome"),
    [
        (0, True, "stable"),
        (0, False, "unqualified"),
        (3, False, "collapsed"),
        (1, True, "mixed"),
        (1, False, "mixed"),
    ],
)
def test_outcome_of_a_cell(collapsed, qualified, outcome):
    assert Cell(4, 1e-3, collapsed, 3, qualified).outcome == outcome


@pytest.mark.parametrize(
    ("outcomes", "stable", "collapsed", "out_of_order", "mixed"),
    [
        ("sscc", 2, 4, [], []),
        ("smcc", 1, 4, [], [2]),
        ("ssss", 8, None, [], []),
        ("cccc", None, 1, [], []),
        ("mmmm", None, None, [], [1, 2, 4, 8]),
        ("scsc", 1, 8, [2, 4], []),
        ("msc", None, 4, [2], [1]),
        ("cms", None, None, [1, 4], [2]),
        ("suc", 1, 4, [], []),
        ("usc", 2, 4, [], []),
        ("uu", None, None, [], []),
        ("", None, None, [], []),
    ],
)
def test_bracket_of_one_sync_interval(outcomes, stable, collapsed, out_of_order, mixed):
    cells = cells_at(4, outcomes)
    if not cells:
        assert rate_brackets(cells) == ()
        return
    (bracket,) = rate_brackets(cells)
    assert (bracket.stable_rate, bracket.collapsed_rate) == (stable, collapsed)
    assert [cell.learning_rate for cell in bracket.non_monotone] == out_of_order
    assert [cell.learning_rate for cell in bracket.mixed] == mixed


def test_overlap_names_the_products_that_contradict():
    cells = [Cell(4, 8.0, 0, 1, True), Cell(16, 1.0, 1, 1, True)]
    assert product_bracket(cells).overlap == (16.0, 32.0)
    touching = [Cell(4, 4.0, 0, 1, True), Cell(16, 1.0, 1, 1, True)]
    assert product_bracket(touching).overlap == (16.0, 16.0)


def test_one_update_per_sync_stays_out_of_products_but_has_a_bracket():
    found = boundary(cells_at(1, "sc") + cells_at(4, "sc"))
    assert (found.product.stable_max, found.product.collapsed_min) == (4.0, 8.0)
    assert [bracket.sync_interval for bracket in found.rates] == [1, 4]
    assert found.exponent.hull == (-math.inf, math.inf)  # one S with staleness


outcome_rows = st.text("smcu", min_size=1, max_size=7)


@settings(max_examples=200)
@given(outcome_rows, st.data())
def test_a_further_collapse_never_raises_a_bracket(outcomes, data):
    place = data.draw(st.integers(0, len(outcomes) - 1))
    changed = outcomes[:place] + "c" + outcomes[place + 1 :]
    before, after = (rate_brackets(cells_at(4, kinds))[0].bounds for kinds in (outcomes, changed))
    assert before[0] < before[1] and after[0] < after[1]
    assert after[0] <= before[0] and after[1] <= before[1]


# Exponents


INTERVALS = (2, 4, 16, 64)
RATES = np.geomspace(1e-3, 1, 12)


def noise_free(p, q, cap=math.inf, intervals=INTERVALS, scale=1.0):
    return [
        Cell(interval, float(rate) * scale, int(rate > min(cap, q * interval**-p)), 1, True)
        for interval in intervals
        for rate in RATES
    ]


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.5, 2), st.floats(1e-2, 10))
def test_noise_free_exponent_is_always_in_the_set(p, q):
    found = boundary(noise_free(p, q)).exponent
    assert found.least_slack == 0
    assert found.hull[0] - 1e-9 <= p <= found.hull[1] + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 2), st.floats(1e-2, 10), st.floats(2e-3, 0.9))
def test_noise_free_capped_exponent_is_always_in_the_set(p, q, cap):
    found = boundary(noise_free(p, q, cap, intervals=(1, *INTERVALS))).capped_exponent
    assert found.least_slack == 0
    assert any(low - 1e-9 <= p <= high + 1e-9 for low, high in found.ranges)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 1.5), st.floats(1e-2, 10), st.floats(1e-4, 1e4))
def test_rates_in_other_units_leave_the_exponents(p, q, scale):
    first, second = boundary(noise_free(p, q)), boundary(noise_free(p, q, scale=scale))
    assert second.exponent.hull == pytest.approx(first.exponent.hull, abs=1e-6)
    assert second.capped_exponent.hull == pytest.approx(first.capped_exponent.hull, abs=1e-6)


def test_a_cap_opens_exponents_that_a_plain_power_law_excludes():
    """η_max in [4, 8) at S = 1 and 4, [1, 2) at 16, [0.25, 0.5) at 64: flat, then ∝ 1/S."""
    cells = [
        Cell(interval, rate, int(rate > edge), 1, True)
        for interval, edge in ((1, 5), (4, 5), (16, 1.25), (64, 0.3))
        for rate in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    found = boundary(cells)
    # The power law is at 4 or above at S = 4 and under 0.5 at S = 64; then it drops by under 2/0.25.
    assert found.capped_exponent.hull == pytest.approx((0.75, 1.5))
    assert found.capped_exponent.contains(1.0)
    flat_plain = boundary([cell for cell in cells if cell.sync_interval != 1]).exponent
    assert flat_plain.hull == pytest.approx((0.75, 1.25))


def test_brackets_with_one_value_in_common_leave_the_exponent_unbounded_above():
    found = boundary(cells_at(4, "ssc") + cells_at(16, "ssc") + cells_at(64, "ssc")).capped_exponent
    assert found.hull == (0.0, math.inf)


def test_capped_set_agrees_with_a_search_over_cap_and_level():
    rng = np.random.default_rng(5)
    intervals = np.array([1, 4, 16, 64])
    for _ in range(6):
        edges = np.sort(rng.integers(0, 6, 4))[::-1]
        cells = [
            c
            for S, k in zip(intervals, edges, strict=True)
            for c in cells_at(int(S), "s" * k + "c" * (7 - k))
        ]
        brackets = rate_brackets(cells)
        low, high = np.array([bracket.bounds for bracket in brackets]).T
        found = capped_exponent_set(brackets)
        caps, levels = np.geomspace(0.5, 200, 120), np.geomspace(0.1, 1e8, 900)
        for p in np.linspace(0, 3, 61):
            if any(abs(p - end) < 0.06 for ends in found.ranges for end in ends):
                continue
            power = levels[None, :, None] * intervals**-p
            limit = np.minimum(caps[:, None, None], power)
            hit = bool(((limit >= low) & (limit < high)).all(axis=2).any())
            assert hit == found.contains(p), (edges, p, found)


def test_least_slack_of_contradictory_brackets_is_half_the_gap():
    """η_max in [2, 4) at S = 2 and 8 but [16, 32) at S = 4: the middle must come down, the ends go up."""
    cells = cells_at(2, "ssccccc") + cells_at(4, "ssssscc") + cells_at(8, "ssccccc")
    found = boundary(cells).exponent
    assert found.ranges == () and found.hull is None
    assert found.least_slack == pytest.approx(math.log(16 / 4) / 2)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        cells_at(4, "s"),
        cells_at(4, "c"),
        cells_at(1, "c"),
        cells_at(4, "m"),
        cells_at(4, "u") + cells_at(8, "c"),
    ],
)
def test_too_few_cells_leave_every_exponent_open(cells):
    found = boundary(cells)
    assert found.exponent.hull == (-math.inf, math.inf)
    assert found.capped_exponent.hull == (0.0, math.inf)
    assert found.exponent.least_slack == found.capped_exponent.least_slack == 0


def test_bad_cells_are_refused_with_their_value():
    with pytest.raises(ValueError, match="collapsed=4 of runs=3"):
        Cell(4, 1e-3, 4, 3, True)
    with pytest.raises(ValueError, match="runs=0"):
        Cell(4, 1e-3, 0, 0, True)
    with pytest.raises(ValueError, match="learning_rate=nan"):
        Cell(4, math.nan, 0, 1, True)
    with pytest.raises(ValueError, match=r"two cells at sync_interval=4, learning_rate=1.0"):
        boundary(cells_at(4, "s") + cells_at(4, "c"))
