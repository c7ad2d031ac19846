"""Posterior of the collapse clock on a grid, and what it predicts for a new run (math.md C2; decision 13).

Priors: a ~ U(0, 2), b ~ U(−1, 1) where it is free, log c2 uniform, s half-normal. The scale of s is the
caller's: 0.5 for runs of one's own (measured spreads are 0.39 to 0.45), 0.1 for the published runs. Given s
the posterior of the rest is log-concave and the one for a smaller s lies inside the one for a larger s, so a
box found on a coarse grid can be closed in on until it fits; the final grid gets as many nodes as a fixed
number of evaluations pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import ndtr

from analysis.clock import (
    ClockReference,
    CollapseInterval,
    FeasibleSet,
    InterruptedRun,
    clock_reference,
    log_bounds,
    log_ratios,
)
from analysis.interval_lp import Array, Range

A_PRIOR: Range = (0.0, 2.0)
B_PRIOR: Range = (-1.0, 1.0)
SPREAD_REACH = 4.0
"""The grid of s ends at this many prior scales (prior mass beyond: 6e-5)."""
EVALUATIONS = 4_000_000
"""Interval probabilities evaluated on the final grid: about 0.2 s."""
NEGLIGIBLE = 14.0
"""Cells this far (log density) below the best are left out of the box."""


@dataclass(frozen=True)
class Marginal:
    """Posterior of one parameter."""

    mean: float
    median: float
    low: float
    high: float
    """Ends of the central interval."""


@dataclass(frozen=True)
class ClockPosterior:
    """Marginals, and the weighted grid nodes they come from."""

    reference: ClockReference
    level: float
    a: Marginal
    b: Marginal
    c2: Marginal
    """Cumulative learning rate at collapse at (η0, S0)."""
    spread: Marginal
    """s, in log t."""
    nodes: Array
    """Shape (nodes, 4): s, log(c2/η0), a, b."""
    weights: Array
    """Shape (nodes,), summing to 1."""

    def cumulative_rate_quantile(
        self, learning_rate: float, quantile: float = 0.95, sync_interval: float | None = None
    ) -> float:
        """Posterior predictive quantile of Λ at collapse for a new run at ``learning_rate``.

        ``sync_interval`` matters only where b is free; left out, the reference S0 is meant.
        """
        x, z = self.reference.log_ratios(learning_rate, sync_interval or self.reference.sync_interval)
        spread, intercept, a, b = self.nodes.T
        centre = intercept - a * x - b * z

        def excess(log_updates: float) -> float:
            return float(self.weights @ ndtr((log_updates - centre) / spread)) - quantile

        reach = 10 * float(spread.max())
        log_updates = brentq(excess, float(centre.min()) - reach, float(centre.max()) + reach, xtol=1e-9)
        return learning_rate * math.exp(log_updates)


def clock_posterior(
    rows: Sequence[CollapseInterval],
    *,
    spread_scale: float = 0.5,
    a: float | None = None,
    b: float | None = 0.0,
    interrupted: Sequence[InterruptedRun] = (),
    level: float = 0.95,
) -> ClockPosterior | None:
    """Posterior given collapsed runs; a number fixes that exponent, None leaves it free.

    An exponent that the rows cannot tell (one rate, one sync interval) comes back as its prior.
    ``interrupted`` are right-censored times and must be runs known to be above the boundary (see ``clock``).
    None where the posterior is improper: without a collapsed run nothing bounds c2 from above, without a
    positive ``low`` nothing from below.
    """
    if not spread_scale > 0:
        raise ValueError(f"spread_scale={spread_scale!r}: needs a positive scale for the spread of log t")
    if not rows or not any([*(row.low for row in rows), *(run.reached for run in interrupted)]):
        return None
    reference = clock_reference(rows)
    grid = _Grid.over(rows, interrupted, reference)
    box = grid.first_box(
        SPREAD_REACH * spread_scale,
        A_PRIOR if a is None else (a, a),
        B_PRIOR if b is None else (b, b),
    )
    box = grid.close_in(box, spread_scale)
    axes, log_density = grid.evaluate(box, _final_counts(box, len(grid.low)), spread_scale)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    marginals = [_marginal(axes[k], box[k], _onto_axis(weights, k, "sum"), level) for k in range(4)]
    scale = reference.learning_rate
    return ClockPosterior(
        reference=reference,
        level=level,
        spread=marginals[0],
        c2=_exponential(axes[1], box[1], _onto_axis(weights, 1, "sum"), level, scale),
        a=marginals[2],
        b=marginals[3],
        nodes=_flat_nodes(axes, weights),
        weights=_flat_weights(weights),
    )


def qualifying_cumulative_rate(
    posterior: ClockPosterior | None,
    paper_clock: FeasibleSet | None,
    learning_rate: float,
    *,
    kappa: float = 2.0,
) -> float | None:
    """Λ that a run must pass uncollapsed to count as stable (decision 13).

    The posterior's 95% predictive quantile, but not less than the upper end of c2 in the feasible set at a =
    1, b = 0 (many equal intervals would put the quantile inside the one snapshot they cannot resolve). κ·c2,
    again the upper end, where only that set is known; None where neither bounds the clock, so that nothing
    qualifies.
    """
    c2 = math.inf if paper_clock is None or paper_clock.c2 is None else paper_clock.c2[1]
    if posterior is not None:
        quantile = posterior.cumulative_rate_quantile(learning_rate, 0.95)
        return max(quantile, c2) if c2 < math.inf else quantile
    return kappa * c2 if c2 < math.inf else None


# The grid has axes s, log(c2/η0), a, b; a fixed exponent is an axis of one node.

Box = tuple[Range, Range, Range, Range]


@dataclass(frozen=True)
class _Grid:
    """Intervals of log t with their log ratios, equal ones merged."""

    low: Array
    high: Array
    ratios: Array
    counts: Array

    @classmethod
    def over(
        cls,
        rows: Sequence[CollapseInterval],
        interrupted: Sequence[InterruptedRun],
        reference: ClockReference,
    ) -> _Grid:
        low, high = log_bounds(rows)
        with np.errstate(divide="ignore"):
            low = np.concatenate([low, np.log([run.reached for run in interrupted])])
        high = np.concatenate([high, np.full(len(interrupted), np.inf)])
        table = np.column_stack([low, high, log_ratios([*rows, *interrupted], reference)])
        distinct, counts = np.unique(table, axis=0, return_counts=True)
        return cls(distinct[:, 0], distinct[:, 1], distinct[:, 2:], counts.astype(np.float64))

    def first_box(self, spread: float, a: Range, b: Range) -> Box:
        """Wide enough for any slope allowed and for noise of the largest spread."""
        corners = np.array([[p, q] for p in a for q in b])
        lines = self.ratios @ corners.T
        lower = (self.low[:, None] + lines)[np.isfinite(self.low)]
        upper = (self.high[:, None] + lines)[np.isfinite(self.high)]
        ends = float(min(lower.min(), upper.min())), float(max(lower.max(), upper.max()))
        return (0.0, spread), (ends[0] - 3 * spread, ends[1] + 3 * spread), a, b

    def evaluate(self, box: Box, counts: Sequence[int], spread_scale: float) -> tuple[list[Array], Array]:
        """Cell midpoints per axis and the log density on the full grid, shape ``counts``."""
        axes = [_midpoints(ends, count) for ends, count in zip(box, counts, strict=True)]
        spread, intercept, a, b = np.ix_(*axes)
        total = np.broadcast_to(-0.5 * (spread / spread_scale) ** 2, tuple(len(axis) for axis in axes)).copy()
        for low, high, (x, z), count in zip(self.low, self.high, self.ratios, self.counts, strict=True):
            centre = intercept - a * x - b * z
            total += count * _log_interval_probability((low - centre) / spread, (high - centre) / spread)
        return axes, total

    def close_in(self, box: Box, spread_scale: float) -> Box:
        """Shrink the box onto the support; s keeps 0, near which a coarse grid can miss a sharp peak."""
        for _ in range(12):
            counts = [_coarse_count(ends, 8 if k == 0 else 10) for k, ends in enumerate(box)]
            axes, density = self.evaluate(box, counts, spread_scale)
            best = density.max()
            shrunk: list[Range] = []
            for k, ends in enumerate(box):
                kept = np.flatnonzero(_onto_axis(density, k, "max") > best - NEGLIGIBLE)
                step = (ends[1] - ends[0]) / len(axes[k])
                lower = ends[0] + step * max(0, kept[0] - 1) if k else 0.0
                upper = min(ends[1], ends[0] + step * (kept[-1] + 2))
                shrunk.append((lower, upper))
            previous, box = box, (shrunk[0], shrunk[1], shrunk[2], shrunk[3])
            if all(
                _width(new) > 0.8 * _width(old) for new, old in zip(box, previous, strict=True) if _width(old)
            ):
                break
        return box


def _log_interval_probability(lower: Array, upper: Array) -> Array:
    """log(Φ(upper) − Φ(lower)) from the tail that does not cancel; a Gaussian bound where it underflows."""
    flip = lower + upper > 0
    first, last = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    probability = ndtr(last) - ndtr(first)
    missing = probability <= 0
    if not missing.any():
        return cast(Array, np.log(probability))
    result = np.log(np.where(missing, 1.0, probability))
    distance = np.maximum(-last, 0.0)
    return cast(Array, np.where(missing, np.minimum(-700.0, -0.5 * distance**2), result))


def _midpoints(ends: Range, count: int) -> Array:
    return ends[0] + (ends[1] - ends[0]) * (np.arange(count) + 0.5) / count


def _width(ends: Range) -> float:
    return ends[1] - ends[0]


def _coarse_count(ends: Range, count: int) -> int:
    return count if _width(ends) > 0 else 1


def _final_counts(box: Box, intervals: int) -> list[int]:
    free = sum(_width(ends) > 0 for ends in box[1:])
    spreads = 28 if free < 3 else 20
    each = int((EVALUATIONS / (intervals * spreads)) ** (1 / free))
    each = min(max(each, 14), 96 if free < 3 else 30)
    return [spreads, *(_coarse_count(ends, each) for ends in box[1:])]


def _onto_axis(grid: Array, axis: int, how: Literal["sum", "max"]) -> Array:
    others = tuple(k for k in range(grid.ndim) if k != axis)
    return cast(Array, grid.sum(axis=others) if how == "sum" else grid.max(axis=others))


def _quantiles(ends: Range, masses: Array, probabilities: Sequence[float]) -> Array:
    """Inverse of the distribution function through the cell edges, smooth and monotone between them."""
    edges = np.linspace(ends[0], ends[1], len(masses) + 1)
    fine = np.linspace(ends[0], ends[1], 40 * len(masses) + 1)
    with np.errstate(over="ignore"):  # slopes next to masses of 1e-300
        cumulative = PchipInterpolator(edges, np.concatenate([[0.0], np.cumsum(masses)]))(fine)
    return np.interp(probabilities, cumulative, fine)


def _marginal(axis: Array, ends: Range, masses: Array, level: float) -> Marginal:
    if _width(ends) == 0:
        return Marginal(ends[0], ends[0], ends[0], ends[0])
    median, low, high = _quantiles(ends, masses, [0.5, (1 - level) / 2, (1 + level) / 2])
    return Marginal(float(axis @ masses), float(median), float(low), float(high))


def _exponential(axis: Array, ends: Range, masses: Array, level: float, scale: float) -> Marginal:
    inner = _marginal(axis, ends, masses, level)
    return Marginal(
        scale * float(np.exp(axis) @ masses),
        scale * math.exp(inner.median),
        scale * math.exp(inner.low),
        scale * math.exp(inner.high),
    )


def _flat_nodes(axes: list[Array], weights: Array) -> Array:
    kept = weights > weights.max() * 1e-7
    return np.column_stack([mesh[kept] for mesh in np.meshgrid(*axes, indexing="ij")])


def _flat_weights(weights: Array) -> Array:
    kept = weights[weights > weights.max() * 1e-7]
    return cast(Array, kept / kept.sum())
