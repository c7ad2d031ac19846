"""Figures of the cells: the reward curves of every run, and the stability table as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from analysis.drawing import COLOURS, SERIES, Figure, style, write
from analysis.load import Run
from analysis.stability import CellResult, Stability
from analysis.wording import cell_text, rate

MOST_POINTS = 700
"""Points drawn per curve; a panel is narrower than that in pixels."""


def reward_curves(result: Stability, folder: Path, name: str) -> Figure:
    """One panel per cell, rates down, sync intervals across; seeds overlaid."""
    rates, intervals = result.learning_rates, result.sync_intervals
    width = min(2.5 * len(intervals) + 0.9, 20.0)
    with style():
        canvas = Canvas(figsize=(max(width, 4.0), 1.65 * len(rates) + 1.0), layout="constrained")
        panels = canvas.subplots(len(rates), len(intervals), sharey=True, squeeze=False)
        seeds = sorted({run.config.seed for run in result.runs})
        for i, learning_rate in enumerate(rates):
            row = [result.table.get((interval, learning_rate)) for interval in intervals]
            end = max((_extent(cell) for cell in row if cell), default=1)
            for j, cell in enumerate(row):
                panel = panels[i, j]
                if cell is None:
                    panel.set_axis_off()
                    continue
                _panel(panel, cell, seeds, end)
                if i == len(rates) - 1:
                    panel.set_xlabel("learner updates")
            panels[i, 0].set_ylabel(f"η = {rate(learning_rate)}\nreward")
        two_lines = any(cell_text(result.table.get((interval, rates[0]))).seeds for interval in intervals)
        for j, interval in enumerate(intervals):
            panels[0, j].annotate(
                f"S = {interval}",
                (0.5, 1.0),
                xytext=(0, 30 if two_lines else 18),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                fontsize=10,
                fontweight="bold",
            )
        several = f" Seeds {', '.join(map(str, seeds))} overlaid, one colour each." if len(seeds) > 1 else ""
        return write(
            canvas,
            folder,
            name,
            "Reward of every run",
            "Mean reward of the generated rollouts per learner update (faint) and its moving average "
            "(strong). Line: onset of the collapse; shaded: the updates in which the policy left the stable "
            f"region.{several}",
        )


def _extent(cell: CellResult) -> int:
    """Updates to show: those of the longest run, so that an early end is seen as one."""
    return max((len(run.metrics) for run in cell.runs), default=1) or 1


def _panel(panel: Axes, cell: CellResult, seeds: list[int], end: int) -> None:
    for run in cell.runs:
        colour = SERIES[seeds.index(run.config.seed) % len(SERIES)]
        _curve(panel, run, colour)
        verdict = run.verdict
        if verdict is not None and verdict.onset is not None:
            assert verdict.t_low is not None and verdict.t_high is not None
            panel.axvspan(verdict.t_low, verdict.t_high, color=COLOURS["collapsed"], alpha=0.16, lw=0)
            panel.axvline(verdict.onset, color=COLOURS["collapsed"], lw=1.1)
    if not any(run.metrics for run in cell.runs):
        panel.text(0.5, 0.5, "no data", transform=panel.transAxes, ha="center", va="center", color="#777777")
    panel.set_xlim(0, end)
    panel.set_ylim(-0.03, 1.03)
    panel.set_yticks([0, 0.5, 1])
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    text = cell_text(cell)
    title = text.main
    if cell.outcome == "collapsed":
        title = f"collapsed, {title}"
    if cell.outcome in ("collapsed", "mixed"):
        title += f" · horizon {_budget(cell)}"
    if text.seeds:
        title += f"\n{text.seeds}"
    panel.set_title(title, color=COLOURS[cell.outcome], fontsize=8, pad=3)


def _budget(cell: CellResult) -> str:
    horizons = {run.budget.horizon for run in cell.runs if run.budget is not None}
    return "?" if not horizons else str(max(horizons))


def _curve(panel: Axes, run: Run, colour: str) -> None:
    if not run.metrics or run.budget is None:
        return
    reward = pd.Series([line["reward"] for line in run.metrics], dtype=float)
    average = reward.ewm(halflife=run.budget.collapse.half_life).mean()
    every = max(1, len(reward) // MOST_POINTS)
    steps = np.arange(len(reward))
    panel.plot(steps, reward, color=to_rgba(colour, 0.25), lw=0.5, rasterized=True)
    panel.plot(steps[::every], average[::every], color=colour, lw=1.2)


def table_picture(result: Stability, folder: Path, name: str) -> Figure:
    """The S × η table, coloured by outcome."""
    rates, intervals = result.learning_rates, result.sync_intervals
    with style():
        canvas = Canvas(
            figsize=(1.55 * max(len(intervals), 2) + 1.0, 0.62 * len(rates) + 0.9), layout="constrained"
        )
        panel = canvas.subplots()
        for i, learning_rate in enumerate(rates):
            for j, interval in enumerate(intervals):
                _tile(panel, result.table.get((interval, learning_rate)), j, i)
        panel.set_xlim(-0.5, len(intervals) - 0.5)
        panel.set_ylim(len(rates) - 0.5, -0.5)
        panel.set_xticks(range(len(intervals)), [str(interval) for interval in intervals])
        panel.set_yticks(range(len(rates)), [rate(value) for value in rates])
        panel.set_xlabel("sync interval S")
        panel.set_ylabel("learning rate η")
        panel.grid(False)
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
        return write(
            canvas,
            folder,
            name,
            "Stable or collapsed",
            "Blue: stable to the update given. Orange: collapsed, at snapshot M. Purple: seeds disagree. "
            "Grey: no result that counts.",
        )


def _tile(panel: Axes, cell: CellResult | None, x: int, y: int) -> None:
    if cell is None:
        return
    colour = COLOURS[cell.outcome]
    hatch = None if cell.outcome in ("stable", "collapsed", "mixed") else "////"
    panel.add_patch(
        Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=to_rgba(colour, 0.16), edgecolor=colour, lw=0.9)
    )
    if hatch:
        panel.add_patch(
            Rectangle(
                (x - 0.48, y - 0.46),
                0.96,
                0.92,
                fill=False,
                hatch=hatch,
                edgecolor=to_rgba(colour, 0.18),
                lw=0,
            )
        )
    text = cell_text(cell)
    panel.text(
        x, y, f"{text.main}\n{text.seeds}".strip(), ha="center", va="center", fontsize=8, color="#111111"
    )
