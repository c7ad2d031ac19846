"""What is asked and said before runs go to Slurm: faults, notices, cost, a question; and the dry run."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from launcher.ledger import read_ledger
from launcher.prefetch import prefetch
from launcher.slurm.ask import cost_line
from sweeps.cost import CostFigures, Held, estimate, over_budget
from tests.helpers import ROOT
from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.files import read_json
from trainer.record import SweepPaths
from trainer.schema import parse

pytestmark = pytest.mark.end_to_end
GRID = ("sweep=smoke", "learning_rate=1e-3,4e-3,2e-3", "sync_interval=1", "seed=0,1")


class Home:
    """A folder in which commands are run, without a terminal and without Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a user's folder"
        self.folder.mkdir()
        tools = folder / "no slurm"
        tools.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MLFLOW"))},
            "PATH": str(tools),
            "PYTHONPATH": str(ROOT),
        }

    def site(self, **fields: Any) -> str:
        (self.folder / "site.yaml").write_text(yaml.safe_dump({"partition": "main", **fields}))
        return "site.yaml"

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "launcher.cli", *words],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def answer(self, text: str, *words: str) -> tuple[int, str]:
        """Run a command on a terminal and type a line."""
        mine, its = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher.cli", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=its,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(its)
        timer = threading.Timer(60, process.kill)
        timer.start()
        os.write(mine, f"{text}\n".encode())
        output, _ = process.communicate()
        timer.cancel()
        os.close(mine)
        return process.returncode, output

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths(self.folder / "outputs" / "smoke")

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_plan_with_a_site_says_what_submit_would_and_writes_nothing(home: Home) -> None:
    site = home.site(gpus={"per_node": 8})
    uri = "http://localhost:5000"
    code, output, errors = home.run("plan", *GRID, "--site", site, MLFLOW_TRACKING_URI=uri)
    assert (code, errors) == (0, "")
    assert "no run uses a GPU of this site" in output
    assert f"MLFLOW_TRACKING_URI={uri} is reached from this machine only" in output
    assert "on site.yaml: 6 runs, 120 updates; at most " in output
    assert "from the preset" in output
    assert home.files() == {"site.yaml"}


@pytest.mark.parametrize("command", [("plan",), ("submit", "-y"), ("submit", "--dry-run")])
def test_what_cannot_work_is_refused_before_anything_is_written(home: Home, command: tuple[str, ...]) -> None:
    site = home.site(cells_per_task=3, gpus={"per_node": 2}, mem_per_run="100M")
    code, output, errors = home.run(*command, *GRID, "resources.device=cuda", "--site", site)
    assert code == 2
    assert "error: cells_per_task=3 needs 3 GPUs in one task, and a node has gpus.per_node=2" in errors
    assert "error: mem_per_run=100M is too little for 6 runs" in errors
    assert ": 6 runs, 120 updates; at most" in output
    assert not home.paths.sweep.exists()
    assert not (home.paths.folder / "dry-run").exists()


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_a_bad_profile_is_refused_before_anything_is_written(home: Home, command: str) -> None:
    code, _, errors = home.run(command, *GRID, "--site", home.site(signal="USR1"))
    assert code == 2
    assert "signal: USR1 is used by NCCL" in errors
    assert not home.paths.sweep.exists()


def test_without_a_terminal_a_yes_is_needed(home: Home) -> None:
    code, output, errors = home.run("submit", *GRID, "--site", home.site())
    assert code == 2
    assert errors == (
        "error: Submit 6 runs to site.yaml? Nobody can be asked here: add --yes (-y) to go on\n"
    )
    assert "to submit: 6 runs" in output
    assert not home.paths.sweep.exists()


def test_a_no_submits_nothing(home: Home) -> None:
    code, output = home.answer("n", "submit", *GRID, "--site", home.site())
    assert code == 2
    assert "Submit 6 runs to site.yaml?" in output
    assert "nothing was submitted" in output
    assert not home.paths.sweep.exists()


def test_a_yes_goes_on_to_slurm(home: Home) -> None:
    # there is none: what matters is that it is asked, and said
    code, output = home.answer("y", "submit", *GRID, "--site", home.site())
    assert code == 2
    assert "there is no scontrol on the path" in output
    assert not read_ledger(home.paths).tasks


def test_more_gpu_hours_than_are_allowed(home: Home) -> None:
    words = (*GRID, "resources.device=cuda", "--site", home.site(gpus={"per_node": 8}))
    code, _, errors = home.run("plan", *words, "--max-gpu-hours", "0.001")
    assert code == 2
    assert "more than --max-gpu-hours=0.001: submit fewer runs or shorter ones, or raise it" in errors
    assert home.run("plan", *words, "--max-gpu-hours", "1")[0] == 0


