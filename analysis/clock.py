"""The collapse clock: how much cumulative learning rate a run takes before it collapses.

    log t = log c2 − log η0 − a·log(η/η0) − b·log(S/S0) + N(0, s²)        (math.md C2)

t is the onset of collapse in *effective updates*, Λ(onset)/η, so that a run's start-up ramp does not bend the
slope; without a ramp these are plain updates. η0 and S0 are the geometric means over the collapsed runs and
c2, a cumulative learning rate, is read there. The paper's clock, t = c2/η whatever S, is a = 1, b = 0.

A run says only that its onset lies in an interval, for a published run ((M−1)S, MS] (B5). So the first answer
is the *feasible set* of parameters that hit all intervals with no noise; where it is empty, the least slack
that would fill it. The posterior, in ``clock_posterior``, adds noise of unknown spread.

Only collapsed runs belong here. A run that stayed stable below the boundary is not late but cured; entering
it as a censored time bends the slope (a = 1.55 instead of 1.03 on the published 3B runs). Horizons chosen ∝
1/η can fake a slope on their own, because late collapses at a short horizon are never seen: compare with runs
at one fixed horizon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.interval_lp import Array, Range, extent, has_interior, least_slack, within


@dataclass(frozen=True)
class CollapseInterval:
    """One collapsed run. Its onset lies in (low, high]."""

    sync_interval: int
    """S."""
    learning_rate: float
    """η after the ramp."""
    low: float
    """Effective updates Λ/η before the onset; 0 when the first snapshot's rollouts already show it."""
    high: float
    """Effective updates Λ/η by which the onset has happened."""
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_setting(self.sync_interval, self.learning_rate)
        if not (0 <= self.low < self.high < math.inf):
            raise ValueError(
                f"low={self.low!r}, high={self.high!r} of a collapse (sync_interval={self.sync_interval}, "
                f"learning_rate={self.learning_rate}): needs 0 <= low < high < inf, in effective updates"
            )


@dataclass(frozen=True)
class InterruptedRun:
    """A run above the stability boundary, cut while uncollapsed after ``reached`` effective updates."""

    sync_interval: int
    learning_rate: float
    reached: float

    def __post_init__(self) -> None:
        _check_setting(self.sync_interval, self.learning_rate)
        if not (0 <= self.reached < math.inf):
            raise ValueError(f"interrupted run reached={self.reached!r}: needs 0 <= reached < inf")


def _check_setting(sync_interval: int, learning_rate: float) -> None:
    if sync_interval < 1:
        raise ValueError(f"sync_interval={sync_interval!r}: needs an integer of at least 1")
    if not (0 < learning_rate < math.inf):
        raise ValueError(f"learning_rate={learning_rate!r}: needs a positive finite number")


def effective_updates(updates: float, ramp_updates: int = 0) -> float:
    """Λ/η after ``updates`` learner updates when the rate rises linearly over the first ``ramp_updates``.

    Update j (from 0) runs at η·min(1, (j+1)/r): t(t+1)/2r during the ramp, t − (r−1)/2 after it.
    """
    if updates < 0 or ramp_updates < 0:
        raise ValueError(f"updates={updates}, ramp_updates={ramp_updates}: neither may be negative")
    if updates < ramp_updates:
        return updates * (updates + 1) / (2 * ramp_updates)
    return updates - max(ramp_updates - 1, 0) / 2


def cumulative_rate(updates: float, learning_rate: float, ramp_updates: int = 0) -> float:
    """Λ after ``updates`` learner updates: the sum of the rates of the updates done (same ramp)."""
    return learning_rate * effective_updates(updates, ramp_updates)


@dataclass(frozen=True)
class ClockReference:
    """Where c2 is read, and whether the rows can tell a rate or a sync-interval dependence at all."""

    learning_rate: float
    """η0, geometric mean over the collapsed runs."""
    sync_interval: float
    """S0, geometric mean over the collapsed runs."""
    rates: int
    """Number of different learning rates among the rows."""
    sync_intervals: int
    """Number of different sync intervals among the rows."""

    def log_ratios(self, learning_rate: float, sync_interval: float) -> tuple[float, float]:
        return math.log(learning_rate / self.learning_rate), math.log(sync_interval / self.sync_interval)


