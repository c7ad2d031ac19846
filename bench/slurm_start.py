"""CPU seconds of a task of Slurm before its work begins: ours against submitit's, as Slurm accounts both."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from launcher.slurm.commands import Slurm

TASKS = 8
SITE = {"partition": "main", "time": 10, "signal_lead": 20, "max_parallel": 1, "extra": ["--hold"]}
SUBMITIT = """
import sys, submitit
executor = submitit.AutoExecutor(folder=sys.argv[1])
executor.update_parameters(timeout_min=10, slurm_partition="main", slurm_array_parallelism=1)
print(executor.map_array(int, range(int(sys.argv[2])))[0].job_id.partition("_")[0])
"""


def start_ratio(base: Path, run: Callable[..., object], environment: Mapping[str, str]) -> float:
    """Ours over submitit's. The trainer, and submitit's function, do nothing at all."""
    (base / "start.yaml").write_text(yaml.safe_dump(SITE))
    seeds = ",".join(map(str, range(TASKS)))
    words = ["sweep=smoke", f"seed={seeds}", "sync_interval=1", "learning_rate=1e-3"]
    run(["submit", *words, "--outputs", str(base / "ours"), "--site", str(base / "start.yaml"), "-y"])
    slurm = Slurm(environment)
    (ours,) = {job.partition("_")[0] for job in slurm.queue()}
    for main in (base / "ours").glob("smoke/code/*/trainer/__main__.py"):
        main.write_text("")
    subprocess.run(["scontrol", "release", ours], env=environment, check=True)
    _wait(slurm)
    command = [sys.executable, "-c", SUBMITIT, str(base / "submitit"), str(TASKS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    theirs = done.stdout.strip()
    _wait(slurm)
    mine, peer = _cpu(ours, environment), _cpu(theirs, environment)
    print(f"start       {mine:.2f} CPU s a task, submitit {peer:.2f} s; ratio {mine / peer:.2f}")
    return mine / peer


def _wait(slurm: Slurm) -> None:
    deadline = time.monotonic() + 120
    while slurm.submitted_count():
        if time.monotonic() > deadline:
            raise RuntimeError("the tasks did not end within two minutes")
        time.sleep(0.5)


def _cpu(job: str, environment: Mapping[str, str]) -> float:
    """Mean CPU seconds of an array's tasks, all steps together."""
    words = ["sacct", "-n", "-P", f"--jobs={job}", "--format=JobID,TotalCPU"]
    time.sleep(3)  # accounting lags
    listed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    steps = [line.split("|") for line in listed.splitlines() if "." in line.partition("|")[0]]
    return sum(_seconds(spent) for _, spent in steps) / TASKS


def _seconds(text: str) -> float:
    """Seconds in `1-02:03:04`, `03:04.567`."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for piece in clock.split(":"):
        total = 60 * total + float(piece)
    return total + 86_400 * int(days or 0)
