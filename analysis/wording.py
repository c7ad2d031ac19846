"""What a reader is told, in words: the same sentences in the terminal, the HTML page and the tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from analysis.boundary import ExponentSet, ProductBracket, RateBracket
from analysis.clock_posterior import Marginal
from analysis.interval_lp import Range
from analysis.load import Run
from analysis.stability import CellResult, Stability

MINUS, INFINITY = "−", "∞"


def rate(value: float) -> str:
    """A rate or product, scientific and short.

    >>> rate(0.001), rate(2.5e-06), rate(0), rate(0.016)
    ('1e-3', '2.5e-6', '0', '1.6e-2')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else INFINITY
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def quantity(value: float) -> str:
    """A positive quantity to three digits: plain from 0.01 on, scientific below.

    >>> quantity(0.4449), quantity(3.2e-05)
    ('0.445', '3.2e-5')
    """
    return f"{value:.3g}" if 0.01 <= value < 1e4 else rate(value)


def number(value: float, digits: int = 2) -> str:
    """A plain number with a true minus sign."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else (MINUS if value < 0 else "") + INFINITY
    return f"{value:.{digits}f}".replace("-", MINUS)


def interval(ends: Range, digits: int = 2) -> str:
    """A closed interval; a bracket turns at an infinite end.

    >>> interval((0.5, 1.32)), interval((-math.inf, 2.0))
    ('[0.50, 1.32]', '(−∞, 2.00]')
    """
    left = "(" if math.isinf(ends[0]) else "["
    right = ")" if math.isinf(ends[1]) else "]"
    return f"{left}{number(ends[0], digits)}, {number(ends[1], digits)}{right}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class CellText:
    """A cell of the stability table: what happened, and in how many seeds where there are several."""

    main: str
    seeds: str = ""

    def __str__(self) -> str:
        return f"{self.main} ({self.seeds})" if self.seeds else self.main


def cell_text(cell: CellResult | None) -> CellText:
    """Text of one cell; the legend explains its marks."""
    if cell is None:
        return CellText("–")
    outcome, n = cell.outcome, cell.seeds
    left_out = "".join(
        f" +{count} {what}"
        for what in ("pending", "undetectable", "incomplete", "invalid")
        if n and (count := sum(run.outcome == what for run in cell.runs))
    )
    several = len(cell.runs) > 1
    share = f"{len(cell.collapsed)}/{n}"
    if outcome in ("stable", "unqualified"):
        mark = "stable" if outcome == "stable" else "stable?"
        bound = f" ≤{math.ceil(100 * cell.bound[1] - 1e-9)}%" if cell.bound else ""
        return CellText(
            f"{mark} to {cell.horizon}", f"{share}{bound}{left_out}" if several else left_out.strip()
        )
    if outcome == "collapsed":
        return CellText(snapshot_text(cell), f"{share}{left_out}" if several else left_out.strip())
    if outcome == "mixed":
        return CellText(f"mixed {snapshot_text(cell)}", f"{share}{left_out}")
    return CellText(outcome, plural(len(cell.runs), "run") if several else "")


def snapshot_text(cell: CellResult) -> str:
    """M with its interval for one collapsed run, least and greatest M for several; r: one recovered."""
    recovered = " r" if any(run.outcome == "recovered" for run in cell.collapsed) else ""
    found = cell.snapshots
    if len(cell.collapsed) == 1:
        return run_snapshot_text(cell.collapsed[0]) + recovered
    if found[0] == found[-1]:
        return f"M {found[0]}{recovered}"
    return f"M {found[0]}–{found[-1]}{recovered}"


def run_snapshot_text(run: Run) -> str:
    """M and, where it is not sharp, the interval that the rewards allow."""
    verdict = run.verdict
    if verdict is None or verdict.snapshot is None:
        return ""
    low, high = verdict.snapshot_low, verdict.snapshot_high
    return f"M {verdict.snapshot}" + ("" if low == high else f" [{low}, {high}]")


def legend(result: Stability) -> list[str]:
    """What the marks in the table mean; only the marks that occur."""
    cells, lines = result.cells, []
    outcomes = {cell.outcome for cell in cells}
    if "stable" in outcomes:
        lines.append("stable to h: no collapse in h learner updates, and h is long enough to count.")
    if "unqualified" in outcomes:
        lines.append(
            "stable? to h: no collapse in h updates, but too few to count (or a seed undecided); "
            "not used for any claim."
        )
    if any(cell.collapsed for cell in cells):
        said = "M: the first collapsed snapshot, the weights after M·S updates"
        blurred = any("[" in cell_text(cell).main for cell in cells)
        lines.append(f"{said}; in brackets what the rewards allow." if blurred else f"{said}.")
    if any(len(cell.collapsed) > 1 for cell in cells):
        lines.append(_seed_range(max(len(cell.collapsed) for cell in cells)))
    if "mixed" in outcomes:
        lines.append("mixed: the seeds disagree.")
    if any(run.outcome == "recovered" for run in result.runs):
        lines.append("r: a run recovered later.")
    if outcomes & {"pending", "undetectable", "incomplete", "invalid"}:
        lines.append("pending, undetectable, incomplete, invalid: no result, see the notes.")
    counted = {cell.seeds for cell in cells if cell.seeds}
    if counted == {1}:
        lines.append(
            "One seed per cell: 0 of 1 only bounds the probability of collapse below 98% "
            "(95% Clopper–Pearson)."
        )
    elif counted:
        lines.append("k/n: k of n seeds collapsed; ≤ is the upper end of the 95% Clopper–Pearson interval.")
    return lines


def _seed_range(seeds: int) -> str:
    said = "M a–b: least and greatest M over the seeds"
    if seeds < 3:
        return f"{said}."
    coverage = 100 * (1 - 0.5 ** (seeds - 1))
    return f"{said}; over {seeds} seeds it holds the median of all possible seeds with {coverage:.4g}%."


def product_sentence(symbol: str, bracket: ProductBracket) -> str:
    """The pooled bracket of a product in one sentence."""
    low, high = bracket.stable_max, bracket.collapsed_min
    if low is None and high is None:
        return f"{symbol}: no stable and no collapsed cell with S > 1 to place it."
    if low is None and high is not None:
        return (
            f"{symbol}: collapsed from {rate(high)} on; no qualified stable cell with S > 1 bounds it below."
        )
    if high is None and low is not None:
        return f"{symbol}: stable up to {rate(low)}; no collapsed cell with S > 1 bounds it above."
    assert low is not None and high is not None
    if bracket.overlap is None:
        return f"{symbol}: stable up to {rate(low)}, collapsed from {rate(high)} on."
    if low == high:
        return f"{symbol} does not separate: at {rate(low)} one cell is stable and another collapsed."
    return (
        f"{symbol} does not separate: a cell collapsed at {rate(high)}, one is stable at {rate(low)}; "
        f"overlap [{rate(high)}, {rate(low)}]."
    )


def rate_bracket_text(bracket: RateBracket) -> tuple[str, str, str]:
    """Stable up to, collapsed from, and what is out of order between."""
    between = [f"η {rate(cell.learning_rate)} mixed" for cell in bracket.mixed]
    between += [f"η {rate(cell.learning_rate)} {cell.outcome}, out of order" for cell in bracket.non_monotone]
    return (
        "–" if bracket.stable_rate is None else rate(bracket.stable_rate),
        "–" if bracket.collapsed_rate is None else rate(bracket.collapsed_rate),
        "; ".join(between),
    )


def clock_sentences(result: Stability) -> list[str]:
    """The clock: its feasible set or the least slack, then the posterior."""
    clock = result.clock
    n = len(clock.rows)
    if not n:
        return ["No collapsed run with S > 1: there is no clock to fit."]
    said = []
    paper = clock.paper
    if paper.c2 is not None:
        said.append(
            f"t = c2/η hits {_all(n)} with c2 in ({quantity(paper.c2[0])}, {quantity(paper.c2[1])}]"
            f"{' (no lower end: every run collapsed within its first snapshot)' if paper.c2[0] == 0 else ''}."
        )
    else:
        said.append(
            f"No c2 makes t = c2/η hit {_all(n)}: they would have to be stretched by a factor "
            f"{math.exp(paper.least_slack):.3g} at both ends (least slack {paper.least_slack:.2f} in log t)."
        )
    free = clock.feasible
    rates = len({row.learning_rate for row in clock.rows})
    if rates < 2:
        said.append("All of them ran at one η, so the exponent a is open.")
    elif free.a is not None:
        said.append(f"t ∝ η^−a hits {_all(n)} for a in {interval(free.a)}.")
    elif paper.c2 is None:
        said.append(f"With the exponent a free the least slack is {free.least_slack:.2f}.")
    posterior = clock.posterior
    if posterior is None:
        said.append("With no lower end to any interval, noise leaves c2 open: no posterior.")
    else:
        c2, spread = posterior.c2, posterior.spread
        said.append(
            f"With noise (posterior, {100 * posterior.level:.0f}%): c2 = {quantity(c2.median)} "
            f"[{quantity(c2.low)}, {quantity(c2.high)}] at η = {rate(posterior.reference.learning_rate)}, "
            f"spread of log t {number(spread.median)} [{number(spread.low)}, {number(spread.high)}]."
        )
    return said


def _all(count: int) -> str:
    return "the one collapse interval" if count == 1 else f"all {count} collapse intervals"


@dataclass(frozen=True)
class ExponentText:
    """One exponent as a table row."""

    symbol: str
    meaning: str
    paper: str
    """Value in the paper's law."""
    noise_free: str
    """Set that hits all brackets or intervals, or the least slack."""
    estimate: str
    """Estimate with its 95% interval."""


