"""Figures of the replay section: accuracy against compute, compute to accuracy, savings against μ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.drawing import SERIES, Figure, style, write
from analysis.frontier import compute_to, median_curve
from analysis.replay import MUS, Arm, Replay
from analysis.wording import rate

LINES = ("-", "--", "-.", ":")


def replay_figures(found: Replay, folder: Path) -> list[Figure]:
    """All figures, written into `folder`."""
    return [_accuracy(found, folder), _to_accuracy(found, folder), _savings(found, folder)]


def _colours(found: Replay) -> dict[str, tuple[str, str]]:
    """Colour and line style per arm; the first baseline is black."""
    colours = [colour for colour in SERIES if colour != "#000000"]
    looks: dict[str, tuple[str, str]] = {}
    for arm in found.arms:
        plain = not arm.buffer_size and arm.loss == "grpo" and not looks.get("plain")
        count = len(looks)
        look = (
            ("#000000", "-") if plain else (colours[count % len(colours)], LINES[count // len(colours) % 4])
        )
        looks[arm.label] = look
    return looks


def _accuracy(found: Replay, folder: Path) -> Figure:
    """One panel per arm against the baseline, so that ranges stay readable."""
    mu, level = found.settings.generation_cost_ratio, found.settings.accuracy
    base = found.comparisons[0].base
    others = [arm for arm in found.arms if arm is not base]
    columns = min(3, len(others))
    rows = -(-len(others) // columns)
    looks = _colours(found)
    with style():
        canvas = Canvas(figsize=(2.9 * columns + 0.4, 2.3 * rows + 0.5), layout="constrained")
        panels = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        ends = [compute_to(found.best(arm).curves, level, mu) for arm in found.arms]
        reached = [end.compute for end in ends if end.compute is not None]
        limit = min(max(end.horizon for end in ends), 2.5 * max(reached, default=np.inf))
        for panel, arm in zip(panels, others, strict=False):
            _band(panel, found, base, "#000000")
            _band(panel, found, arm, looks[arm.label][0])
            panel.axhline(level, color="#999999", linewidth=0.7, linestyle=":")
            trial = found.best(arm)
            panel.set_title(f"{arm.label}; η = {rate(trial.learning_rate)}", loc="left")
            panel.set_xlim(0, limit)
            panel.set_ylim(0, 1.02)
        for panel in panels[len(others) :]:
            panel.set_axis_off()
        canvas.supxlabel(f"compute in baseline updates, μ = {mu:g}", fontsize=9)
        canvas.supylabel("held-out accuracy", fontsize=9)
        caption = (
            f"Seed median (line) and least to greatest (band) of held-out accuracy; black: {base.label} at "
            f"η = {rate(found.best(base).learning_rate)}. Each arm at its rate with the least compute to "
            f"{level:g} (dotted). One unit is one update of the baseline, generation included."
        )
        return write(canvas, folder, "accuracy-compute", "Accuracy against compute", caption)


def _band(panel: Axes, found: Replay, arm: Arm, colour: str) -> None:
    mu = found.settings.generation_cost_ratio
    curves = found.best(arm).curves
    compute, middle = median_curve(curves, mu)
    count = min(len(curve.accuracy) for curve in curves)
    stacked = np.stack([curve.accuracy[:count] for curve in curves])
    panel.fill_between(
        compute[:count],
        stacked.min(0)[: len(compute)],
        stacked.max(0)[: len(compute)],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
    panel.plot(compute, middle, color=colour, linewidth=1.4)


def _to_accuracy(found: Replay, folder: Path) -> Figure:
    mu = found.settings.generation_cost_ratio
    with style():
        canvas = Canvas(figsize=(6.4, 3.4), layout="constrained")
        panel = canvas.subplots()
        for arm in found.arms:
            colour, line = _colours(found)[arm.label]
            points = [(a, found.reached(arm, a).compute) for a in found.settings.accuracies]
            known = [(a, c) for a, c in points if c is not None]
            if known:
                accuracies, computes = zip(*known, strict=True)
                panel.plot(accuracies, computes, color=colour, linestyle=line, linewidth=1.4, label=arm.label)
                if len(known) < len(points):
                    panel.plot(accuracies[-1], computes[-1], marker="x", color=colour)
        panel.set_xlabel("held-out accuracy")
        panel.set_ylabel(f"compute to it (baseline updates, μ = {mu:g})")
        panel.set_ylim(bottom=0)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, loc="upper left")
        caption = (
            "Compute at which the seed median, smoothed over three evaluations, first reaches an accuracy; "
            f"each arm at its rate for {found.settings.accuracy:g}. A cross ends a line whose next accuracy "
            "was not reached."
        )
        return write(canvas, folder, "compute-to-accuracy", "Compute to accuracy", caption)


def _savings(found: Replay, folder: Path) -> Figure:
    mu = found.settings.generation_cost_ratio
    base = found.comparisons[0].base
    with style():
        canvas = Canvas(figsize=(6.4, 3.4), layout="constrained")
        panel = canvas.subplots()
        for item in found.comparisons:
            if item.base is base and any(value is not None for value in item.by_mu):
                colour, line = _colours(found)[item.arm.label]
                values = [np.nan if value is None else 100 * value for value in item.by_mu]
                panel.plot(MUS, values, color=colour, linestyle=line, linewidth=1.4, label=item.arm.label)
                if item.break_even is not None:
                    panel.plot(item.break_even, 0, marker="o", markersize=5, color=colour)
        panel.axhline(0, color="#333333", linewidth=0.8)
        panel.axvline(mu, color="#333333", linewidth=0.8, linestyle="--")
        panel.annotate(
            "declared", (mu * 1.03, 1), xycoords=("data", "axes fraction"), fontsize=8, ha="left", va="top"
        )
        if found.measured_mu is not None and MUS[0] <= found.measured_mu <= MUS[-1]:
            panel.axvline(found.measured_mu, color="#777777", linewidth=0.8, linestyle=":")
            panel.annotate(
                "measured here",
                (found.measured_mu * 1.03, 1),
                xycoords=("data", "axes fraction"),
                fontsize=8,
                ha="left",
                va="top",
                color="#555555",
            )
        panel.set_xscale("log")
        panel.set_xticks([0.5, 1, 2, 5, 10, 20], labels=["0.5", "1", "2", "5", "10", "20"], minor=False)
        panel.set_xlabel("μ: cost of generating a rollout over that of training on it once")
        panel.set_ylabel(f"compute saved to {found.settings.accuracy:g} (%)")
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, loc="lower right")
        caption = (
            f"1 − compute of the arm over compute of {base.label}, to accuracy {found.settings.accuracy:g}, "
            "rates chosen anew at each μ on both sides. Dots: break-even. The declared μ is assumed; the "
            "measured one is the time this machine took to generate a rollout over that to train on it."
        )
        return write(canvas, folder, "savings-mu", "Savings against the cost ratio μ", caption)
