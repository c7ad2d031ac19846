"""Sweeps on disk → judged runs and tidy frames.

Every run is judged again from its metrics.jsonl by the collapse rule with the settings frozen in its budget;
what summary.json says must agree, and a run where it does not is named in the notes. The metrics decide.

A run is complete when it ended on its own (it has a summary). Runs that are planned, running, failed or
interrupted are *incomplete*: listed, and used for nothing. Not even for a collapse already seen: of two
unfinished runs only the collapsed one would then count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from trainer.budget import Budget, CellConfig
from trainer.collapse import RULE_VERSION, judge
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import read_lines
from trainer.record import (
    Cell,
    Outcome,
    RunPaths,
    Summary,
    SweepFile,
    SweepPaths,
    UpdateMetrics,
    read_budget,
    read_config,
    read_metrics,
    read_state,
    read_summary,
    read_sweep,
)
from trainer.schema import flatten, parse
from trainer.verdict import Verdict

RunOutcome = Literal["stable", "collapsed", "recovered", "pending", "undetectable", "incomplete", "invalid"]

TABLE_AXES = ("sync_interval", "learning_rate")
"""The axes of the stability table; the seed is the unit of replication."""

METRICS = [field.name for field in fields(UpdateMetrics)]


@dataclass(frozen=True)
class Run:
    """One run as recorded and judged."""

    run_id: str
    sweep: str
    paths: RunPaths
    config: RunConfig
    budget: Budget | None
    """None where the run was never written to disk."""
    outcome: RunOutcome
    reason: str | None
    """Why, for incomplete and invalid runs."""
    updates: int
    """h: learner updates of the judged series; of an incomplete run, updates done so far."""
    cumulative_rate: float
    """Λ_h."""
    verdict: Verdict | None
    """None where there is no valid series to judge."""
    collapse_rate: tuple[float, float] | None
    """Λ at both ends of the collapse interval (t_low, t_high]."""
    warm_start: str | None
    """Content hash of the initial weights."""
    metrics: Sequence[Mapping[str, Any]]
    """Judged lines of metrics.jsonl; all lines of an incomplete run."""
    kept: bool = False
    """Belongs to a cell that an earlier submission had and the latest has not."""

    @property
    def complete(self) -> bool:
        return self.outcome != "incomplete"

    @cached_property
    def science(self) -> dict[str, Any]:
        """Scientific fields, flat and dotted."""
        return flatten(self.config.model_dump(mode="json", exclude={"resources"}))

    def evaluations(self) -> list[dict[str, Any]]:
        """Accuracy on prompts that are not trained on, in order: step (updates done by the policy), value, n.

        Of the task's own held-out prompts, or of the first named set where there are none.
        """
        lines = [line for line in read_lines(self.paths.evaluations) if line.get("metric") == "accuracy"]
        names = [line["set"] for line in lines]
        chosen = "held_out" if "held_out" in names else next(iter(names), None)
        return [line for line in lines if line["set"] == chosen]

    def samples(self) -> list[dict[str, Any]]:
        """Recorded completions: policy_version, prompt, response, reward."""
        return read_lines(self.paths.samples)


@dataclass(frozen=True)
class Records:
    """What some sweeps that may be pooled have recorded."""

    sweeps: tuple[SweepFile, ...]
    runs: tuple[Run, ...]
    facet_fields: tuple[str, ...]
    """Axes of the sweeps other than sync interval, rate and seed: each combination is a table of its own."""
    notes: tuple[str, ...]
    """What a reader of the report has to know about the records."""

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """Scientific fields that no run varies."""
        if not self.runs:
            return {}
        varying = {*TABLE_AXES, "seed", *self.facet_fields}
        return {name: value for name, value in self.runs[0].science.items() if name not in varying}

    def facets(self) -> list[tuple[dict[str, Any], tuple[Run, ...]]]:
        """Runs by their values on the facet fields, in order of first appearance; one entry when none."""
        groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
        for run in self.runs:
            facet = {name: run.science[name] for name in self.facet_fields}
            groups.setdefault(repr(facet), (facet, []))[1].append(run)
        return [(facet, tuple(runs)) for facet, runs in groups.values()] or [({}, ())]

    @cached_property
    def run_frame(self) -> pd.DataFrame:
        """One row per run: identity, scientific fields, outcome, horizon and the verdict."""
        return pd.DataFrame([_row(run) for run in self.runs])

    @cached_property
    def step_frame(self) -> pd.DataFrame:
        """One row per learner update and run: run_id and the fields of metrics.jsonl; undefined is NaN."""
        parts = [
            pd.DataFrame({name: [line.get(name) for line in run.metrics] for name in METRICS}).assign(
                run_id=run.run_id
            )
            for run in self.runs
            if run.metrics
        ]
        columns = ["run_id", *METRICS]
        if not parts:
            return pd.DataFrame(columns=columns)
        steps = pd.concat(parts, ignore_index=True)[columns]
        floats = [name for name in METRICS if steps[name].dtype == object]
        return steps.astype(dict.fromkeys(floats, float))


def load_sweeps(sweeps: Sequence[SweepPaths]) -> Records:
    """Read and judge all runs of sweeps that may be pooled.

    Raises `UserError` when a sweep is missing, a record is not valid, or the sweeps differ in a scientific
    field that is no axis of any of them (decision 15).
    """
    files = tuple(read_sweep(paths) for paths in sweeps)
    notes: list[str] = []
    found: dict[str, Run] = {}
    for paths, file in zip(sweeps, files, strict=True):
        for cell, kept in [(cell, False) for cell in file.cells] + [(cell, True) for cell in file.kept]:
            run, said = load_run(paths.run(cell.run_id), file, cell, kept=kept)
            other = found.get(run.run_id)
            if other is not None and (other.complete, other.updates) >= (run.complete, run.updates):
                continue
            found[run.run_id] = run
            notes += said
    runs = tuple(found.values())
    facet_fields = _facet_fields(files, runs)
    _refuse_to_pool(runs, {*TABLE_AXES, "seed", *facet_fields})
    notes += _common_notes(runs)
    return Records(files, runs, facet_fields, tuple(dict.fromkeys(notes)))


def _facet_fields(files: Sequence[SweepFile], runs: Sequence[Run]) -> tuple[str, ...]:
    """Scientific fields, other than those of the table, that the sweeps' axes vary.

    The options of a group that is an axis decide fields of their own: those that are not fixed and vary.
    """
    axes = dict.fromkeys(name for file in files for name in file.axes if "budget" not in name)
    fields = list(runs[0].science) if runs else []
    found = [name for name in axes if name in fields]
    if len(found) < len(axes):
        fixed = {name for file in files for name in file.fixed}
        for name in fields:
            if name not in fixed and name not in axes and len({str(run.science[name]) for run in runs}) > 1:
                found.append(name)
    return tuple(name for name in found if name not in {*TABLE_AXES, "seed"})


def load_run(
    paths: RunPaths, sweep: SweepFile, cell: Cell, *, kept: bool = False
) -> tuple[Run, tuple[str, ...]]:
    """One run of a sweep, judged, and what has to be said about its record."""
    config = read_config(paths) if paths.config.is_file() else _planned_config(sweep, cell)
    budget = read_budget(paths) if paths.budget.is_file() else None
    summary, lines = read_summary(paths), read_metrics(paths)
    notes: list[str] = []

    def run(outcome: RunOutcome, reason: str | None, verdict: Verdict | None, series: list[Any]) -> Run:
        return Run(
            run_id=paths.run_id,
            sweep=sweep.name,
            paths=paths,
            config=config,
            budget=budget,
            outcome=outcome,
            reason=reason,
            updates=len(series),
            cumulative_rate=_cumulative_rate(series, len(series), config.learning_rate),
            verdict=verdict,
            collapse_rate=_collapse_rate(verdict, series, config.learning_rate),
            warm_start=None if summary is None else summary.warm_start,
            metrics=series,
            kept=kept,
        )

    if summary is None or summary.outcome is Outcome.INTERRUPTED or budget is None:
        return run("incomplete", _why_incomplete(paths), None, lines), ()
    if summary.outcome is Outcome.INVALID:
        return run("invalid", summary.reason or "the trainer called it invalid", None, lines), ()
    series = lines[: summary.updates]
    if [line.get("step") for line in series] != list(range(summary.updates)):
        reason = f"metrics.jsonl holds {len(series)} updates where summary.json counts {summary.updates}"
        if len(series) == summary.updates:
            reason = f"the steps in metrics.jsonl are not 0 … {summary.updates - 1}"
        return run("invalid", reason, None, lines), ()
    if len(lines) > len(series):
        notes.append(
            f"{paths.run_id} is being extended: read at its last finished horizon, {summary.updates} updates."
        )
    task = config.task
    shares = [None if line["reward"] is None else task.accuracy(line["reward"]) for line in series]
    spread = 1 - task.wrong_reward
    errors = [line["reward_standard_error"] for line in series]
    errors = [None if error is None else error / spread for error in errors]
    verdict = judge(shares, errors, config.sync_interval, budget.collapse)
    notes += _disagreement(paths.run_id, summary, verdict)
    return run(verdict.status, None, verdict, series), tuple(notes)


def _why_incomplete(paths: RunPaths) -> str:
    state = read_state(paths)
    if state is None:
        return "not started"
    said = f"{state.state} at update {state.step} of {state.horizon}"
    if state.error:
        said += f": {state.error.strip().splitlines()[-1]}"
    return said


def _planned_config(sweep: SweepFile, cell: Cell) -> RunConfig:
    """Configuration of a cell without a run folder, from the sweep file."""
    nested: dict[str, Any] = {}
    for name, value in {**sweep.fixed, **cell.values}.items():
        *sections, leaf = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return parse(CellConfig, nested, where=f"sweep {sweep.name}, cell {cell.run_id}").run()


def _cumulative_rate(series: Sequence[Mapping[str, Any]], updates: int, learning_rate: float) -> float:
    """Λ after some updates; past the end of the series the rate goes on as configured."""
    done = min(updates, len(series))
    recorded = float(series[done - 1]["cumulative_rate"]) if done else 0.0
    return recorded + learning_rate * (updates - done)


def _collapse_rate(
    verdict: Verdict | None, series: Sequence[Mapping[str, Any]], learning_rate: float
) -> tuple[float, float] | None:
    if verdict is None or verdict.t_low is None or verdict.t_high is None:
        return None
    return (
        _cumulative_rate(series, verdict.t_low, learning_rate),
        _cumulative_rate(series, verdict.t_high, learning_rate),
    )


def _disagreement(run_id: str, summary: Summary, verdict: Verdict) -> list[str]:
    """One note when the summary, written online, tells another story than the metrics do."""
    recorded, judged = summary.collapse, verdict.to_dict()
    differing = [key for key in judged if key in recorded and not _same(recorded[key], judged[key])]
    if not differing and summary.outcome.value == verdict.status:
        return []
    if summary.rule_version != RULE_VERSION:
        return [
            f"{run_id} was judged {summary.outcome.value} by rule version {summary.rule_version} when it "
            f"ended and {verdict.status} by version {RULE_VERSION} now: this report uses the latter."
        ]
    said = ", ".join(f"{key} {recorded[key]} against {judged[key]}" for key in differing) or "the outcome"
    return [
        f"{run_id}: summary.json says {summary.outcome.value}, its metrics say {verdict.status} ({said}). "
        "This report uses the metrics; the record may be damaged."
    ]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    return bool(first == second)


def _refuse_to_pool(runs: Sequence[Run], may_vary: set[str]) -> None:
    values: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for name, value in run.science.items():
            if name not in may_vary:
                values.setdefault(name, {}).setdefault(str(value), set()).add(run.sweep)
    differing = [
        f"{name} is "
        + " and ".join(f"{value} in {', '.join(sorted(names))}" for value, names in by_value.items())
        for name, by_value in values.items()
        if len(by_value) > 1
    ]
    if differing:
        raise UserError(
            *(f"{said}: runs that differ in it are not pooled; report these separately" for said in differing)
        )


def _common_notes(runs: Iterable[Run]) -> list[str]:
    """What should be the same in all complete runs although no scientific field says so."""
    complete = [run for run in runs if run.complete and run.budget is not None]
    notes = []
    if len({run.warm_start for run in complete if run.warm_start}) > 1:
        notes.append(
            "The runs did not all start from the same weights (warm_start in summary.json): warm starts "
            "computed on different machines can differ by rounding."
        )
    rules = {run.budget.collapse.model_dump_json() for run in complete if run.budget is not None}
    if len(rules) > 1:
        notes.append(
            f"The runs were started under {len(rules)} different settings of the collapse rule; "
            "each is judged by its own."
        )
    return notes


_NOT_REPEATED = {"status", "sync_interval", "updates"}
"""Verdict fields that a run's row holds already under the same or another name."""


def _row(run: Run) -> dict[str, Any]:
    shown = [field.name for field in fields(Verdict) if field.name not in _NOT_REPEATED]
    verdict = {name: None if run.verdict is None else getattr(run.verdict, name) for name in shown}
    low, high = run.collapse_rate or (None, None)
    return {
        "run_id": run.run_id,
        "sweep": run.sweep,
        "kept": run.kept,
        **run.science,
        "outcome": run.outcome,
        "reason": run.reason,
        "complete": run.complete,
        "updates": run.updates,
        "horizon": None if run.budget is None else run.budget.horizon,
        "cumulative_rate": run.cumulative_rate,
        **verdict,
        "collapse_rate_low": low,
        "collapse_rate_high": high,
    }
