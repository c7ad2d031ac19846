"""The proof: a grid through Slurm in which everything goes wrong equals one that nobody disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.ledger import read_ledger
from tests.cluster_fixture import Cluster, wait_until
from trainer.attempts import AttemptRecord, read_attempts
from trainer.files import read_json, read_lines
from trainer.record import RunPaths, SweepPaths, read_state, read_sweep

pytestmark = [pytest.mark.cluster, pytest.mark.end_to_end]

UPDATES = 160
GRID = (
    "sweep=smoke",
    "sync_interval=1,4,16",
    "learning_rate=5e-4,1e-3,2e-3,4e-3",
    "seed=0,1",
    f"budget.horizon.updates={UPDATES}",
    "budget.checkpoint_every=20",
    "budget.evaluation.every=80",
    "budget.updates_after_collapse=400",
)
RUNS = 24
SITE = {
    "partition": "main",
    "mem_per_run": "2G",
    "time": 10,
    "signal_lead": 25,
    "nodes_exclusive": True,  # a run to a node, so that what befalls a node befalls one run
}
SAME = ("metrics.jsonl", "evaluations.jsonl", "samples.jsonl", "summary.json", "config.yaml", "budget.json")


class Sweep:
    """A sweep in a folder of its own, and the commands on it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._environment = environment

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths(self.folder / "outputs" / "smoke")

    def run(self, *words: str, expected: int = 0, seconds: float = 300) -> str:
        command = [sys.executable, "-m", "launcher.cli", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == expected, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def runs(self) -> dict[str, RunPaths]:
        return {cell.run_id: self.paths.run(cell.run_id) for cell in read_sweep(self.paths).cells}

    def jobs(self) -> dict[str, str]:
        """Run id → state of its job, as `status` has it."""
        found = json.loads(self.run("status", "smoke", "-f", "json"))
        return {run["run_id"]: run["job"] for run in found["runs"]}

    def training(self) -> list[str]:
        """Runs that have done some updates and have many to do."""
        found = []
        for run_id, run in self.runs().items():
            state = read_state(run)
            if state is not None and state.state == "running" and 5 < state.step < UPDATES // 2:
                found.append(run_id)
        return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    sweep = Sweep(tmp_path_factory.mktemp("undisturbed") / "sweep", environment)
    sweep.run("submit", *GRID, seconds=600)
    return sweep


def test_a_grid_in_which_everything_goes_wrong_equals_one_in_which_nothing_does(
    slurm_cluster: Cluster, undisturbed: Sweep, tmp_path: Path
) -> None:
    environment = {**slurm_cluster.env, "PYTHONPATH": str(Path(__file__).parent.parent)}
    sweep = Sweep(tmp_path / "a user's folder", environment)
    (sweep.folder / "site.yaml").write_text(yaml.safe_dump(SITE))
    output = sweep.run("submit", *GRID, "--site", "site.yaml", "-y")
    assert "24 runs in 24 tasks" in output

    wait_until(lambda: len(sweep.training()) >= 4, 120, "four runs to train")
    cancelled, limited, preempted, lost = (_Victim(sweep, slurm_cluster, run) for run in sweep.training()[:4])
    # a run that outlasts its time limit: it is held until the warning has come
    os.kill(limited.pid, signal.SIGSTOP)
    slurm_cluster.run("scontrol", "update", f"JobId={limited.job}", "TimeLimit=1")
    slurm_cluster.run("scancel", cancelled.job)
    slurm_cluster.kill_node(lost.node)
    high = slurm_cluster.submit(
        "--partition=high", f"--nodelist={preempted.node}", "--exclusive", "--wrap=sleep 3"
    )
    wait_until(lambda: limited.was_told("time_limit"), 120, "the warning of the time limit")
    os.kill(limited.pid, signal.SIGCONT)
    wait_until(lambda: preempted.left("preempted"), 60, "the preemption")
    wait_until(lambda: lost.has_failed(), 90, "the node to be given up")
    slurm_cluster.start_node(lost.node)
    slurm_cluster.kill_controller()
    assert set(sweep.jobs().values()) <= {"finished", "unknown"}  # never dead
    slurm_cluster.start_controller()
    wait_until(lambda: not slurm_cluster.jobs(), 400, "the queue to be empty")

    assert cancelled.left("cancelled") and limited.left("time_limit") and preempted.left("preempted")
    assert slurm_cluster.accounted(high) == {high: "COMPLETED"}
    states = sweep.jobs()
    assert states[cancelled.run] == "interrupted"
    unfinished = [run for run, state in states.items() if state != "finished"]
    assert cancelled.run in unfinished
    sweep.run("resume", "smoke", "-y")
    wait_until(lambda: not slurm_cluster.jobs(), 200, "the queue to be empty")

    assert list(sweep.jobs().values()) == ["finished"] * RUNS
    assert "nothing to do" in sweep.run("resume", "smoke", "-y")
    _assert_equal_records(sweep, undisturbed)
    for run in sweep.runs().values():
        ends = [attempt.ended["how"] for attempt in read_attempts(run) if attempt.ended]
        assert ends.count("finished") == 1 and ends[-1] == "finished", ends
        assert [line["step"] for line in read_lines(run.metrics)] == list(
            range(read_json(run.summary)["updates"])
        )
    _assert_mirrored_once(sweep)


class _Victim:
    """A run to which something is done, and the job that it was in then."""

    def __init__(self, sweep: Sweep, cluster: Cluster, run: str) -> None:
        self.run, self._paths, self._cluster = run, sweep.runs()[run], cluster
        started = self._attempts()[-1].started
        assert started is not None
        self.job, self.node, self.pid = started["job"], started["node"], started["pid"]
        self._output = read_ledger(sweep.paths).tasks[run].output(sweep.paths)

    def _attempts(self) -> list[AttemptRecord]:
        return read_attempts(self._paths)

    def was_told(self, cause: str) -> bool:
        return f"is to stop: {cause}" in self._output.read_text()

    def left(self, cause: str) -> bool:
        return any(attempt.left and attempt.left["asked"] == cause for attempt in self._attempts())

    def has_failed(self) -> bool:
        states = self._cluster.run("sacct", "-n", "-X", "-P", "-D", "-j", self.job, "--format=State")
        return "NODE_FAIL" in states


def _assert_equal_records(one: Sweep, other: Sweep) -> None:
    for (run_id, run), reference in zip(one.runs().items(), other.runs().values(), strict=True):
        assert reference.run_id == run_id
        for name in SAME:
            assert (run.folder / name).read_bytes() == (reference.folder / name).read_bytes(), (run_id, name)
        (last,) = run.checkpoints.glob("step-*")
        for path in last.glob("*.safetensors"):
            assert path.read_bytes() == (reference.checkpoints / last.name / path.name).read_bytes(), path
        parts = sorted(path.name for path in run.rollouts.iterdir())
        assert parts == sorted(path.name for path in reference.rollouts.iterdir())
        for part in parts:
            assert (run.rollouts / part).read_bytes() == (reference.rollouts / part).read_bytes(), part


def _assert_mirrored_once(sweep: Sweep) -> None:
    """A run in MLflow for each cell, each with every update once, also after a second sync."""
    store = f"sqlite:///{sweep.folder / 'mlflow.db'}"
    for _ in range(2):
        sweep.run("sync", "smoke", "--tracking-uri", store)
    with sqlite3.connect(sweep.folder / "mlflow.db") as database:
        count: Callable[[str], Any] = lambda text: database.execute(text).fetchall()  # noqa: E731
        assert count("select count(*) from runs where lifecycle_stage = 'active'") == [(RUNS,)]
        assert {status for (status,) in count("select status from runs")} == {"FINISHED"}
        doubled = "select run_uuid, key, step from metrics group by run_uuid, key, step having count(*) > 1"
        assert count(doubled) == []
        points = dict(count("select run_uuid, count(*) from metrics where key = 'loss' group by run_uuid"))
    wanted = sorted(read_json(run.summary)["updates"] for run in sweep.runs().values())
    assert sorted(points.values()) == wanted


def test_a_sweep_that_was_moved_goes_on(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """Interrupted in one folder, resumed in another; jobs sent later run from there."""
    environment = {**slurm_cluster.env, "PYTHONPATH": str(Path(__file__).parent.parent)}
    sweep = Sweep(tmp_path / "here", environment)
    (sweep.folder / "site.yaml").write_text(yaml.safe_dump(SITE))
    sweep.run("submit", "sweep=smoke", "--site", str(sweep.folder / "site.yaml"), "-y")
    wait_until(lambda: len(slurm_cluster.jobs()) > 0, 20, "the jobs")
    slurm_cluster.cancel_all()
    shutil.move(sweep.folder, tmp_path / "there")
    moved = Sweep(tmp_path / "elsewhere", environment)
    moved.folder.rmdir()
    (tmp_path / "there").rename(moved.folder)
    moved.run("resume", "smoke", "--site", "site.yaml", "-y")
    wait_until(lambda: not slurm_cluster.jobs(), 120, "the queue to be empty")
    assert list(moved.jobs().values()) == ["finished"] * 4
