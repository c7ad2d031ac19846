"""Linear programming over the parameters of a linear model whose responses are known as intervals.

Both laws read off a sweep have this shape: the clock (log of the time to collapse, linear in log rate and log
sync interval) and the boundary (log of the highest stable rate, linear in log sync interval). Without a noise
model the data single out a *set* of parameters, and its extent in each parameter is what can honestly be
said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

Array = NDArray[np.float64]
Range = tuple[float, float]
"""Lower and upper end; an infinite end says that the data do not bound the quantity on that side."""

TOUCHING = 1e-9
"""Slack (log units) below which a set counts as having an interior: rounding of logarithms is 1e-15."""


@dataclass(frozen=True)
class Inequalities:
    """Rows of ``matrix @ parameters <= bound``; a row marked in ``relaxed`` may be violated by the slack."""

    matrix: Array
    bound: Array
    relaxed: NDArray[np.bool_]

    def __add__(self, other: Inequalities) -> Inequalities:
        return Inequalities(
            np.vstack([self.matrix, other.matrix]),
            np.concatenate([self.bound, other.bound]),
            np.concatenate([self.relaxed, other.relaxed]),
        )


def within(design: ArrayLike, low: ArrayLike, high: ArrayLike) -> Inequalities:
    """``low <= design @ parameters <= high`` row by row; infinite ends ask for nothing."""
    rows, lower, upper = (np.asarray(value, dtype=np.float64) for value in (design, low, high))
    has_lower, has_upper = np.isfinite(lower), np.isfinite(upper)
    matrix = np.vstack([-rows[has_lower], rows[has_upper]])
    bound = np.concatenate([-lower[has_lower], upper[has_upper]])
    return Inequalities(matrix, bound, np.ones(len(bound), dtype=np.bool_))


def always(matrix: ArrayLike, bound: ArrayLike) -> Inequalities:
    """``matrix @ parameters <= bound`` as part of the model, never relaxed."""
    upper = np.asarray(bound, dtype=np.float64)
    rows = np.asarray(matrix, dtype=np.float64).reshape(len(upper), -1)
    return Inequalities(rows, upper, np.zeros(len(upper), dtype=np.bool_))


def least_slack(inequalities: Inequalities) -> float:
    """Smallest amount by which all relaxed rows must give way; negative where they leave room.

    A half-open interval keeps its strict end out. Since every model here has a free intercept, a set with one
    strict side is non-empty exactly when its interior is, that is, when this is negative.
    """
    if not inequalities.relaxed.any():
        return -1.0
    matrix = np.column_stack([inequalities.matrix, -inequalities.relaxed.astype(np.float64)])
    cost = np.zeros(matrix.shape[1])
    cost[-1] = 1.0
    # The floor keeps the program bounded where all intervals are open on the same side; only the sign matters
    # there.
    bounds = [(None, None)] * (matrix.shape[1] - 1) + [(-1.0, None)]
    solution = linprog(cost, A_ub=matrix, b_ub=inequalities.bound, bounds=bounds)
    if solution.status != 0 or solution.fun is None:
        raise ArithmeticError(f"least slack of {len(inequalities.bound)} inequalities: {solution.message}")
    return float(solution.fun)


def has_interior(slack: float) -> bool:
    return slack < -TOUCHING


def extent(inequalities: Inequalities, direction: ArrayLike) -> Range:
    """Least and greatest value of ``direction @ parameters`` over a set known to be non-empty."""
    cost = np.asarray(direction, dtype=np.float64)
    return -_maximum(inequalities, -cost), _maximum(inequalities, cost)


def _maximum(inequalities: Inequalities, cost: Array) -> float:
    if not len(inequalities.bound):
        return float("inf") if cost.any() else 0.0
    solution = linprog(
        -cost, A_ub=inequalities.matrix, b_ub=inequalities.bound, bounds=[(None, None)] * len(cost)
    )
    # The set is not empty, so a program without solution has none because nothing stops it. Numerical trouble
    # is read the same way: it errs towards "not known".
    return -float(solution.fun) if solution.status == 0 and solution.fun is not None else float("inf")
