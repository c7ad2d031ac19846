"""A run's journals while it trains: append-only, flushed per line, cut back only by a resume."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self


class Journals:
    """The open journals of one attempt, by name (`metrics` writes metrics.jsonl).

    `fence` is called right before each line; what it raises leaves the line unwritten.
    """

    def __init__(
        self, folder: Path, names: tuple[str, ...], fence: Callable[[], None] = lambda: None
    ) -> None:
        self._fence = fence
        self._files: dict[str, BinaryIO] = {
            name: (folder / f"{name}.jsonl").open("ab", buffering=0) for name in names
        }

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Hand one line to the kernel; a kill of this process can no longer lose it."""
        self._fence()
        self._files[name].write((json.dumps(line, allow_nan=False) + "\n").encode())

    def sync(self) -> dict[str, int]:
        """Make all lines durable; returns each journal's length in bytes, for the checkpoint."""
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()


def cut_journals(folder: Path, lengths: Mapping[str, int], tail: Path) -> int:
    """Cut each journal back to its length at the checkpoint; what is cut moves to `tail` first.

    Returns the number of lines moved. Raises `ValueError` when a journal is shorter than the checkpoint
    says: then lines are missing that the checkpoint rests on.
    """
    moved: list[str] = []
    for name, length in lengths.items():
        path = folder / f"{name}.jsonl"
        content = path.read_bytes() if path.exists() else b""
        if len(content) < length:
            raise ValueError(f"{path} has {len(content)} bytes, the checkpoint was written at {length}")
        lines = content[length:].decode(errors="replace").splitlines()
        moved += [json.dumps({"journal": name, "line": line}) for line in lines]
    if moved:
        tail.parent.mkdir(parents=True, exist_ok=True)
        with tail.open("a", encoding="utf-8") as file:
            file.write("\n".join(moved) + "\n")
            file.flush()
            os.fsync(file.fileno())
    for name, length in lengths.items():
        path = folder / f"{name}.jsonl"
        if path.exists():
            os.truncate(path, length)
    return len(moved)
