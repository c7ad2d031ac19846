"""What the joint section of a report says, and its part of results.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.drawing import Figure
from analysis.interval_lp import Range
from analysis.joint import CoordinateResult, Joint, joint
from analysis.joint_coordinates import Coordinate
from analysis.joint_figures import joint_figure
from analysis.stability import Stability
from analysis.staleness import Configuration
from analysis.wording import interval, number, plural, rate, rate_bracket_text, titled

VERDICTS = {"collapses": "collapses the boundaries", "does not": "does not", "cannot tell": "cannot tell"}
KINDS = {"collapses": "consistent", "does not": "inconsistent", "cannot tell": "cannot tell"}
"""Verdict → the verdict on a law that has its colour."""
LEGEND = (
    "k̄, k_max: lag of the trained rollouts measured in steady updates, its mean and the 95% quantile of the "
    "batch's largest. y: uses of a rollout.",
    "slack: factor by which all brackets must give way at both ends to share one threshold (1: none), and "
    "what the noise between seeds explains. wrong: cells on the wrong side of the best threshold, and of the "
    "threshold chosen without their configuration. score: log probability per run, in nats, of "
    "configurations predicted from the others (0 is perfect).",
    "Intervals between scores draw configurations and seeds again and hold for all rivals at once; so few "
    "seeds add little to them, so the gain in each seed is given.",
)
CAVEAT = "It speaks of this model and task only."
SPREAD = 0.05
"""Share of k̄ by which runs of a configuration may differ unsaid."""
MOST_IDS = 6
"""Run ids that a sentence lists."""


@dataclass(frozen=True)
class JointSection:
    """One answer on the page."""

    title: str
    joint: Joint
    figures: tuple[Figure, ...]

    @property
    def finding(self) -> str:
        return finding(self.joint)

    @property
    def notes(self) -> list[str]:
        return notes(self.joint)

    @property
    def configurations(self) -> list[list[str]]:
        return [configuration_row(item) for item in self.joint.configurations]

    @property
    def coordinates(self) -> list[CoordinateText]:
        return [coordinate_text(self.joint, result) for result in self.joint.coordinates]


@dataclass(frozen=True)
class CoordinateText:
    """A coordinate as a table row."""

    symbol: str
    covered: str
    slack: str
    wrong: str
    log_likelihood: str
    score: str
    exponent: str
    threshold: str
    verdict: str
    kind: str
    """The verdict as a claim's, for its colour."""
    reason: str
    by_seed: str
    """Gain of the rival that decides, seed by seed."""


CONFIGURATION_HEADER = ("configuration", "k̄", "k_max", "y", "η stable up to", "η collapsed from", "between")


def joint_sections(found: Sequence[Stability], folder: Path) -> tuple[JointSection, ...]:
    """Analyse and draw; empty unless the sweep varies what lies between generation and training."""
    answers = joint(found)
    several = len(answers) > 1
    sections = []
    for k, answer in enumerate(answers):
        figure = joint_figure(answer, folder, f"joint{f'-{k + 1}' if several else ''}")
        figures = () if figure is None else (figure,)
        sections.append(JointSection(titled(answer.shared.items()), answer, figures))
    return tuple(sections)


def finding(answer: Joint) -> str:
    """The answer in one sentence."""
    if not answer.coordinates:
        return (
            "Too little to compare: it takes three configurations with a lag, measured and counted, and runs "
            "that collapsed beside runs that did not."
        )
    by_verdict = {
        verdict: [item for item in answer.coordinates if item.verdict == verdict] for verdict in VERDICTS
    }
    said = []
    for item in by_verdict["collapses"]:
        at = f" at {_threshold(item)}" if math.isfinite(item.threshold) else ""
        count = sum(item.covered)
        said.append(f"{_symbol(item)} puts the boundaries of {count} configurations onto one threshold{at}")
    if not said:
        best = max(answer.coordinates, key=lambda item: item.score)
        said.append(
            f"none of {len(answer.coordinates)} coordinates is shown to put all boundaries onto one "
            f"threshold ({best.coordinate.symbol} predicts left-out configurations best)"
        )
    refuted, open_ones = by_verdict["does not"], by_verdict["cannot tell"]
    if refuted:
        said.append(f"{_listed(refuted)} {'does' if len(refuted) == 1 else 'do'} not")
    if open_ones:
        said.append(f"of {_listed(open_ones)} the runs cannot tell")
    text = "; ".join(said) + "."
    return text[:1].upper() + text[1:] if text.startswith("none") else text


def _symbol(item: CoordinateResult) -> str:
    return (
        f"{item.coordinate.symbol} (p = {number(item.p)})"
        if item.coordinate.fitted
        else item.coordinate.symbol
    )


def _listed(items: Sequence[CoordinateResult]) -> str:
    names = [item.coordinate.symbol for item in items]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _threshold(item: CoordinateResult) -> str:
    low, high = item.threshold_range
    return f"{rate(item.threshold)} [{rate(low)}, {rate(high)}]"


def configuration_row(item: Configuration) -> list[str]:
    lag = item.lag
    measured = (
        ["–", "–", "–"] if lag is None else [number(lag.mean, 1), f"{lag.maximum:g}", f"{lag.uses:.3g}"]
    )
    return [item.name, *measured, *rate_bracket_text(item.bracket)]


