"""Boundary brackets against each coordinate: where one threshold is true, all bars cross one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.drawing import MARKERS, SERIES, Figure, style, write
from analysis.joint import CoordinateResult, Joint
from analysis.staleness import Configuration
from analysis.wording import number, rate

COLUMNS = 4
PANEL = (2.9, 2.7)
TITLE_STYLES = {"collapses": "#0072B2", "does not": "#C04A00", "cannot tell": "#666666"}


def joint_figure(answer: Joint, folder: Path, name: str) -> Figure | None:
    """One panel per coordinate; None where nothing could be compared."""
    if not answer.coordinates:
        return None
    rows = math.ceil(len(answer.coordinates) / COLUMNS)
    with style():
        canvas = Canvas(figsize=(PANEL[0] * COLUMNS, PANEL[1] * rows + 0.5), layout="constrained")
        panels = canvas.subplots(rows, COLUMNS, sharey=True, squeeze=False).ravel()
        for panel, result in zip(panels, answer.coordinates, strict=False):
            _panel(panel, answer, result)
        for panel in panels[len(answer.coordinates) :]:
            panel.set_axis_off()
        for row in range(rows):
            panels[row * COLUMNS].set_ylabel("learning rate η")
        handles = _handles(answer.used)
        canvas.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False)
        return write(
            canvas,
            folder,
            name,
            "Boundary of each configuration against each staleness",
            "Each bar is one configuration: the highest stable rate lies inside, by cells in which all "
            "seeds agree; arrows: open on that side. On the line staleness times η equals the fitted "
            "threshold, with its 95% band; the coordinate collapses the boundaries where the line crosses "
            "all bars. A configuration without lag is missing where the coordinate says nothing about it. "
            "Bars at the same staleness are moved apart a little.",
        )


def _panel(panel: Axes, answer: Joint, result: CoordinateResult) -> None:
    factors = [result.coordinate.factor(item) for item in answer.used]
    shown = [factor for factor in factors if factor > 0]
    _axes(panel, answer.used, min(shown), max(shown))
    varies = max(shown) > min(shown)
    _line(panel, result, result.p if varies else 0.0)
    marks, colours = _marks(answer.used), _colours(answer.used)
    for item, place in zip(answer.used, _apart(factors, *panel.get_xlim()), strict=True):
        if place > 0:
            _bar(panel, item, place, colours[item.sync_interval], marks[str(item.arm)])
    said = result.coordinate.symbol + (f", p = {number(result.p)}" if result.coordinate.fitted else "")
    panel.set_title(f"{said}: {result.verdict}", color=TITLE_STYLES[result.verdict])
    factor = result.coordinate.symbol.removesuffix("·η").removesuffix("^p").strip("()")
    panel.set_xlabel(factor if varies else "no staleness")
    if not varies:
        panel.tick_params(axis="x", which="both", bottom=False, labelbottom=False)


def _axes(panel: Axes, used: Sequence[Configuration], low: float, high: float) -> None:
    room = max((high / low) ** 0.12, 1.3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    rates = [cell.learning_rate for item in used for cell in item.counted]
    panel.set_ylim(min(rates) / 1.6, max(rates) * 1.6)
    panel.set_xlim(low / room, high * room)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate(value)))
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_minor_formatter(NullFormatter())


def _apart(factors: Sequence[float], left: float, right: float) -> list[float]:
    """The factors, equal ones moved apart so that no bar hides another; 0 stays."""
    groups: dict[str, list[int]] = {}
    for k, factor in enumerate(factors):
        groups.setdefault(f"{factor:.2g}", []).append(k)
    placed = list(factors)
    for same in groups.values():
        step = min(0.035, 0.2 / len(same)) if len(groups) > 1 else 0.8 / len(same)
        for position, k in enumerate(same):
            shift = (position - (len(same) - 1) / 2) * step
            placed[k] *= (right / left) ** shift
    return placed


def _line(panel: Axes, result: CoordinateResult, p: float) -> None:
    if not math.isfinite(result.threshold):
        return
    ends = panel.get_xlim()
    low, high = result.threshold_range
    if low > 0 and math.isfinite(high):
        below, above = ([edge / end**p for end in ends] for edge in (low, high))
        panel.fill_between(ends, below, above, color="#999999", alpha=0.25, lw=0)
    panel.plot(ends, [result.threshold / end**p for end in ends], color="#333333", lw=1.1)


def _bar(panel: Axes, item: Configuration, x: float, colour: str, marker: str) -> None:
    bottom, top = panel.get_ylim()
    low, high = item.bracket.bounds
    if low == 0 and math.isinf(high):
        return
    shown = max(low, bottom), min(high, top)
    panel.plot([x, x], shown, color=colour, lw=1.6, solid_capstyle="butt")
    panel.plot(x, math.sqrt(shown[0] * shown[1]), marker=marker, ms=4.5, color=colour, ls="")
    if low == 0:
        panel.plot(x, bottom * 1.06, marker="v", color=colour, ms=4, clip_on=False)
    if math.isinf(high):
        panel.plot(x, top / 1.06, marker="^", color=colour, ms=4, clip_on=False)


def _colours(items: Sequence[Configuration]) -> dict[int, str]:
    intervals = sorted({item.sync_interval for item in items})
    return {interval: SERIES[k % len(SERIES)] for k, interval in enumerate(intervals)}


def _marks(items: Sequence[Configuration]) -> dict[str, str]:
    arms = dict.fromkeys(str(item.arm) for item in items)
    return {arm: MARKERS[k % len(MARKERS)] for k, arm in enumerate(arms)}


def _handles(items: Sequence[Configuration]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=colour, lw=2, label=f"S = {interval}")
        for interval, colour in _colours(items).items()
    ]
    marks = _marks(items)
    names = {str(item.arm): item.arm_name for item in items}
    handles += [
        Line2D([], [], color="#333333", ls="", marker=marker, ms=5, label=names[arm])
        for arm, marker in marks.items()
    ]
    return handles
