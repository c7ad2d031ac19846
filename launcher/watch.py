"""`status --watch`: the state of a sweep again and again, until nothing runs or waits any more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.live import Live

from launcher.messages import say, unfinished_lines
from launcher.pace import Paces, remaining
from launcher.progress import duration
from launcher.status import heading, live, parts
from launcher.sweep_view import Reader, View
from trainer.record import JobState, SweepPaths

LIVE_SECONDS = 2.0
PLAIN_SECONDS = 10.0
INTERRUPTED = 130


def watch(paths: SweepPaths, console: Console, words: Sequence[str] = ()) -> int:
    """Show the sweep until it rests; returns the exit code, 130 after Ctrl-C.

    A terminal shows the whole view, redrawn; anything else gets a line now and then. The runs are those that
    `words` select at the first look, whatever becomes of them.
    """
    reader, paces = Reader(paths), Paces()
    view = reader.look(words)
    only = frozenset(view.statuses) if words else None
    pause = LIVE_SECONDS if console.is_terminal else PLAIN_SECONDS
    try:
        with _display(console) as display:
            while True:
                if display is None:
                    say(console, f"{time.strftime('%H:%M:%S')}  {plain_line(view, paces)}")
                else:
                    display.update(live(view, paces, listed=bool(words)), refresh=True)
                if not view.active:
                    break
                time.sleep(pause)
                view = reader.look(only=only)
    except KeyboardInterrupt:
        return INTERRUPTED
    if not console.is_terminal:
        for part in parts(view, paces, listed=bool(words)):
            say(console, part) if isinstance(part, str) else console.print(part)
    say(console, *unfinished_lines(paths, view.sweep, view.statuses.values(), interrupted=False))
    return 0


def _display(console: Console) -> AbstractContextManager[Live | None]:
    return Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()


def plain_line(view: View, paces: Paces) -> str:
    """The view in one line: counts, speed, what is left."""
    states = [s.state for s in view.statuses.values() if s.job == JobState.RUNNING and s.state is not None]
    speed = sum(state.updates_per_second or 0.0 for state in states)
    left = remaining(view, paces.measure(view))
    pieces = [heading(view)]
    pieces += [f"{speed:.3g} updates/s"] if speed else []
    pieces += [f"{left.updates} updates left"] if left.runs else []
    pieces += [f"{duration(left.core_seconds)} of core time"] if left.core_seconds else []
    return "; ".join([*pieces, *view.notices])
