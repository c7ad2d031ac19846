"""Small runs for the trainer's tests."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.budget import CellConfig
from trainer.record import RunPaths, write_budget, write_config
from trainer.schema import parse

ROOT = Path(__file__).resolve().parent.parent
SMALL: dict[str, Any] = {
    "batch_size": 16,
    "group_size": 4,
    "task": {"length": 3, "alphabet": 4, "max_response_tokens": 4},
    "warm_start": {"batch_size": 64},
    "resources": {"generation_chunk": 64},
}


def make_run(folder: Path, updates: int, **fields: Any) -> RunPaths:
    """A run folder outputs/s/runs/<name> with a tiny task and a fixed horizon."""
    budget = {"checkpoint_every": 7, "sample_every": 4, "horizon": {"updates": updates}}
    cell = parse(CellConfig, SMALL | {"budget": budget | fields.pop("budget", {})} | fields)
    paths = RunPaths(folder)
    write_config(paths, cell.run())
    write_budget(paths, cell.budget.resolve(cell.run()))
    return paths


def job_environment(**extra: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | extra


def start_job(paths: RunPaths, **extra: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer", str(paths.folder)],
        env=job_environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_job(paths: RunPaths, **extra: str) -> tuple[int, str]:
    """Exit code and output of one attempt."""
    job = start_job(paths, **extra)
    output, _ = job.communicate(timeout=120)
    return job.returncode, output
