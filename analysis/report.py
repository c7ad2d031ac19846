"""The report of one or several sweeps: results.json, tables, figures and one self-contained page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from analysis.figures import draw_all
from analysis.load import Records, Run, load_sweeps
from analysis.results import results
from analysis.stability import ReportSettings, Stability, stability
from analysis.wording import (
    cell_text,
    clock_sentences,
    exponent_rows,
    half_product_sentence,
    legend,
    product_sentence,
    rate,
    rate_bracket_text,
    run_snapshot_text,
    titled,
)
from trainer.collapse import RULE_VERSION
from trainer.files import write_atomic, write_json
from trainer.record import SweepPaths
from trainer.schema import parse

__all__ = ["Report", "print_report", "write_report"]


@dataclass(frozen=True)
class Report:
    """A written report."""

    name: str
    records: Records
    results: tuple[Stability, ...]
    record_notes: tuple[str, ...]
    index: Path
    results_file: Path


def write_report(sweeps: Sequence[SweepPaths], out: Path) -> Report:
    """Read, judge and fit the sweeps' runs and write everything under `out`.

    Raises `UserError` when a sweep is missing or the sweeps may not be pooled. Equal records give equal
    files.
    """
    records = load_sweeps(sweeps)
    settings = parse(ReportSettings, records.sweeps[0].report, where=f"report settings of {sweeps[0].sweep}")
    found = [stability(runs, settings, facet) for facet, runs in records.facets()]
    report = Report(
        name=" and ".join(sweep.name for sweep in records.sweeps),
        records=records,
        results=tuple(found),
        record_notes=records.notes,
        index=out / "index.html",
        results_file=out / "results.json",
    )
    write_json(report.results_file, results(records, found))
    parts: list[dict[str, Any]] = []
    for index, result in enumerate(found):
        suffix = f"-{index + 1}" if len(found) > 1 else ""
        _write_tables(result, out / "tables", suffix)
        figures = draw_all(result, out / "figures", suffix)
        parts.append(_part(result, figures))
    write_atomic(report.index, _page(report, parts))
    return report


def print_report(report: Report, console: Any) -> None:
    """Print the report to a rich console."""
    from analysis.terminal import print_report as show

    show(report, console)


def _part(result: Stability, figures: dict[str, Path]) -> dict[str, Any]:
    products = [("Sη", result.boundary.product), ("k̄η with k̄ = (S−1)/2", result.boundary.mean_lag_product)]
    sentences = [product_sentence(symbol, bracket) for symbol, bracket in products]
    half = half_product_sentence(result)
    return {
        "title": titled(result.facet.items()) if result.facet else "",
        "columns": result.sync_intervals,
        "rows": [
            (rate(eta), [_cell(result, s, eta) for s in result.sync_intervals])
            for eta in result.learning_rates
        ],
        "legend": legend(result),
        "claims": result.claims,
        "brackets": [*sentences, *([half] if half else [])],
        "rates": [(b.sync_interval, *rate_bracket_text(b)) for b in result.boundary.rates],
        "clock": clock_sentences(result),
        "exponents": exponent_rows(result),
        "notes": result.notes,
        "figures": {name: _inline(path) for name, path in figures.items()},
        "runs": [_run(run) for run in result.runs],
        "samples": _samples(result),
    }


def _cell(result: Stability, sync_interval: int, learning_rate: float) -> dict[str, str]:
    cell = result.table.get((sync_interval, learning_rate))
    return {
        "text": str(cell_text(cell)),
        "outcome": cell.outcome if cell else "absent",
        "runs": ", ".join(run.run_id for run in cell.runs) if cell else "",
    }


def _run(run: Run) -> dict[str, Any]:
    verdict = run.verdict
    interval = f"({verdict.t_low}, {verdict.t_high}]" if verdict and verdict.t_high is not None else ""
    return {
        "run_id": run.run_id,
        "sync_interval": run.config.sync_interval,
        "learning_rate": rate(run.config.learning_rate),
        "seed": run.config.seed,
        "outcome": run.outcome + (f": {run.reason}" if run.reason else ""),
        "snapshot": run_snapshot_text(run),
        "interval": interval,
        "horizon": run.updates,
        "cumulative_rate": f"{run.cumulative_rate:.3g}",
    }


def _samples(result: Stability) -> list[tuple[str, list[dict[str, Any]]]]:
    """First, middle and last completions of a stable and of a collapsed run."""
    shown: list[tuple[str, list[dict[str, Any]]]] = []
    for wanted in ("stable", "collapsed"):
        run = next((run for run in reversed(result.runs) if run.outcome == wanted), None)
        lines = run.samples() if run else []
        if run and lines:
            middle = len(lines) // 2
            picked = [*lines[:2], *lines[middle : middle + 2], *lines[-2:]] if len(lines) > 6 else lines
            setting = f"S = {run.config.sync_interval}, η = {rate(run.config.learning_rate)}"
            shown.append((f"{wanted} run {run.run_id} ({setting})", picked))
    return shown


def _inline(path: Path) -> Markup:
    """The SVG element alone, its ids made unique to the figure so that figures can share a page."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{path.stem}-", text)
    return Markup(text)


def _write_tables(result: Stability, folder: Path, suffix: str) -> None:
    header = ["η", *(f"S={value}" for value in result.sync_intervals)]
    rows = [
        [rate(eta), *(str(cell_text(result.table.get((s, eta)))) for s in result.sync_intervals)]
        for eta in result.learning_rates
    ]
    lines = [header, ["---"] * len(header), *rows]
    markdown = "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"
    write_atomic(folder / f"stability{suffix}.md", markdown)
    buffer = io.StringIO()
    csv.writer(buffer).writerows([header, *rows])
    write_atomic(folder / f"stability{suffix}.csv", buffer.getvalue())
    runs = [_run(run) for run in result.runs]
    buffer = io.StringIO()
    if runs:
        writer = csv.DictWriter(buffer, runs[0])
        writer.writeheader()
        writer.writerows(runs)
    write_atomic(folder / f"runs{suffix}.csv", buffer.getvalue())


def _page(report: Report, parts: list[dict[str, Any]]) -> str:
    environment = Environment(
        loader=PackageLoader("analysis"), autoescape=select_autoescape(default=True), trim_blocks=True
    )
    first = report.results[0].runs[0] if report.results and report.results[0].runs else None
    return environment.get_template("report.html.j2").render(
        name=report.name,
        descriptions=[sweep.description for sweep in report.records.sweeps if sweep.description],
        parts=parts,
        notes=report.record_notes,
        fixed=report.records.fixed,
        rule=first.budget.collapse.model_dump() if first and first.budget else {},
        rule_version=RULE_VERSION,
        history=[(sweep.name, entry) for sweep in report.records.sweeps for entry in sweep.history],
    )