def exponent_rows(result: Stability) -> list[ExponentText]:
    """The exponents of both laws, each as a set and as an estimate with noise."""
    clock, edge = result.clock, result.boundary
    rates = len({row.learning_rate for row in clock.rows})
    intervals = len({row.sync_interval for row in clock.rows})
    a = clock.posterior.a if clock.posterior is not None and rates > 1 else None
    b = clock.posterior_sync.b if clock.posterior_sync is not None else None
    return [
        ExponentText("p", "η_max ∝ S^−p", "1", _set_text(edge.exponent), _boundary_estimate(result)),
        ExponentText("p", "… with a cap on η", "1", _set_text(edge.capped_exponent), "–"),
        ExponentText(
            "a",
            "t ∝ η^−a",
            "1",
            _range_text(clock.feasible.a, clock.feasible.least_slack) if rates > 1 else "open",
            _marginal_text(a),
        ),
        ExponentText(
            "b",
            "t ∝ S^−b, a free",
            "0",
            _range_text(clock.feasible_sync.b, clock.feasible_sync.least_slack) if intervals > 1 else "open",
            _marginal_text(b),
        ),
    ]


def _boundary_estimate(result: Stability) -> str:
    estimate = result.exponent
    if estimate is None or (math.isinf(estimate.range[0]) and math.isinf(estimate.range[1])):
        return "open"
    middle = "" if math.isnan(estimate.p) else f"{number(estimate.p)} "
    return f"{middle}{interval(estimate.range)}"


