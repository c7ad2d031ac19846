"""Log-log figures of the two laws: the highest stable rate against S, the collapse time against η."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.clock_posterior import ClockPosterior
from analysis.drawing import COLOURS, MARKERS, SERIES, Figure, style, write
from analysis.interval_lp import Array
from analysis.load import Run
from analysis.stability import CellResult, Stability
from analysis.wording import interval as range_text
from analysis.wording import number, rate

SIZE = (5.6, 4.2)
STEEPEST = 6.0
"""Slopes beyond this are drawn as this: the band leaves the frame anyway."""
_CELL_MARKS = {"stable": "o", "collapsed": "X", "mixed": "D", "unqualified": "o"}


def boundary_figure(result: Stability, folder: Path, name: str) -> Figure | None:
    """Cells and brackets of η_max per S with the fitted slope and the paper's; None without a cell."""
    cells = [cell for cell in result.cells if cell.cell is not None and cell.outcome in _CELL_MARKS]
    if not cells:
        return None
    with style():
        canvas, panel = _log_log()
        _frame(panel, [cell.sync_interval for cell in cells], [cell.learning_rate for cell in cells])
        _boundary_slopes(panel, result)
        _brackets(panel, result)
        _cells(panel, cells)
        intervals = sorted({cell.sync_interval for cell in cells})
        panel.set_xticks(intervals, [str(interval) for interval in intervals])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("sync interval S")
        panel.set_ylabel("learning rate η")
        _legend(panel)
        return write(
            canvas,
            folder,
            name,
            "Highest stable learning rate against sync interval",
            "Bars: the highest stable rate lies inside, by cells in which all seeds agree; arrows: open on "
            "that side. Lines and band have the slopes given and run through the middle of the closed "
            "brackets. S = 1 has no staleness and takes no part in the slope.",
        )


def clock_figure(result: Stability, folder: Path, name: str) -> Figure | None:
    """Collapse intervals in effective updates against η, per S; None without a collapsed run."""
    runs = [
        run
        for cell in result.cells
        for run in cell.collapsed
        if run.collapse_rate is not None and cell.learning_rate > 0
    ]
    if not runs:
        return None
    with style():
        canvas, panel = _log_log()
        ends = [_updates(run) for run in runs]
        times = [time for low_high in ends for time in low_high if time > 0]
        _frame(panel, [run.config.learning_rate for run in runs], [*times, min(times) / 1.5])
        _clock_slopes(panel, result, sorted({run.config.learning_rate for run in runs}))
        _collapse_times(panel, result, runs)
        rates = sorted({run.config.learning_rate for run in runs})
        panel.set_xticks(rates, [rate(value) for value in rates])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("learning rate η")
        panel.set_ylabel("effective updates Λ/η until collapse")
        _legend(panel)
        return write(
            canvas,
            folder,
            name,
            "Collapse time against learning rate",
            "Each bar is one collapsed run: its policy left the stable region in these updates, counted at "
            "full rate. Hollow: not used for the clock (S = 1, or above the highest rate it uses).",
        )


def _log_log() -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=SIZE, layout="constrained")
    panel = canvas.subplots()
    panel.set_xscale("log")
    panel.set_yscale("log")
    return canvas, panel