def clock_reference(rows: Sequence[CollapseInterval]) -> ClockReference:
    """Reference point of at least one row."""
    if not rows:
        raise ValueError("a clock needs at least one collapsed run, got none")
    return ClockReference(
        learning_rate=math.exp(math.fsum(math.log(row.learning_rate) for row in rows) / len(rows)),
        sync_interval=math.exp(math.fsum(math.log(row.sync_interval) for row in rows) / len(rows)),
        rates=len({row.learning_rate for row in rows}),
        sync_intervals=len({row.sync_interval for row in rows}),
    )


def log_ratios(rows: Sequence[CollapseInterval | InterruptedRun], reference: ClockReference) -> Array:
    """Shape (rows, 2): log η/η0 and log S/S0. Exactly 0 in a column that does not vary."""
    ratios = np.array([reference.log_ratios(row.learning_rate, row.sync_interval) for row in rows])
    ratios = ratios.reshape(len(rows), 2)
    # The geometric mean of equal numbers differs from them by rounding, which would pass for a (huge) slope.
    varies = np.array([reference.rates > 1, reference.sync_intervals > 1])
    near = np.abs(ratios) < 1e-12
    return np.where(near & ~varies, 0.0, ratios)


def log_bounds(rows: Sequence[CollapseInterval]) -> tuple[Array, Array]:
    """Logarithms of both ends in effective updates; −inf for low = 0."""
    with np.errstate(divide="ignore"):
        return np.log([row.low for row in rows]), np.log([row.high for row in rows])


@dataclass(frozen=True)
class FeasibleSet:
    """Parameters that hit every interval without noise; ranges are its extent in one parameter each."""

    least_slack: float
    """How far (log t) all intervals must be stretched at both ends to make a set; 0 where there is one."""
    c2: Range | None
    """Cumulative learning rate at collapse at (η0, S0); None for an empty set."""
    a: Range | None
    """Exponent of 1/η; infinite where the rows do not bound it; None for an empty set."""
    b: Range | None
    """Exponent of 1/S; likewise."""

    @property
    def empty(self) -> bool:
        return self.a is None


def feasible_set(
    rows: Sequence[CollapseInterval], *, a: float | None = None, b: float | None = 0.0
) -> FeasibleSet:
    """Feasible set by linear programming; a number fixes that exponent, None leaves it free."""
    unbounded = (-math.inf, math.inf)
    if not rows:
        return FeasibleSet(
            0.0, (0.0, math.inf), unbounded if a is None else (a, a), unbounded if b is None else (b, b)
        )
    reference = clock_reference(rows)
    ratios = log_ratios(rows, reference)
    fixed = (a, b)
    shift = sum(ratios[:, k] * value for k, value in enumerate(fixed) if value is not None)
    free = [k for k, value in enumerate(fixed) if value is None]
    design = np.column_stack([np.ones(len(rows)), *(-ratios[:, k] for k in free)])
    low, high = log_bounds(rows)
    inequalities = within(design, low + shift, high + shift)
    slack = least_slack(inequalities)
    if not has_interior(slack):
        return FeasibleSet(max(0.0, slack), None, None, None)
    ranges: list[Range] = [extent(inequalities, unit) for unit in np.eye(design.shape[1])]
    exponents: list[Range] = [(0.0, 0.0) if value is None else (value, value) for value in fixed]
    for k, found in zip(free, ranges[1:], strict=True):
        exponents[k] = found
    c2_low, c2_high = (_exp(end) * reference.learning_rate for end in ranges[0])
    return FeasibleSet(0.0, (c2_low, c2_high), exponents[0], exponents[1])


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def sync_change_factor(b: Range, rows: Sequence[CollapseInterval]) -> float:
    """Largest change of the collapse time over the tested sync intervals that an exponent in ``b`` allows."""
    intervals = [row.sync_interval for row in rows]
    if not intervals or max(intervals) == min(intervals):
        return math.inf if max(map(abs, b)) > 0 else 1.0
    return _exp(max(map(abs, b)) * math.log(max(intervals) / min(intervals)))
