"""The attempt that this process makes at a run: its lines in the record, its heartbeat, whether to stop."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from trainer.attempts import next_attempt, read_attempts, slurm_job
from trainer.files import append_line, read_lines, write_atomic
from trainer.lockstep import Lockstep
from trainer.record import RunPaths, RunState

HEARTBEAT_SECONDS = 0.5


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A signal, or the launcher's death, asked the job to stop."""


class Superseded(Exception):  # noqa: N818 - no error of this attempt's
    """A newer attempt has started: this one must write nothing more."""


class Attempt:
    """The running attempt: its number, its heartbeat, whether it was asked to stop, whether it is the newest.

    Where the file system keeps no locks, Slurm can start a lost node's task again while the first process
    lives on. Then attempts.jsonl decides: whoever finds a later `started` line in it than its own stops. It
    looks before each update and again right before it writes. What remains is the instant between that look
    and the write: a process that stalls there for longer than the newer attempt needs to start and to
    restore, as on a node whose file system hangs, writes one more update or checkpoint when it wakes.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.number = next_attempt(paths)
        self.launcher = int(os.environ.get("GRPOSWEEP_LAUNCHER", "0"))
        self.stop_reason: str | None = None
        self.last_beat = (0.0, 0, 0)
        self.seen = -1
        """Size of attempts.jsonl when it was last read."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as requests to stop, for the block."""
        before = {number: signal.signal(number, self._asked) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.stop_reason = signal.Signals(number).name

    def check(self) -> None:
        """Raise `Superseded`, or `Interrupted` when the job was asked to stop or its launcher is gone."""
        self.fence()
        if self.launcher and os.getppid() != self.launcher:
            self.stop_reason = self.stop_reason or "the launcher ended"
        if self.stop_reason:
            raise Interrupted(self.stop_reason)

    def fence(self) -> None:
        """Raise `Superseded` when a newer attempt has started."""
        # opened, as a network file system asks its server for the true size only then
        with self.paths.attempts.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
        if size != self.seen and self._is_superseded():
            raise Superseded
        self.seen = size

    def _is_superseded(self) -> bool:
        """Whether the last `started` line is another's; its number may be the same if both began at once."""
        started = [line for line in read_lines(self.paths.attempts) if line.get("event") == "started"]
        return bool(started) and (started[-1].get("pid"), started[-1].get("host")) != self._process

    @property
    def _process(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def note_start(self) -> None:
        """Append the `started` line; what an earlier refusal said is out of date then."""
        job, restart = slurm_job(os.environ)
        self.note(
            "started",
            job=job,
            restart=restart,
            node=os.environ.get("SLURMD_NODENAME"),
            devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            code=os.environ.get("GRPOSWEEP_CODE"),
        )
        self.paths.refused.unlink(missing_ok=True)

    def note_end(self, how: str, engine: Lockstep | None, reason: str | None = None) -> None:
        """Append the `ended` line."""
        step = engine.step if engine else 0
        self.note("ended", how=how, reason=reason, step=step, **peak_memory())

    def note(self, event: str, **details: object) -> None:
        """Append to attempts.jsonl."""
        line = {"attempt": self.number, "event": event, "time": time.time(), "host": socket.gethostname()}
        append_line(self.paths.attempts, line | {"pid": os.getpid()} | details)

    def write_state(self, state: str, engine: Lockstep | None, error: str | None = None) -> None:
        """Replace state.json; raises `Superseded` when it is another attempt's."""
        self.fence()
        now = time.monotonic()
        step, tokens = (engine.step, engine.tokens) if engine else (0, 0)
        then, before, tokens_before = self.last_beat
        self.last_beat = (now, step, tokens)
        verdict = engine.detector.verdict() if engine else None
        moved = bool(then) and step > before
        data = RunState(
            state=state,
            attempt=self.number,
            pid=os.getpid(),
            host=socket.gethostname(),
            heartbeat=time.time(),
            step=step,
            horizon=engine.target if engine else 0,
            reward=verdict.final if verdict else None,
            alarm=bool(verdict and verdict.alarm_step is not None),
            collapsed=bool(verdict and verdict.confirmed_step is not None),
            updates_per_second=(step - before) / (now - then) if moved else None,
            tokens_per_second=(tokens - tokens_before) / (now - then) if moved else None,
            lag=engine.lag if engine else None,
            error=error,
        )
        write_atomic(self.paths.state, data.model_dump_json(indent=2) + "\n", durable=state != "running")

    def due(self) -> bool:
        return time.monotonic() - self.last_beat[0] >= HEARTBEAT_SECONDS


def close_last_attempt(paths: RunPaths) -> None:
    """Write the end of an earlier attempt that was killed before it could."""
    # the last that started: a supervisor's `left` may stand alone, of a trainer that never came so far
    started = [attempt for attempt in read_attempts(paths) if attempt.started is not None]
    if started and started[-1].ended is None:
        line = {"attempt": started[-1].number, "event": "ended", "time": time.time(), "how": "killed"}
        append_line(paths.attempts, line)


def peak_memory() -> dict[str, int | None]:
    """Most memory that this process used so far, and most that it used of its GPU, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
    return {
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "peak_device_memory": device,
    }
