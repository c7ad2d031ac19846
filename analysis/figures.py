"""Figures of the stability report: reward curves of every cell, the boundary, and the collapse clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import Run
from analysis.stability import CellResult, Stability
from analysis.wording import cell_text, rate

# colours of Okabe and Ito, distinct for colour-blind readers
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
EDGES = {"stable": GREEN, "collapsed": RED, "mixed": "#E69F00"}
SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "grposweep",
}


def draw_all(result: Stability, folder: Path, suffix: str) -> dict[str, Path]:
    """Write every figure as SVG and PNG; returns the SVG files by name."""
    figures: dict[str, Callable[[Stability], Figure]] = {
        "rewards": reward_curves,
        "boundary": boundary_figure,
        "clock": clock_figure,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    with mpl.rc_context(SETTINGS):
        for name, draw in figures.items():
            figure = draw(result)
            files[name] = folder / f"{name}{suffix}.svg"
            figure.savefig(files[name], metadata={"Date": None})
            figure.savefig(files[name].with_suffix(".png"), dpi=130)
    return files


def reward_curves(result: Stability) -> Figure:
    """Small multiples, one panel per cell: η in rows (highest on top), S in columns, all seeds in a panel."""
    rows, columns = result.learning_rates[::-1], result.sync_intervals
    size = (2.3 * len(columns) + 0.6, 1.55 * len(rows) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey=True)
    for row, learning_rate in enumerate(rows):
        for column, sync_interval in enumerate(columns):
            axes, cell = grid[row][column], result.table.get((sync_interval, learning_rate))
            axes.set_ylim(-0.03, 1.05)
            title = f"{cell_text(cell).main}"
            axes.set_title(title, fontsize=8, color=EDGES.get(cell.outcome if cell else "", GREY))
            for run in cell.runs if cell else ():
                _curve(axes, run)
            if column == 0:
                axes.set_ylabel(f"η = {rate(learning_rate)}")
            if row == 0:
                axes.annotate(f"S = {sync_interval}", (0.5, 1.24), xycoords="axes fraction", ha="center")
            axes.tick_params(labelsize=7)
    figure.supxlabel("learner update", fontsize=9)
    figure.supylabel("mean reward of generated rollouts", fontsize=9)
    return figure


def _curve(axes: Axes, run: Run) -> None:
    reward = np.array([np.nan if line["reward"] is None else line["reward"] for line in run.metrics])
    if not len(reward):
        return
    axes.plot(reward, color=BLUE, alpha=0.18, linewidth=0.5, rasterized=True)
    axes.plot(_smooth(reward), color=BLUE, linewidth=1.0)
    verdict = run.verdict
    if verdict is not None and verdict.onset is not None:
        axes.axvline(verdict.onset, color=RED, linewidth=1.0)
        if verdict.t_low is not None and verdict.t_high is not None:
            axes.axvspan(verdict.t_low, verdict.t_high, color=RED, alpha=0.15, linewidth=0)


def _smooth(values: np.ndarray, half_life: float = 5.0) -> np.ndarray:
    keep, level, weight = 2 ** (-1 / half_life), 0.0, 0.0
    out = np.empty_like(values)
    for index, value in enumerate(values):
        if not math.isnan(value):
            weight = 1 + weight * keep
            level += (value - level) / weight
        out[index] = level
    return out


def boundary_figure(result: Stability) -> Figure:
    """η_max brackets against S on log axes, every cell marked, and the paper's slope −1."""
    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for cell in result.cells:
        if cell.learning_rate > 0:
            _mark(axes, cell)
    for bracket in result.boundary.rates:
        if bracket.stable_rate and bracket.collapsed_rate:
            ends = [bracket.stable_rate, bracket.collapsed_rate]
            axes.plot([bracket.sync_interval] * 2, ends, color=GREY, linewidth=6, alpha=0.35, zorder=0)
    positive = [eta for eta in result.learning_rates if eta > 0]
    if positive and len(result.sync_intervals) > 1:
        span = np.array([min(result.sync_intervals), max(result.sync_intervals)], dtype=float)
        middle = math.sqrt(min(positive) * max(positive))
        center = math.sqrt(span[0] * span[1])
        axes.plot(span, middle * center / span, color=GREY, linestyle=":", label="slope −1 (Sη = const)")
        estimate = result.exponent
        if estimate is not None and math.isfinite(estimate.p):
            line = middle * (span / center) ** -estimate.p
            axes.plot(span, line, color=BLUE, linestyle="--", label=f"slope −{estimate.p:.2f} (these runs)")
    axes.set(xscale="log", yscale="log", xlabel="S, updates between weight syncs", ylabel="learning rate η")
    axes.set_xticks(result.sync_intervals, [str(value) for value in result.sync_intervals])
    axes.minorticks_off()
    axes.set_yticks(positive, [rate(value) for value in positive])
    if positive:
        axes.set_ylim(min(positive) / 1.6, max(positive) * 1.6)
    for state, marker in (("stable", "o"), ("collapsed", "X"), ("mixed", "D"), ("other", ".")):
        axes.plot([], [], marker, color=EDGES.get(state, GREY), label=state)
    figure.legend(fontsize=7, frameon=False, loc="outside right upper")
    return figure


def _mark(axes: Axes, cell: CellResult) -> None:
    markers = {"stable": "o", "collapsed": "X", "mixed": "D"}
    color = EDGES.get(cell.outcome, GREY)
    axes.plot(
        cell.sync_interval, cell.learning_rate, markers.get(cell.outcome, "."), color=color, markersize=8
    )


def clock_figure(result: Stability) -> Figure:
    """Collapse time in effective updates Λ/η against η, one colour per S, and the paper's slope −1."""
    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.subplots()
    palette = mpl.colormaps["viridis"](np.linspace(0, 0.85, max(len(result.sync_intervals), 1)))
    rows = result.clock.rows
    for index, sync_interval in enumerate(result.sync_intervals):
        for row in (row for row in rows if row.sync_interval == sync_interval):
            low = max(row.low, row.high / 50, 1.0)
            nudge = row.learning_rate * 1.04 ** (index - len(result.sync_intervals) / 2)
            axes.plot([nudge] * 2, [low, row.high], color=palette[index], linewidth=3, solid_capstyle="butt")
        if any(row.sync_interval == sync_interval for row in rows):
            axes.plot([], [], color=palette[index], linewidth=3, label=f"S = {sync_interval}")
    if rows:
        rates = np.array([min(row.learning_rate for row in rows), max(row.learning_rate for row in rows)])
        posterior = result.clock.posterior
        c2 = posterior.c2.median if posterior else math.sqrt(rows[0].high * max(rows[0].low, 1)) * rates[0]
        wide = np.array([rates[0] / 1.3, rates[-1] * 1.3])
        axes.plot(wide, c2 / wide, color=GREY, linestyle=":", label="slope −1 (t = c₂/η)")
        axes.set(xscale="log", yscale="log")
        shown = sorted({row.learning_rate for row in rows})
        axes.set_xticks(shown, [rate(value) for value in shown])
        axes.xaxis.minorticks_off()
    else:
        axes.text(0.5, 0.5, "no collapse with S > 1", ha="center", va="center", transform=axes.transAxes)
    axes.set(xlabel="learning rate η", ylabel="updates to collapse, Λ/η")
    if rows:
        figure.legend(fontsize=7, frameon=False, loc="outside right upper")
    return figure
