"""What code and which packages a submission used: recorded with every submission, with or without git."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""The checkout, or the folder of an installed package, that holds the four packages."""

PACKAGES = ("grposweep", "torch", "transformers", "numpy", "scipy", "pydantic", "hydra-core", "omegaconf")
"""Distributions whose version can change what a run computes or which runs a sweep has."""

MOST_UNTRACKED = 100


@dataclass(frozen=True, slots=True)
class Checkout:
    """State of the git checkout that the code comes from."""

    commit: str | None
    """None before the first commit."""
    diff: str
    """Changes of tracked files against the commit; empty when there are none."""
    untracked: tuple[str, ...]
    """Files that git neither tracks nor ignores."""

    @property
    def dirty(self) -> bool:
        return bool(self.diff or self.untracked)


def checkout(root: Path = ROOT) -> Checkout | None:
    """State of the checkout at `root`; None without git or where `root` is not the top of a checkout."""
    top = _git(root, "rev-parse", "--show-toplevel")
    # an environment inside somebody else's repository says nothing about this code
    if top is None or Path(top.strip()).resolve() != root.resolve():
        return None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    diff = _git(root, "diff", "HEAD", "--no-ext-diff", "--binary") if commit else ""
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    return Checkout(commit and commit.strip(), diff or "", tuple(filter(None, untracked.split("\0"))))


def provenance(found: Checkout | None) -> dict[str, Any]:
    """Plain data for the history of `sweep.yaml`."""
    code: dict[str, Any] = {"commit": None}
    if found is not None:
        shown = list(found.untracked[:MOST_UNTRACKED])
        code = {"commit": found.commit, "dirty": found.dirty, "untracked": shown}
        if len(found.untracked) > MOST_UNTRACKED:
            code["untracked_more"] = len(found.untracked) - MOST_UNTRACKED
    return code | {"python": platform.python_version(), "packages": package_versions()}


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of the installed distributions, read without importing them."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(root: Path, *arguments: str) -> str | None:
    """Output of one git command, or None when git is missing, fails or takes longer than 20 seconds."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
