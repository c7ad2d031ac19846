"""Where a sweep lies: names of sweep folders, and sweeps and runs found by name or path."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.errors import UserError
from trainer.record import RunPaths, SweepPaths
from trainer.schema import nearest

NAME_RULE = (
    "1 to 100 bytes of printable text (spaces and quotes included) without / \\ or :, "
    "not starting with . or -, and no space at either end"
)


def check_name(name: str) -> str:
    """The name of a sweep folder, or `UserError` with the rule and a name that follows it.

    A colon is refused because the folder is put on PYTHONPATH, where it would separate two entries.
    """
    fits = (
        0 < len(name.encode()) <= 100
        and name.isprintable()
        and not set(name) & set("/\\:")
        and name[0] not in ".-"
        and name == name.strip()
    )
    if fits:
        return name
    kept = "".join("-" if letter in "/\\:" or not letter.isprintable() else letter for letter in name)
    proposal = kept.strip().lstrip(".-").strip()[:50].strip()
    raise UserError(
        f"--name {name!r} is no folder name for a sweep: it must be {NAME_RULE}"
        + (f"; use --name {proposal!r}" if proposal else "")
    )


def sweep_paths(outputs: Path, name: str) -> SweepPaths:
    """Paths of the sweep `name` under the outputs folder, absolute; nothing needs to exist."""
    folder = outputs.absolute() / check_name(name)
    if os.pathsep in str(folder):
        raise UserError(
            f"--outputs {outputs}: the path {folder} holds a {os.pathsep!r}, which PYTHONPATH cannot hold: "
            "use a folder without it"
        )
    return SweepPaths(folder)


def find_sweep(sweep: str, outputs: Path) -> SweepPaths:
    """A sweep that exists, by its name under the outputs folder or by its path.

    Raises `UserError` that names the nearest known sweep.
    """
    for folder in (outputs / sweep, Path(sweep)):
        if sweep and (folder / "sweep.yaml").is_file():
            return sweep_paths(folder.absolute().parent, folder.absolute().name)
    known = sorted(item.parent.name for item in outputs.glob("*/sweep.yaml"))
    if not known:
        raise UserError(f"no sweep {sweep!r}: there is none under {outputs} yet; submit one first")
    raise UserError(f"no sweep {sweep!r} under {outputs}{nearest(sweep, known)}")


def find_run(run: str, outputs: Path) -> RunPaths:
    """A run by its folder, its id, or the beginning of its id under any sweep in `outputs`."""
    if run and (Path(run) / "config.yaml").is_file():
        return RunPaths(Path(run).absolute())
    known = [path.parent for path in sorted(outputs.glob("*/runs/*/config.yaml"))]
    found = [folder for folder in known if run and folder.name.startswith(run)]
    if len(found) == 1:
        return RunPaths(found[0].absolute())
    if found:
        shown = ", ".join(str(folder) for folder in found[:5])
        raise UserError(f"run {run!r} is not one but {len(found)}: {shown}; give its folder")
    raise UserError(
        f"no run {run!r} under {outputs}: "
        + ("`grposweep status SWEEP` lists the ids" if known else "there is none yet; submit a sweep first")
    )
