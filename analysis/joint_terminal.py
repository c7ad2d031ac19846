"""The joint section in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.joint_report import CAVEAT, CONFIGURATION_HEADER, LEGEND, JointSection

STYLES = {"consistent": "green", "inconsistent": "red", "cannot tell": "yellow"}


def print_joint(section: JointSection, console: Console) -> None:
    """Finding, configurations, coordinates and the reason of each verdict."""
    console.print()
    title = f"One staleness for sync lag and replay? {section.title}".strip()
    console.print(Text(title, style="bold"))
    _line(console, section.finding)
    _line(console, CAVEAT, "dim")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    between = any(row[-1] for row in section.configurations)
    for number, name in enumerate(CONFIGURATION_HEADER if between else CONFIGURATION_HEADER[:-1]):
        table.add_column(name, justify="right" if 0 < number < 6 else "left")
    for row in section.configurations:
        table.add_row(*(row if between else row[:-1]))
    console.print(Padding(table, (0, 0, 0, 2)))
    if section.coordinates:
        _coordinates(section, console)
    for note in section.notes:
        _line(console, f"• {note}")


def _coordinates(section: JointSection, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("coordinate", "slack (noise)", "wrong, left out", "score", "verdict"):
        table.add_column(name)
    for row in section.coordinates:
        slack = row.slack.replace("noise ", "")
        table.add_row(row.symbol, slack, row.wrong, row.score, Text(row.verdict, style=STYLES[row.kind]))
    console.print(Padding(table, (0, 0, 0, 2)))
    for row in section.coordinates:
        line = Text(f"{row.symbol}  ", style="bold")
        line.append(row.reason + row.by_seed, style="")
        console.print(Padding(line, (0, 0, 0, 2)))
    for said in LEGEND:
        _line(console, said, "dim")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, 2)))
