"""What 1,000 cells cost on the way into Slurm, and a cell before its trainer: part of `make bench`.

On a private cluster (slurm/cluster), every figure against a peer or a floor measured in the same run:

    submit    seconds of `plan` and of `submit` for 1,000 held cells      over writing their files alone
    status    CPU seconds of `status -f json` over 1,000 finished cells   over reading their files alone
    start     CPU seconds of a task whose trainer does nothing            over those of submitit
              (`bench.slurm_start`)

Exits with 1 when a limit is passed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from bench.slurm_start import start_ratio
from launcher.provenance import ROOT
from trainer.files import append_line, write_json
from trainer.record import (
    RunPaths,
    SweepPaths,
    read_budget,
    read_config,
    read_sweep,
    write_budget,
    write_config,
)

AXES = (
    "sync_interval=1,2,4,8,16,32,64,128,256,512",
    "learning_rate=" + ",".join(f"{rate}e-4" for rate in range(1, 11)),
    "seed=" + ",".join(map(str, range(10))),
)
SITE = {"partition": "main", "time": 10, "signal_lead": 20, "extra": ["--hold"]}
LIMITS = {"submit": 30.0, "status": 14.0, "start": 1.0}
READ = """
import json, sys
for folder in json.load(sys.stdin):
    for name in ("state.json", "summary.json", "budget.json", "attempts.jsonl"):
        with open(f"{folder}/{name}") as file:
            json.loads(file.read())
"""


def main() -> int:
    packages = _cluster("packages").strip()
    if packages:
        print(f"not measured, as Slurm is not installed: apt-get install {packages}")
        return 1
    base = Path(tempfile.mkdtemp(prefix="bench-"))
    _cluster("up", str(base / "cluster"))
    try:
        environment = {**os.environ, "SLURM_CONF": str(base / "cluster" / "etc" / "slurm.conf")}

        def run(words: Sequence[str]) -> object:
            command = [sys.executable, "-m", "launcher.cli", *words]
            return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)

        ratios = {"start": start_ratio(base, run, environment)}
        ratios["submit"], paths = _submit(base, run)
        ratios["status"] = _status(paths, run)
    finally:
        _cluster("down", str(base / "cluster"), "--wipe")
        shutil.rmtree(base)
    over = [name for name, ratio in ratios.items() if ratio > LIMITS[name]]
    for name in over:
        print(f"  {name} is more than {LIMITS[name]:g} times its floor or peer")
    return int(bool(over))


def _submit(base: Path, run: Callable[[Sequence[str]], object]) -> tuple[float, SweepPaths]:
    (base / "held.yaml").write_text(yaml.safe_dump(SITE))
    words = ["sweep=smoke", *AXES, "--outputs", str(base / "outputs")]
    planned, _ = _measured(lambda: run(["plan", *words]))
    submitted, _ = _measured(lambda: run(["submit", *words, "--site", str(base / "held.yaml"), "-y"]))
    paths = SweepPaths(base / "outputs" / "smoke")
    runs = _runs(paths)
    contents = [(read_config(each), read_budget(each)) for each in runs]

    def write() -> None:
        for each, (config, budget) in zip(runs, contents, strict=True):
            copy = RunPaths(base / "floor" / each.run_id)
            write_config(copy, config)
            write_budget(copy, budget)

    floor, _ = _measured(write)
    ratio = (planned + submitted) / floor
    print(
        f"submit      plan {planned:.1f} s, submit {submitted:.1f} s for {len(runs)} cells; writing their "
        f"files {floor:.1f} s; ratio {ratio:.1f}"
    )
    return ratio, paths


def _status(paths: SweepPaths, run: Callable[[Sequence[str]], object]) -> float:
    runs = _runs(paths)
    for each in runs:
        _finish(each)
    _, spent = _measured(lambda: run(["status", str(paths.folder), "-f", "json"]))
    folders = json.dumps([str(each.folder) for each in runs])
    command = [sys.executable, "-c", READ]
    _, floor = _measured(lambda: subprocess.run(command, input=folders, text=True, check=True))
    ratio = spent / floor
    print(
        f"status      {spent:.2f} CPU s for {len(runs)} runs; reading their files {floor:.2f} s; "
        f"ratio {ratio:.1f}"
    )
    return ratio


def _finish(run: RunPaths) -> None:
    """A record as a finished run leaves it."""
    append_line(run.attempts, {"attempt": 1, "event": "started", "time": 0.0, "host": "n1", "job": None})
    state = {"state": "finished", "attempt": 1, "pid": 1, "host": "n1", "heartbeat": 0.0, "step": 20}
    write_json(run.state, state | {"horizon": 20})
    numbers = {"updates": 20, "horizon": 20, "cumulative_rate": 0.1, "peak_reward": 0.5, "peak_step": 1}
    words = {"run_id": run.run_id, "outcome": "stable", "rule_version": "1", "warm_start": "none"}
    write_json(run.summary, {**words, **numbers, "final_reward": 0.5, "collapse": {"onset": None}})


def _runs(paths: SweepPaths) -> list[RunPaths]:
    return [paths.run(cell.run_id) for cell in read_sweep(paths).cells]


def _measured(action: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds of an action, and CPU seconds of the processes that it waited for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    action()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _cluster(*words: str) -> str:
    command = ["/usr/bin/python3", str(ROOT / "slurm" / "cluster"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
