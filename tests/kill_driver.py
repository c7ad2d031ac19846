"""Trains a run in child processes that kill themselves with SIGKILL in the middle of chosen moments.

    python -P kill_driver.py RUN_FOLDER '[["journal", 5], ["sync", 2], …]'

Each entry is a moment and which occurrence of it, counted from the start of that child, is the last thing the
child does. After the last entry one more child runs undisturbed. Prints a JSON list: one entry per child, the
moment that killed it or its exit code. The children are forked after the imports, which saves their seconds.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trainer.checkpoint as checkpoint
import trainer.job as job
import trainer.journal as journal
import trainer.lockstep as lockstep
import trainer.running_attempt as running_attempt
import trainer.usage as usage


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at(count: int, action: Callable[..., Any], dying: Callable[..., None]) -> Callable[..., Any]:
    """`action`, but its `count`-th call is `dying`."""
    calls = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            dying(*arguments, **named)
            die()
        return action(*arguments, **named)

    return counted


def torn_line(self: journal.Journals, name: str, line: dict[str, Any]) -> None:
    text = (json.dumps(line) + "\n").encode()
    self._files[name].write(text[: len(text) // 2])


def half_copied(source: Any, target: Any) -> None:
    pairs = list(zip(source.parameters(), target.parameters(), strict=True))
    for new, old in pairs[: len(pairs) // 2]:
        old.data.copy_(new.data)


def half_written(path: Path, content: Any, **named: Any) -> None:
    text = json.dumps(content) if isinstance(content, dict) else content
    data = text.encode() if isinstance(text, str) else text
    path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(data[: len(data) // 2])


def half_saved(tensors: Any, path: Path) -> None:
    path.write_bytes(b"\0" * 100)


def without_marker(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data)[:20])


def tails_only(folder: Path, lengths: Any, tail: Path) -> None:
    tail.parent.mkdir(exist_ok=True)
    with tail.open("a") as file:
        file.write(json.dumps({"journal": "metrics", "line": "moved before the kill"}) + "\n")


def nothing(*arguments: Any, **named: Any) -> None:
    pass


MOMENTS: dict[str, tuple[Any, str, Callable[..., None]]] = {
    "checkpoint": (checkpoint, "save_file", half_saved),
    "marker": (checkpoint, "write_json", without_marker),
    "prune": (checkpoint, "prune_checkpoints", nothing),
    "journal": (journal.Journals, "append", torn_line),
    "sync": (lockstep, "copy_weights", half_copied),
    "usage": (usage, "write_atomic", half_written),
    "summary": (job, "write_json", half_written),
    "resume": (lockstep, "cut_journals", tails_only),
    "heartbeat": (running_attempt, "write_atomic", half_written),
}


def child(folder: Path, moment: str | None, count: int) -> int:
    if moment is not None:
        owner, name, dying = MOMENTS[moment]
        setattr(owner, name, at(count, getattr(owner, name), dying))
    return int(job.run_job(folder))


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    ends = []
    for moment, count in [*plan, [None, 0]]:
        pid = os.fork()
        if pid == 0:
            os._exit(child(folder, moment, count))
        _, status = os.waitpid(pid, 0)
        ends.append(
            moment
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            else os.waitstatus_to_exitcode(status)
        )
    print(json.dumps(ends))


main()
