"""Is there one number of staleness that places the boundary of every configuration? (math.md B1, C3, C6)

A sweep over sync interval, buffer, replay ratio and learning rate gives one bracket of η_max per
configuration. A *coordinate* is a staleness times η. It *collapses the boundaries* if one threshold on it
serves all configurations, whatever made their data stale. Rivals are compared on the same runs:

* the nominal S·η, which sees no buffer; the measured mean lag k̄·η; the measured maximum lag k_max·η;
* (1+2k̄)·η and (1+k_max)·η, which do not vanish without lag; 1+2k̄ is the S of a queue with that mean lag,
  the effective interval of C6, there a hypothesis to test;
* y·η, the uses of a rollout; η alone;
* powers f^p·η of the lags, with p fitted.

Configurations without any lag (k̄ = 0: S = 1 and a plain queue) stay out of the pure products (decision 14),
and out of the predictive scores, which all coordinates must answer for the same runs.

A verdict is *does not* where a rival predicts left-out configurations better, where the exponent of the
factor leaves out its value, or where the brackets miss each other by more than seeds explain; *cannot tell*
where a cap on η alone, which hides staleness at the small end, would save the coordinate; *collapses* where
none of these holds, the exponent is known to within ``TELLING_WIDTH``, no rival can be ahead by ``MARGIN``
and nothing is missing that seeds which disagree could not explain; *cannot tell* otherwise (decision 17).

On simulated sweeps of 15 configurations, 5 rates a factor 2 apart and 2 seeds (25 each of three truths, at
logistic slopes 2.7 and 6 in log η) the true coordinate was called *does not* in 3 of 150.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analysis.claims import TELLING_WIDTH
from analysis.interval_lp import Range
from analysis.joint_coordinates import COORDINATES, Coordinate, log_factor, special_cases
from analysis.joint_fit import (
    SAME,
    Slack,
    Table,
    best_split,
    curve,
    exponent_range,
    left_out_log_odds,
    left_out_wrong,
    noise_slope,
    slack,
    slack_by_noise,
    table_of,
    threshold_range,
)
from analysis.joint_scores import Rival, Scores
from analysis.stability import Stability
from analysis.staleness import ARM_FIELDS, Configuration, configurations

JointVerdict = Literal["collapses", "does not", "cannot tell"]

LEAST_CONFIGURATIONS = 3
"""With fewer stale configurations every power law fits."""
MATERIAL = 0.01
"""Nats per run: rivals that gain less are no rivals; Firth's penalty alone moves scores by a third of it."""
MARGIN = 0.1
"""Nats per run: a coordinate collapses no boundaries while a rival in front of it may be this far ahead."""
DRAWS = 2000
"""Simulated tables behind `slack_by_noise`."""
LEVEL = 0.95


@dataclass(frozen=True)
class CoordinateResult:
    """What one coordinate makes of the boundaries it covers."""

    coordinate: Coordinate
    covered: tuple[bool, ...]
    """Per used configuration."""
    p: float
    """1, or fitted."""
    exponent: Range
    """95% interval of the exponent of the factor (of 1+2k̄ for η alone)."""
    slack: Slack
    slack_by_noise: float
    """95% of tables with one true threshold need no more than this."""
    threshold: float
    """Of the coordinate, where half of the runs collapse; NaN if unknown."""
    threshold_range: Range
    agreeing: int
    """Covered cells in which all seeds agree; the wrong ones are counted among these."""
    wrong: int
    left_out_wrong: int
    log_likelihood: float
    """Per run, on the stale configurations; NaN where there is no fit."""
    score: float
    """Predictive log score per run there, each configuration predicted without it."""
    rival: Rival | None
    verdict: JointVerdict
    reason: str

    @property
    def separates(self) -> bool:
        """One threshold has every stable cell below it and every collapsed one above."""
        return self.slack.none_needed and self.wrong == 0


@dataclass(frozen=True)
class Joint:
    """The answer for configurations that share all other settings."""

    shared: Mapping[str, Any]
    """Values of further axes that these configurations share."""
    configurations: tuple[Configuration, ...]
    used: tuple[Configuration, ...]
    """With a measured lag and a counted cell."""
    coordinates: tuple[CoordinateResult, ...]
    """Empty where fewer than `LEAST_CONFIGURATIONS` are stale or all runs ended alike."""


