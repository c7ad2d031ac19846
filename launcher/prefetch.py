"""`prefetch`: fetch models and prepare prompts once, where there is a network; runs then work without one.

The work needs torch and transformers and is done in a process of its own (`trainer.prefetch`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.executors import code_environment
from launcher.locate import sweep_paths
from launcher.messages import say
from launcher.provenance import ROOT
from launcher.runner import runner_lock
from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import read_json
from trainer.record import SweepPaths, read_budget, read_config, read_sweep
from trainer.task_config import canonical_json

if TYPE_CHECKING:
    from sweeps.grid import Grid

Cell = tuple[RunConfig, EvaluationConfig]


def prefetch_grid(grid: Grid, name: str | None, outputs: Path, console: Console) -> int:
    """For the runs of a grid that need not be submitted yet. Returns the exit code."""
    paths = sweep_paths(outputs, name or grid.name)
    with runner_lock(paths):
        cells = [(cell.config.run(), cell.config.budget.evaluation) for cell in grid.cells]
        return _told(prefetch(paths, cells, console), console)


def prefetch_sweep(paths: SweepPaths, console: Console) -> int:
    """For the runs of a sweep on disk. Returns the exit code."""
    with runner_lock(paths):
        return _told(prefetch(paths, cells_on_disk(paths, runs_of(paths)), console), console)


def runs_of(paths: SweepPaths) -> list[str]:
    """Run ids of a sweep."""
    return [cell.run_id for cell in read_sweep(paths).cells]


def cells_on_disk(paths: SweepPaths, runs: Iterable[str]) -> list[Cell]:
    """What runs that were written need."""
    return [(read_config(paths.run(run)), read_budget(paths.run(run)).evaluation) for run in runs]


def prefetch(paths: SweepPaths, cells: Iterable[Cell], console: Console, *, cache: str | None = None) -> bool:
    """Prepare what the runs need; returns whether there was any such thing.

    `cache` is the folder of the hub's caches, variables allowed; None: the user's own.
    Raises `UserError` with what is wrong with a source, a model or a template.
    """
    needs = {}
    for run, evaluation in cells:
        if run.task.is_text:
            wanted = {
                "run": run.model_dump(mode="json", include={"task", "model"}),
                "evaluation": evaluation.model_dump(mode="json"),
            }
            needs[canonical_json(wanted)] = wanted
    if not needs:
        return False
    say(console, "preparing prompts and models")
    environment = code_environment(os.environ, ROOT, threads=1)
    if cache is not None:
        environment["HF_HOME"] = os.path.expandvars(cache)
    # on a terminal the libraries' own progress is seen; elsewhere it would only fill a log
    pipe = None if console.is_terminal else subprocess.PIPE
    with tempfile.TemporaryDirectory() as folder:
        problems = Path(folder) / "problems.json"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trainer.prefetch", str(paths.prepared), str(problems)],
            input=json.dumps(list(needs.values())),
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            check=False,
        )
        found = read_json(problems)
    if done.stdout:
        say(console, *done.stdout.splitlines())
    if found is not None:
        raise UserError(*found["problems"])
    if done.returncode in (-signal.SIGINT, 130):
        raise KeyboardInterrupt
    if done.returncode:
        raise RuntimeError(f"preparing prompts and models failed:\n{done.stderr or ''}")
    return True


def _told(found: bool, console: Console) -> int:
    if not found:
        say(console, "nothing to fetch: no run of this sweep has a task in words or a pretrained model")
    return 0
