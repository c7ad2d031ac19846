"""`export`: a run's policy in Hugging Face format, written by a process of its own (`trainer.export`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launcher.executors import code_environment
from launcher.locate import find_run
from launcher.provenance import ROOT
from trainer.errors import UserError


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
