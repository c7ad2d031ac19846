"""How stale the data of a configuration are, measured: lags from metrics.jsonl, and its bracket of η_max.

A configuration is a sync interval S with what lies between generation and training (buffer, replay ratio,
queue delay). Its lag is a property of the configuration: it comes from the schedule and the store, not from
the rate or the outcome. So the updates of all its runs are pooled, those that are steady: after the store has
been renewed once, before the alarm of a collapsed run, and whole sync cycles only, since the lag rises within
a cycle and a part of one would bend the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.boundary import Boundary, CellOutcome, RateBracket
from analysis.load import Run
from analysis.stability import CellResult, Stability

ARM_FIELDS = ("buffer_size", "replay_ratio", "store.delay")
"""What lies between generation and training; without one of them as an axis, S is all the staleness."""
MAXIMUM_QUANTILE = 0.95


@dataclass(frozen=True)
class Lag:
    """Lag of the trained rollouts in learner updates, over the steady updates of all runs."""

    mean: float
    """k̄, mean of `lag_mean`."""
    maximum: float
    """95% quantile over updates of `lag_max`: unlike the maximum it does not grow with the run."""
    greatest: int
    """Largest `lag_max`."""
    uses: float
    """y: rollouts trained over rollouts generated."""
    updates: int
    runs: int
    run_means: tuple[float, float]
    """Least and greatest k̄ of a run; far apart, the lag is no property of the configuration."""


@dataclass(frozen=True)
class RateCell:
    """All counted seeds of one learning rate."""

    learning_rate: float
    outcome: CellOutcome
    trials: tuple[tuple[int, bool], ...]
    """(seed, collapsed), by seed."""

    @property
    def counted(self) -> bool:
        """Whether its runs enter a likelihood: the uncollapsed ones went on long enough to count."""
        return self.outcome != "unqualified"


@dataclass(frozen=True)
class Configuration:
    """One (S, N, y, delay) with everything that was tried on it."""

    sync_interval: int
    arm: Mapping[str, Any]
    """Values of the arm fields that the sweep varies."""
    lag: Lag | None
    """None where no run has a steady update."""
    bracket: RateBracket
    cells: tuple[RateCell, ...]
    """Ascending in learning rate, unqualified ones included."""
    unused: tuple[tuple[str, str], ...] = ()
    """Run id and why it counts for nothing."""

    @property
    def arm_name(self) -> str:
        """Queue or buffer, and what of it the sweep varies, without what means nothing there."""
        buffered = bool(self.arm.get("buffer_size", False))
        texts = [
            _arm_text(name, value)
            for name, value in self.arm.items()
            if value and not (buffered and name == "store.delay")
        ]
        if self.arm.get("buffer_size") == 0:
            texts.insert(0, "queue")
        return ", ".join(texts or [_arm_text(*item) for item in self.arm.items()])

    @property
    def name(self) -> str:
        return f"S={self.sync_interval}, {self.arm_name}"

    @property
    def counted(self) -> tuple[RateCell, ...]:
        return tuple(cell for cell in self.cells if cell.counted)


def _arm_text(name: str, value: Any) -> str:
    symbol = {"buffer_size": "N", "replay_ratio": "y", "store.delay": "delay"}[name]
    return f"{symbol}={'–' if value is None else f'{value:g}'}"


def configurations(results: Sequence[Stability], varied: Sequence[str]) -> tuple[Configuration, ...]:
    """All configurations of facets that differ in the `varied` arm fields only, by arm and S."""
    return tuple(
        _configuration(result, interval, varied) for result in results for interval in result.sync_intervals
    )


def _configuration(result: Stability, sync_interval: int, varied: Sequence[str]) -> Configuration:
    cells = [cell for cell in result.cells if cell.sync_interval == sync_interval]
    return Configuration(
        sync_interval=sync_interval,
        arm={name: result.facet[name] for name in varied},
        lag=measured_lag([run for cell in cells for run in (*cell.collapsed, *cell.uncollapsed)]),
        bracket=_bracket(result.boundary, sync_interval),
        cells=tuple(_rate_cell(cell) for cell in cells if cell.cell is not None),
        unused=tuple(item for cell in cells for item in _unused(cell)),
    )


def _bracket(boundary: Boundary, sync_interval: int) -> RateBracket:
    found = [bracket for bracket in boundary.rates if bracket.sync_interval == sync_interval]
    return found[0] if found else RateBracket(sync_interval, None, None)


def _rate_cell(result: CellResult) -> RateCell:
    cell = result.cell
    assert cell is not None
    trials = [(run.config.seed, True) for run in result.collapsed]
    trials += [(run.config.seed, False) for run in result.uncollapsed]
    # Unlike in the bracket, which they leave open, mixed cells count here only where their survivors do.
    outcome = "unqualified" if cell.outcome == "mixed" and not cell.qualified else cell.outcome
    return RateCell(result.learning_rate, outcome, tuple(sorted(trials)))


def _unused(result: CellResult) -> list[tuple[str, str]]:
    counted = {run.run_id for run in (*result.collapsed, *result.uncollapsed)}
    left_out: list[tuple[str, str]] = []
    left_out += [(run.run_id, run.outcome) for run in result.runs if run.run_id not in counted]
    if result.cell is None:
        return left_out + [(run_id, "learning rate 0") for run_id in sorted(counted)]
    if result.collapsed and result.uncollapsed and not result.qualified:
        return left_out + [(run_id, "mixed, unqualified") for run_id in sorted(counted)]
    if result.outcome == "unqualified":
        return left_out + [(run_id, "unqualified") for run_id in sorted(counted)]
    return left_out


def measured_lag(runs: Sequence[Run]) -> Lag | None:
    """Lag over the steady updates of these runs of one configuration; None where there are none."""
    spans = [(run.metrics, *span) for run in runs if (span := steady_updates(run))[0] < span[1]]
    if not spans:
        return None
    windows = [lines[first:last] for lines, first, last in spans]
    means = [float(np.mean([line["lag_mean"] for line in window])) for window in windows]
    highest = [line["lag_max"] for window in windows for line in window]
    trained, generated = (
        sum(lines[last - 1][name] - (lines[first - 1][name] if first else 0) for lines, first, last in spans)
        for name in ("rollouts_trained", "rollouts_generated")
    )
    return Lag(
        mean=float(np.average(means, weights=[len(window) for window in windows])),
        maximum=float(np.quantile(highest, MAXIMUM_QUANTILE, method="higher")),
        greatest=int(max(highest)),
        uses=trained / generated if generated else math.nan,
        updates=len(highest),
        runs=len(windows),
        run_means=(min(means), max(means)),
    )


def steady_updates(run: Run) -> tuple[int, int]:
    """First and one past the last update of the whole sync cycles after the warm-up and before the alarm.

    The store has been renewed once when N rollouts (a queue: the delayed batches) arrived after the first
    update, however full it was then. Empty, first >= last, where the run was too short.
    """
    config, lines = run.config, run.metrics
    alarm = None if run.verdict is None else run.verdict.alarm_step
    renewed = config.buffer_size or config.store.delay * config.batch_size
    start = next(
        (
            step
            for step, line in enumerate(lines)
            if line["rollouts_generated"] - lines[0]["rollouts_generated"] >= renewed
        ),
        len(lines),
    )
    interval = config.sync_interval
    first = math.ceil(start / interval) * interval
    last = (len(lines) if alarm is None else min(alarm, len(lines))) // interval * interval
    return first, last
