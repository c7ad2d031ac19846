"""Compute to accuracy and savings: the worked example, limits, units, and curves with a known crossing."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.frontier import (
    Curve,
    break_even,
    compute_to,
    curve_of,
    first_crossing,
    median_curve,
    saving,
    saving_range,
)
from tests.helpers import ROOT

ORACLE = json.loads((ROOT / "tests" / "oracles" / "worked_examples.json").read_text())["frontier"]
MU = 5.28


def arm(side, gamma):
    """Curves whose compute is γ per update at μ: one batch trained, and y times fewer generated."""
    steps = np.array(ORACLE[f"{side}_steps"], dtype=float)
    fresh = (gamma * (1 + MU) - 1) / MU
    return [Curve(steps, np.array(values), steps, steps * fresh) for values in ORACLE[side]]


BASE, BUFFER = arm("base", 1.0), arm("buffer", ORACLE["gamma"])


@pytest.mark.parametrize("level", ORACLE["targets"])
def test_compute_to_accuracy_of_the_worked_example(level):
    base, buffer = ORACLE["targets"][level]
    for curves, expected in ((BASE, base), (BUFFER, buffer)):
        found = compute_to(curves, float(level), MU).compute
        assert found is None if expected is None else found == pytest.approx(expected, rel=1e-9)


def test_saving_of_the_worked_example():
    found = saving(compute_to(BASE, 0.45, MU), compute_to(BUFFER, 0.45, MU))
    assert found == pytest.approx(ORACLE["saving_045"], rel=1e-9)
    ends = saving_range(BASE, BUFFER, 0.45, MU, quantiles=(0.025, 0.975))
    assert ends is not None and ends.resamples == 27 * 27 and ends.undefined == 0
    assert (ends.low, ends.high) == pytest.approx(ORACLE["saving_045_ci"], abs=0.02)
    assert ends.low < found < ends.high


def test_unreached_accuracies_are_censored_at_the_horizon():
    found = compute_to(BASE, 0.505, MU)
    assert found.compute is None and found.horizon == 200
    assert saving(found, compute_to(BUFFER, 0.505, MU)) is None
    some = saving_range(BASE, BUFFER, 0.495, MU, quantiles=(0, 1))
    assert some is not None and some.undefined > 0


def test_an_arm_against_itself_saves_nothing():
    for level in (0.3, 0.4, 0.45):
        assert saving(compute_to(BASE, level, MU), compute_to(BASE, level, MU)) == 0


@given(unit=st.floats(1e-3, 1e3), level=st.floats(0.25, 0.48), mu=st.floats(0.1, 50))
def test_savings_do_not_depend_on_the_unit_of_compute(unit, level, mu):
    def scaled(curves):
        return [Curve(c.steps, c.accuracy, c.trained * unit, c.generated * unit) for c in curves]

    plain = saving(compute_to(BASE, level, mu), compute_to(BUFFER, level, mu))
    other = saving(compute_to(scaled(BASE), level, mu), compute_to(scaled(BUFFER), level, mu))
    assert plain == pytest.approx(other, rel=1e-9, abs=1e-12)


def test_limits_of_the_cost_ratio():
    """μ → 0 counts what is trained on, μ → ∞ what is generated."""
    for mu, part in ((1e-9, "trained"), (1e9, "generated")):
        compute, accuracy = median_curve(BUFFER, mu)
        expected = first_crossing(getattr(BUFFER[0], part), accuracy, 0.45)
        assert first_crossing(compute, accuracy, 0.45) == pytest.approx(expected, rel=1e-6)


def test_break_even_lies_where_the_saving_changes_sign():
    mus = np.geomspace(0.25, 32, 57)
    savings = [saving(compute_to(BASE, 0.45, mu), compute_to(BUFFER, 0.45, mu)) for mu in mus]
    found = break_even(mus, savings)
    assert found is not None
    at = saving(compute_to(BASE, 0.45, found), compute_to(BUFFER, 0.45, found))
    assert abs(at) < 2e-3
    assert break_even(mus, [0.1] * 57) is None and break_even(mus, [-0.1] * 57) is None


@given(crossing=st.floats(5, 95), level=st.floats(0.1, 0.9), noise=st.integers(0, 1000))
def test_a_known_crossing_is_found(crossing, level, noise):
    """Straight lines through `level` at `crossing`, whatever their slopes, seed by seed."""
    slopes = np.random.default_rng(noise).uniform(0.001, 0.1, 3)
    steps = np.arange(0, 101, 5, dtype=float)
    curves = [Curve(steps, level + slope * (steps - crossing), steps, steps) for slope in slopes]
    assert compute_to(curves, level, 3.0).compute == pytest.approx(crossing, abs=1e-6)


def test_only_common_evaluations_count_and_old_records_are_read():
    evaluations = [{"step": step, "value": 0.1 * step} for step in (0, 2, 4)] + [{"step": 6, "value": None}]
    metrics = [{"step": step} for step in range(5)]
    curve = curve_of(evaluations, metrics, 64)
    assert curve is not None and curve.steps.tolist() == [0, 2, 4]
    assert curve.trained.tolist() == curve.generated.tolist() == [0, 2, 4]
    counted = [{"rollouts_trained": 64 * (s + 1), "rollouts_generated": 256 + 16 * s} for s in range(5)]
    assert curve_of(evaluations, counted, 64).generated.tolist() == [0, 4.25, 4.75]
    longer = Curve(np.arange(0.0, 8, 2), np.zeros(4), np.arange(0.0, 8, 2), np.arange(0.0, 8, 2))
    assert median_curve([curve, longer], 1.0)[0].tolist() == [0, 2, 4]
    assert curve_of([], metrics, 64) is None
