"""What a person sees while a sweep runs: a live table on a terminal, plain lines elsewhere.

Costs little on purpose: at most one refresh a second, drawn in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launcher.board import board, cell_name, in_words, tally
from launcher.state import RunStatus
from trainer.record import JobState, SweepFile

LIVE_SECONDS = 1.0
PLAIN_SECONDS = 5.0


def time_left(remaining: Iterable[int], rates: Iterable[float], slots: int) -> float | None:
    """Seconds until all runs reach their horizon, collapses not foreseen; None while no rate is known.

    `remaining` are the updates that each unfinished run still has to do, `rates` the updates per second of
    the running ones. No run is faster for being the last: the longest one alone is a lower bound.
    """
    remaining, rates = list(remaining), [rate for rate in rates if rate > 0]
    if not rates or not remaining:
        return None
    mean = sum(rates) / len(rates)
    return max(sum(remaining) / (mean * max(1, min(slots, len(remaining)))), max(remaining) / mean)


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Shows the states it is given; `due` says when it wants them again."""

    def __init__(self, console: Console, sweep: SweepFile, horizons: Mapping[str, int], slots: int) -> None:
        self._console = console
        self._sweep = sweep
        self._horizons = horizons
        self._slots = slots
        self._names = {cell.run_id: cell_name(cell.values, sweep.axes) for cell in sweep.cells}
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next = 0.0

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def due(self) -> bool:
        """Whether it is time to show the states again."""
        return time.monotonic() >= self._next

    def show(self, statuses: Mapping[str, RunStatus]) -> None:
        """Draw the states of all runs of the grid, by run id."""
        self._next = time.monotonic() + (LIVE_SECONDS if self._live is not None else PLAIN_SECONDS)
        line = self.line(statuses)
        if self._live is not None:
            table: Table | None = board(self._sweep, statuses)
            self._live.update(Group(table, Text(line)) if table else Text(line), refresh=True)
        else:
            self.say(f"{time.strftime('%H:%M:%S')}  {line}")

    def say(self, line: str) -> None:
        """A line that stays, above the live table."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def ended(self, status: RunStatus) -> None:
        """Tell of one run that ended; on a terminal the table shows it, failures apart."""
        name = f"{self._names[status.run_id]} ({status.run_id})"
        if status.job in (JobState.FAILED, JobState.KILLED):
            last = (status.detail or "").strip().splitlines()
            # a traceback says it in its last line, a kill in its first
            reason = (last[-1] if status.job == JobState.FAILED else last[0]) if last else "no reason known"
            self.say(f"{status.job}: {name}: {reason}")
        elif self._live is None and status.summary is not None:
            self.say(f"{status.outcome}: {name} after {status.summary.updates} updates")

    def line(self, statuses: Mapping[str, RunStatus]) -> str:
        """`7/16 done: 5 stable, 2 collapsed; 2 running; 212 updates/s; about 1 min 05 s left`."""
        done = [status for status in statuses.values() if status.job == JobState.FINISHED]
        running = [status for status in statuses.values() if status.job == JobState.RUNNING]
        bad = [s for s in statuses.values() if s.job in (JobState.FAILED, JobState.KILLED)]
        rates = [status.state.updates_per_second or 0.0 for status in running if status.state is not None]
        waiting = (JobState.QUEUED, JobState.RUNNING)
        remaining = [self._remaining(s) for s in statuses.values() if s.job in waiting]
        left = time_left(remaining, rates, self._slots)
        parts = [f"{len(done)}/{len(statuses)} done" + (f": {in_words(tally(done))}" if done else "")]
        parts += [f"{len(running)} running"] if running else []
        parts += [in_words(tally(bad))] if bad else []
        total = sum(rates)
        parts += [f"{total:{'.0f' if total >= 10 else '.2g'}} updates/s"] if any(rates) else []
        parts += [f"about {duration(left)} left"] if left is not None else []
        return "; ".join(parts)

    def _remaining(self, status: RunStatus) -> int:
        done = status.state.step if status.state is not None else 0
        return max(0, self._horizons[status.run_id] - done)
