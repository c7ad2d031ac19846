"""Does one threshold on log η + p·log f place all boundaries? Numbers for one staleness factor f.

Everything here works on logarithms of a table of cells and knows nothing of what the factor means. p is 1 for
a product f·η and is fitted for a power law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from analysis.collapse_probability import FirthFit, FirthSample
from analysis.interval_lp import (
    Array,
    Inequalities,
    Range,
    extent,
    has_interior,
    least_slack,
    within,
)
from analysis.staleness import Configuration

EXPONENTS = np.linspace(-1.0, 3.0, 161)
"""Tried in simulated tables in place of a linear program."""
SAME = 1e-6
"""Log coordinates no further apart are one value: a fitted p is known to about 1e-8."""


@dataclass(frozen=True)
class Table:
    """Counted cells of some configurations, as arrays."""

    rate: Array
    """log η, shape (cells,); ascending within a configuration."""
    place: NDArray[np.int64]
    """Configuration of each cell, from 0, ascending."""
    collapsed: Array
    trials: Array
    low: Array
    """log of the highest stable rate per configuration; −∞ where open."""
    high: Array
    """log of the lowest collapsed rate; ∞ where open."""
    noisy: bool
    """Seeds disagree in a cell, or cells are out of order."""

    @property
    def size(self) -> int:
        """Configurations."""
        return len(self.low)

    def without(self, left_out: int) -> Table:
        """Without the cells of one configuration; the numbering stays."""
        return self._where(self.place != left_out)

    def only(self, kept: int) -> Table:
        """With the cells of one configuration only."""
        return self._where(self.place == kept)

    def _where(self, kept: NDArray[np.bool_]) -> Table:
        return replace(
            self,
            rate=self.rate[kept],
            place=self.place[kept],
            collapsed=self.collapsed[kept],
            trials=self.trials[kept],
        )


def table_of(configurations: Sequence[Configuration]) -> Table:
    """The counted cells; configurations without one have open brackets."""
    cells = [(k, cell) for k, item in enumerate(configurations) for cell in item.counted]
    bounds = np.array([item.bracket.bounds for item in configurations]).reshape(-1, 2)
    with np.errstate(divide="ignore"):
        low, high = np.log(bounds).T
    return Table(
        rate=np.log([cell.learning_rate for _, cell in cells]),
        place=np.array([k for k, _ in cells], dtype=np.int64),
        collapsed=np.array([sum(down for _, down in cell.trials) for _, cell in cells], dtype=np.float64),
        trials=np.array([len(cell.trials) for _, cell in cells], dtype=np.float64),
        low=low,
        high=high,
        noisy=any(item.bracket.mixed or item.bracket.non_monotone for item in configurations),
    )


@dataclass(frozen=True)
class Slack:
    """Room for one threshold in all brackets."""

    value: float
    """Least log-amount by which both ends of all brackets must give way; negative where they leave room."""
    exponents: Range | None
    """p with a threshold inside all brackets, where p is free and there is one."""

    @property
    def none_needed(self) -> bool:
        return has_interior(self.value)


def slack(table: Table, factor: Array, *, fitted: bool) -> Slack:
    """Brackets low <= q − p·log f < high as a linear program in (q, p); p = 1 unless fitted."""
    if not fitted:
        value = float(((table.low + factor).max() - (table.high + factor).min()) / 2)
        return Slack(max(value, -1.0), None)  # −1: the floor of the linear program
    inequalities = _inequalities(table, factor)
    value = least_slack(inequalities)
    return Slack(value, extent(inequalities, [0.0, 1.0]) if has_interior(value) else None)


def _inequalities(table: Table, factor: Array) -> Inequalities:
    return within(np.column_stack([np.ones(table.size), -factor]), table.low, table.high)


def exponent_range(table: Table, factor: Array, level: float = 0.95) -> Range:
    """Profile interval of p = β_f/β_η in logit P = β0 + β_η·log η + β_f·log f (math.md C3).

    Where no seeds disagree it is widened to the p that pass through all brackets: a clean table may be luck.
    """
    sample = _sample(table, np.column_stack([table.rate, factor[table.place]]))
    if sample is None:
        return -math.inf, math.inf
    low, high = sample.ratio_range(2, 1, level)
    found = slack(table, factor, fitted=True).exponents
    if found is not None and not table.noisy:
        low, high = min(low, found[0]), max(high, found[1])
    return low, high


def _sample(table: Table, covariates: Array) -> FirthSample | None:
    """None where the covariates do not vary, or along one line only."""
    if not len(covariates):
        return None
    design = np.column_stack([np.ones(len(covariates)), covariates - covariates.mean(axis=0)])
    if np.linalg.matrix_rank(design, tol=1e-9 * len(design)) < design.shape[1]:
        return None
    return FirthSample(design, table.collapsed, table.trials)


@dataclass(frozen=True)
class Curve:
    """P(collapse) = logit⁻¹(slope·(log η + p·log f − threshold))."""

    intercept: float
    rate_slope: float
    factor_slope: float
    log_likelihood: float

    @property
    def p(self) -> float:
        return self.factor_slope / self.rate_slope

    @property
    def threshold(self) -> float:
        """log η + p·log f at which half of the runs collapse; NaN where a higher rate collapses less."""
        return -self.intercept / self.rate_slope if self.rate_slope > 0 else math.nan

    def predictor(self, table: Table, factor: Array) -> Array:
        """Log odds of each cell."""
        values = self.intercept + self.rate_slope * table.rate + self.factor_slope * factor[table.place]
        return np.asarray(values)


def curve(table: Table, factor: Array, *, fitted: bool) -> Curve | None:
    """Firth fit with the coordinate as the only covariate; None without two different values of it."""
    spread = factor[table.place]
    if fitted and (sample := _sample(table, np.column_stack([table.rate, spread]))):
        return _curve(sample.fit(), np.array([table.rate.mean(), spread.mean()]))
    sample = _sample(table, (table.rate + spread)[:, None])
    if sample is None:
        return None
    found = sample.fit()
    centre = float((table.rate + spread).mean())
    return _curve(
        FirthFit(np.append(found.coefficients, found.coefficients[1]), found.log_likelihood, found.penalised),
        np.array([centre, 0.0]),
    )


def _curve(fit: FirthFit, centre: Array) -> Curve:
    level, rate_slope, factor_slope = (float(value) for value in fit.coefficients)
    intercept = level - rate_slope * float(centre[0]) - factor_slope * float(centre[1])
    return Curve(intercept, rate_slope, factor_slope, fit.log_likelihood)


def threshold_range(table: Table, coordinate: Array, level: float = 0.95) -> Range:
    """Profile interval of the coordinate (log) at which half of the runs collapse."""
    sample = _sample(table, coordinate[:, None])
    if sample is None:
        return -math.inf, math.inf
    low, high = sample.ratio_range(0, 1, level)
    centre = float(coordinate.mean())
    return centre - high, centre - low


@dataclass(frozen=True)
class Split:
    """The threshold that calls fewest cells wrongly, mixed ones aside."""

    threshold: float
    """Log coordinate: the middle of the widest gap among the best."""
    wrong: int


def best_split(table: Table, coordinate: Array) -> Split | None:
    """Collapsed means at or above the threshold; None without a cell in which all seeds agree."""
    down, up = _agreeing(table)
    used = coordinate[down | up]
    if not len(used):
        return None
    # Rounded from the least on, so that logs which differ by rounding are one value, whatever the units of η.
    values = used.min() + np.unique(np.round(used - used.min(), 6))
    edges = [values[0] - 0.1, *values.tolist(), values[-1] + 0.1]
    gaps = [
        (_wrong(table, coordinate, (low + high) / 2), low - high, (low + high) / 2)
        for low, high in pairwise(edges)
    ]
    fewest = min(wrong for wrong, _, _ in gaps)
    widest = min(width for wrong, width, _ in gaps if wrong == fewest)
    threshold = next(at for wrong, width, at in gaps if wrong == fewest and width < widest + 10 * SAME)
    return Split(threshold, fewest)


def left_out_wrong(table: Table, factor: Array, *, fitted: bool) -> int:
    """Cells called wrongly when their configuration has no say in the threshold (nor in p)."""
    wrong = 0
    for k in range(table.size):
        rest, own = table.without(k), table.only(k)
        found = curve(rest, factor, fitted=True) if fitted else None
        p = found.p if found is not None else 1.0
        split = best_split(rest, rest.rate + p * factor[rest.place])
        if split is not None:
            wrong += _wrong(own, own.rate + p * factor[own.place], split.threshold)
    return wrong


def _wrong(table: Table, coordinate: Array, threshold: float) -> int:
    down, up = _agreeing(table)
    called = coordinate > threshold - SAME
    return int((down & ~called).sum() + (up & called).sum())


def _agreeing(table: Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return table.collapsed == table.trials, table.collapsed == 0


def left_out_log_odds(table: Table, factor: Array, *, fitted: bool) -> Array:
    """Log odds of collapse of each cell, fitted without its configuration."""
    odds = np.zeros(len(table.rate))
    for k in range(table.size):
        own = table.place == k
        found = curve(table.without(k), factor, fitted=fitted) if own.any() else None
        if found is not None:
            odds[own] = found.predictor(table, factor)[own]
    return odds


def noise_slope(table: Table) -> float | None:
    """Slope of the log odds in log η when every configuration has a threshold of its own.

    It measures how far seeds blur a boundary, apart from whether the boundaries line up. Firth's penalty
    holds it down where seeds never disagree, so noise is over- rather than underestimated.
    """
    present = np.unique(table.place)
    design = np.column_stack(
        [(table.place[:, None] == present).astype(float), table.rate - table.rate.mean()]
    )
    if np.linalg.matrix_rank(design, tol=1e-9 * len(design)) < design.shape[1]:
        return None
    slope = float(FirthSample(design, table.collapsed, table.trials).fit().coefficients[-1])
    return slope if slope > 0 else None


def slack_by_noise(
    table: Table, factor: Array, found: Curve, slope: float, *, fitted: bool, draws: int, level: float
) -> float:
    """Quantile of the slack that such a table needs if one threshold is true and seeds are noisy."""
    if not found.rate_slope > 0:
        return 0.0
    p = found.p if fitted else 1.0
    value = table.rate + p * factor[table.place]
    chance = expit(slope * (value - found.threshold))
    rng = np.random.default_rng([0, *b"joint slack"])
    events = rng.binomial(table.trials.astype(np.int64), chance, size=(draws, len(chance)))
    low, high = _drawn_brackets(table, events)
    exponents = EXPONENTS if fitted else np.ones(1)
    slacks = np.full(draws, math.inf)
    for exponent in exponents:
        top, bottom = (low + exponent * factor).max(axis=1), (high + exponent * factor).min(axis=1)
        slacks = np.minimum(slacks, (top - bottom) / 2)
    return float(np.quantile(slacks, level))


def _drawn_brackets(table: Table, events: NDArray[np.int64]) -> tuple[Array, Array]:
    """Brackets (draws, configurations) as `boundary.rate_brackets` reads them off counts."""
    low = np.full((len(events), table.size), -math.inf)
    high = np.full((len(events), table.size), math.inf)
    for k in range(table.size):
        own = np.flatnonzero(table.place == k)
        if not len(own):
            continue
        rates = table.rate[own]
        stable = np.cumprod(events[:, own] == 0, axis=1).sum(axis=1)
        down = np.cumprod((events[:, own] == table.trials[own])[:, ::-1], axis=1).sum(axis=1)
        low[:, k] = np.concatenate([[-math.inf], rates])[stable]
        high[:, k] = np.concatenate([[math.inf], rates[::-1]])[down]
    return low, high
