"""What commands print about a sweep: what will be done, what went wrong, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.board import cell_name
from launcher.state import RunStatus
from trainer.record import JobState, SweepFile, SweepPaths

if TYPE_CHECKING:
    from launcher.sweep_folder import Changes

MOST_NAMED = 6


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: no markup, no wrapping, so that commands and paths can be copied."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def shown(path: Path) -> Path:
    """A path as short as it can be said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def quoted(paths: SweepPaths) -> str:
    """The sweep as it is typed in a shell from here, with `--outputs` where that is needed."""
    outputs = paths.folder.parent
    where = "" if outputs == Path.cwd() / "outputs" else f" --outputs {shlex.quote(str(shown(outputs)))}"
    return shlex.quote(paths.folder.name) + where


def change_lines(paths: SweepPaths, changes: Changes) -> list[str]:
    """`sweep 'a' in outputs/a: 16 cells, 4 new, 12 kept`, and what becomes of runs that left the grid."""
    count = len(changes.new) + len(changes.kept)
    parts = [f"{len(changes.new)} new", f"{len(changes.kept)} kept"]
    parts += [f"{len(changes.grown)} with a larger budget"] if changes.grown else []
    lines = [f"sweep {paths.folder.name!r} in {shown(paths.folder)}: {count} cells, {', '.join(parts)}"]
    lines += changes.notices
    if changes.left:
        names = [cell_name(cell.values, dict.fromkeys(cell.values, ())) for cell in changes.left]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        lines.append(f"no longer in the grid, kept on disk: {'; '.join(names[:MOST_NAMED])}{more}")
    return lines


def unfinished_lines(
    paths: SweepPaths, sweep: SweepFile, statuses: Iterable[RunStatus], *, interrupted: bool
) -> list[str]:
    """Failed and killed runs with their last lines and logs; after an interruption only failures are news."""
    statuses = list(statuses)
    failed = [status for status in statuses if status.job == JobState.FAILED]
    stopped = [s for s in statuses if s.job in (JobState.KILLED, JobState.INTERRUPTED, JobState.LOST)]
    names = {cell.run_id: cell_name(cell.values, sweep.axes) for cell in sweep.cells}
    lines: list[str] = []
    for status in failed if interrupted else [*failed, *stopped]:
        lines += ["", f"{status.job}: {names[status.run_id]} ({status.run_id}), attempt {status.attempt}"]
        lines += [f"    {line}" for line in (status.detail or "").splitlines()]
        lines += [f"    log: {shown(status.log)}"] if status.log else []
    if failed:
        classes = sorted({str(status.failure) for status in failed if status.failure is not None})
        again = f"grposweep resume {quoted(paths)} --retry {','.join(classes)}"
        lines += ["", f"{len(failed)} failed; once the cause is gone: {again}"]
    if stopped and not interrupted:
        lines += ["", f"{len(stopped)} stopped before the end: the same command again continues them"]
    return lines


def next_lines(paths: SweepPaths, statuses: Mapping[str, RunStatus], *, synced: bool) -> list[str]:
    """What to do with a sweep that has run; nothing when no run has finished."""
    if not any(status.summary for status in statuses.values()):
        return []
    lines = ["", f"report:     grposweep report {quoted(paths)}"]
    if synced:  # the sync has said how to open the UI
        return lines
    from launcher.mlflow_sync import default_uri, ui_command

    sync = f"to MLflow:  grposweep sync {quoted(paths)}"
    return [*lines, sync, f"MLflow UI:  {ui_command(default_uri(paths))}"]
