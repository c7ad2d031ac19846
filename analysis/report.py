"""The stability report on disk: index.html, results.json, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis import replay_wording, wording
from analysis.curve_figures import reward_curves, table_picture
from analysis.drawing import Figure
from analysis.joint_report import CAVEAT, CONFIGURATION_HEADER, LEGEND, JointSection, joint_sections
from analysis.law_figures import boundary_figure, clock_figure
from analysis.load import Records, Run, load_sweeps
from analysis.replay import Replay, replay
from analysis.replay_figures import replay_figures
from analysis.replay_results import replay_results
from analysis.results import results
from analysis.stability import CellResult, ReportSettings, Stability, stability
from analysis.virtual_clock import HEADINGS, ClockRow, clock_rows
from trainer.collapse import RULE_VERSION
from trainer.errors import UserError
from trainer.files import write_atomic, write_json
from trainer.record import SweepFile, SweepPaths
from trainer.schema import parse
from trainer.task_config import canonical_json

MOST_SAMPLES = 6
"""Completions shown per run: the first and the last ones recorded."""
LONGEST_SAMPLE = 2000
"""Characters shown of a prompt or a response."""


@dataclass(frozen=True)
class Report:
    """A written report and what is in it."""

    index: Path
    results_file: Path
    records: Records
    results: tuple[Stability, ...]
    """One per facet; a sweep over S, η and seed has one."""
    replay: Replay | None
    """None where the sweep compares no arms."""
    clock: tuple[ClockRow, ...]
    """Of runs with a virtual clock."""
    joint: tuple[JointSection, ...]
    """Across facets that differ in what lies between generation and training."""

    @property
    def record_notes(self) -> tuple[str, ...]:
        return self.records.notes


@dataclass(frozen=True)
class Sample:
    """One recorded completion, cut to a printable length."""

    policy_version: Any
    prompt: str
    response: str
    reward: Any


@dataclass(frozen=True)
class SampledRun:
    """Completions of one run, from before and after."""

    heading: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Section:
    """One facet on the page."""

    title: str
    result: Stability
    figures: tuple[Figure, ...]
    samples: tuple[SampledRun, ...]


def write_report(sweeps: Sequence[SweepPaths], out: Path) -> Report:
    """Analyse sweeps that may be pooled and write the report into the folder `out`.

    Raises `UserError` when a sweep is missing, a record is not valid, or the sweeps may not be pooled.
    """
    records = load_sweeps(sweeps)
    settings = report_settings(records.sweeps)
    found = tuple(stability(runs, settings, facet) for facet, runs in records.facets())
    several = len(found) > 1
    sections = tuple(
        _section(result, out / "figures", f"-{k + 1}" if several else "") for k, result in enumerate(found)
    )
    joint = joint_sections(found, out / "figures")
    economics = replay(records, settings.replay)
    drawn = replay_figures(economics, out / "figures") if economics else []
    clock = clock_rows(records)
    content = results(records, list(found), [section.joint for section in joint])
    content |= {"virtual_clock": [asdict(row) for row in clock]} if clock else {}
    write_json(out / "results.json", content | (replay_results(economics) if economics else {}))
    _write_tables(records, found, out / "tables")
    write_atomic(out / "index.html", render(records, sections, economics, drawn, joint, clock))
    return Report(out / "index.html", out / "results.json", records, found, economics, clock, joint)


def report_settings(sweeps: Sequence[SweepFile]) -> ReportSettings:
    """The settings that the sweeps' presets give; raises `UserError` where two sweeps give different ones."""
    given = [(sweep, parse(ReportSettings, sweep.report, where=f"{sweep.name}: report")) for sweep in sweeps]
    for sweep, settings in given[1:]:
        if settings != given[0][1]:
            raise UserError(
                f"sweeps {given[0][0].name} and {sweep.name} give different report settings "
                f"({given[0][0].report} and {sweep.report}): make them equal in sweep.yaml, or report the "
                "sweeps separately"
            )
    return given[0][1] if given else ReportSettings()


def _section(result: Stability, folder: Path, suffix: str) -> Section:
    drawn: list[Figure | None] = []
    if result.cells:
        drawn = [
            table_picture(result, folder, f"table{suffix}"),
            reward_curves(result, folder, f"rewards{suffix}"),
            boundary_figure(result, folder, f"boundary{suffix}"),
            clock_figure(result, folder, f"clock{suffix}"),
        ]
    return Section(
        title=wording.titled(result.facet.items()),
        result=result,
        figures=tuple(figure for figure in drawn if figure is not None),
        samples=_samples(result),
    )


def _samples(result: Stability) -> tuple[SampledRun, ...]:
    """The stable run at the highest rate and the collapsed run at the lowest that recorded completions."""
    stable = [run for run in result.runs if run.outcome == "stable"]
    collapsed = [run for run in result.runs if run.outcome == "collapsed"]
    stable.sort(key=lambda run: (-run.config.learning_rate, -run.config.sync_interval))
    collapsed.sort(key=lambda run: (run.config.learning_rate, run.config.sync_interval))
    chosen = [next((run for run in runs if run.samples()), None) for runs in (stable, collapsed)]
    return tuple(_sampled(run) for run in chosen if run is not None)