def coordinate_text(answer: Joint, item: CoordinateResult) -> CoordinateText:
    slack = math.exp(max(item.slack.value, 0.0))
    noise = math.exp(max(item.slack_by_noise, 0.0)) if math.isfinite(item.slack_by_noise) else math.inf
    by_seed = ""
    if item.rival is not None and item.reason.startswith(item.rival.symbol):
        gains = ", ".join(f"{number(gain)} in seed {seed}" for seed, gain in item.rival.by_seed)
        by_seed = f" ({item.rival.symbol} gains {gains}.)"
    return CoordinateText(
        symbol=_symbol(item),
        covered=f"{sum(item.covered)} of {len(answer.used)}",
        slack=f"{number(slack)} (noise {number(noise)})",
        wrong=f"{item.wrong}, {item.left_out_wrong} of {item.agreeing}",
        log_likelihood=number(item.log_likelihood, 3),
        score=number(item.score, 3),
        exponent=interval(item.exponent),
        threshold="unknown" if math.isnan(item.threshold) else _threshold(item),
        verdict=VERDICTS[item.verdict],
        kind=KINDS[item.verdict],
        reason=f"The{item.reason[3:]}" if item.reason.startswith("the ") else item.reason,
        by_seed=by_seed,
    )


def notes(answer: Joint) -> list[str]:
    """What was left out and why."""
    said = []
    without = [item.name for item in answer.used if item.lag is not None and item.lag.mean == 0]
    if without:
        said.append(
            f"No lag at all (k̄ = 0) in {'; '.join(without)}: left out of the products and powers of S, k̄ and "
            "k_max and of the scores, kept in the others."
        )
    unmeasured = [item.name for item in answer.configurations if item.lag is None]
    if unmeasured:
        said.append(f"No steady update before the alarm, so no lag, and not used: {'; '.join(unmeasured)}.")
    uncounted = [item.name for item in answer.configurations if item.lag is not None and not item.counted]
    if uncounted:
        said.append(f"No run that counts, and not used: {'; '.join(uncounted)}.")
    for item in answer.configurations:
        if item.lag is not None and item.lag.run_means[1] - item.lag.run_means[0] > SPREAD * max(
            item.lag.mean, 1
        ):
            low, high = item.lag.run_means
            said.append(
                f"The mean lag of {item.name} differs between its runs, {low:.2f} to {high:.2f}: it is no "
                "property of the configuration alone."
            )
    reasons: dict[str, list[str]] = {}
    for item in answer.configurations:
        for run_id, why in item.unused:
            reasons.setdefault(why, []).append(run_id)
    said += [
        f"{plural(len(ids), 'run')} not used, {why}: {few(ids)}." for why, ids in sorted(reasons.items())
    ]
    return said


def few(ids: Sequence[str]) -> str:
    """The first of them; results.json has all."""
    more = len(ids) - MOST_IDS
    return ", ".join(ids) if more <= 1 else f"{', '.join(ids[:MOST_IDS])} and {more} more"


def joint_results(answers: Sequence[Joint]) -> list[dict[str, Any]]:
    """Entries of `joint` in results.json, one per set of further settings."""
    return [
        {
            "shared": dict(answer.shared),
            "finding": finding(answer),
            "configurations": [_configuration(item) for item in answer.configurations],
            "coordinates": [_coordinate(answer, item) for item in answer.coordinates],
            "notes": notes(answer),
        }
        for answer in answers
    ]


def _configuration(item: Configuration) -> dict[str, Any]:
    lag = item.lag
    return {
        "name": item.name,
        "sync_interval": item.sync_interval,
        **item.arm,
        "lag": None
        if lag is None
        else {
            "mean": lag.mean,
            "maximum_95": lag.maximum,
            "maximum": lag.greatest,
            "uses": lag.uses,
            "updates": lag.updates,
            "runs": lag.runs,
            "run_means": _ends(lag.run_means),
        },
        "bracket": {"low": item.bracket.stable_rate, "high": item.bracket.collapsed_rate},
        "mixed": [cell.learning_rate for cell in item.bracket.mixed],
        "non_monotone": [cell.learning_rate for cell in item.bracket.non_monotone],
        "cells": [
            {
                "learning_rate": cell.learning_rate,
                "outcome": cell.outcome,
                "collapsed_by_seed": {str(seed): collapsed for seed, collapsed in cell.trials},
            }
            for cell in item.cells
        ],
        "unused": [{"run_id": run_id, "reason": why} for run_id, why in item.unused],
    }


def _coordinate(answer: Joint, item: CoordinateResult) -> dict[str, Any]:
    coordinate: Coordinate = item.coordinate
    rival = item.rival
    return {
        "coordinate": coordinate.key,
        "symbol": coordinate.symbol,
        "configurations": [
            used.name for used, inside in zip(answer.used, item.covered, strict=True) if inside
        ],
        "p": item.p,
        "fitted": coordinate.fitted,
        "exponent": _ends(item.exponent),
        "separates": item.separates,
        "least_slack": item.slack.value,
        "least_slack_by_noise": item.slack_by_noise,
        "threshold": item.threshold,
        "threshold_range": _ends(item.threshold_range),
        "cells": item.agreeing,
        "wrong": item.wrong,
        "left_out_wrong": item.left_out_wrong,
        "log_likelihood_per_run": item.log_likelihood,
        "left_out_score_per_run": item.score,
        "rival": None
        if rival is None
        else {
            "symbol": rival.symbol,
            "gain": rival.gain,
            **_ends(rival.range),
            "by_seed": {str(seed): gain for seed, gain in rival.by_seed},
        },
        "verdict": item.verdict,
        "reason": item.reason,
    }


def _ends(ends: Range) -> dict[str, float]:
    return {"low": ends[0], "high": ends[1]}
