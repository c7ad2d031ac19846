"""`submissions.jsonl`: what the launcher did, append-only, one JSON object per line, under the sweep's lock.

Every line has `event`, `time` (Unix seconds), `token` and `host`. A *token* names one submission; it is
recorded before anything is started, so that a launcher killed at any moment leaves a trace of what it meant
to start.

    submitted   executor   "local", "inline" or "slurm"
                code       content hash of the code snapshot
                runs       run ids, in the order in which they are to start
                site       Slurm only: the site profile as it was given, by name or path
                again      run id → class of the failure after which it is run again
                exclude    Slurm only: nodes that failed and are left out
    sending     name       the job's name, which no other job ever has; written before sbatch is called
                tasks      run ids of each array task
    accepted    name, job  the array's id in Slurm
    refused     name       no such job was made
                reason
    no_room     runs       left out, as no more may wait in Slurm at once
                reason
    started     run, attempt
                job        job id: the process id where the executor starts processes itself
                pid, born  process id on `host` and its start in clock ticks since boot (null when unknown)
    ended       run, attempt
                exit_code  null when a signal ended the job
                signal     its number, else null
                class      `End`

A `sending` that is neither accepted nor refused is of a launcher that died, or that Slurm did not answer:
Slurm is asked for a job of that name before anything else is sent. Jobs of Slurm tell about themselves in
`state.json` and `attempts.jsonl`; `started` and `ended` are written by a launcher that starts processes
itself. Readers pass over events and fields that they do not know.
"""

from __future__ import annotations

import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainer.errors import UserError
from trainer.files import LockHeldError, append_line, is_locked, locked, read_lines
from trainer.record import Exit, SweepPaths

SLURM = "slurm"
"""The executor of submissions to Slurm."""


class End(StrEnum):
    """How a job ended, from its exit status and its record."""

    FINISHED = "finished"
    FAILED = "failed"
    """An exception, an invalid run folder, or exit code 0 without a finished record."""
    INTERRUPTED = "interrupted"
    """Asked to stop: it wrote a checkpoint, or a request to stop ended it before it had begun to listen."""
    KILLED = "killed"
    """Any other signal ended it, with no chance to say goodbye."""
    BUSY = "busy"
    """Another process trains this run: nothing was attempted."""


def classify(exit_code: int | None, ended_by: int | None, recorded: bool) -> End:
    """How a job ended: by an exit code or by a signal. `recorded`: its record is a finished one."""
    if exit_code is None and ended_by not in REQUESTS:
        return End.KILLED
    if exit_code is None or exit_code == Exit.INTERRUPTED:
        return End.INTERRUPTED
    if exit_code == Exit.BUSY:
        return End.BUSY
    return End.FINISHED if exit_code == Exit.FINISHED and recorded else End.FAILED


REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask a process to stop."""


@dataclass(frozen=True, slots=True)
class Start:
    """A `started` line and, when there is one, the `ended` line of the same attempt."""

    token: str
    attempt: int
    pid: int
    born: int | None
    host: str
    exit_code: int | None = None
    signal: int | None = None
    end: End | None = None
    """None while the job runs, or when its launcher died first."""


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """An array task that was sent to Slurm."""

    token: str
    name: str
    index: int
    runs: tuple[str, ...]
    """All runs of the task."""
    sent: float
    """Unix time."""
    array: str | None = None
    """The array's id; None while it is not known whether Slurm took it."""

    @property
    def job(self) -> str | None:
        """As squeue has it: `17_3`."""
        return None if self.array is None else f"{self.array}_{self.index}"

    def output(self, paths: SweepPaths) -> Path:
        """What the job's script printed."""
        return paths.jobs / self.token / f"{self.name.rpartition('-')[2]}-{self.index}.out"


@dataclass(frozen=True, slots=True)
class Ledger:
    """What `submissions.jsonl` says, by run: its last start, or its last task in Slurm if that is newer."""

    last: Mapping[str, Start]
    """The last start of each run that really began (a `busy` one did not)."""
    waiting: frozenset[str]
    """Runs that a live launcher will start."""
    tasks: Mapping[str, SlurmTask] = field(default_factory=dict)
    """The last task of each run that Slurm may know."""
    no_room: frozenset[str] = frozenset()
    """Runs that were left out of the last submission to Slurm."""
    unanswered: Mapping[str, float] = field(default_factory=dict)
    """Names of jobs of which it is not known whether Slurm took them, and when they were sent."""
    site: str | None = None
    """Site profile of the last submission; None when that ran here."""
    again: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How often each run was run again after a failure of each class."""
    failed_nodes: Mapping[str, float] = field(default_factory=dict)
    """Nodes left out by earlier submissions, and when last."""


@contextmanager
def sweep_lock(paths: SweepPaths) -> Iterator[None]:
    """The lock under which the sweep folder and the ledger change."""
    try:
        with locked(paths.lock, wait=30):
            yield
    except LockHeldError as error:
        raise UserError(
            f"{error} for more than 30 seconds: wait until it ends, or end it, and repeat"
        ) from None


def new_token() -> str:
    """A name for one submission that sorts by time and is never given twice."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)


