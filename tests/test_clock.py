import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_runs import collapsed_rows, oracle

from analysis.clock import (
    CollapseInterval,
    InterruptedRun,
    clock_reference,
    cumulative_rate,
    effective_updates,
    feasible_set,
    sync_change_factor,
)
from analysis.clock_posterior import clock_posterior, qualifying_cumulative_rate

LLAMA, QWEN = collapsed_rows("llama_3_2_3b"), collapsed_rows("qwen3_8b")
STABLE_3B = [InterruptedRun(32, rate, 1400) for rate in (8e-8, 7e-8, 6e-8, 5e-8)]


# Cumulative rate


@pytest.mark.parametrize("updates", [0, 1, 7, 19, 20, 21, 100])
@pytest.mark.parametrize("ramp", [0, 1, 2, 20])
def test_cumulative_rate_is_the_sum_of_the_rates(updates, ramp):
    rates = [0.002 * min(1.0, (j + 1) / ramp) if ramp else 0.002 for j in range(updates)]
    assert cumulative_rate(updates, 0.002, ramp) == pytest.approx(sum(rates))
    assert effective_updates(updates, ramp) == pytest.approx(sum(rates) / 0.002)


# Feasible set


@pytest.mark.parametrize(
    ("name", "rows", "fixed"),
    [
        ("llama", LLAMA, {}),
        ("llama_ab", LLAMA, {"b": None}),
        ("llama_b_at_a1", LLAMA, {"a": 1.0, "b": None}),
        ("qwen", QWEN, {}),
    ],
)
def test_feasible_set_reproduces_the_published_runs(name, rows, fixed):
    expected = oracle("estimators")["clock_lp"][name]
    found = feasible_set(rows, **fixed)
    assert found.a == pytest.approx(expected["a"], abs=1e-9)
    assert found.b == pytest.approx(expected["b"], abs=1e-9)
    assert feasible_set(rows, a=1.0).c2 == pytest.approx(expected["c2"], rel=1e-9)
    assert found.least_slack == 0 and not found.empty


def test_sync_interval_changes_the_published_clock_by_at_most_14_percent():
    b = feasible_set(LLAMA, a=1.0, b=None).b
    assert sync_change_factor(b, LLAMA) == pytest.approx(4**0.0963225, rel=1e-6)


def test_paper_clock_is_the_intersection_of_the_intervals():
    rows = [CollapseInterval(8, 1e-3, 24, 32), CollapseInterval(16, 5e-4, 48, 80)]
    assert feasible_set(rows, a=1.0).c2 == pytest.approx((0.024, 0.032))


def test_least_slack_is_half_the_gap_in_log_time():
    apart = [CollapseInterval(8, 1e-3, 8, 16), CollapseInterval(8, 1e-3, 32, 40)]
    found = feasible_set(apart, a=1.0)
    assert found.empty and found.c2 is None
    assert found.least_slack == pytest.approx(math.log(2) / 2)


def test_half_open_intervals_that_only_touch_do_not_meet():
    touching = [CollapseInterval(8, 1e-3, 24, 32), CollapseInterval(8, 1e-3, 32, 40)]
    assert feasible_set(touching, a=1.0).empty
    assert feasible_set(touching, a=1.0).least_slack == pytest.approx(0, abs=1e-12)


def test_two_rates_bound_the_slope_by_their_corners():
    rows = [CollapseInterval(8, 1e-3, 24, 32), CollapseInterval(8, 2e-3, 8, 16)]
    assert feasible_set(rows).a == pytest.approx((math.log2(24 / 16), math.log2(32 / 8)))