def _set_text(found: ExponentSet) -> str:
    if not found.ranges:
        return _none(found.least_slack)
    if all(math.isinf(end) for end in found.ranges[0]):
        return "open"
    return " ∪ ".join(interval(ends) for ends in found.ranges)


def _range_text(found: Range | None, slack: float) -> str:
    if found is None:
        return _none(slack)
    return "open" if math.isinf(found[0]) and math.isinf(found[1]) else interval(found)


def _none(slack: float) -> str:
    return "none, slack " + (f"{slack:.2f}" if slack >= 0.005 else "<0.01")


def _marginal_text(marginal: Marginal | None) -> str:
    if marginal is None:
        return "open"
    return f"{number(marginal.median)} {interval((marginal.low, marginal.high))}"


def half_product_sentence(result: Stability) -> str | None:
    """S·η at which half of the runs collapse, where the seeds can tell."""
    curve = result.product
    if curve is None or math.isnan(curve.half_product):
        return None
    low, high = curve.half_product_range
    if low == 0 and math.isinf(high):
        return None
    return f"Half of the runs collapse at Sη = {rate(curve.half_product)} [{rate(low)}, {rate(high)}] (95%)."


def titled(items: Iterable[tuple[str, object]]) -> str:
    """Fields and values as one line."""
    return ", ".join(f"{name} {value}" for name, value in items)
