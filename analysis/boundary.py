"""Where stability ends on a grid of sync interval S and learning rate η (math.md C3, B5.4; decision 14).

Everything here is a set: brackets from cells in which all seeds agree, and the exponents p of η_max(S) =
q·S^−p that pass through all brackets. It contains the truth if the cells do not lie. Where seeds disagree the
sets are often empty, and the estimates of ``collapse_probability`` are the ones to read.

S = 1 has no staleness, so it takes no part in statements about S·η; it does in the model with a cap,
η_max(S) = min(η_cap, q·S^−p), since a rate too high at any S shows there first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from analysis.interval_lp import Array, Inequalities, Range, always, extent, has_interior, least_slack, within

CellOutcome = Literal["stable", "collapsed", "mixed", "unqualified"]


@dataclass(frozen=True)
class Cell:
    """All seeds of one (S, η)."""

    sync_interval: int
    learning_rate: float
    collapsed: int
    runs: int
    qualified: bool
    """Every run that did not collapse passed the Λ by which it would have (decision 13)."""

    def __post_init__(self) -> None:
        if self.sync_interval < 1:
            raise ValueError(f"sync_interval={self.sync_interval!r}: needs an integer of at least 1")
        if not (0 < self.learning_rate < math.inf):
            raise ValueError(f"learning_rate={self.learning_rate!r}: needs a positive finite number")
        if not (0 <= self.collapsed <= self.runs and self.runs >= 1):
            raise ValueError(
                f"cell S={self.sync_interval}, η={self.learning_rate}: collapsed={self.collapsed} of "
                f"runs={self.runs}; needs 0 <= collapsed <= runs and at least one run"
            )

    @property
    def outcome(self) -> CellOutcome:
        """A cell with both kinds of run is mixed even if the uncollapsed ones do not qualify."""
        if self.collapsed == self.runs:
            return "collapsed"
        if self.collapsed:
            return "mixed"
        return "stable" if self.qualified else "unqualified"

    @property
    def product(self) -> float:
        """S·η."""
        return self.sync_interval * self.learning_rate

    @property
    def mean_lag_product(self) -> float:
        """k̄·η with k̄ = (S−1)/2."""
        return (self.sync_interval - 1) / 2 * self.learning_rate


@dataclass(frozen=True)
class ProductBracket:
    """Pooled over S > 1. None: no such cell, the bracket is open on that side."""

    stable_max: float | None
    """L, largest product of a stable cell."""
    collapsed_min: float | None
    """U, smallest product of a collapsed cell."""

    @property
    def overlap(self) -> Range | None:
        """[U, L] where a stable cell reaches the product of a collapsed one: it does not separate."""
        if self.stable_max is None or self.collapsed_min is None or self.stable_max < self.collapsed_min:
            return None
        return self.collapsed_min, self.stable_max


@dataclass(frozen=True)
class RateBracket:
    """η_max at one S lies in [stable_rate, collapsed_rate). None: open on that side."""

    sync_interval: int
    stable_rate: float | None
    """Highest η with every used cell at or below it stable."""
    collapsed_rate: float | None
    """Lowest η with every used cell at or above it collapsed."""
    non_monotone: tuple[Cell, ...] = ()
    """Stable cells above an unstable one and collapsed cells below an uncollapsed one."""
    mixed: tuple[Cell, ...] = ()

    @property
    def bounds(self) -> Range:
        """With 0 and inf for open ends."""
        return (
            0.0 if self.stable_rate is None else self.stable_rate,
            math.inf if self.collapsed_rate is None else self.collapsed_rate,
        )


@dataclass(frozen=True)
class ExponentSet:
    """Exponents p for which some η_max(S) passes through every bracket."""

    ranges: tuple[Range, ...]
    """Disjoint and ascending; empty if no p will do. Infinite ends: the brackets do not bound p there."""
    least_slack: float
    """How far (log η) all brackets must be stretched at both ends to make a set; 0 where there is one."""

    @property
    def hull(self) -> Range | None:
        return (self.ranges[0][0], self.ranges[-1][1]) if self.ranges else None

    def contains(self, p: float) -> bool:
        return any(low <= p <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Boundary:
    """Everything the cells say about the boundary without a noise model."""

    cells: tuple[Cell, ...]
    product: ProductBracket
    mean_lag_product: ProductBracket
    rates: tuple[RateBracket, ...]
    exponent: ExponentSet
    """p of η_max = q·S^−p over S > 1."""
    mean_lag_exponent: ExponentSet
    """p of η_max = q·(S−1)^−p over S > 1."""
    capped_exponent: ExponentSet
    """p >= 0 of η_max = min(η_cap, q·S^−p), S = 1 included."""
    constant_product: Range | None
    """Values of S·η_max that fit every bracket with S > 1, if any. Alone it is weak evidence."""


def boundary(cells: Iterable[Cell]) -> Boundary:
    """Brackets and exponent sets of a grid; any number of cells, one per (S, η)."""
    ordered = tuple(sorted(cells, key=lambda cell: (cell.sync_interval, cell.learning_rate)))
    for first, second in pairwise(ordered):
        if (first.sync_interval, first.learning_rate) == (second.sync_interval, second.learning_rate):
            raise ValueError(
                f"two cells at sync_interval={first.sync_interval}, learning_rate={first.learning_rate}: "
                "pool the seeds of a setting into one cell"
            )
    rates = rate_brackets(ordered)
    stale = [bracket for bracket in rates if bracket.sync_interval > 1]
    return Boundary(
        cells=ordered,
        product=product_bracket(ordered),
        mean_lag_product=product_bracket(ordered, mean_lag=True),
        rates=rates,
        exponent=_exponent_set(stale, [bracket.sync_interval for bracket in stale]),
        mean_lag_exponent=_exponent_set(stale, [bracket.sync_interval - 1 for bracket in stale]),
        capped_exponent=capped_exponent_set(rates),
        constant_product=_constant_product(stale),
    )


def product_bracket(cells: Iterable[Cell], *, mean_lag: bool = False) -> ProductBracket:
    """Pooled bracket of S·η, or of k̄·η; S = 1, mixed and unqualified cells take no part."""
    stale = [cell for cell in cells if cell.sync_interval > 1]

    def products(outcome: CellOutcome) -> list[float]:
        return [
            cell.mean_lag_product if mean_lag else cell.product for cell in stale if cell.outcome == outcome
        ]

    return ProductBracket(max(products("stable"), default=None), min(products("collapsed"), default=None))


def rate_brackets(cells: Iterable[Cell]) -> tuple[RateBracket, ...]:
    """One bracket per S, ascending in S; unqualified cells are passed over."""
    by_interval: dict[int, list[Cell]] = {}
    for cell in cells:
        used = by_interval.setdefault(cell.sync_interval, [])
        if cell.outcome != "unqualified":
            used.append(cell)
    return tuple(
        _rate_bracket(interval, sorted(used, key=lambda cell: cell.learning_rate))
        for interval, used in sorted(by_interval.items())
    )


def _rate_bracket(sync_interval: int, used: list[Cell]) -> RateBracket:
    stable = 0
    while stable < len(used) and used[stable].outcome == "stable":
        stable += 1
    collapsed = len(used)
    while collapsed > 0 and used[collapsed - 1].outcome == "collapsed":
        collapsed -= 1
    between = used[stable:collapsed]
    return RateBracket(
        sync_interval,
        used[stable - 1].learning_rate if stable else None,
        used[collapsed].learning_rate if collapsed < len(used) else None,
        tuple(cell for cell in between if cell.outcome != "mixed"),
        tuple(cell for cell in between if cell.outcome == "mixed"),
    )


def _log_bounds(brackets: Sequence[RateBracket]) -> tuple[Array, Array]:
    bounds = np.array([bracket.bounds for bracket in brackets]).reshape(-1, 2)
    with np.errstate(divide="ignore"):
        return np.log(bounds[:, 0]), np.log(bounds[:, 1])


def _exponent_set(brackets: Sequence[RateBracket], staleness: Sequence[int]) -> ExponentSet:
    """p of log η_max = q − p·log(staleness): parameters (q, p)."""
    low, high = _log_bounds(brackets)
    logs = np.log(np.array(staleness, dtype=np.float64))
    inequalities = within(np.column_stack([np.ones(len(logs)), -logs]), low, high)
    slack = least_slack(inequalities)
    if not has_interior(slack):
        return ExponentSet((), max(0.0, slack))
    if len(logs) < 2:
        return ExponentSet(((-math.inf, math.inf),), 0.0)
    return ExponentSet((extent(inequalities, [0.0, 1.0]),), 0.0)


def capped_exponent_set(brackets: Sequence[RateBracket]) -> ExponentSet:
    """p >= 0 of η_max(S) = min(η_cap, q·S^−p), exactly: the union over how many S sit at the cap.

    With p >= 0 the cap, if it acts, acts on the smallest S. For each split that is a linear program in (log
    η_cap, log q, p). As soon as all S but one may sit at the cap, p is unbounded: the drop to the last S can
    be as steep as one likes.
    """
    ordered = sorted(brackets, key=lambda bracket: bracket.sync_interval)
    logs = np.log(np.array([bracket.sync_interval for bracket in ordered], dtype=np.float64))
    low, high = _log_bounds(ordered)
    slacks, ranges = [], []
    for at_cap in range(len(ordered) + 1):
        inequalities = _split_at(at_cap, logs, low, high)
        slack = least_slack(inequalities)
        slacks.append(slack)
        if has_interior(slack):
            least, most = extent(inequalities, [0.0, 0.0, 1.0])
            ranges.append((max(least, 0.0), most))
    return ExponentSet(_union(ranges), 0.0 if ranges else max(0.0, min(slacks)))


def _split_at(at_cap: int, logs: Array, low: Array, high: Array) -> Inequalities:
    """Parameters (log η_cap, log q, p); the first ``at_cap`` S follow the cap, the rest the power law."""
    capped = np.arange(len(logs)) < at_cap
    power = np.column_stack([np.zeros(len(logs)), np.ones(len(logs)), -logs])
    design = np.where(capped[:, None], [1.0, 0.0, 0.0], power)
    order = [[0.0, 0.0, -1.0]]
    if at_cap > 0:
        order.append(list(np.array([1.0, 0.0, 0.0]) - power[at_cap - 1]))
    if at_cap < len(logs):
        order.append(list(power[at_cap] - np.array([1.0, 0.0, 0.0])))
    return within(design, low, high) + always(order, np.zeros(len(order)))


def _union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1e-9:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _constant_product(brackets: Sequence[RateBracket]) -> Range | None:
    low = max((bracket.sync_interval * bracket.bounds[0] for bracket in brackets), default=0.0)
    high = min((bracket.sync_interval * bracket.bounds[1] for bracket in brackets), default=math.inf)
    return (low, high) if low < high else None
