"""The stability report in a terminal or a pipe: the table first, then what follows from it."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.joint_terminal import print_joint
from analysis.replay import Replay
from analysis.replay_wording import HEADINGS, arm_rows, caveats, sentences
from analysis.report import Report
from analysis.stability import CellResult, Claim, Stability
from analysis.virtual_clock import HEADINGS as CLOCK_HEADINGS
from analysis.virtual_clock import ClockRow
from analysis.wording import (
    CellText,
    cell_text,
    clock_sentences,
    exponent_rows,
    half_product_sentence,
    legend,
    product_sentence,
    rate,
    rate_bracket_text,
    titled,
)

STYLES = {
    "stable": "green",
    "collapsed": "red",
    "mixed": "yellow",
    "unqualified": "cyan",
    "pending": "yellow",
}
VERDICT_STYLES = {"consistent": "green", "inconsistent": "red", "cannot tell": "yellow"}

FULL_WIDTH = 125
LEFT_OUT_WHEN_NARROW = ("of", "uses y", "peak")
"""Columns of the table of arms that only the page shows."""


def print_report(report: Report, console: Console) -> None:
    """Print the result of every facet, the notes on the records and where the report lies."""
    if report.replay is not None:
        _print_replay(report.replay, console)
    if report.clock:
        _print_clock(report.clock, console)
    for result in report.results if report.replay is None else ():
        if result.facet:
            console.rule(titled(result.facet.items()), style="dim")
        _print_result(result, console)
    for section in report.joint:
        print_joint(section, console)
    _bullets(console, "Notes", report.record_notes)
    console.print()
    console.print(Text("Report  ", style="bold") + Text(str(report.index)), soft_wrap=True)
    console.print(Text("Numbers ", style="bold") + Text(str(report.results_file)), soft_wrap=True)


def _print_replay(found: Replay, console: Console) -> None:
    settings = found.settings
    table = Table(
        title=f"Compute to accuracy {settings.accuracy:g}, μ = {settings.generation_cost_ratio:g}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 1),
    )
    shown = [name for name in HEADINGS if console.width >= FULL_WIDTH or name not in LEFT_OUT_WHEN_NARROW]
    for heading in shown:
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for row in arm_rows(found):
        texts = dict(zip(HEADINGS, row.texts(), strict=True))
        table.add_row(*(texts[name] for name in shown))
    console.print(table)
    for line in sentences(found):
        _hanging(console, line)
    for line in (*found.notes, *caveats(found), "Stability of each arm by S and η: on the page."):
        _hanging(console, line, "dim")


def _print_clock(rows: tuple[ClockRow, ...], console: Console) -> None:
    table = Table(
        title="Virtual clock: seed medians",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    for heading in CLOCK_HEADINGS:
        if heading == "configuration":
            table.add_column(heading, no_wrap=True)
        else:
            table.add_column(heading, justify="right")
    for row in rows:
        configuration, *numbers = row.texts()
        table.add_row(configuration.replace(", ", ",\n"), *numbers)
    console.print(table)


def _print_result(result: Stability, console: Console) -> None:
    if not result.cells:
        console.print("No runs: nothing to report yet.")
        return
    console.print(stability_table(result, console.width))
    for line in legend(result):
        _hanging(console, line, "dim")
    console.print()
    _heading(console, "Brackets")
    products = (
        ("Sη", result.boundary.product),
        ("k̄η (mean lag k̄ = (S−1)/2)", result.boundary.mean_lag_product),
    )
    for symbol, bracket in products:
        _hanging(console, product_sentence(symbol, bracket))
    half = half_product_sentence(result)
    if half:
        _hanging(console, half)
    console.print(Padding(_rate_table(result), (0, 0, 0, 2)))
    _heading(console, "Clock")
    for line in clock_sentences(result):
        _hanging(console, line)
    console.print()
    _heading(console, "Exponents")
    console.print(Padding(_exponent_table(result), (0, 0, 0, 2)))
    _heading(console, "The paper's two laws")
    for claim in result.claims:
        _print_claim(console, claim)
    _bullets(console, "Notes on the runs", result.notes)


def stability_table(result: Stability, width: int) -> Table:
    """S × η; text on one line per cell where it fits `width`, stacked otherwise."""
    texts = {key: cell_text(cell) for key, cell in result.table.items()}
    columns = len(result.sync_intervals)
    several_lines = any(text.seeds for text in texts.values())
    widest = max((len(text.main) for text in texts.values()), default=1)
    stacked = 8 + columns * (widest + 2) > width
    table = Table(
        title="Stable or collapsed, by learning rate η and sync interval S",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 1),
        show_lines=several_lines or stacked,
    )
    if several_lines or stacked:
        table.box = box.SIMPLE
    table.add_column("η", justify="right", no_wrap=True)
    for interval in result.sync_intervals:
        table.add_column(f"S = {interval}")
    for learning_rate in result.learning_rates:
        row: list[Text] = [Text(rate(learning_rate))]
        for interval in result.sync_intervals:
            cell = result.table.get((interval, learning_rate))
            row.append(_cell(cell, texts.get((interval, learning_rate), cell_text(None)), stacked))
        table.add_row(*row)
    return table


def _cell(cell: CellResult | None, text: CellText, stacked: bool) -> Text:
    main = text.main.replace(" to ", "\nto ").replace(" [", "\n[") if stacked else text.main
    shown = Text(main, style="dim" if cell is None else STYLES.get(cell.outcome, "dim"))
    if text.seeds:
        shown.append("\n" + text.seeds, style="dim")
    return shown


def _rate_table(result: Stability) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("S", justify="right")
    table.add_column("η stable up to", justify="right")
    table.add_column("η collapsed from", justify="right")
    notes = [rate_bracket_text(bracket)[2] for bracket in result.boundary.rates]
    if any(notes):
        table.add_column("between")
    for bracket in result.boundary.rates:
        stable, collapsed, between = rate_bracket_text(bracket)
        row = [str(bracket.sync_interval), stable, collapsed]
        table.add_row(*row, *([between] if any(notes) else []))
    return table


def _exponent_table(result: Stability) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    table.add_column("law")
    table.add_column("paper", justify="right")
    table.add_column("without noise")
    table.add_column("with noise, 95%")
    for row in exponent_rows(result):
        table.add_row(row.symbol, row.meaning, row.paper, row.noise_free, row.estimate)
    return table


def _print_claim(console: Console, claim: Claim) -> None:
    law = claim.law
    line = Text(law.verdict.upper(), style=f"bold {VERDICT_STYLES[law.verdict]}")
    line.append(f"  {law.law}", style="bold")
    console.print(Padding(line, (0, 0, 0, 2)))
    for said, style in ((law.reason, ""), (claim.caveat, "dim")):
        console.print(Padding(Text(said, style=style), (0, 0, 0, 4)))


def _heading(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _hanging(console: Console, line: str, style: str = "") -> None:
    console.print(Padding(Text(line, style=style), (0, 0, 0, 2)))


def _bullets(console: Console, heading: str, lines: tuple[str, ...]) -> None:
    if not lines:
        return
    console.print()
    _heading(console, heading)
    for line in lines:
        _hanging(console, f"• {line}")
