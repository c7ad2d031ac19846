"""The grid as a table of run states, for the live view and `status`: S across, η down, where both vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from launcher.state import RunStatus
from trainer.record import JobState, Outcome, SweepFile

SYMBOLS = {"sync_interval": "S", "learning_rate": "η"}
MOST_COLUMNS = 10
MOST_ROWS = 24

STYLES = {
    "stable": "green",
    "recovered": "yellow",
    "collapsed": "red",
    "failed": "bold red",
    "killed": "bold red",
    "lost": "bold red",
    "unknown": "yellow",
    "running": "cyan",
}


def axis_label(field: str) -> str:
    """The paper's symbol of an axis, or the last part of the field's name."""
    return SYMBOLS.get(field, field.rsplit(".", 1)[-1])


def value_text(value: object) -> str:
    """A value as people write it: 0.002, 5e-05."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell_name(values: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> str:
    """`S=16, η=0.002`: where a run stands on the axes with more than one value."""
    shown = [field for field in axes if len(axes[field]) > 1] or list(axes)
    return ", ".join(f"{axis_label(field)}={value_text(values.get(field))}" for field in shown)


def view_axes(axes: Mapping[str, Sequence[Any]]) -> tuple[str | None, str | None]:
    """(row axis, column axis) of the table; the other axes are counted together."""
    wide = [field for field in axes if len(axes[field]) > 1]
    wide.sort(key=lambda field: field == "seed")  # seeds last: they are repetitions
    if {"sync_interval", "learning_rate"} <= set(wide):
        return "learning_rate", "sync_interval"
    if len(wide) > 1:
        words = any(isinstance(value, str) for value in axes[wide[0]])  # too wide for headings
        return (wide[0], wide[1]) if words else (wide[1], wide[0])
    return (wide[0] if wide else None), None


def board(sweep: SweepFile, statuses: Mapping[str, RunStatus]) -> Table | None:
    """The table; None when it would not fit a terminal."""
    rows, columns = view_axes(sweep.axes)
    across = list(sweep.axes[columns]) if columns else [None]
    down = list(sweep.axes[rows]) if rows else [None]
    if len(across) > MOST_COLUMNS or len(down) > MOST_ROWS:
        return None
    groups: dict[tuple[Any, Any], list[RunStatus]] = {}
    for cell in sweep.cells:
        place = (cell.values.get(rows) if rows else None, cell.values.get(columns) if columns else None)
        groups.setdefault(place, []).append(statuses[cell.run_id])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(axis_label(rows) if rows else "", style="dim")
    for value in across:
        table.add_column(f"{axis_label(columns)}={value_text(value)}" if columns else "")
    for value in down:
        cells = [_cell(groups.get((value, other), ())) for other in across]
        table.add_row(value_text(value) if rows else "", *cells)
    return table


def tally(statuses: Iterable[RunStatus]) -> dict[str, int]:
    """How many runs show what: the outcome of finished ones, the job state of the others."""
    counts: dict[str, int] = {}
    for status in statuses:
        word = _word(status)
        counts[word] = counts.get(word, 0) + 1
    return counts


def in_words(counts: Mapping[str, int]) -> str:
    """`9 stable, 6 collapsed, 1 running`."""
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def crosstab(statuses: Iterable[RunStatus]) -> dict[str, dict[str, int]]:
    """Job state → outcome (`-` where there is none yet) → number of runs."""
    counts: dict[str, dict[str, int]] = {}
    for status in statuses:
        row = counts.setdefault(str(status.job), {})
        outcome = str(status.outcome or "-")
        row[outcome] = row.get(outcome, 0) + 1
    order = [str(job) for job in JobState]
    return {job: counts[job] for job in order if job in counts}


def _word(status: RunStatus) -> str:
    """`stable`, `running`, `waiting for room`, `failed (out of memory)`."""
    if status.job == JobState.WAITING:
        return "waiting for room"
    word = str(status.outcome or status.job)
    if status.failure is None or str(status.failure) == word:
        return word
    return f"{word} ({status.failure.replace('_', ' ')})"


def _cell(statuses: Sequence[RunStatus]) -> Text:
    if not statuses:
        return Text("")
    if len(statuses) > 1:
        return Text(", ").join(
            Text(f"{count} {word}", _style(word)) for word, count in tally(statuses).items()
        )
    return _single(statuses[0])


def _single(status: RunStatus) -> Text:
    word, state = _word(status), status.state
    if status.job == JobState.RUNNING and state is not None and state.horizon:
        if state.collapsed or state.alarm:
            word, style = ("collapsed", "red") if state.collapsed else ("alarm", "yellow")
            return Text(f"{word} {state.step}/{state.horizon}", style)
        return Text(f"{state.step}/{state.horizon}", STYLES["running"])
    if status.job == JobState.RUNNING:
        return Text("starting", STYLES["running"])
    if status.summary is not None:
        onset = status.summary.collapse.get("onset")
        fell = status.outcome in (Outcome.COLLAPSED, Outcome.RECOVERED) and onset is not None
        return Text(f"{word} {onset if fell else status.summary.updates}", STYLES.get(word, ""))
    if status.job in (JobState.PLANNED, JobState.QUEUED):
        return Text("·", "dim")
    return Text(word, _style(word))


def _style(word: str) -> str:
    return STYLES.get(word.partition(" (")[0], "")
