"""The foreground loop that starts the jobs of a sweep, watches them and puts down what happened.

    to start ──► executor (slots) ──► ended ──► ledger
        ▲                                │
        └── trained by another process ◄─┘   (an orphan of a killed launcher: waited for, never doubled)

Two locks keep a run from being trained twice: the runner lock admits one loop per sweep, and the lock that
each job takes on its own run covers jobs that outlive their launcher. The kernel frees both when their holder
dies.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from launcher.executors import Ended, Executor
from launcher.ledger import End, LedgerWriter, classify, read_ledger
from launcher.progress import Progress
from launcher.state import RunStatus, job_state, job_states
from trainer.attempts import next_attempt
from trainer.budget import Budget
from trainer.errors import UserError
from trainer.files import LockHeldError, locked
from trainer.record import (
    JobState,
    SweepFile,
    SweepPaths,
    read_budget,
    read_config,
    read_state,
)

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation

TICK = 0.1
"""Seconds between two looks at the jobs."""
FOREIGN_SECONDS = 0.5
"""Seconds between two looks at runs that another process trains."""
GRACE = 60.0
"""Seconds that jobs get to write a checkpoint before they are killed."""
MOST_BUSY = 5
"""Starts of one run that may find it busy; more means its lock is not what keeps it busy."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a foreground run of a sweep ended."""

    statuses: Mapping[str, RunStatus]
    """Every run of the grid."""
    interrupted: bool

    @property
    def unfinished(self) -> list[RunStatus]:
        return [status for status in self.statuses.values() if status.job != JobState.FINISHED]

    @property
    def exit_code(self) -> int:
        """0 all finished, 1 some did not, 130 interrupted."""
        return 130 if self.interrupted else int(bool(self.unfinished))


@contextmanager
def runner_lock(paths: SweepPaths) -> Iterator[None]:
    """Held by the one command that changes and runs a sweep; a second one is told who holds it."""
    try:
        with locked(paths.runner_lock):
            yield
    except LockHeldError as error:
        holder = str(error).rsplit(" ", 1)[-1]
        name = paths.folder.name
        raise UserError(
            f"sweep {name!r} is being run by process {holder}, and a cell must not run twice: watch it with "
            f"`grposweep status`, or end it (kill {holder}) and repeat this command"
        ) from None


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP instead of dying of them, for the block."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # what was ignored stays ignored: nohup, or a shell's background job
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def longest_first(
    statuses: Mapping[str, RunStatus], budgets: Mapping[str, Budget], runs: Sequence[str]
) -> list[str]:
    """Runs by updates still to do, most first.

    Starting the longest job first is the classic rule against one core finishing long after the others: what
    is started last, and may stick out, is short. Equal runs keep the order of the grid.
    """

    def remaining(run_id: str) -> int:
        state = statuses[run_id].state
        return budgets[run_id].horizon - (state.step if state else 0)

    return sorted(runs, key=remaining, reverse=True)