def joint(results: Sequence[Stability]) -> tuple[Joint, ...]:
    """One answer per set of facets that differ in what lies between generation and training only.

    Empty unless the sweep varies that, and S beside it: the question is whether both are one.
    """
    fields = results[0].facet if results else {}
    varied = [name for name in ARM_FIELDS if name in fields]
    if not varied:
        return ()
    groups: dict[str, tuple[dict[str, Any], list[Stability]]] = {}
    for result in results:
        shared = {name: value for name, value in result.facet.items() if name not in varied}
        groups.setdefault(repr(shared), (shared, []))[1].append(result)
    return tuple(
        compare(configurations(found, varied), shared)
        for shared, found in groups.values()
        if len({interval for result in found for interval in result.sync_intervals}) > 1
    )


def compare(found: Sequence[Configuration], shared: Mapping[str, Any] | None = None) -> Joint:
    """All coordinates on these configurations, whatever their order."""
    ordered = sorted(found, key=lambda item: (repr(sorted(item.arm.items())), item.sync_interval))
    used = [item for item in ordered if item.lag is not None and item.counted]
    stale = [item for item in used if all(coordinate.factor(item) > 0 for coordinate in COORDINATES)]
    table = table_of(stale)
    comparable = len(stale) >= LEAST_CONFIGURATIONS and 0 < table.collapsed.sum() < table.trials.sum()
    return Joint(dict(shared or {}), tuple(ordered), tuple(used), _results(used, stale) if comparable else ())


def _results(used: Sequence[Configuration], stale: Sequence[Configuration]) -> tuple[CoordinateResult, ...]:
    table = table_of(stale)
    odds = [left_out_log_odds(table, log_factor(item, stale), fitted=item.fitted) for item in COORDINATES]
    scores = Scores.of(stale, [item.symbol for item in COORDINATES], odds)
    fits = [curve(table, log_factor(item, stale), fitted=item.fitted) for item in COORDINATES]
    runs = float(table.trials.sum())
    likelihoods = [math.nan if fit is None else fit.log_likelihood for fit in fits]
    best = max((fit.log_likelihood for fit in fits if fit is not None), default=-math.inf)
    exponents: dict[Any, Range] = {}
    found = []
    for k, coordinate in enumerate(COORDINATES):
        rival = scores.rival(k, special_cases(coordinate))
        capped = _cap_saves(coordinate, stale, table, best)
        tested = coordinate.tested or coordinate.factor
        if tested not in exponents:
            exponents[tested] = _exponent(tested, used)
        found.append(
            _result(coordinate, used, likelihoods[k] / runs, scores.mean(k), exponents[tested], rival, capped)
        )
    return tuple(found)


def _exponent(factor: Callable[[Configuration], float], used: Sequence[Configuration]) -> Range:
    items = [item for item in used if factor(item) > 0]
    return exponent_range(table_of(items), np.log([factor(item) for item in items]))


def _result(
    coordinate: Coordinate,
    used: Sequence[Configuration],
    log_likelihood: float,
    score: float,
    exponent: Range,
    rival: Rival | None,
    capped: bool,
) -> CoordinateResult:
    covered = tuple(coordinate.factor(item) > 0 for item in used)
    items = [item for item, inside in zip(used, covered, strict=True) if inside]
    table, factor = table_of(items), log_factor(coordinate, items)
    fitted = coordinate.fitted
    fit = curve(table, factor, fitted=fitted)
    p = fit.p if fitted and fit is not None else 1.0
    value = table.rate + p * factor[table.place]
    needed = slack(table, factor, fitted=fitted)
    slope = noise_slope(table)
    allowed = math.inf
    if fit is not None and slope is not None:
        allowed = slack_by_noise(table, factor, fit, slope, fitted=fitted, draws=DRAWS, level=LEVEL)
    split = best_split(table, value)
    verdict, reason = _verdict(coordinate, needed, allowed, table.noisy, exponent, score, rival, capped)
    low, high = threshold_range(table, value)
    return CoordinateResult(
        coordinate=coordinate,
        covered=covered,
        p=p,
        exponent=exponent,
        slack=needed,
        slack_by_noise=allowed,
        threshold=math.nan if fit is None else math.exp(fit.threshold),
        threshold_range=(math.exp(low), math.exp(min(high, 700.0)) if math.isfinite(high) else math.inf),
        agreeing=int(((table.collapsed == 0) | (table.collapsed == table.trials)).sum()),
        wrong=0 if split is None else split.wrong,
        left_out_wrong=left_out_wrong(table, factor, fitted=fitted),
        log_likelihood=log_likelihood,
        score=score,
        rival=rival,
        verdict=verdict,
        reason=reason,
    )


