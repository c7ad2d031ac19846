"""`cancel`: end jobs of a sweep. What they did stays, and `submit` or `resume` continues it.

A run here is asked by SIGTERM to write a checkpoint; a job of Slurm is cancelled with all its runs.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.console import Console

from launcher.board import in_words
from launcher.confirm import confirmed
from launcher.ledger import Start
from launcher.messages import quoted, say
from launcher.process import is_alive
from launcher.state import RunStatus
from launcher.sweep_view import Reader, View, is_active
from trainer.errors import UserError
from trainer.record import JobState, SweepPaths

NOTHING = 1
"""Exit code where nothing that was selected could be cancelled."""
MOST_NAMED = 5

CancelJobs = Callable[[Sequence[str]], None]
"""Cancels jobs of Slurm, named as squeue has them: `17_3`."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What a cancellation would end, and what it cannot."""

    local: Sequence[Start]
    """Processes on this machine."""
    jobs: Sequence[str]
    """Jobs of Slurm, each once."""
    counts: Counter[str]
    """`2 running in Slurm`."""
    beyond: Sequence[str]
    """Why runs that have not ended cannot be cancelled from here."""


def cancel(
    paths: SweepPaths,
    words: Sequence[str],
    console: Console,
    *,
    yes: bool = False,
    cancel_jobs: CancelJobs | None = None,
) -> int:
    """End the jobs of the selected runs, of all where there is no word. Returns the exit code.

    Raises `UserError` where a job of Slurm would take runs along that are not selected, and where there are
    such jobs but no `cancel_jobs`.
    """
    reader = Reader(paths)
    view = reader.look()
    chosen = reader.look(words).statuses if words else view.statuses
    found = targets(view, chosen)
    _refuse_half_tasks(view, chosen)
    say(console, *found.beyond)
    if not found.local and not found.jobs:
        say(console, "nothing to cancel: none of the selected runs runs or waits in Slurm")
        return NOTHING
    if found.jobs and cancel_jobs is None:
        raise UserError(f"jobs of Slurm cannot be cancelled from here: scancel {' '.join(found.jobs)}")
    if not confirmed(f"Cancel {in_words(found.counts)}?", yes=yes):
        say(console, "nothing was cancelled")
        return NOTHING
    if found.jobs and cancel_jobs is not None:
        cancel_jobs(found.jobs)
    asked = sum(map(_ask_to_stop, found.local))
    gone = len(found.local) - asked
    say(
        console,
        f"cancelled: {in_words(found.counts)}" + (f" ({gone} had ended by then)" if gone else ""),
        f"they write a checkpoint and end; to go on: grposweep resume {quoted(paths)}",
    )
    return 0


def targets(view: View, chosen: Collection[str]) -> Targets:
    """What there is to cancel among the chosen runs."""
    local: list[Start] = []
    jobs: dict[str, None] = {}
    counts: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    for run_id in chosen:
        status = view.statuses[run_id]
        if not is_active(status):
            continue
        if status.job_id is not None:
            if status.job != JobState.FINISHING:
                jobs[status.job_id] = None
                counts[f"{status.job} in Slurm"] += 1
            continue
        start, why = _process(view, status)
        if start is not None:
            local.append(start)
            counts["running here"] += 1
        else:
            beyond[why] += 1
    return Targets(local, list(jobs), counts, [f"{count} runs: {why}" for why, count in beyond.items()])


def _process(view: View, status: RunStatus) -> tuple[Start | None, str]:
    """The process that trains a run here, or why it cannot be asked to stop."""
    if status.job == JobState.QUEUED:
        return None, "they wait for a launcher on this machine: end that (Ctrl-C, or kill it) to stop them"
    start = view.ledger.last.get(status.run_id)
    if start is None:
        return None, "no launcher noted the process that trains them: end it where it was started"
    if not is_alive(start.pid, start.born, start.host):
        return None, f"they were started on {start.host} as another process: cancel them there"
    return start, ""


def _refuse_half_tasks(view: View, chosen: Collection[str]) -> None:
    """A job of Slurm ends with all its runs: raises `UserError` naming those that were not selected."""
    taken: dict[str, list[str]] = {}
    for run_id in chosen:
        status, task = view.statuses[run_id], view.ledger.tasks.get(run_id)
        if task is None or status.job_id is None or not is_active(status):
            continue
        # a run that left the grid is not known here: it cannot be selected either
        same = [run for run in task.runs if run in view.statuses and view.ledger.tasks.get(run) == task]
        more = [run for run in same if run not in chosen and is_active(view.statuses[run])]
        if more:
            taken[status.job_id] = more
    if not taken:
        return
    job, first = next(iter(taken.items()))
    others = {run for runs in taken.values() for run in runs}
    active = {run for run in chosen if is_active(view.statuses[run])}
    every = ",".join(str(view.indices[run]) for run in view.statuses if run in active | others)
    shown = ", ".join(first[:MOST_NAMED]) + (", …" if len(first) > MOST_NAMED else "")
    raise UserError(
        f"{len(others)} runs that are not selected would end too, as they share a job with selected ones "
        f"(job {job}: {shown}): include them, `grposweep cancel {quoted(view.paths)} {every}`"
    )


def _ask_to_stop(start: Start) -> bool:
    """Send SIGTERM to the process of a start; False when it has ended."""
    try:
        # held by its descriptor, so that the process that is looked at is the one that is signalled
        handle = os.pidfd_open(start.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(start.pid, start.born, start.host):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