class Runner:
    """Runs jobs until all are done or a person stops it. The caller holds the runner lock."""

    def __init__(
        self,
        paths: SweepPaths,
        sweep: SweepFile,
        executor: Executor,
        ledger: LedgerWriter,
        progress: Progress,
        *,
        grace: float = GRACE,
        observation: Observation | None = None,
    ) -> None:
        """`observation`: what Slurm says of runs that were sent there before and are not to run here."""
        self._paths = paths
        self._executor = executor
        self._ledger = ledger
        self._progress = progress
        self._grace = grace
        self._observation = observation
        self._attempts: dict[str, int] = {}
        self._ready: list[str] = []
        self._foreign: set[str] = set()
        self._busy: dict[str, int] = {}
        self._next_foreign = 0.0
        runs = [paths.run(cell.run_id) for cell in sweep.cells]
        self._runs = runs
        self._statuses = job_states(runs, read_ledger(paths), observation)

    def run(self, todo: Sequence[str]) -> Result:
        """Start `todo` in this order, as many at once as the executor has slots; wait for all to end."""
        self._ready = list(todo)
        self._foreign = {run for run, status in self._statuses.items() if status.job == JobState.RUNNING}
        for run_id in self._ready:
            self._queue(run_id)
        if self._foreign:
            self._progress.say(
                f"waiting for {len(self._foreign)} job(s) of an earlier launcher that are still running"
            )
        with StopSignals() as stop, self._progress:
            try:
                while (self._ready or self._foreign or self._executor.running) and not stop.count:
                    self._tick()
                    time.sleep(TICK)
                if stop.count:
                    self._stop(stop)
            finally:
                self._end_jobs(0.0 if stop.count else self._grace)
            self._statuses = job_states(self._runs, read_ledger(self._paths), observation=self._observation)
            self._progress.show(self._statuses)
        return Result(self._statuses, bool(stop.count))

    def _tick(self) -> None:
        self._collect()
        if self._foreign and time.monotonic() >= self._next_foreign:
            self._look_at_foreign()
        while self._ready and len(self._executor.running) + len(self._foreign) < self._executor.slots:
            self._start(self._ready.pop(0))
        if self._progress.due():
            for run_id in self._executor.running:
                self._statuses[run_id] = self._running(run_id)
            self._progress.show(self._statuses)

    def _start(self, run_id: str) -> None:
        run = self._paths.run(run_id)
        attempt = self._attempts[run_id] = next_attempt(run)
        started = self._executor.start(run, attempt, read_config(run).resources.threads)
        self._ledger.started(run_id, attempt, started.pid, started.born)
        self._statuses[run_id] = self._running(run_id)

    def _collect(self) -> None:
        for ended in self._executor.ended():
            end = self._record(ended)
            if end == End.BUSY:
                self._busy[ended.run_id] = self._busy.get(ended.run_id, 0) + 1
                if self._busy[ended.run_id] < MOST_BUSY:
                    self._foreign.add(ended.run_id)
                    continue
            self._settle(ended.run_id)

    def _record(self, ended: Ended) -> End:
        run = self._paths.run(ended.run_id)
        state = read_state(run)
        recorded = state is not None and state.state == "finished" and run.summary.is_file()
        end = classify(ended.exit_code, ended.signal, recorded)
        self._ledger.ended(ended.run_id, ended.attempt, ended.exit_code, ended.signal, end)
        return end

    def _settle(self, run_id: str) -> None:
        """Take over what is on disk about a run that ended."""
        self._statuses[run_id] = job_state(self._paths.run(run_id), read_ledger(self._paths))
        self._progress.ended(self._statuses[run_id])

    def _look_at_foreign(self) -> None:
        self._next_foreign = time.monotonic() + FOREIGN_SECONDS
        ledger = read_ledger(self._paths)
        for run_id in sorted(self._foreign):
            run = self._paths.run(run_id)
            status = self._statuses[run_id] = job_state(run, ledger)
            if status.job == JobState.RUNNING:
                continue
            self._foreign.remove(run_id)
            if status.to_run(read_budget(run)):
                self._ready.append(run_id)
                self._queue(run_id)
            else:
                self._progress.ended(status)

    def _queue(self, run_id: str) -> None:
        self._statuses[run_id] = replace(self._statuses[run_id], job=JobState.QUEUED, summary=None)

    def _running(self, run_id: str) -> RunStatus:
        attempt = self._attempts[run_id]
        state = read_state(self._paths.run(run_id))
        if state is not None and state.attempt != attempt:
            state = None
        return RunStatus(run_id, JobState.RUNNING, attempt, state, None)

    def _stop(self, stop: StopSignals) -> None:
        """Ask the jobs to end, wait a bounded time, kill what is left or when asked a second time."""
        running = self._executor.running
        if not running:
            return
        asked = stop.count
        self._progress.say(
            f"stopping: {len(running)} running job(s) write a checkpoint and end; Ctrl-C again kills them"
        )
        self._executor.terminate()
        deadline = time.monotonic() + self._grace
        while self._executor.running and stop.count == asked and time.monotonic() < deadline:
            time.sleep(TICK)
            self._collect()

    def _end_jobs(self, grace: float) -> None:
        """Leave no job behind, however the loop ended."""
        self._executor.terminate()
        self._wait(grace)
        self._executor.kill()
        self._wait(10)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._executor.running and time.monotonic() < deadline:
            time.sleep(TICK)
            self._collect()
