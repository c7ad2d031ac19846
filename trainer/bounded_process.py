"""Run programs with input and output in memory, a limit of time, and none left behind. Torch-free."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

OUTPUT_KEPT = 1 << 20
"""Bytes kept of a program's output, from its beginning; the rest is read and dropped."""
ERRORS_KEPT = 2000
"""Bytes kept of a program's standard error, from its end."""
_CHUNK = 1 << 16
_EXIT_CHECK = 0.1
"""Seconds between looks at whether the program has ended though a child of it holds its output open."""


_SHIELD = 'trap "" TERM INT; ulimit -v "$0"; exec "$@"'


def shielded(arguments: Sequence[str], memory_limit_mb: int) -> list[str]:
    """Command of a program that TERM and INT do not end, within MiB of address space; it costs one sh.

    Slurm sends TERM to every process of a step, and Ctrl-C goes to all of a terminal. The trainer takes them
    as a request and goes on to its next checkpoint; a program that ends meanwhile would spoil the record of
    that update. What the program starts ignores both as well, unless it sets them anew: it has to use KILL.
    All this binds before the program begins, and takes no code between fork and exec, which threads forbid.
    """
    return ["/bin/sh", "-c", _SHIELD, str(memory_limit_mb * 1024), *arguments]


@dataclass(frozen=True, slots=True)
class Outcome:
    output: bytes
    errors: bytes
    failure: str | None
    """`exit status 3`, `killed by SIGSEGV`, `took longer than 10 s`; None: it ended with status 0."""


class ProcessGroups:
    """Programs run by several threads, each in a session of its own; a context that kills them at its end.

    `run` may be called from any thread. After the context has ended, also by an exception in the thread that
    opened it, no process of any of them is left, and `run` starts none.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def __enter__(self) -> ProcessGroups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill_group(process)

    def run(self, arguments: Sequence[str], data: bytes, limit: float) -> Outcome:
        """Run a program on `data`; it and all that it started are gone after `limit` seconds."""
        deadline = time.monotonic() + limit
        with self._lock:
            if self._ended:
                return Outcome(b"", b"", "not started")
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, errors, in_time = _exchange(process, data, deadline)
        finally:
            _kill_group(process)
            process.wait()
            with self._lock:
                self._running.discard(process)
        failure = f"took longer than {limit:g} s" if not in_time else _ending(process.returncode)
        return Outcome(output, errors, failure)


def _exchange(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> tuple[bytes, bytes, bool]:
    """Feed and read a program until it has ended: output, standard error, and whether it ended in time."""
    assert process.stdin and process.stdout and process.stderr
    output, errors = bytearray(), bytearray()
    unsent = memoryview(data)
    with process.stdin, process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        ended = False
        while process.stdout in _open(selector) or process.stderr in _open(selector):
            left = deadline - time.monotonic()
            if left <= 0:
                return bytes(output), bytes(errors), False
            ready = selector.select(0 if ended else min(left, _EXIT_CHECK))
            if not ready and ended:
                # what it wrote is read; a child that it left holds the pipes open
                break
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    unsent = _write(process.stdin, unsent)
                    if not unsent:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    output += chunk[: OUTPUT_KEPT - len(output)]
                else:
                    errors += chunk
                    del errors[:-ERRORS_KEPT]
            ended = ended or process.poll() is not None
        while process.poll() is None:
            # it closed its output and goes on
            if time.monotonic() >= deadline:
                return bytes(output), bytes(errors), False
            time.sleep(0.005)
    return bytes(output), bytes(errors), True


def _open(selector: selectors.BaseSelector) -> set[object]:
    return {key.fileobj for key in selector.get_map().values()}


def _write(pipe: IO[bytes], unsent: memoryview) -> memoryview:
    """Write what fits; what is left, nothing if the program reads no more."""
    try:
        return unsent[os.write(pipe.fileno(), unsent[:_CHUNK]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and what it started, unless that made a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # nobody is left; macOS says that it is not permitted where only unreaped members are
        return


def _ending(status: int) -> str | None:
    if status >= 0:
        return f"exit status {status}" if status else None
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
