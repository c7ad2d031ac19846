"""`status`: job states against outcomes, the grid, what runs, what is left; as a table or as JSON.

Writes nothing: not to the sweep, and not about it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from launcher.board import axis_label, board, crosstab, in_words, tally, value_text
from launcher.messages import say, shown, unfinished_lines
from launcher.pace import Paces, remaining, silent_for, to_horizon
from launcher.progress import duration
from launcher.state import RunStatus
from launcher.sweep_view import Reader, View
from trainer.attempts import read_attempts
from trainer.record import Cell, JobState, Outcome, SweepPaths

MOST_RUNNING = 20
"""Rows of the table of running runs; the JSON has them all."""
EXPLAINED = (JobState.LOST, JobState.UNKNOWN, JobState.WAITING, JobState.QUEUED)
"""States whose reasons are counted rather than told one by one."""


def print_status(paths: SweepPaths, console: Console, words: Sequence[str] = ()) -> None:
    """Counts, the grid or the selected runs, what runs, what is left, and what failed with the reason."""
    view = Reader(paths).look(words)
    say(console, heading(view), "")
    for part in parts(view, Paces(), listed=bool(words)):
        say(console, part, "") if isinstance(part, str) else console.print(part)
        if not isinstance(part, str):
            say(console, "")
    if view.sweep.kept:
        say(console, f"{len(view.sweep.kept)} runs that left the grid are kept on disk and not shown")
    say(console, *unfinished_lines(paths, view.sweep, view.statuses.values(), interrupted=False))


def heading(view: View) -> str:
    """`sweep 'a' in outputs/a: 9 stable, 1 running`."""
    counts = in_words(tally(view.statuses.values()))
    return f"sweep {view.sweep.name!r} in {shown(view.paths.folder)}: {counts}"


def parts(view: View, paces: Paces, *, listed: bool) -> list[RenderableType]:
    """What is shown between heading and failures; `listed`: every run in a line."""
    measured = paces.measure(view)
    grid = runs_table(view) if listed else board(view.sweep, view.statuses)
    running = running_table(view, measured, time.time())
    found: list[RenderableType | None] = [_counts(list(view.statuses.values())), grid, running]
    lines = [*view.notices, *_reasons(view), remaining_line(view, measured)]
    return [part for part in [*found, *lines] if part is not None]


def live(view: View, paces: Paces, *, listed: bool) -> RenderableType:
    """The whole view as one thing that a terminal can redraw."""
    pieces: list[RenderableType] = [Text(heading(view)), Text("")]
    for part in parts(view, paces, listed=listed):
        pieces += [Text(part) if isinstance(part, str) else part, Text("")]
    return Group(*pieces)


def status_json(paths: SweepPaths, words: Sequence[str] = ()) -> str:
    """One object: `sweep`, `folder`, `counts` (job state → outcome → runs), `failures` (class → runs),
    `remaining` (runs, updates, core_seconds, unmeasured), `notices` and `runs`.
    """
    view = Reader(paths).look(words)
    measured = Paces().measure(view)
    left = remaining(view, measured)
    data = {
        "sweep": view.sweep.name,
        "folder": str(paths.folder),
        "counts": crosstab(view.statuses.values()),
        "failures": _failures(view.statuses.values()),
        "remaining": {
            "runs": left.runs,
            "updates": left.updates,
            "core_seconds": left.core_seconds,
            "unmeasured": left.unmeasured,
        },
        "notices": list(view.notices),
        "runs": [_run(view, cell, measured.get(cell.run_id)) for cell in view.sweep.cells],
    }
    return json.dumps(data, indent=2, allow_nan=False)


def _run(view: View, cell: Cell, pace: float | None) -> dict[str, Any]:
    status = view.statuses[cell.run_id]
    state = status.state
    return {
        "index": view.indices[cell.run_id],
        "run_id": cell.run_id,
        "values": cell.values,
        "job": status.job,
        "outcome": status.outcome,
        "failure": status.failure,
        "attempt": status.attempt,
        "job_id": status.job_id,
        "node": status.node,
        "step": state.step if state else 0,
        "horizon": state.horizon if state else None,
        "reward": state.reward if state else None,
        "lag": state.lag if state else None,
        "updates_per_second": state.updates_per_second if state else None,
        "heartbeat": state.heartbeat if state else None,
        "silent": silent_for(status, pace, time.time()),
        "time_left": to_horizon(status),
        "job_time_left": status.time_left,
        "attempts": [
            {
                "number": attempt.number,
                "job_id": attempt.job,
                "started": attempt.started.get("time") if attempt.started else None,
                "ended": attempt.ended.get("time") if attempt.ended else None,
                "how": attempt.ended.get("how") if attempt.ended else None,
            }
            for attempt in read_attempts(view.paths.run(cell.run_id))
        ],
        "detail": status.detail,
        "log": str(status.log) if status.log else None,
    }


def _failures(statuses: Iterable[RunStatus]) -> dict[str, int]:
    return dict(Counter(str(status.failure) for status in statuses if status.failure is not None))


def _counts(statuses: list[RunStatus]) -> Table:
    """Rows: job states; columns: outcomes, only those that occur, and classes of failure."""
    counts = crosstab(statuses)
    seen = {outcome for row in counts.values() for outcome in row}
    outcomes = [str(item) for item in Outcome if str(item) in seen] + (["-"] if "-" in seen else [])
    failed = any(status.failure is not None for status in statuses)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("job")
    for outcome in outcomes:
        table.add_column("no outcome yet" if outcome == "-" else outcome, justify="right")
    if failed:
        table.add_column("of these")
    for job in (str(item) for item in JobState if str(item) in counts):
        classes = in_words(_failures(status for status in statuses if status.job == job))
        numbers = [str(counts[job].get(outcome, "")) for outcome in outcomes]
        table.add_row(job, *numbers, *([classes] if failed else []))
    return table


def runs_table(view: View) -> Table:
    """Every run in a line: index, id, axes, job, outcome or class, updates, reward."""
    axes = _varied(view)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("#", "run", *map(axis_label, axes), "job", "outcome", "update", "reward"):
        table.add_column(name)
    for cell in view.sweep.cells:
        status = view.statuses[cell.run_id]
        state = status.state
        table.add_row(
            str(view.indices[cell.run_id]),
            cell.run_id,
            *(value_text(cell.values.get(axis)) for axis in axes),
            status.job,
            str(status.outcome or status.failure or ""),
            _progress(status),
            _number(state.reward if state else None),
        )
    return table


def running_table(view: View, paces: Mapping[str, float | None], now: float) -> Table | None:
    """Runs in progress, those first that have been silent for long; None where there are none."""
    cells = [cell for cell in view.sweep.cells if view.statuses[cell.run_id].job == JobState.RUNNING]
    if not cells:
        return None
    silence = {c.run_id: silent_for(view.statuses[c.run_id], paces.get(c.run_id), now) for c in cells}
    cells.sort(key=lambda cell: -(silence[cell.run_id] or 0))
    axes = _varied(view)
    in_slurm = any(view.statuses[cell.run_id].job_id is not None for cell in cells)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ["#", "running", *map(axis_label, axes), "update", "reward", "lag", "updates/s", "to horizon"]
    for name in [*columns, *(["job", "its time left"] if in_slurm else []), ""]:
        table.add_column(name)
    for cell in cells[:MOST_RUNNING]:
        status, quiet = view.statuses[cell.run_id], silence[cell.run_id]
        state, left = status.state, to_horizon(status)
        job = [status.job_id or "", "" if status.time_left is None else duration(status.time_left)]
        table.add_row(
            str(view.indices[cell.run_id]),
            cell.run_id,
            *(value_text(cell.values.get(axis)) for axis in axes),
            _progress(status),
            _number(state.reward if state else None),
            _number(state.lag if state else None),
            _number(state.updates_per_second if state else None),
            "" if left is None else duration(left),
            *(job if in_slurm else []),
            Text(f"silent for {duration(quiet)}", "yellow") if quiet is not None else "",
        )
    if len(cells) > MOST_RUNNING:
        table.add_row("…", f"{len(cells) - MOST_RUNNING} more")
    return table


def remaining_line(view: View, paces: Mapping[str, float | None]) -> str | None:
    """`left: 3 runs, 400 updates, about 2 min 05 s of core time`; None when all is done."""
    left = remaining(view, paces)
    if not left.runs:
        return None
    line = f"left: {left.runs} runs, {left.updates} updates"
    if left.core_seconds is None:
        return f"{line}; their speed is not known before one has run"
    more = f", {left.unmeasured} runs of unknown speed aside" if left.unmeasured else ""
    hours = f"{left.core_seconds / 3600:.2g} core hours"
    return f"{line}, at most {duration(left.core_seconds)} of core time ({hours}, speed measured here{more})"


def _reasons(view: View) -> list[str]:
    """Why runs wait or are not known, counted: `12 queued: Priority`."""
    found: Counter[tuple[str, str]] = Counter()
    for status in view.statuses.values():
        if status.job in EXPLAINED and status.detail:
            found[(str(status.job), status.detail.splitlines()[0])] += 1
    return [f"{count} {job}: {reason}" for (job, reason), count in found.most_common()]


def _varied(view: View) -> list[str]:
    axes = view.sweep.axes
    return [axis for axis in axes if len(axes[axis]) > 1] or list(axes)[:1]


def _progress(status: RunStatus) -> str:
    """`12/20`, or nothing before the first update."""
    state = status.state
    if state is None or not state.horizon:
        return "starting" if status.job == JobState.RUNNING else ""
    return f"{state.step}/{state.horizon}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