def test_gpu_hours_that_are_not_known_need_a_pilot(home: Home) -> None:
    preset = home.folder / "conf" / "sweep" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("axes: {seed: [0, 1]}\nbudget: {horizon: {updates: 5}}\n")
    words = ("sweep=mine", "--config-dir", "conf", "--site", home.site())
    code, output, errors = home.run("plan", *words, "--max-gpu-hours", "5")
    assert code == 2
    assert "is not known before one has run: measure it with `grposweep pilot`" in errors
    assert "grposweep pilot measures it" in output


def test_a_dry_run_writes_what_would_be_sent_and_touches_nothing_else(home: Home) -> None:
    site = home.site(cells_per_task=2, time="1:00:00", mem_per_run="2G")
    code, output, errors = home.run("submit", *GRID, "--site", site, "--dry-run")
    assert (code, errors) == (0, "")
    target = home.paths.folder / "dry-run"
    assert {path for path in home.files() if not path.startswith("outputs/smoke/dry-run/")} == {"site.yaml"}
    (script,) = target.glob("*.sh")
    (line,) = (line for line in output.splitlines() if line.startswith("sbatch "))
    words = shlex.split(line)
    assert words[-1] == str(script)
    assert {"--array=0-2", "--partition=main", "--mem=4G", "--cpus-per-task=2"} <= set(words)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    tasks = read_json(script.with_suffix(".json"))
    assert tasks is not None
    runs = [run for task in tasks["tasks"] for run in task]
    assert len(runs) == 6
    rates = []
    for run in runs:
        config = parse(RunConfig, yaml.safe_load((target / run / "config.yaml").read_text()))
        assert json.loads((target / run / "budget.json").read_text())["horizon"] == 20
        rates.append(config.learning_rate)
    assert rates == [4e-3, 4e-3, 2e-3, 2e-3, 1e-3, 1e-3]


def test_a_second_dry_run_replaces_the_first(home: Home) -> None:
    site = home.site()
    assert home.run("submit", *GRID, "--site", site, "--dry-run")[0] == 0
    assert (
        home.run(
            "submit", "sweep=smoke", "sync_interval=1", "learning_rate=1e-3", "--site", site, "--dry-run"
        )[0]
        == 0
    )
    target = home.paths.folder / "dry-run"
    assert len(list(target.glob("runs/*"))) == 1
    assert len(list(target.glob("*.sh"))) == 1


def test_more_runs_than_an_array_holds(home: Home) -> None:
    words = ("sweep=smoke", "sync_interval=1", "learning_rate=1e-3", f"seed={','.join(map(str, range(14)))}")
    tools = Path(home.environment["PATH"])
    (tools / "scontrol").write_text("#!/bin/sh\necho 'MaxArraySize = 6'\necho 'SLURM_VERSION = 22.05.8'\n")
    (tools / "scontrol").chmod(0o755)
    code, output, _ = home.run("submit", *words, "--site", home.site(), "--dry-run")
    assert code == 0
    lines = [shlex.split(line) for line in output.splitlines() if line.startswith("sbatch ")]
    assert [line[2] for line in lines] == ["--array=0-5", "--array=0-5", "--array=0-1"]


def test_a_dry_run_needs_a_site(home: Home) -> None:
    code, _, errors = home.run("submit", *GRID, "--dry-run")
    assert code == 2
    assert errors.startswith("error: --dry-run needs --site")


def test_a_node_that_is_given_out_whole_costs_all_its_gpus() -> None:
    run = parse(RunConfig, {"resources": {"device": "cuda"}})
    figures = CostFigures(seconds_per_update=3.6)
    shared = estimate([(run, 1000)], [], figures, slots=1)
    whole = estimate([(run, 1000)], [], figures, slots=1, held=lambda config: Held(8, 4))
    assert (shared.gpu_hours, shared.core_hours) == (pytest.approx(1), pytest.approx(1))
    assert (whole.gpu_hours, whole.core_hours) == (pytest.approx(4), pytest.approx(8))
    assert "4 GPU hours" in cost_line(whole)
    assert over_budget(whole, 3) is not None
    assert over_budget(whole, 5) is None


def test_models_are_fetched_to_the_cache_that_nodes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(options["env"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("launcher.prefetch.subprocess.run", run)
    monkeypatch.setenv("WORK", "/shared/me")
    monkeypatch.setenv("HF_HOME", "/home/me")
    task = {"name": "text", "max_response_tokens": 8, "source": {"generator": "gcd", "rows": 10}}
    cells = [(parse(RunConfig, {"task": task}), EvaluationConfig())]
    prefetch(SweepPaths(tmp_path), cells, Console(), cache="$WORK/hub")
    assert seen["HF_HOME"] == "/shared/me/hub"
    prefetch(SweepPaths(tmp_path), cells, Console())
    assert seen["HF_HOME"] == "/home/me"
