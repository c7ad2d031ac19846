"""What a sweep says about the paper's two laws: consistent, inconsistent, or cannot tell (decision 17).

A law is *inconsistent* when the interval for its exponent leaves the law's value out, *consistent* when the
interval holds it and is at most ``TELLING_WIDTH`` wide, and otherwise the sweep *cannot tell*. Half a unit of
exponent is a factor 2 over a factor 4 in S, one step of a usual grid: an interval any wider also holds laws
that would send the next run to another cell. Consistent is not confirmed: a small model obeying a law shows
nothing about large ones.

Every interval covers 95%, so the clock, which has two, is called inconsistent by mistake in up to one sweep
of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from analysis.boundary import Boundary
from analysis.clock import CollapseInterval, feasible_set, sync_change_factor
from analysis.clock_posterior import clock_posterior
from analysis.collapse_probability import cap_explains, exponent_estimate
from analysis.interval_lp import Range

Verdict = Literal["consistent", "inconsistent", "cannot tell"]

TELLING_WIDTH = 0.5
UNKNOWN: Range = (-math.inf, math.inf)


@dataclass(frozen=True)
class LawVerdict:
    """Verdict on one law."""

    law: str
    """The law in symbols."""
    verdict: Verdict
    reason: str
    """One sentence with the interval that decides."""
    intervals: Mapping[str, Range] = field(default_factory=dict)
    """The deciding interval of each exponent."""


BOUNDARY_LAW = "S·η = const at the boundary (η_max ∝ S^−p with p = 1)"
CLOCK_LAW = "t ∝ 1/η whatever S (t ∝ η^−a·S^−b with a = 1, b = 0)"


def boundary_law(boundary: Boundary) -> LawVerdict:
    """Is the boundary one value of S·η?

    Where seeds disagree, cells are out of order or no p fits all brackets, the logistic interval decides.
    Where the cells are clean it is widened to the exponent set: a clean table may be luck, so noise is not
    ruled out by it. Exponents below 1 do not count against the law while a cap on η alone, which hides it at
    small S, explains them.
    """

    def cannot_tell(reason: str, p: Range = UNKNOWN) -> LawVerdict:
        return LawVerdict(BOUNDARY_LAW, "cannot tell", reason, {"p": p})

    estimate = exponent_estimate(boundary.cells)
    if estimate is None:
        return cannot_tell(
            "p is open: it takes two values of S > 1, two of η, and both stable and collapsed runs."
        )
    noise_free = boundary.exponent.hull
    stale = [rates for rates in boundary.rates if rates.sync_interval > 1]
    noisy = noise_free is None or any(rates.mixed or rates.non_monotone for rates in stale)
    p = estimate.range
    source = "the 95% logistic interval"
    if not noisy and noise_free is not None:
        p = _hull(p, noise_free)
        source = f"all brackets together ({_text(noise_free)}) and the 95% logistic interval"
    said = f"p lies in {_text(p)} by {source}"
    if p[0] <= 1 <= p[1]:
        if p[1] - p[0] <= TELLING_WIDTH:
            return LawVerdict(BOUNDARY_LAW, "consistent", f"{said}, which holds 1 and is narrow.", {"p": p})
        if p == UNKNOWN:
            return cannot_tell(
                "The runs leave p open: too few, or rates too coarse, to place η_max at each S.", p
            )
        return cannot_tell(f"{said}, which holds 1 but is wider than {TELLING_WIDTH}.", p)
    cap = cap_explains(boundary.cells, 1.0) if p[1] < 1 else None
    if cap is not None:
        return cannot_tell(f"{said}, but p = 1 with a cap on η below S ≈ {cap:.0f} fits about as well.", p)
    return LawVerdict(BOUNDARY_LAW, "inconsistent", f"{said}, which leaves out 1.", {"p": p})


def clock_law(rows: Sequence[CollapseInterval], *, spread_scale: float = 0.5) -> LawVerdict:
    """Is the time to collapse inverse to η and independent of S?

    Each exponent's interval is the posterior's, widened to the feasible set where that is not empty.
    """
    if not rows:
        return LawVerdict(CLOCK_LAW, "cannot tell", "No run collapsed.", {"a": UNKNOWN, "b": UNKNOWN})
    several_rates = len({row.learning_rate for row in rows}) > 1
    several_intervals = len({row.sync_interval for row in rows}) > 1
    b_given = None if several_intervals else 0.0
    posterior = clock_posterior(rows, spread_scale=spread_scale, b=b_given)
    if posterior is None:
        return LawVerdict(
            CLOCK_LAW,
            "cannot tell",
            "Every run collapsed within its first snapshot, so nothing bounds the collapse time from below.",
            {"a": UNKNOWN, "b": UNKNOWN},
        )
    found = feasible_set(rows, b=b_given)
    a = _hull((posterior.a.low, posterior.a.high), found.a) if several_rates else UNKNOWN
    b = _hull((posterior.b.low, posterior.b.high), found.b) if several_intervals else UNKNOWN
    intervals = {"a": a, "b": b}
    said = [f"a lies in {_text(a)}" if several_rates else "one η leaves a open"]
    said.append(f"b in {_text(b)}" if several_intervals else "one S leaves b open")
    excluded = [
        f"{name} = {value}" for name, value in (("a", 1), ("b", 0)) if not _holds(intervals[name], value)
    ]
    if excluded:
        reason = f"{' and '.join(said)}, which leaves out {' and '.join(excluded)}."
        return LawVerdict(CLOCK_LAW, "inconsistent", _sentence(reason), intervals)
    wide = [name for name, ends in intervals.items() if not ends[1] - ends[0] <= TELLING_WIDTH]
    if wide:
        reason = f"{' and '.join(said)}: {' and '.join(wide)} not known to within {TELLING_WIDTH}."
        return LawVerdict(CLOCK_LAW, "cannot tell", _sentence(reason), intervals)
    factor = sync_change_factor(b, rows)
    reason = (
        f"{' and '.join(said)}, which hold 1 and 0 and are narrow; over the tested S the collapse time "
        f"changes by at most a factor {factor:.2g}."
    )
    return LawVerdict(CLOCK_LAW, "consistent", _sentence(reason), intervals)


def _hull(first: Range, second: Range | None) -> Range:
    return first if second is None else (min(first[0], second[0]), max(first[1], second[1]))


def _holds(ends: Range, value: float) -> bool:
    return ends[0] <= value <= ends[1]


def _text(ends: Range) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]".replace("-", "−").replace("inf", "∞")


def _sentence(text: str) -> str:
    """Upper-case start, except where the sentence starts with an exponent."""
    return text if text.startswith("a lies") else text[:1].upper() + text[1:]
