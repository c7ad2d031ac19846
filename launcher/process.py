"""Processes of this machine, told apart although process ids are used again."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def birth(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None when it is gone or the system has no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the command name in parentheses may hold spaces; field 22 is the 20th after it, field 3 the state
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int, born: int | None, host: str) -> bool:
    """Whether the process with this id and birth runs on this machine."""
    if host != socket.gethostname():
        return False
    if born is not None:
        return birth(pid) == born
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
