"""Processes as /proc shows them. Zombies do not count: where PID 1 reaps nobody they stay for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from slurm.cluster.errors import ClusterError

PROC = Path("/proc")


def parents() -> dict[int, int]:
    """The parent of every living process."""
    found = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended meanwhile
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found


def descendants(roots: Collection[int]) -> set[int]:
    """All processes below the roots, without the roots."""
    children: dict[int, list[int]] = {}
    for process, parent in parents().items():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        new = [child for child in children.get(todo.pop(), []) if child not in found]
        found.update(new)
        todo.extend(new)
    return found


def environment(process: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it ended or belongs to somebody else."""
    try:
        text = (PROC / str(process) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def send(processes: Collection[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def kill_all(find: Callable[[], set[int]], seconds: float = 20) -> None:
    """Kills what `find` returns until it returns nothing.

    All are stopped before any is killed, so that none can notice, report or start another one meanwhile: as
    when the power fails.
    """
    end = time.monotonic() + seconds
    while True:
        found = find()
        if not found:
            return
        if time.monotonic() > end:
            raise ClusterError(f"processes {sorted(found)} do not end")
        send(found, signal.SIGSTOP)
        send(found, signal.SIGKILL)
        time.sleep(0.02)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
