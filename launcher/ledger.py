"""`submissions.jsonl`: what the launcher did, append-only, one JSON object per line, under the sweep's lock.

Every line has `event`, `time` (Unix seconds), `token` and `host`. A *token* names one submission; it is
recorded before anything is started, so that a launcher killed at any moment leaves a trace of what it meant
to start.

    submitted   executor   "local", "inline", …
                code       content hash of the code snapshot
                runs       run ids, in the order in which they are to start
    accepted    jobs       run id → job id that a batch system gave (text, `<array>_<task>` for arrays);
                           absent where the submission was refused or the launcher died in between, and then
                           the batch system is asked for jobs named after the token
    started     run, attempt
                job        job id: the process id where the executor starts processes itself
                pid, born  process id on `host` and its start in clock ticks since boot (null when unknown)
    ended       run, attempt
                exit_code  null when a signal ended the job
                signal     its number, else null
                class      `End`

A batch system writes `submitted` before it hands jobs over and `accepted` afterwards; its jobs tell about
themselves in `state.json` and `attempts.jsonl`, so `started` and `ended` are written by launchers that see
them happen. Readers pass over events and fields that they do not know.
"""

from __future__ import annotations

import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainer.errors import UserError
from trainer.files import LockHeldError, append_line, is_locked, locked, read_lines
from trainer.record import Exit, SweepPaths


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
class Ledger:
    """What `submissions.jsonl` says, by run."""

    last: Mapping[str, Start]
    """The last start of each run that really began (a `busy` one did not)."""
    waiting: frozenset[str]
    """Runs that a live launcher will start."""


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

    def submitted(self, executor: str, code: str, runs: Sequence[str]) -> None:
        self._append("submitted", executor=executor, code=code, runs=list(runs))

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
    starts: dict[str, list[Start]] = {}
    last_submission: Mapping[str, Any] = {}
    for line in read_lines(paths.submissions):
        event, run = line.get("event"), line.get("run")
        if event == "submitted":
            last_submission = line
        elif event == "started" and run is not None:
            begun = Start(line["token"], line["attempt"], line["pid"], line["born"], line["host"])
            starts.setdefault(run, []).append(begun)
        elif event == "ended" and run in starts:
            _close(starts[run], line)
    last = {run: begun[-1] for run, begun in starts.items() if begun}
    token = last_submission.get("token")
    waiting = {run for run in last_submission.get("runs", ()) if run not in last or last[run].token != token}
    return Ledger(last, frozenset(waiting if alive else ()))


def _close(begun: list[Start], line: Mapping[str, Any]) -> None:
    """Note how the last start ended; one that found the run busy is taken back."""
    if not begun or (begun[-1].token, begun[-1].attempt) != (line["token"], line["attempt"]):
        return
    end = End(line["class"])
    start = begun.pop()
    if end != End.BUSY:
        begun.append(
            Start(
                start.token,
                start.attempt,
                start.pid,
                start.born,
                start.host,
                line["exit_code"],
                line["signal"],
                end,
            )
        )
