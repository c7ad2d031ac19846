"""Task files, a scontrol that says what a test wants, and supervisors as a job script would start them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers import ROOT, job_environment
from trainer.files import write_json
from trainer.paths import RunPaths

DRIVER = [sys.executable, "-P", str(ROOT / "tests" / "slurm_driver.py")]
REAL = [sys.executable, "-P", "-m", "trainer.slurm_task"]


def write_task(sweep: Path, *runs: RunPaths, **fields: Any) -> Path:
    """The task file of an array with one task, for code as it lies in the checkout."""
    (sweep / "code").mkdir(parents=True, exist_ok=True)
    if not (sweep / "code" / "c0de").exists():
        (sweep / "code" / "c0de").symlink_to(ROOT)
    data = {
        "tasks": [[str(run.folder.relative_to(sweep)) for run in runs]],
        "signal": "USR2",
        "signal_lead": 2.0,
        "time_limit": 3600,
        "max_timeouts": 20,
        "threads": 1,
        "code": "code/c0de",
        "packages": {},
        "devices_per_run": 0,
    }
    file = sweep / "jobs" / "20261130T200000-1a2b3c4d" / "0.json"
    write_json(file, data | fields)
    return file


def stand_in_run(sweep: Path, name: str, updates: int, **plan: Any) -> RunPaths:
    """A run that the stand-in trains."""
    run = RunPaths(sweep / "runs" / name)
    write_json(run.budget, {"horizon": updates, "updates_after_collapse": 5})
    write_json(run.folder / "plan.json", {"updates": updates, **plan})
    return run


def answer(folder: Path, text: str | None, *, slow: float = 0.0) -> str:
    """PATH with a scontrol that says `text`; None: without any scontrol."""
    folder.mkdir(exist_ok=True)
    if text is not None:
        script = folder / "scontrol"
        script.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/asked"\nsleep {slow}\necho "{text}"\n')
        script.chmod(0o755)
    return f"{folder}:/usr/bin:/bin" if text is not None else str(folder)


def start(
    file: Path, path: str, *extra: str, restart: int = 0, command: list[str] = DRIVER, **environment: str
) -> "subprocess.Popen[str]":
    """A supervisor at the head of a process group that stands for the step."""
    inherited = {name: value for name, value in job_environment().items() if not name.startswith("SLURM")}
    slurm = {"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}
    if restart:
        slurm["SLURM_RESTART_COUNT"] = str(restart)
    return subprocess.Popen(
        [*command, str(file), *extra],
        env=inherited | slurm | {"PATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(supervisor: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code and output; nothing of its group is left behind."""
    try:
        output, _ = supervisor.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(supervisor.pid, signal.SIGKILL)
        raise
    return supervisor.returncode, output


def wait_for(what: Callable[[], Any], supervisor: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not what():
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it ended, or took too long: {finish(supervisor)}")
        time.sleep(0.02)


def environment_of(run: RunPaths, attempt: int) -> dict[str, str]:
    """What the stand-in was started with."""
    found: dict[str, str] = json.loads(run.log(attempt).read_text().splitlines()[0])
    return found
