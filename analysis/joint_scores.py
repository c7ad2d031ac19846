"""Predictive log scores of rival coordinates, compared over configurations and seeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit

from analysis.interval_lp import Array, Range
from analysis.staleness import Configuration

DRAWS = 2000
LEVEL = 0.95


def log_score(log_odds: float, collapsed: bool) -> float:
    """Log probability of what happened, in nats: 0 is perfect, log ½ a coin."""
    return float(log_expit(log_odds if collapsed else -log_odds))


@dataclass(frozen=True)
class Rival:
    """The coordinate that beats this one most clearly on left-out configurations."""

    symbol: str
    gain: float
    """Its log score per run minus this one's, in nats."""
    range: Range
    """95%, over configurations and seeds, and simultaneous over all rivals."""
    by_seed: tuple[tuple[int, float], ...]
    """The gain in each seed."""


@dataclass(frozen=True)
class Scores:
    """Predictive log scores on the stale configurations, every one predicted without it."""

    symbols: tuple[str, ...]
    seeds: tuple[int, ...]
    totals: Array
    """Sum over runs, shape (coordinates, configurations, seeds)."""
    runs: Array
    """Shape (configurations, seeds)."""

    @staticmethod
    def of(items: Sequence[Configuration], symbols: Sequence[str], log_odds: Sequence[Array]) -> Scores:
        """From each coordinate's log odds of collapse, one per counted cell in the order of the items."""
        cells = [(k, cell) for k, item in enumerate(items) for cell in item.counted]
        seeds = sorted({seed for _, cell in cells for seed, _ in cell.trials})
        totals = np.zeros((len(symbols), len(items), len(seeds)))
        runs = np.zeros((len(items), len(seeds)))
        for row, (k, cell) in enumerate(cells):
            for seed, collapsed in cell.trials:
                place = k, seeds.index(seed)
                runs[place] += 1
                for number, odds in enumerate(log_odds):
                    totals[number, *place] += log_score(float(odds[row]), collapsed)
        return Scores(tuple(symbols), tuple(seeds), totals, runs)

    def mean(self, coordinate: int) -> float:
        return float(self.totals[coordinate].sum() / self.runs.sum())

    def rival(self, coordinate: int, special_cases: Sequence[int] = ()) -> Rival | None:
        """The rival furthest ahead in standard errors, with an interval that holds for all at once.

        Configurations and seeds are both drawn again: the question is about configurations, and two seeds
        alone give three different draws. The critical value is that of the largest of all differences, so
        that picking the best rival afterwards costs no coverage. A special case of the coordinate is no
        rival: where it holds, so does the coordinate.
        """
        differences = self.totals - self.totals[coordinate]
        observed = differences.sum(axis=(1, 2)) / self.runs.sum()
        drawn = self._draw(differences)
        spread = np.maximum(drawn.std(axis=1), 1e-9)
        differing = np.flatnonzero(np.abs(differences).max(axis=(1, 2)) > 1e-9)
        others = np.setdiff1d(differing, special_cases)
        if not len(others):
            return None
        centred = (drawn[others] - observed[others, None]) / spread[others, None]
        critical = float(np.quantile(centred.max(axis=0), LEVEL))
        best = others[int(np.argmax(observed[others] / spread[others]))]
        gain, room = float(observed[best]), critical * float(spread[best])
        by_seed = differences[best].sum(axis=0) / self.runs.sum(axis=0)
        return Rival(
            self.symbols[best],
            gain,
            (gain - room, gain + room),
            tuple(zip(self.seeds, map(float, by_seed), strict=True)),
        )

    def _draw(self, differences: Array) -> Array:
        """Mean differences per run under resampled configurations and seeds, shape (coordinates, draws)."""
        rng = np.random.default_rng([0, *b"joint scores"])
        places, seeds = self.runs.shape
        weights = np.einsum(
            "dc,ds->dcs",
            rng.multinomial(places, np.full(places, 1 / places), DRAWS).astype(np.float64),
            rng.multinomial(seeds, np.full(seeds, 1 / seeds), DRAWS).astype(np.float64),
        )
        runs = np.maximum(np.einsum("dcs,cs->d", weights, self.runs), 1.0)
        return np.asarray(np.einsum("dcs,jcs->jd", weights, differences) / runs)
