"""Fake commands of Slurm on the path, over a cluster in a folder: fixture `fake_slurm`."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fake_slurm.cluster import Folder, change

BIN = Path(__file__).parent / "fake_slurm" / "bin"
RUN = BIN.parent / "run.py"


@dataclass(frozen=True)
class FakeSlurm:
    """The cluster of the fake commands; what may go wrong is in `tests.fake_slurm.cluster.Folder`."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """For processes that are to use it."""
        return os.environ | self._variables()

    def _variables(self) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {"FAKE_SLURM": str(self.folder), "FAKE_SLURM_PYTHON": sys.executable, "PATH": path}

    def fail(self, command: str, stderr: str, call: int | None = None, **more: Any) -> None:
        """Let a call of a command fail: the `call`-th, or the next; `times`, `code`, `queued`, `sleep`."""
        with self._state.locked():
            faults = self._state.read("faults.json")
            faults.setdefault("calls", []).append({"command": command, "call": call, "stderr": stderr} | more)
            self._state.write("faults.json", faults)

    def set(self, **settings: Any) -> None:
        """Settings of the cluster: accounting, accounting_from, max_submit, max_array_size, …"""
        with self._state.locked():
            self._state.write("faults.json", self._state.read("faults.json") | settings)

    def say(self, job: str, word: str, **more: Any) -> None:
        """Let Slurm say of a task: its word; reason, code ("1:0"), nodes, left."""
        with self._state.locked():
            said = self._state.read("states.json")
            self._state.write("states.json", said | {job: {"word": word} | more})

    def requeue(self, job: str) -> None:
        with self._state.locked():
            change(self._state, job, requeue=True)

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Array id → job: name, script, environment, tasks."""
        return self._state.read("jobs.json")

    def calls(self, command: str) -> list[dict[str, Any]]:
        """Calls of a command so far: argv, env, script."""
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call for line in lines if (call := json.loads(line))["command"] == command]

    def start(self, job: str) -> "subprocess.Popen[bytes]":
        """Start the script of a task, `17_3`, in the background."""
        words = [sys.executable, "-S", str(RUN), "task", job]
        return subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL)

    def run(self, job: str, timeout: float = 120) -> int:
        """Run the script of a task, or one after the other those of an array; the last exit code."""
        names = [job] if "_" in job else [f"{job}_{index}" for index in self.jobs[job]["tasks"]]
        return [self.start(name).wait(timeout) for name in names][-1]

    @property
    def _state(self) -> Folder:
        return Folder(self.folder)


@pytest.fixture
def fake_slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Fake commands first on the path of this process, with an empty cluster."""
    fake = FakeSlurm(tmp_path_factory.mktemp("fake slurm"))
    for name, value in fake._variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return fake