class LedgerWriter:
    """Appends the events of one submission."""

    def __init__(self, paths: SweepPaths, token: str) -> None:
        self._paths = paths
        self.token = token

    def submitted(self, executor: str, code: str, runs: Sequence[str], **more: Any) -> None:
        self._append("submitted", executor=executor, code=code, runs=list(runs), **more)

    def sending(self, name: str, tasks: Sequence[Sequence[str]]) -> None:
        self._append("sending", name=name, tasks=[list(runs) for runs in tasks])

    def accepted(self, name: str, job: str) -> None:
        self._append("accepted", name=name, job=job)

    def refused(self, name: str, reason: str) -> None:
        self._append("refused", name=name, reason=reason)

    def no_room(self, runs: Sequence[str], reason: str) -> None:
        self._append("no_room", runs=list(runs), reason=reason)

    def started(self, run: str, attempt: int, pid: int, born: int | None) -> None:
        self._append("started", run=run, attempt=attempt, job=str(pid), pid=pid, born=born)

    def ended(self, run: str, attempt: int, exit_code: int | None, signal: int | None, end: End) -> None:
        fields = {"exit_code": exit_code, "signal": signal, "class": str(end)}
        self._append("ended", run=run, attempt=attempt, **fields)

    def _append(self, event: str, **fields: Any) -> None:
        line = {"event": event, "time": time.time(), "token": self.token, "host": socket.gethostname()}
        with sweep_lock(self._paths):
            append_line(self._paths.submissions, line | fields)


def read_ledger(paths: SweepPaths) -> Ledger:
    """The ledger as it stands. A read writes nothing and takes no lock."""
    alive = is_locked(paths.runner_lock)
    begun: dict[str, list[Start | SlurmTask]] = {}
    last_submission: Mapping[str, Any] = {}
    sending: dict[str, Mapping[str, Any]] = {}
    no_room: set[str] = set()
    again: Counter[tuple[str, str]] = Counter()
    failed_nodes: dict[str, float] = {}
    for line in read_lines(paths.submissions):
        event, run = line.get("event"), line.get("run")
        if event == "submitted":
            last_submission = line
            no_room.difference_update(line["runs"])
            again.update(line.get("again", {}).items())
            failed_nodes |= dict.fromkeys(line.get("exclude", ()), line["time"])
        elif event == "started" and run is not None:
            start = Start(line["token"], line["attempt"], line["pid"], line["born"], line["host"])
            begun.setdefault(run, []).append(start)
        elif event == "ended" and run is not None and begun.get(run):
            _close(begun[run], line)
        elif event == "sending":
            sending[line["name"]] = line
            for name, task in _tasks(line):
                begun.setdefault(name, []).append(task)
        elif event == "accepted" and line.get("name") in sending:
            _answered(begun, sending.pop(line["name"]), line["job"])
        elif event == "refused" and line.get("name") in sending:
            _answered(begun, sending.pop(line["name"]), None)
        elif event == "no_room":
            no_room.update(line["runs"])
    newest = {run: items[-1] for run, items in begun.items() if items}
    last = {run: item for run, item in newest.items() if isinstance(item, Start)}
    token = last_submission.get("token")
    waiting = {run for run in last_submission.get("runs", ()) if run not in last or last[run].token != token}
    return Ledger(
        last,
        frozenset(waiting if alive and last_submission.get("executor") != SLURM else ()),
        {run: item for run, item in newest.items() if isinstance(item, SlurmTask)},
        frozenset(no_room),
        {name: line["time"] for name, line in sending.items()},
        last_submission.get("site"),
        again,
        failed_nodes,
    )


def _tasks(line: Mapping[str, Any]) -> Iterator[tuple[str, SlurmTask]]:
    """Run id and task of a `sending` line."""
    for index, runs in enumerate(line["tasks"]):
        for run in runs:
            yield run, SlurmTask(line["token"], line["name"], index, tuple(runs), line["time"])


def _answered(
    begun: Mapping[str, list[Start | SlurmTask]], sending: Mapping[str, Any], array: str | None
) -> None:
    """Note the array's id in the tasks that were sent; without one, they were never made."""
    for run, task in _tasks(sending):
        begun[run].remove(task)
        if array is not None:
            begun[run].append(replace(task, array=array))


def _close(begun: list[Start | SlurmTask], line: Mapping[str, Any]) -> None:
    """Note how the last start ended; one that found the run busy is taken back."""
    start = begun[-1]
    if not isinstance(start, Start) or (start.token, start.attempt) != (line["token"], line["attempt"]):
        return
    begun.pop()
    end = End(line["class"])
    if end != End.BUSY:
        begun.append(replace(start, exit_code=line["exit_code"], signal=line["signal"], end=end))
