"""How figures look and how they are written: colours that colour-blind readers tell apart, SVG and PNG."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

COLOURS = {
    "stable": "#0072B2",
    "collapsed": "#D55E00",
    "mixed": "#AA3377",
    "unqualified": "#777777",
    "pending": "#B8860B",
    "undetectable": "#777777",
    "incomplete": "#777777",
    "invalid": "#777777",
}
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#B8A400")
"""Okabe and Ito's palette, yellow darkened for white paper."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "figure",
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True)
class Figure:
    """One figure on disk."""

    name: str
    """File name without ending."""
    title: str
    caption: str
    svg: Path
    png: Path

    @property
    def data_uri(self) -> str:
        """The SVG as a data URI, so that a page needs no other file."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.read_bytes()).decode("ascii")


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures, for the block."""
    with mpl.rc_context(_STYLE):
        yield


def write(canvas: Canvas, folder: Path, name: str, title: str, caption: str) -> Figure:
    """Write both formats; equal figures give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    canvas.savefig(svg, dpi=150, metadata={"Date": None, "Creator": None})
    canvas.savefig(png, dpi=150, metadata={"Software": None})
    return Figure(name, title, caption, svg, png)
