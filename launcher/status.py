"""`status`: job states against outcomes, and every run, as a table or as JSON. Writes nothing."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from launcher.board import board, crosstab, in_words, tally
from launcher.messages import say, shown, unfinished_lines
from launcher.state import RunStatus
from launcher.submit import find_work
from trainer.record import Cell, JobState, Outcome, SweepPaths, read_sweep


def print_status(paths: SweepPaths, console: Console) -> None:
    """Counts, the grid, and what failed with the reason."""
    sweep = read_sweep(paths)
    statuses = find_work(paths, sweep).statuses
    say(console, f"sweep {sweep.name!r} in {shown(paths.folder)}: {in_words(tally(statuses.values()))}", "")
    console.print(_counts(list(statuses.values())))
    grid = board(sweep, statuses)
    if grid is not None:
        say(console, "")
        console.print(grid)
    if sweep.kept:
        say(console, "", f"{len(sweep.kept)} runs that left the grid are kept on disk and not shown")
    say(console, *unfinished_lines(paths, sweep, statuses.values(), interrupted=False))


def status_json(paths: SweepPaths) -> str:
    """One object: `sweep`, `folder`, `counts` (job state → outcome → runs) and `runs`."""
    sweep = read_sweep(paths)
    statuses = find_work(paths, sweep).statuses
    runs = [_run(cell, statuses[cell.run_id]) for cell in sweep.cells]
    data = {
        "sweep": sweep.name,
        "folder": str(paths.folder),
        "counts": crosstab(statuses.values()),
        "runs": runs,
    }
    return json.dumps(data, indent=2, allow_nan=False)


def _run(cell: Cell, status: RunStatus) -> dict[str, Any]:
    state = status.state
    return {
        "run_id": cell.run_id,
        "values": cell.values,
        "job": status.job,
        "outcome": status.outcome,
        "failure": status.failure,
        "job_id": status.job_id,
        "attempt": status.attempt,
        "step": state.step if state else 0,
        "horizon": state.horizon if state else None,
        "detail": status.detail,
        "log": str(status.log) if status.log else None,
    }


def _counts(statuses: list[RunStatus]) -> Table:
    """Rows: job states; columns: outcomes; only those that occur."""
    counts = crosstab(statuses)
    seen = {outcome for row in counts.values() for outcome in row}
    outcomes = [str(item) for item in Outcome if str(item) in seen] + (["-"] if "-" in seen else [])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("job")
    for outcome in outcomes:
        table.add_column("no outcome yet" if outcome == "-" else outcome, justify="right")
    for job in (str(item) for item in JobState if str(item) in counts):
        table.add_row(job, *(str(counts[job].get(outcome, "")) for outcome in outcomes))
    return table
