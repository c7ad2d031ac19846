"""Files that survive a kill at any moment: atomic replacement, append-only journals, owner locks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replace `path` as a whole: a reader sees the old content or the new, never a part.

    `durable=False` leaves it to the kernel when the content reaches the disk; for heartbeats.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically; refuses NaN and infinities."""
    write_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {type(data).__name__}, not a JSON object")
    return data


def write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a YAML file atomically; floats are written so that they read back as floats."""
    write_atomic(path, yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {type(data).__name__}, not a mapping")
    return data


def finite(data: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with NaN and infinities replaced by null and named under `nonfinite`.

    >>> finite({"a": 1.0, "b": float("nan")})
    {'a': 1.0, 'b': None, 'nonfinite': {'b': 'nan'}}
    """
    bad = {
        key: str(value)
        for key, value in data.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    clean = {key: None if key in bad else value for key, value in data.items()}
    return clean | ({"nonfinite": bad} if bad else {})


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append one JSON line to a rarely written journal, durable when this returns.

    A line torn by an earlier kill is closed first, so that it spoils no other line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(data, allow_nan=False) + "\n").encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
        os.write(handle, (b"\n" if torn else b"") + line)
        os.fsync(handle)
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a journal; a torn line (its writer was killed) is passed over."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for piece in raw.split(b"\n"):
        try:
            data = json.loads(piece)
        except ValueError:
            continue
        if isinstance(data, dict):
            lines.append(data)
    return lines


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Content hash of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class LockHeldError(RuntimeError):
    """Another live process holds the lock."""


@contextmanager
def locked(path: Path, *, wait: float = 0.5) -> Iterator[None]:
    """Hold an exclusive lock on `path` for the block; the kernel frees it when the holder dies.

    Waits up to `wait` seconds, then raises `LockHeldError` naming the holder's process. The default outlasts
    the instants for which `is_locked` touches the lock: a reader must never turn a job away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "unknown"
                    raise LockHeldError(f"{path} is held by process {holder}") from None
                time.sleep(0.05)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock right now; read access to the file is enough."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # shared, so that two readers never take each other for a holder
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
