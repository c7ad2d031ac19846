"""The rival coordinates: a staleness factor of a configuration, times η."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.interval_lp import Array
from analysis.staleness import Configuration


@dataclass(frozen=True)
class Coordinate:
    """factor^p·η."""

    key: str
    symbol: str
    factor: Callable[[Configuration], float]
    fitted: bool = False
    """p is fitted; otherwise it is 1."""
    tested: Callable[[Configuration], float] | None = None
    """Whose exponent has to be 0 instead, for the factor 1."""


def mean_lag(item: Configuration) -> float:
    """k̄ as measured; NaN where it was not."""
    return item.lag.mean if item.lag else math.nan


def _maximum(item: Configuration) -> float:
    return item.lag.maximum if item.lag else math.nan


def _sync_interval(item: Configuration) -> float:
    """0 where nothing is stale, as decision 14 has it."""
    return float(item.sync_interval) if mean_lag(item) > 0 else 0.0


def _one_plus_twice_mean(item: Configuration) -> float:
    return 1 + 2 * mean_lag(item)


def _one_plus_maximum(item: Configuration) -> float:
    return 1 + _maximum(item)


COORDINATES = (
    Coordinate("rate", "η", lambda _: 1.0, tested=_one_plus_twice_mean),
    Coordinate("sync_interval", "S·η", _sync_interval),
    Coordinate("mean_lag", "k̄·η", mean_lag),
    Coordinate("one_plus_twice_mean_lag", "(1+2k̄)·η", _one_plus_twice_mean),
    Coordinate("maximum_lag", "k_max·η", _maximum),
    Coordinate("one_plus_maximum_lag", "(1+k_max)·η", _one_plus_maximum),
    Coordinate("uses", "y·η", lambda item: item.lag.uses if item.lag else math.nan),
    Coordinate("sync_interval_power", "S^p·η", _sync_interval, fitted=True),
    Coordinate("mean_lag_power", "k̄^p·η", mean_lag, fitted=True),
    Coordinate("one_plus_twice_mean_lag_power", "(1+2k̄)^p·η", _one_plus_twice_mean, fitted=True),
    Coordinate("one_plus_maximum_lag_power", "(1+k_max)^p·η", _one_plus_maximum, fitted=True),
)


def special_cases(coordinate: Coordinate) -> list[int]:
    """Places of p = 1 and p = 0 of a power law."""
    if not coordinate.fitted:
        return []
    return [
        k
        for k, other in enumerate(COORDINATES)
        if not other.fitted and (other.factor is coordinate.factor or other.tested is not None)
    ]


def log_factor(coordinate: Coordinate, items: Sequence[Configuration]) -> Array:
    """log of the factor, shape (configurations,)."""
    return np.log([coordinate.factor(item) for item in items])
