"""`gc`: free what finished runs no longer need, and what killed processes left half written.

Of a run whose result is final, the last checkpoint keeps weights and counters: `export` works, training on
does not. Older checkpoints go. A kill at any moment leaves checkpoints that are whole, slimmed or ignored,
never one that a trainer would take for whole: the marker is rewritten first, and says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launcher.confirm import confirmed
from launcher.messages import quoted, say
from launcher.runner import runner_lock
from launcher.state import OPEN_OUTCOMES, RunStatus
from launcher.sweep_view import Reader, View
from trainer.files import locked, read_json, write_json
from trainer.record import CHECKPOINT_MARKER, JobState, RunPaths, SweepPaths

KEPT = ("weights.safetensors", "meta.json", CHECKPOINT_MARKER)
"""Of a slimmed checkpoint."""
SLIM, OLD, HALF = "state of the optimizer and the store", "older checkpoints", "half-written folders"


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can go."""

    kind: str
    run: RunPaths
    path: Path
    """A checkpoint to slim, or a folder to delete."""
    size: int
    """Bytes that are freed."""


def collect(
    paths: SweepPaths, words: Sequence[str], console: Console, *, stable: bool = False, yes: bool = False
) -> int:
    """Show what can go, and delete it once that is confirmed. Returns the exit code.

    `stable`: slim runs too that `extend` could have continued.
    """
    with runner_lock(paths):
        view = Reader(paths).look(words)
        items = [item for run in view.statuses for item in _of_run(view, paths.run(run), stable)]
        if not items:
            say(console, "nothing to free: no selected run has finished with a state that nothing needs")
            return 0
        console.print(_table(items))
        if not stable and (count := _extensible(view)):
            say(console, f"{count} runs keep theirs for `grposweep extend`; --stable slims them too")
        total = sum(item.size for item in items)
        if not confirmed(f"Free {megabytes(total)} in {quoted(paths)}?", yes=yes):
            say(console, "nothing was deleted")
            return 0
        for item in items:
            _free(item)
        say(console, f"freed {megabytes(total)}")
    return 0


def _of_run(view: View, run: RunPaths, stable: bool) -> Iterator[Item]:
    """What can go of one run; nothing of one that is, or may be, at work."""
    status = view.statuses[run.run_id]
    if status.job in (JobState.RUNNING, JobState.QUEUED, JobState.FINISHING, JobState.UNKNOWN):
        return
    found = sorted(run.checkpoints.glob("step-*"))
    complete = [path for path in found if (path / CHECKPOINT_MARKER).is_file()]
    for path in [*run.checkpoints.glob(".*.building"), *(path for path in found if path not in complete)]:
        yield Item(HALF, run, path, _bytes([*path.rglob("*")]))
    if status.job == JobState.FINISHED:
        for path in complete[:-1]:
            yield Item(OLD, run, path, _bytes([*path.rglob("*")]))
    if complete and _is_final(status, stable):
        extra = [path for path in complete[-1].iterdir() if path.name not in KEPT]
        if extra:
            yield Item(SLIM, run, complete[-1], _bytes(extra))


def _is_final(status: RunStatus, stable: bool) -> bool:
    return status.job == JobState.FINISHED and (stable or status.outcome not in OPEN_OUTCOMES)


def _extensible(view: View) -> int:
    return sum(s.job == JobState.FINISHED and s.outcome in OPEN_OUTCOMES for s in view.statuses.values())


def _free(item: Item) -> None:
    """Delete, or slim; nothing happens to a run that has begun to train meanwhile."""
    with locked(item.run.lock):
        if item.kind != SLIM:
            (item.path / CHECKPOINT_MARKER).unlink(missing_ok=True)
            shutil.rmtree(item.path)
            return
        marker = read_json(item.path / CHECKPOINT_MARKER) or {}
        kept = {name: value for name, value in marker["sha256"].items() if name in KEPT}
        write_json(item.path / CHECKPOINT_MARKER, marker | {"sha256": kept, "slimmed": True})
        for path in item.path.iterdir():
            if path.name not in KEPT:
                path.unlink()


def _table(items: Sequence[Item]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("what", "runs", "size"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for kind in (SLIM, OLD, HALF):
        found = [item for item in items if item.kind == kind]
        if found:
            runs = len({item.run.run_id for item in found})
            table.add_row(kind, str(runs), megabytes(sum(item.size for item in found)))
    return table


def _bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def megabytes(size: int) -> str:
    """`12.3 MB`, `4.5 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
