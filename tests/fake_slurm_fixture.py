"""A stand-in for Slurm on PATH: `tests/fake_slurm/fake_slurm.py` says what it can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = Path(__file__).parent / "fake_slurm"
sys.path.append(str(COMMANDS))
import fake_slurm  # noqa: E402


@dataclass(frozen=True)
class FakeSlurm:
    """A cluster that does nothing by itself."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """To be added to that of a process."""
        path = os.pathsep.join([str(COMMANDS), os.environ["PATH"]])
        return {"FAKE_SLURM": str(self.folder), "PATH": path, "SLURM_CONF": "the cluster's"}

    def fail(self, **faults: Any) -> None:
        """Set faults, in place of those there were."""
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def calls(self, command: str) -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["command"] == command]

    def tasks(self) -> dict[str, str]:
        """Task → state word."""
        with self._cluster() as state:
            return {
                f"{job}_{index}": task["word"]
                for job, entry in state["jobs"].items()
                for index, task in entry["tasks"].items()
            }

    def jobs(self) -> dict[str, dict[str, Any]]:
        with self._cluster() as state:
            found: dict[str, dict[str, Any]] = state["jobs"]
            return found

    def set_task(self, task: str, word: str, **fields: Any) -> None:
        """Give a task another state: `set_task("3_0", "FAILED", exit="1:0", nodes="n3")`."""
        job, _, index = task.partition("_")
        with self._cluster() as state:
            state["jobs"][job]["tasks"][index] = {"word": word, **fields}

    def run_task(self, task: str, **environment: str) -> int:
        """Run a task's script here, as its job; returns its exit code and leaves it COMPLETED or FAILED."""
        job, _, index = task.partition("_")
        entry = self.jobs()[job]
        self.set_task(task, "RUNNING", nodes="n1")
        variables = {
            **os.environ,
            **self.environment,
            "SLURM_JOB_ID": str(900 + int(index)),
            "SLURM_ARRAY_JOB_ID": job,
            "SLURM_ARRAY_TASK_ID": index,
            "SLURM_RESTART_COUNT": "0",
            "SLURMD_NODENAME": "n1",
            **environment,
        }
        # a step is a process like another; the first words of the profile's interpreter follow srun's flags
        output = Path(entry["output"].replace("%a", index).replace("%%", "%"))
        with output.open("ab") as log:
            done = subprocess.run(
                ["bash", entry["script"]], env=variables, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        code = done.returncode
        if self.tasks()[task] == "RUNNING":
            self.set_task(task, "FAILED" if code else "COMPLETED", exit=f"{code}:0", nodes="n1")
        return code

    @contextmanager
    def _cluster(self) -> Iterator[dict[str, Any]]:
        with fake_slurm.cluster(self.folder) as state:
            yield state
