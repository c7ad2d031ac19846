"""The copy of the training code that the jobs of a sweep run from: one folder per content.

    <sweep>/code/<content hash>/trainer/...    what is on the jobs' path
    <sweep>/code/<diff hash>.patch             uncommitted changes of the checkout, when there were any

Jobs import only `trainer`, so that is what is copied, and an edit elsewhere makes no new snapshot. Later
edits of the checkout do not reach a run, and a deleted checkout does not matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.provenance import ROOT, checkout, provenance
from trainer.errors import UserError
from trainer.files import write_atomic
from trainer.record import SweepPaths

PACKAGE = "trainer"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Code that jobs run from."""

    code: str
    """Content hash: 16 hex digits of a SHA-256 over file names and contents."""
    folder: Path
    provenance: dict[str, object]


def content_hash(root: Path) -> str:
    """Hash of the training package under `root`: each file's relative name and content, no compiled code."""
    total = hashlib.sha256()
    for path in _files(root):
        name = path.relative_to(root).as_posix().encode()
        content = path.read_bytes()
        total.update(b"%d:%s%d:%s" % (len(name), name, len(content), content))
    return total.hexdigest()[:16]


def take_snapshot(paths: SweepPaths, root: Path = ROOT) -> Snapshot:
    """Copy the training package under `root` into the sweep, unless this content is there already.

    Raises `UserError` when a snapshot with this name was edited after it was written.
    """
    code = content_hash(root)
    if not (paths.code / code).exists():
        code = _copy(root, paths.code)
    folder = paths.code / code
    found = checkout(root)
    if content_hash(folder) != code:
        raise UserError(
            f"{folder} was changed after it was written, so runs would not use the code they name: "
            "delete it and submit again"
        )
    if found is not None and found.diff:
        patch = hashlib.sha256(found.diff.encode()).hexdigest()[:16] + ".patch"
        if not (paths.code / patch).exists():
            write_atomic(paths.code / patch, found.diff)
        return Snapshot(code, folder, {"code": code, "patch": patch, **provenance(found)})
    return Snapshot(code, folder, {"code": code, **provenance(found)})


def _files(root: Path) -> Iterator[Path]:
    for path in sorted((root / PACKAGE).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def _copy(root: Path, snapshots: Path) -> str:
    """Copy into a hidden folder, then move it to its content's name; returns the name.

    The copy is what is hashed: an edit while copying cannot give a snapshot the wrong name.
    """
    partial = snapshots / f".{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for path in _files(root):
        target = partial / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    code = content_hash(partial)
    if (snapshots / code).exists():
        shutil.rmtree(partial)
    else:
        partial.rename(snapshots / code)
    return code
