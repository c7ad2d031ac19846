"""Accuracy against compute: cost of a run, compute to an accuracy, savings (math.md A1, C5)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MOST_ENUMERATED = 4
"""Seeds up to which all resamples are enumerated."""


@dataclass(frozen=True)
class Curve:
    """One run's evaluations and what it had cost by then."""

    steps: Floats
    """Learner updates done, increasing."""
    accuracy: Floats
    trained: Floats
    """Rollouts trained on so far, repeats counted, in units of batches."""
    generated: Floats
    """Rollouts generated so far, never-used ones counted, in units of batches."""

    def compute(self, mu: float) -> Floats:
        """Cost so far; a baseline update, which generates what it trains on, is 1."""
        return (self.trained + mu * self.generated) / (1 + mu)


@dataclass(frozen=True)
class Reached:
    """Compute to an accuracy."""

    compute: float | None
    """None: not reached."""
    horizon: float
    """Compute of the last common evaluation."""


def median_curve(curves: Sequence[Curve], mu: float) -> tuple[Floats, Floats]:
    """Seed medians of compute and accuracy on the common evaluation steps, accuracy smoothed (C5)."""
    common = sorted(set.intersection(*(set(curve.steps.tolist()) for curve in curves)))
    places = [np.searchsorted(curve.steps, common) for curve in curves]
    pairs = list(zip(curves, places, strict=True))
    compute: Floats = np.median([curve.compute(mu)[place] for curve, place in pairs], axis=0)
    accuracy: Floats = np.median([curve.accuracy[place] for curve, place in pairs], axis=0)
    return compute, running_median(accuracy)


def running_median(values: Floats) -> Floats:
    """Median of each value and its two neighbours; the ends stay raw."""
    if len(values) < 3:
        return values
    middle = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([values[:1], middle, values[-1:]])


def first_crossing(x: Floats, y: Floats, level: float) -> float | None:
    """Where y first reaches `level`, by linear interpolation; None when it does not."""
    above = np.flatnonzero(y >= level)
    if not len(above):
        return None
    at = int(above[0])
    if at == 0:
        return float(x[0])
    share = (level - y[at - 1]) / (y[at] - y[at - 1])
    return float(x[at - 1] + share * (x[at] - x[at - 1]))


def compute_to(curves: Sequence[Curve], level: float, mu: float) -> Reached:
    """Compute at which the median curve of some runs reaches an accuracy."""
    compute, accuracy = median_curve(curves, mu)
    return Reached(first_crossing(compute, accuracy, level), float(compute[-1]))


def saving(base: Reached, other: Reached) -> float | None:
    """1 − C_other/C_base; None where one of them was not reached."""
    if base.compute is None or other.compute is None or base.compute <= 0:
        return None
    return 1 - other.compute / base.compute


@dataclass(frozen=True)
class SavingRange:
    """Savings over resampled seeds."""

    low: float
    high: float
    undefined: int
    """Resamples in which one side did not reach the accuracy."""
    resamples: int


def saving_range(
    base: Sequence[Curve], other: Sequence[Curve], level: float, mu: float, *, quantiles: tuple[float, float]
) -> SavingRange | None:
    """Savings over all resamples of the seeds of both sides; None when none is defined.

    Up to four seeds the resamples are enumerated, beyond that 500 are drawn.
    """
    values: list[float] = []
    undefined = 0
    firsts = [compute_to(chosen, level, mu) for chosen in _resamples(base)]
    seconds = [compute_to(chosen, level, mu) for chosen in _resamples(other)]
    for first, second in itertools.product(firsts, seconds):
        found = saving(first, second)
        if found is None:
            undefined += 1
        else:
            values.append(found)
    if not values:
        return None
    low, high = np.quantile(values, quantiles)
    return SavingRange(float(low), float(high), undefined, undefined + len(values))


def _resamples(curves: Sequence[Curve]) -> list[tuple[Curve, ...]]:
    if len(curves) <= MOST_ENUMERATED:
        return list(itertools.product(curves, repeat=len(curves)))
    draw = np.random.default_rng(0)
    return [tuple(curves[i] for i in draw.integers(len(curves), size=len(curves))) for _ in range(500)]


def break_even(mus: Floats, savings: Sequence[float | None]) -> float | None:
    """Smallest μ at which the saving turns from negative to positive, on a log axis; None: no such μ."""
    pairs = [(math.log(mu), value) for mu, value in zip(mus, savings, strict=True) if value is not None]
    for (left, low), (right, high) in itertools.pairwise(pairs):
        if low < 0 <= high:
            return math.exp(left + (right - left) * -low / (high - low))
    return None


def curve_of(evaluations: Sequence[dict[str, Any]], metrics: Sequence[Any], batch: int) -> Curve | None:
    """The curve of a run from its journals; None without a finite evaluation.

    Records without counts of rollouts are of strict runs without a buffer: a batch generated per update.
    """
    kept = [line for line in evaluations if line["value"] is not None and line["step"] <= len(metrics)]
    if not kept:
        return None
    trained, generated = [], []
    for line in kept:
        done = metrics[line["step"] - 1] if line["step"] else None
        usual = batch * line["step"]
        trained.append(0 if done is None else done.get("rollouts_trained", usual))
        generated.append(0 if done is None else done.get("rollouts_generated", usual))
    return Curve(
        steps=np.array([line["step"] for line in kept], dtype=float),
        accuracy=np.array([line["value"] for line in kept], dtype=float),
        trained=np.array(trained, dtype=float) / batch,
        generated=np.array(generated, dtype=float) / batch,
    )
