"""Runs the command line in processes of its own, with the stand-ins of `launcher_driver`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.ledger import read_ledger
from launcher.locate import find_sweep
from launcher.state import RunStatus, job_states
from trainer.files import read_lines
from trainer.record import SweepPaths, read_sweep

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Shell:
    """A working folder whose `outputs` the commands use."""

    folder: Path

    def start(self, *words: str, **job: Any) -> subprocess.Popen[str]:
        """Start a command; `job` is what FAKE_JOB says to the jobs."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            "FAKE_JOB": json.dumps(job),
            "SLURM_CPU_BIND": "quiet",
            "MLFLOW_RUN_ID": "stale",
        }
        return subprocess.Popen(
            [sys.executable, "-P", str(TESTS / "launcher_driver.py"), *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, **job: Any) -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        process = self.start(*words, **job)
        return finish(process)

    def paths(self, name: str = "tiny") -> SweepPaths:
        return find_sweep(name, self.folder / "outputs")

    def statuses(self, name: str = "tiny") -> dict[str, RunStatus]:
        paths = self.paths(name)
        runs = [paths.run(cell.run_id) for cell in read_sweep(paths).cells]
        return job_states(runs, read_ledger(paths))

    def by_seed(self, name: str = "tiny") -> dict[int, RunStatus]:
        statuses = self.statuses(name)
        return {cell.values["seed"]: statuses[cell.run_id] for cell in read_sweep(self.paths(name)).cells}

    def updates(self, name: str = "tiny") -> list[list[int]]:
        """The updates that each run's journal holds, in the order in which they were written."""
        paths = self.paths(name)
        return [
            [line["step"] for line in read_lines(paths.run(cell.run_id).metrics)]
            for cell in read_sweep(paths).cells
        ]

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Every file and folder with its time of change and content."""
        return {
            str(path.relative_to(self.folder)): (
                path.stat().st_mtime_ns,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.folder.rglob("*"))
        }


def finish(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
    """Wait for a command, bounded."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, output, errors


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until the condition holds; fails when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
