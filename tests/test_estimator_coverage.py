"""Intervals hold the truth as often as they say, on simulated sweeps (about 12 CPU seconds)."""

import math

import numpy as np
import pytest
from scipy.stats import binom

import analysis.clock_posterior as clock_posterior_module
from analysis.boundary import Cell
from analysis.clock import CollapseInterval
from analysis.clock_posterior import clock_posterior
from analysis.collapse_probability import clopper_pearson, exponent_estimate

pytestmark = pytest.mark.statistics


def between(hits, trials, probability):
    """Counts that a correct interval leaves once in a thousand."""
    return binom.ppf(0.0005, trials, probability) <= hits <= binom.ppf(0.9995, trials, probability)


def test_clock_posterior_covers_truths_drawn_from_its_prior(monkeypatch):
    monkeypatch.setattr(clock_posterior_module, "EVALUATIONS", 1_000_000)  # a coarser grid, for speed
    rng, trials, level = np.random.default_rng(11), 150, 0.9
    hits = dict.fromkeys(("a", "b", "c2", "spread", "predictive"), 0)
    for _ in range(trials):
        a, b, spread = rng.uniform(0, 2), rng.uniform(-1, 1), 0.5 * abs(rng.normal())
        onset_at_1e3 = math.exp(rng.uniform(math.log(60), math.log(2000)))

        def onset(interval, rate, a=a, b=b, spread=spread, onset_at_1e3=onset_at_1e3):
            return onset_at_1e3 * (rate / 1e-3) ** -a * (interval / 8) ** -b * math.exp(spread * rng.normal())

        rows = []
        for interval in (4, 8, 16):
            for rate in (5e-4, 1e-3, 2e-3, 4e-3):
                snapshots = math.ceil(onset(interval, rate) / interval)
                rows.append(
                    CollapseInterval(interval, rate, (snapshots - 1) * interval, snapshots * interval)
                )
        found = clock_posterior(rows, b=None, level=level)
        x, z = found.reference.log_ratios(1e-3, 8)
        c2 = onset_at_1e3 * math.exp(a * x + b * z) * found.reference.learning_rate
        truth = {"a": a, "b": b, "c2": c2, "spread": spread}
        for name, value in truth.items():
            marginal = getattr(found, name)
            hits[name] += marginal.low <= value <= marginal.high
        hits["predictive"] += 5e-4 * onset(16, 5e-4) <= found.cumulative_rate_quantile(5e-4, 0.9, 16)
    assert all(between(count, trials, level) for count in hits.values()), hits


@pytest.mark.parametrize("trials", [1, 3, 6, 24])
def test_clopper_pearson_covers_at_least_95_percent(trials):
    """Exact: the probability of the counts whose interval holds the truth."""
    intervals = [clopper_pearson(events, trials) for events in range(trials + 1)]
    for truth in np.linspace(0.001, 0.999, 333):
        chances = binom.pmf(np.arange(trials + 1), trials, truth)
        assert (
            sum(c for c, (low, high) in zip(chances, intervals, strict=True) if low <= truth <= high) >= 0.95
        )


@pytest.mark.parametrize(("seeds", "p"), [(1, 0.5), (3, 0.5), (3, 1.0)])
def test_exponent_interval_covers_on_a_sixteen_cell_grid(seeds, p):
    rng, trials, hits = np.random.default_rng(seeds), 100, 0
    for _ in range(trials):
        cells = []
        for interval in (4, 16, 64):
            for rate in (1e-3, 2e-3, 4e-3, 8e-3):
                log_odds = 2.7 * (math.log(rate / 2e-3) + p * math.log(interval / 16))
                chance = 1 / (1 + math.exp(-log_odds))
                cells.append(Cell(interval, rate, int(rng.binomial(seeds, chance)), seeds, True))
        found = exponent_estimate(cells)
        hits += found is None or found.range[0] <= p <= found.range[1]
    assert hits >= binom.ppf(0.0005, trials, 0.95), hits