def _cap_saves(coordinate: Coordinate, stale: Sequence[Configuration], table: Table, best: float) -> bool:
    """Whether with a cap on η at low staleness it fits about as well as the best coordinate.

    The boundary min(η_cap, q/f) is a product law in max(f, f_cap). The cap may act on half of the
    configurations and half of the range of log f at most: beyond that it would be η alone under another name.
    """
    factor = log_factor(coordinate, stale)
    if np.ptp(factor) < 1e-9:
        return False
    highest = min(float(np.median(factor)), float(factor.min() + factor.max()) / 2)
    caps = np.linspace(factor.min(), highest, 9)[1:]
    fits = [curve(table, np.maximum(factor, cap), fitted=coordinate.fitted) for cap in caps]
    reached = max((fit.log_likelihood for fit in fits if fit is not None), default=-math.inf)
    return 2 * (best - reached) <= 3.84  # 95% of χ² with one degree of freedom, as in `cap_explains`


def _verdict(
    coordinate: Coordinate,
    needed: Slack,
    allowed: float,
    noisy: bool,
    exponent: Range,
    score: float,
    rival: Rival | None,
    capped: bool,
) -> tuple[JointVerdict, str]:
    """The first test that fails decides and gives the interval."""
    target = 0.0 if coordinate.tested is not None else 1.0
    of = "the exponent of 1+2k̄" if coordinate.tested is not None else "the exponent of the factor"
    said = f"{of} lies in {_text(exponent)}"
    missed = f"the brackets miss a common threshold by a factor {math.exp(max(needed.value, 0.0)):.2f}"
    against = ""
    if rival is not None and rival.range[0] > MATERIAL:
        against = (
            f"{rival.symbol} predicts left-out configurations better, by {rival.gain:.2f} nats per run "
            f"{_text(rival.range)}"
        )
    elif not coordinate.fitted and not exponent[0] - SAME <= target <= exponent[1] + SAME:
        against = f"{said}, which leaves out {target:.0f}"
    elif needed.value > allowed + SAME:
        against = f"{missed}, where the seeds' noise explains up to {math.exp(max(allowed, 0.0)):.2f}"
    if against and capped:
        return "cannot tell", f"{against}; but with a cap on η at low staleness it fits about as well."
    if against:
        return "does not", f"{against}."
    if coordinate.fitted and exponent[0] - SAME <= 0 <= exponent[1] + SAME:
        return "cannot tell", f"{said}, which holds 0: the factor may do nothing."
    if not exponent[1] - exponent[0] <= TELLING_WIDTH + SAME:
        return "cannot tell", f"{said}, wider than {TELLING_WIDTH}: other powers would serve as well."
    if not needed.none_needed and not noisy:
        return "cannot tell", f"{missed}, and no seeds disagree that could explain it."
    ahead = 0.0 if rival is None or rival.gain <= 0 else min(rival.range[1], -score)  # 0 is a perfect score
    if rival is not None and ahead > MARGIN:
        said = f"{rival.symbol} predicts left-out configurations better, though perhaps by chance"
        return "cannot tell", f"{said}, by up to {ahead:.2f} nats per run."
    fits = "all brackets share a threshold" if needed.none_needed else f"{missed}, within the seeds' noise"
    return "collapses", f"{fits}, {said}, and no rival predicts better beyond chance."


def _text(ends: Range, digits: int = 2) -> str:
    text = f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"
    return text.replace("-", "−").replace("inf", "∞")