def _frame(panel: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Limits with room around the data; set before lines are drawn, so that none of them stretches them."""
    for values, limit in ((xs, panel.set_xlim), (ys, panel.set_ylim)):
        low, high = min(values), max(values)
        room = max((high / low) ** 0.12, 1.35)
        limit(low / room, high * room)
    panel.yaxis.set_major_formatter(FuncFormatter(_tick))
    panel.yaxis.set_minor_formatter(FuncFormatter(_minor_tick if max(ys) / min(ys) < 30 else lambda *_: ""))


def _tick(value: float, _: object = None) -> str:
    return f"{value:g}" if 1 <= value < 1e5 else rate(value)


def _minor_tick(value: float, _: object = None) -> str:
    leading = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return _tick(value) if round(leading) in (2, 5) else ""


def _boundary_slopes(panel: Axes, result: Stability) -> None:
    """Lines through the middle of the brackets with S > 1: fitted slope with its interval, and −1."""
    middles = [
        (math.log(bracket.sync_interval), sum(map(math.log, bracket.bounds)) / 2)
        for bracket in result.boundary.rates
        if bracket.sync_interval > 1 and bracket.bounds[0] > 0 and math.isfinite(bracket.bounds[1])
    ]
    if not middles:
        return
    x0, y0 = (sum(values) / len(middles) for values in zip(*middles, strict=True))
    xs = np.log(np.geomspace(*panel.get_xlim(), 60))
    estimate = result.exponent
    p = result.claims[0].law.intervals.get("p", (-math.inf, math.inf))
    if math.isfinite(p[0]) or math.isfinite(p[1]):
        low, high = (min(max(end, -STEEPEST), STEEPEST) for end in p)
        edges = np.array([y0 - end * (xs - x0) for end in (low, high)])
        panel.fill_between(
            np.exp(xs),
            np.exp(edges.min(axis=0)),
            np.exp(edges.max(axis=0)),
            color="#56B4E9",
            alpha=0.22,
            lw=0,
            label=f"p in {range_text(p)}",
        )
    if estimate is not None and math.isfinite(estimate.p) and abs(estimate.p) < STEEPEST:
        panel.plot(
            np.exp(xs),
            np.exp(y0 - estimate.p * (xs - x0)),
            color="#0072B2",
            lw=1.4,
            label=f"fit, p = {number(estimate.p)}",
        )
    panel.plot(np.exp(xs), np.exp(y0 - (xs - x0)), color="#333333", lw=1.1, ls="--", label="paper, p = 1")


def _brackets(panel: Axes, result: Stability) -> None:
    bottom, top = panel.get_ylim()
    for bracket in result.boundary.rates:
        low, high = bracket.bounds
        if low == 0 and math.isinf(high):
            continue
        x = bracket.sync_interval
        panel.plot(
            [x, x],
            [max(low, bottom), min(high, top)],
            color="#333333",
            lw=5,
            alpha=0.25,
            solid_capstyle="butt",
        )
        if low == 0:
            panel.plot(x, bottom * 1.04, marker="v", color="#333333", ms=6, clip_on=False)
        if math.isinf(high):
            panel.plot(x, top / 1.04, marker="^", color="#333333", ms=6, clip_on=False)


def _cells(panel: Axes, cells: Sequence[CellResult]) -> None:
    for outcome, marker in _CELL_MARKS.items():
        found = [cell for cell in cells if cell.outcome == outcome]
        if found:
            panel.plot(
                [cell.sync_interval for cell in found],
                [cell.learning_rate for cell in found],
                ls="",
                marker=marker,
                ms=7,
                color=COLOURS[outcome],
                mfc="white" if outcome == "unqualified" else COLOURS[outcome],
                label=outcome,
            )


def _updates(run: Run) -> tuple[float, float]:
    assert run.collapse_rate is not None
    low, high = run.collapse_rate
    return low / run.config.learning_rate, high / run.config.learning_rate


def _collapse_times(panel: Axes, result: Stability, runs: Sequence[Run]) -> None:
    """Bars, moved sideways a little by S and seed so that none hides another; low = 0 is the frame."""
    bottom = panel.get_ylim()[0]
    intervals = sorted({run.config.sync_interval for run in runs})
    seeds = sorted({run.config.seed for run in runs})
    used = set(result.clock.run_ids)
    steps = len(intervals) * len(seeds)
    labelled: set[int] = set()
    for run in sorted(runs, key=lambda run: run.config.sync_interval):
        interval = run.config.sync_interval
        k = intervals.index(interval)
        place = k * len(seeds) + seeds.index(run.config.seed) - (steps - 1) / 2
        x = run.config.learning_rate * math.exp(0.3 * place / max(steps, 2))
        low, high = _updates(run)
        colour, filled = SERIES[k % len(SERIES)], run.run_id in used
        panel.plot([x, x], [max(low, bottom), high], color=colour, lw=1.6, alpha=1.0 if filled else 0.5)
        panel.plot(
            x,
            high if low <= 0 else math.sqrt(low * high),
            marker=MARKERS[k % len(MARKERS)],
            ms=5.5,
            color=colour,
            mfc=colour if filled else "white",
            ls="",
            label=None if interval in labelled else f"S = {interval}",
        )
        labelled.add(interval)


def _clock_slopes(panel: Axes, result: Stability, rates: Sequence[float]) -> None:
    posterior = result.clock.posterior
    xs = np.geomspace(*panel.get_xlim(), 40)
    if posterior is not None and len({row.learning_rate for row in result.clock.rows}) > 1:
        low, middle, high = _posterior_line(posterior, xs)
        label = f"a = {number(posterior.a.median)} {range_text((posterior.a.low, posterior.a.high))}"
        panel.fill_between(xs, low, high, color="#999999", alpha=0.22, lw=0)
        panel.plot(xs, middle, color="#555555", lw=1.4, label=label)
    if posterior is not None:
        c2, at = posterior.c2.median, posterior.reference.learning_rate
        anchor = c2 / at
        panel.plot(xs, anchor * at / xs, color="#333333", lw=1.1, ls="--", label="paper, a = 1")


def _posterior_line(posterior: ClockPosterior, rates: Array) -> tuple[Array, Array, Array]:
    """Median of log t at each rate with 95% limits, spread of single runs left out."""
    x = np.log(rates / posterior.reference.learning_rate)
    lines = posterior.nodes[:, 1][:, None] - posterior.nodes[:, 2][:, None] * x[None, :]
    found = np.empty((3, len(rates)))
    for k in range(len(rates)):
        order = np.argsort(lines[:, k])
        cumulative = np.cumsum(posterior.weights[order])
        found[:, k] = np.interp([0.025, 0.5, 0.975], cumulative, lines[order, k])
    low, middle, high = np.exp(found)
    return low, middle, high


def _legend(panel: Axes) -> None:
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, borderaxespad=0.0)
