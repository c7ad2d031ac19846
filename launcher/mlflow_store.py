"""Where the MLflow mirror lives: its address, the lock of its one writer, and how to open the UI.

Nothing here imports MLflow.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from trainer.errors import UserError
from trainer.files import LockHeldError, locked
from trainer.record import SweepPaths

LOCK_WAIT = 600.0
"""Seconds that a sync waits for another one before it gives up."""

_STALE = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
"""Left behind by other work in this shell; they would redirect or break what is written here."""
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow itself waits 120 s and tries 8 times; a mirror that is behind does no harm, one that hangs does."""
_NETWORK = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "9p", "afs", "fuse.sshfs", "glusterfs")


def default_uri(sweep: SweepPaths) -> str:
    """MLFLOW_TRACKING_URI, or `sqlite:///<outputs>/mlflow.db` beside the sweep's folder."""
    chosen = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    return chosen or f"sqlite:///{(sweep.folder.absolute().parent / 'mlflow.db').as_posix()}"


def checked_uri(uri: str) -> str:
    """The tracking URI with a sqlite path made absolute.

    Raises `UserError` for the file store, which MLflow refuses since 3.13, for a database in memory, and for
    a sqlite path that such a URI cannot hold.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise UserError(
            f"tracking URI {uri!r} is a folder of files (the ./mlruns store), which MLflow no longer writes: "
            "unset MLFLOW_TRACKING_URI to use outputs/mlflow.db, or give sqlite:////folder/mlflow.db or the "
            "http address of a tracking server"
        )
    path = sqlite_path(uri)
    if path is None:
        return uri
    if path.name in ("", ":memory:"):
        raise UserError(
            f"tracking URI {uri!r} is a database in memory and would be gone at once: "
            "give sqlite:////folder/mlflow.db"
        )
    for character in "?%":
        if character in str(path):
            raise UserError(
                f"{path} cannot be named in a tracking URI because of the {character!r} in it: rename the "
                "folder, or set MLFLOW_TRACKING_URI=sqlite:////another/folder/mlflow.db"
            )
    return f"sqlite:///{path.as_posix()}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of the database file; None when the URI is not one of sqlite."""
    if not uri.startswith("sqlite:"):
        return None
    return Path(uri.removeprefix("sqlite:").removeprefix("///")).absolute()


def network_filesystem(path: Path, mounts: str | None = None) -> str | None:
    """The type of the network file system that holds `path`, None when it is local or unknown.

    `mounts` is the text of /proc/mounts.
    """
    table = Path("/proc/mounts")
    if mounts is None:
        mounts = table.read_text(encoding="utf-8", errors="replace") if table.exists() else ""
    fields = [line.split() for line in mounts.splitlines()]
    points = {Path(item[1].replace("\\040", " ")): item[2] for item in fields if len(item) > 2}
    kind = next((points[folder] for folder in path.absolute().parents if folder in points), "")
    return kind if kind.startswith(_NETWORK) else None


@contextmanager
def only_writer(sweep: SweepPaths, uri: str) -> Iterator[None]:
    """Hold the mirror's lock: beside a sqlite file, else in the sweep's folder; waits for another sync.

    Raises `UserError` when the wait is over or the folder cannot be written.
    """
    database = sqlite_path(uri)
    lock = database.with_name(f"{database.name}.lock") if database else sweep.folder / "mlflow.lock"
    try:
        with locked(lock, wait=LOCK_WAIT):
            yield
    except LockHeldError as error:
        raise UserError(
            f"another sync has been writing to {uri} for {LOCK_WAIT:g} s: {error}; wait for it or stop it"
        ) from None


def use_write_ahead_log(database: Path) -> None:
    """Switch a sqlite file to its write-ahead log: faster commits, and the UI reads during a sync."""
    connection = sqlite3.connect(database, timeout=20)
    try:
        connection.execute("pragma journal_mode=wal")
    finally:
        connection.close()


@contextmanager
def mlflow_environment() -> Iterator[None]:
    """Hide stale MLflow variables for the block, and bound the waits on a server that does not answer."""
    before = dict(os.environ)
    for name in _STALE:
        os.environ.pop(name, None)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in (*_STALE, *_DEFAULTS):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def ui_command(uri: str) -> str:
    """The shell command that opens the UI on `uri`; for a tracking server, which has its own, the address.

    Paths below the current folder are written relative to it.
    """
    if uri.startswith(("http:", "https:")):
        return uri
    database = sqlite_path(uri)
    if database is not None:
        uri = f"sqlite:///{_short(database)}"
    program = Path(sys.executable).with_name("mlflow")
    command = (
        [str(_short(program))] if program.exists() else [str(_short(Path(sys.executable))), "-m", "mlflow"]
    )
    return shlex.join([*command, "ui", "--workers", "1", "--backend-store-uri", uri])


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