def _sampled(run: Run) -> SampledRun:
    lines = run.samples()
    half = MOST_SAMPLES // 2
    shown = lines if len(lines) <= MOST_SAMPLES else [*lines[:half], *lines[-half:]]
    what = (
        f"stable to {run.updates}"
        if run.outcome == "stable"
        else f"collapsed, {wording.run_snapshot_text(run)}"
    )
    config = run.config
    return SampledRun(
        heading=f"{run.run_id}: S = {config.sync_interval}, η = {wording.rate(config.learning_rate)}, "
        f"seed {config.seed}, {what}",
        samples=tuple(
            Sample(
                line.get("policy_version"),
                _cut(str(line.get("prompt", ""))),
                _cut(str(line.get("response", ""))),
                line.get("reward"),
            )
            for line in shown
        ),
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SAMPLE else f"{text[:LONGEST_SAMPLE]} … ({len(text)} characters)"


def render(
    records: Records,
    sections: Sequence[Section],
    economics: Replay | None = None,
    drawn: Sequence[Figure] = (),
    joint: Sequence[JointSection] = (),
    clock: Sequence[ClockRow] = (),
) -> str:
    """The page, self-contained: no script, no other file, no network."""
    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        records=records,
        sections=sections,
        joint_sections=joint,
        joint_header=CONFIGURATION_HEADER,
        joint_legend=LEGEND,
        joint_caveat=CAVEAT,
        words=wording,
        replay=economics,
        clock_rows=clock,
        clock_headings=HEADINGS,
        replay_figures=drawn,
        replay_words=replay_wording,
        rule_version=RULE_VERSION,
        rules=_rules(records),
        setup=_setup(records),
        title=" + ".join(sweep.name for sweep in records.sweeps) or "no sweep",
    )


def _rules(records: Records) -> list[Mapping[str, Any]]:
    """Settings of the collapse rule, one entry per different set."""
    found = {
        run.budget.collapse.model_dump_json(): run.budget.collapse.model_dump(mode="json")
        for run in records.runs
        if run.budget is not None
    }
    return list(found.values())


def _setup(records: Records) -> list[tuple[str, str]]:
    """Scientific fields and their values; varied ones with all their values."""
    rows = []
    for name in records.runs[0].science if records.runs else ():
        values = list(
            {canonical_json(run.science.get(name)): run.science.get(name) for run in records.runs}.values()
        )
        if name == "learning_rate":
            values = [
                wording.rate(run_rate)
                for run_rate in sorted({run.config.learning_rate for run in records.runs})
            ]
        rows.append((name, ", ".join(str(value) for value in values)))
    return rows


def _write_tables(records: Records, found: Sequence[Stability], folder: Path) -> None:
    """stability.md and .csv (the grid), cells.csv and runs.csv (tidy)."""
    texts = [_grid(result) for result in found]
    write_atomic(folder / "stability.md", "\n\n".join(_markdown(*grid) for grid in texts) + "\n")
    frames = [
        pd.DataFrame(rows, columns=header).assign(**{k: str(v) for k, v in result.facet.items()})
        for (header, rows), result in zip(texts, found, strict=True)
    ]
    write_atomic(folder / "stability.csv", pd.concat(frames).to_csv(index=False))
    cells = [_cell_row(cell, result) for result in found for cell in result.cells]
    write_atomic(folder / "cells.csv", pd.DataFrame(cells).to_csv(index=False))
    write_atomic(folder / "runs.csv", records.run_frame.to_csv(index=False))


def _grid(result: Stability) -> tuple[list[str], list[list[str]]]:
    header = ["η", *(f"S={interval}" for interval in result.sync_intervals)]
    rows = [
        [
            wording.rate(learning_rate),
            *(
                str(wording.cell_text(result.table.get((interval, learning_rate))))
                for interval in result.sync_intervals
            ),
        ]
        for learning_rate in result.learning_rates
    ]
    return header, rows


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(item.replace("|", "\\|") for item in line) + " |" for line in lines)


def _cell_row(cell: CellResult, result: Stability) -> dict[str, Any]:
    low, high = cell.time_range() or (None, None)
    return {
        **result.facet,
        "sync_interval": cell.sync_interval,
        "learning_rate": cell.learning_rate,
        "seeds": cell.seeds,
        "collapsed": len(cell.collapsed),
        "outcome": cell.outcome,
        "snapshots": " ".join(map(str, cell.snapshots)),
        "t_low": low,
        "t_high": high,
        "horizon": cell.horizon,
        "collapse_probability_at_most": None if cell.bound is None else cell.bound[1],
        "run_ids": " ".join(run.run_id for run in cell.runs),
    }