@pytest.mark.parametrize(
    ("rows", "a", "b"),
    [
        ([], (-math.inf, math.inf), (-math.inf, math.inf)),
        ([CollapseInterval(8, 1e-3, 24, 32)], (-math.inf, math.inf), (-math.inf, math.inf)),
        ([CollapseInterval(8, 1e-3, 24, 32)] * 3, (-math.inf, math.inf), (-math.inf, math.inf)),
        # S and η along one line: neither is known without the other
        (
            [CollapseInterval(8, 1e-3, 24, 32), CollapseInterval(16, 5e-4, 48, 64)],
            (-math.inf, math.inf),
            (-math.inf, math.inf),
        ),
        ([CollapseInterval(16, 1e-3, 0, 16)] * 2, (-math.inf, math.inf), (-math.inf, math.inf)),
    ],
)
def test_what_the_rows_cannot_tell_is_unbounded(rows, a, b):
    found = feasible_set(rows, b=None)
    assert (found.a, found.b) == (a, b)


def test_first_snapshot_collapses_bound_the_clock_from_above_only():
    assert feasible_set([CollapseInterval(16, 1e-3, 0, 16)], a=1.0).c2 == pytest.approx((0.0, 0.016))


def _noise_free(c2, a, b, settings_):
    """Intervals ((M−1)S, MS] around t = c2·η^−a·S^−b, read in units where that is at least 1."""
    rows = []
    for interval, rate in settings_:
        onset = c2 / 1e-3 * (rate / 1e-3) ** -a * (interval / 8) ** -b
        snapshots = math.ceil(onset / interval)
        rows.append(CollapseInterval(interval, rate, (snapshots - 1) * interval, snapshots * interval))
    return rows


