"""The collapse rule for published curves: one mean reward per snapshot (math.md C1).

Own runs record a reward per update and are judged by `trainer.collapse`; papers and other trainers often give
one number per behaviour snapshot, and there the trailing median of three snapshots plays the part of the
average. `causal` reads a curve as it grows, `post_hoc` with the whole curve in hand.

    level_m    median of the last ≤ `width` snapshots up to m; reference = highest level before m
    candidate  x_m ≤ (1 − drop)·reference and reference − x_m ≥ max(min_abs, z·σ_m)
    confirmed  `confirm` snapshots in a row at or below (1 − drop)·reference, frozen at the candidate
    post hoc   the first m that passes the candidate test and whose median(x_m … end) is below as well

A reference that never reaches 2·min_abs leaves no room for a drop: the curve is "undetectable", whatever it
does. Rewards are on a scale on which 0 is failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ROUNDING = 1e-12
"""Slack in comparisons of levels: 0.4 must count as 0.8 × 0.5 although the floats may differ."""


class SnapshotRuleConfig(BaseModel):
    """Thresholds of the snapshot rule, all choices of ours (math.md C1)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    drop: float = Field(default=0.5, gt=0, lt=1)
    """Share of the reference that must be lost."""
    min_abs: float = Field(default=0.1, gt=0)
    """Least loss, in reward."""
    z: float = Field(default=4.0, ge=0)
    """Least loss, in standard errors of the snapshot's mean reward, where those are known."""
    width: int = Field(default=3, ge=1)
    """Snapshots in the trailing median."""
    confirm: int = Field(default=2, ge=1)
    """Snapshots in a row, the candidate included, that confirm a collapse."""
    gradual_level: float = Field(default=0.8, gt=0, lt=1)
    """Share of the reference that counts as still up, for the `gradual` mark."""


@dataclass(frozen=True)
class SnapshotVerdict:
    """What one curve shows. `snapshot` is M, `confirmed` the snapshot that settled it (causal only)."""

    status: Literal["none", "pending", "collapsed", "undetectable"]
    snapshot: int | None = None
    confirmed: int | None = None
    gradual: bool = False
    """The last snapshot at `gradual_level` of the reference lies two or more before M: a slide."""


def causal(
    rewards: Sequence[float],
    standard_errors: Sequence[float] | None = None,
    config: SnapshotRuleConfig | None = None,
) -> SnapshotVerdict:
    """Judge a curve as it would have been judged while it grew; `rewards[m]` is the mean of snapshot m."""
    rule = config or SnapshotRuleConfig()
    _check(rewards, standard_errors)
    levels = _reference_before(rewards, rule)
    if _highest_level(rewards, rule) < 2 * rule.min_abs - ROUNDING:
        return SnapshotVerdict("undetectable")
    candidate: int | None = None
    for m in range(1, len(rewards)):
        # while a candidate stands its reference stays frozen; a return above the line drops it
        if candidate is not None and rewards[m] > (1 - rule.drop) * levels[candidate] + ROUNDING:
            candidate = None
        elif candidate is None and _is_candidate(rewards, standard_errors, levels, m, rule):
            candidate = m
        if candidate is not None and m - candidate + 1 >= rule.confirm:
            return SnapshotVerdict("collapsed", candidate, m, _gradual(rewards, levels, candidate, rule))
    if candidate is not None:
        return SnapshotVerdict("pending", candidate, None, _gradual(rewards, levels, candidate, rule))
    return SnapshotVerdict("none")


def post_hoc(
    rewards: Sequence[float],
    standard_errors: Sequence[float] | None = None,
    config: SnapshotRuleConfig | None = None,
) -> SnapshotVerdict:
    """Judge a finished curve: the first drop that the rest of the curve does not take back."""
    rule = config or SnapshotRuleConfig()
    _check(rewards, standard_errors)
    levels = _reference_before(rewards, rule)
    if _highest_level(rewards, rule) < 2 * rule.min_abs - ROUNDING:
        return SnapshotVerdict("undetectable")
    for m in range(1, len(rewards)):
        stays_down = median(rewards[m:]) <= (1 - rule.drop) * levels[m] + ROUNDING
        if stays_down and _is_candidate(rewards, standard_errors, levels, m, rule):
            return SnapshotVerdict("collapsed", m, None, _gradual(rewards, levels, m, rule))
    return SnapshotVerdict("none")


def _check(rewards: Sequence[float], standard_errors: Sequence[float] | None) -> None:
    if standard_errors is not None and len(standard_errors) != len(rewards):
        raise ValueError(
            f"standard_errors has {len(standard_errors)} values for {len(rewards)} rewards: "
            f"give one per snapshot"
        )


def _trailing_medians(rewards: Sequence[float], rule: SnapshotRuleConfig) -> list[float]:
    return [median(rewards[max(0, m + 1 - rule.width) : m + 1]) for m in range(len(rewards))]


def _highest_level(rewards: Sequence[float], rule: SnapshotRuleConfig) -> float:
    return max(_trailing_medians(rewards, rule), default=0.0)


def _reference_before(rewards: Sequence[float], rule: SnapshotRuleConfig) -> list[float]:
    """Highest trailing median among the snapshots before each one; −inf before the first."""
    reference = [float("-inf")]
    for level in _trailing_medians(rewards, rule):
        reference.append(max(reference[-1], level))
    return reference[:-1]


def _is_candidate(
    rewards: Sequence[float],
    standard_errors: Sequence[float] | None,
    levels: Sequence[float],
    m: int,
    rule: SnapshotRuleConfig,
) -> bool:
    noise = rule.z * standard_errors[m] if standard_errors is not None else 0.0
    low = rewards[m] <= (1 - rule.drop) * levels[m] + ROUNDING
    return low and levels[m] - rewards[m] >= max(rule.min_abs, noise) - ROUNDING


def _gradual(rewards: Sequence[float], levels: Sequence[float], m: int, rule: SnapshotRuleConfig) -> bool:
    up = [i for i in range(m) if rewards[i] >= rule.gradual_level * levels[m] - ROUNDING]
    return bool(up) and m - up[-1] >= 2
