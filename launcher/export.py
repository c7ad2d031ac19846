"""`export`: a run's policy in Hugging Face format, written by a process of its own (`trainer.export`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launcher.executors import code_environment
from launcher.provenance import ROOT
from trainer.errors import UserError
from trainer.record import RunPaths


def export(run: str, step: str, out: Path | None, outputs: Path) -> int:
    """Write the weights after `step` updates of a run; returns the exit code.

    Raises `UserError` when there is no such run, or more than one.
    """
    if step not in ("best", "last") and not step.isdecimal():
        raise UserError(f"--step {step} is neither best nor last nor a number of learner updates")
    paths = find_run(run, outputs)
    target = (out or paths.folder / f"export-{step}").absolute()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.export", str(paths.folder), step, str(target)],
        env=code_environment(os.environ, ROOT, threads=1),
        check=False,
    )
    return done.returncode


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