GRID = [(interval, rate) for interval in (2, 7, 11, 32) for rate in (5e-4, 1e-3, 2e-3, 4e-3)]
truths = st.tuples(st.floats(0.02, 5), st.floats(0.2, 1.8), st.floats(-0.8, 0.8))
some_settings = st.lists(st.sampled_from(GRID), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(truths, some_settings)
def test_noise_free_truth_is_always_feasible(truth, chosen):
    c2, a, b = truth
    rows = _noise_free(c2, a, b, chosen)
    found = feasible_set(rows, b=None)
    assert found.least_slack == 0 and found.a is not None
    assert found.a[0] - 1e-7 <= a <= found.a[1] + 1e-7
    assert found.b[0] - 1e-7 <= b <= found.b[1] + 1e-7
    reference = clock_reference(rows)
    x, z = reference.log_ratios(1e-3, 8)
    at_reference = c2 * math.exp(a * x + b * z) * reference.learning_rate / 1e-3
    assert found.c2[0] * (1 - 1e-7) <= at_reference <= found.c2[1] * (1 + 1e-7)


@settings(max_examples=20, deadline=None)
@given(truths, some_settings, st.floats(1e-4, 1e4))
def test_rates_in_other_units_change_c2_only(truth, chosen, factor):
    rows = _noise_free(*truth, chosen)
    scaled = [CollapseInterval(r.sync_interval, r.learning_rate * factor, r.low, r.high) for r in rows]
    first, second = feasible_set(rows, b=None), feasible_set(scaled, b=None)
    assert second.a == pytest.approx(first.a, abs=1e-6)
    assert second.b == pytest.approx(first.b, abs=1e-6)
    assert second.c2 == pytest.approx([end * factor for end in first.c2], rel=1e-6)


# Posterior


@pytest.mark.parametrize(
    ("name", "rows", "options", "tolerance"),
    [
        ("llama", LLAMA, {}, 0.003),
        ("llama_a1", LLAMA, {"a": 1.0}, 0.003),
        ("qwen", QWEN, {}, 0.003),
        ("qwen_a1", QWEN, {"a": 1.0}, 0.003),
        # The worked example cut the prior of s at three scales, which this data reaches beyond.
        ("WRONG_stable_as_censored", LLAMA, {"interrupted": STABLE_3B}, 0.05),
    ],
)
def test_posterior_reproduces_the_published_runs(name, rows, options, tolerance):
    _agrees(oracle("estimators")["clock_posterior"][name], rows, options, tolerance)


def test_posterior_with_an_interrupted_run():
    example = oracle("estimators")["clock_posterior"]["valid_preempted"]
    rows = [CollapseInterval(S, rate, (M - 1) * S, M * S) for S, rate, M in example["rows"]]
    cut = [InterruptedRun(32, rate, reached) for rate, reached in example["cens"]]
    _agrees(example["result"], rows, {"interrupted": cut}, 0.003)


def _agrees(expected, rows, options, tolerance):
    found = clock_posterior(rows, spread_scale=0.1, **options)
    assert found.reference.learning_rate == pytest.approx(expected["eta0"])
    assert found.a.mean == pytest.approx(expected["a_mean"], abs=tolerance)
    assert (found.a.low, found.a.high) == pytest.approx(expected["a_ci"], abs=tolerance)
    assert found.c2.median == pytest.approx(expected["c2_median"], rel=tolerance)
    assert (found.c2.low, found.c2.high) == pytest.approx(expected["c2_ci"], rel=tolerance)
    assert found.spread.mean == pytest.approx(expected["s_mean"], rel=0.15)


def test_posterior_matches_the_conjugate_answer_for_nearly_exact_times():
    """Narrow intervals and one rate: log c2 given s is normal around the mean log time."""
    rng = np.random.default_rng(3)
    logs = math.log(500) + 0.4 * rng.normal(size=40)
    rows = [CollapseInterval(1, 1e-3, math.exp(x - 1e-6), math.exp(x + 1e-6)) for x in logs]
    found = clock_posterior(rows, a=1.0)
    spreads = np.linspace(0.2, 0.8, 4001)
    residual = ((logs - logs.mean()) ** 2).sum()
    density = np.exp(-39 * np.log(spreads) - residual / (2 * spreads**2) - spreads**2 / (2 * 0.5**2))
    density /= density.sum()
    assert found.spread.mean == pytest.approx(density @ spreads, rel=0.01)
    assert math.log(found.c2.median / 1e-3) == pytest.approx(logs.mean(), abs=0.005)
    sd = math.sqrt(density @ spreads**2 / 40)
    assert math.log(found.c2.high / found.c2.low) == pytest.approx(2 * 1.96 * sd, rel=0.03)
    predictive_sd = math.sqrt(density @ spreads**2 * 41 / 40)
    assert math.log(found.cumulative_rate_quantile(1e-3) / 1e-3) == pytest.approx(
        logs.mean() + 1.645 * predictive_sd, abs=0.03
    )


def test_the_published_clock_posterior_ignores_units():
    scaled = [CollapseInterval(r.sync_interval, r.learning_rate * 1e4, r.low, r.high) for r in LLAMA]
    first, second = (clock_posterior(rows, spread_scale=0.1, b=None) for rows in (LLAMA, scaled))
    for name in ("a", "b", "spread"):
        one, two = getattr(first, name), getattr(second, name)
        assert (two.low, two.median, two.high) == pytest.approx((one.low, one.median, one.high), abs=1e-3)
    assert second.c2.median == pytest.approx(first.c2.median * 1e4, rel=1e-3)


def test_predictive_quantiles_ascend_and_hold_their_probability():
    found = clock_posterior(LLAMA, spread_scale=0.1)
    quantiles = [found.cumulative_rate_quantile(2e-7, q) for q in (0.05, 0.5, 0.95)]
    assert quantiles == sorted(quantiles)
    assert quantiles[1] == pytest.approx(3e-5, rel=0.05)


def test_an_exponent_the_rows_cannot_tell_comes_back_as_its_prior():
    found = clock_posterior([CollapseInterval(8, 1e-3, 24, 32)], b=None)
    assert (found.a.low, found.a.high) == pytest.approx((0.05, 1.95), abs=1e-6)
    assert (found.b.low, found.b.high) == pytest.approx((-0.95, 0.95), abs=1e-6)


def test_no_posterior_without_a_bound_on_each_side():
    assert clock_posterior([]) is None
    assert clock_posterior([], interrupted=STABLE_3B) is None
    assert clock_posterior([CollapseInterval(16, 1e-3, 0, 16)] * 5) is None
    assert clock_posterior([CollapseInterval(16, 1e-3, 0, 16)], interrupted=STABLE_3B) is not None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("b", [0.0, None])
@pytest.mark.parametrize(
    "rows",
    [
        [CollapseInterval(8, 1e-3, 24, 32)] * 60,
        [CollapseInterval(8, 1e-3, 1, 2), CollapseInterval(8, 1e-3, 1e5, 1.1e5)],
        [CollapseInterval(1, 1e-3, 1e6, 1e6 + 1), CollapseInterval(1, 1e-5, 1e8, 1e8 + 1)],
        [CollapseInterval(16, 1e-3, 0, 16), CollapseInterval(16, 2e-3, 8, 16)],
        [CollapseInterval(8, 1e-3, 24, 32), CollapseInterval(16, 5e-4, 48, 64)],
    ],
)
def test_awkward_rows_give_finite_ordered_intervals(rows, b):
    found = clock_posterior(rows, b=b)
    for marginal in (found.a, found.c2, found.spread):
        assert 0 <= marginal.low < marginal.median < marginal.high < math.inf
    assert 0 < found.cumulative_rate_quantile(3e-4) < math.inf


def test_noisy_rows_empty_the_set_but_not_the_posterior():
    rng = np.random.default_rng(0)
    rows = []
    for interval, rate in zip(rng.choice([4, 16, 64], 60), rng.choice([1e-3, 2e-3, 4e-3], 60), strict=True):
        snapshots = math.ceil(0.5 / rate * math.exp(0.4 * rng.normal()) / interval)
        rows.append(CollapseInterval(int(interval), rate, (snapshots - 1) * interval, snapshots * interval))
    found = clock_posterior(rows, b=None)
    assert found.a.low < 1 < found.a.high
    assert feasible_set(rows, b=None).least_slack > 0.3


# Qualification


def test_qualifying_rate_is_the_predictive_quantile_or_kappa_c2():
    posterior, known = clock_posterior(LLAMA, spread_scale=0.1), feasible_set(LLAMA, a=1.0)
    quantile = posterior.cumulative_rate_quantile(1e-7)
    assert qualifying_cumulative_rate(posterior, known, 1e-7) == quantile > 3.2e-5
    assert qualifying_cumulative_rate(None, known, 1e-7) == pytest.approx(6.4e-5)
    assert qualifying_cumulative_rate(None, feasible_set([]), 1e-7) is None
    assert qualifying_cumulative_rate(None, None, 1e-7) is None


def test_qualifying_rate_never_falls_inside_the_interval_that_many_equal_runs_share():
    rows = [CollapseInterval(8, 1e-3, 24, 32)] * 60
    posterior = clock_posterior(rows, a=1.0)
    assert posterior.cumulative_rate_quantile(1e-3) < 0.032
    assert qualifying_cumulative_rate(posterior, feasible_set(rows, a=1.0), 1e-3) == pytest.approx(0.032)


# Bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((8, 1e-3, 32, 32), "low=32, high=32"),
        ((8, 1e-3, -1, 32), "low=-1"),
        ((8, 1e-3, 24, math.inf), "high=inf"),
        ((8, 1e-3, math.nan, 32), "low=nan"),
        ((0, 1e-3, 24, 32), "sync_interval=0"),
        ((8, 0.0, 24, 32), "learning_rate=0.0"),
    ],
)
def test_bad_rows_are_refused_with_their_value(fields, message):
    with pytest.raises(ValueError, match=message):
        CollapseInterval(*fields)


def test_bad_scales_are_refused():
    with pytest.raises(ValueError, match="spread_scale=0"):
        clock_posterior(LLAMA, spread_scale=0)
    with pytest.raises(ValueError, match="at least one"):
        clock_reference([])
    with pytest.raises(ValueError, match="ramp_updates=-1"):
        effective_updates(3, -1)
