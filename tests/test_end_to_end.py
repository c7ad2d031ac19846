"""A newcomer's path with the real trainer: a 2x2 grid, killed on the way, to a table and MLflow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import job_environment
from trainer.files import read_lines
from trainer.record import RunPaths, SweepPaths, is_training, read_summary

pytestmark = pytest.mark.end_to_end
GRID = [
    "sweep=smoke",
    "batch_size=16",
    "group_size=4",
    "task.length=3",
    "task.alphabet=4",
    "task.max_response_tokens=4",
    "warm_start.batch_size=64",
    "budget.horizon.updates=40",
]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "launcher.cli", *words]


def call(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        command(*words),
        cwd=folder,
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def runs_of(folder: Path) -> list[RunPaths]:
    return [RunPaths(path) for path in sorted((folder / "outputs" / "smoke" / "runs").iterdir())]


def test_a_grid_from_the_first_command_to_the_table(tmp_path):
    folder = tmp_path / 'it\'s "my" sweep #1'
    folder.mkdir()
    code, text = call(folder, "plan", *GRID)
    assert code == 0 and "4 new" in text and not list(folder.iterdir())

    launcher = subprocess.Popen(
        command("submit", *GRID), cwd=folder, env=job_environment(), stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("outputs/smoke/runs/*/checkpoints/step-*")):
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.01)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    if launcher.stdout:
        launcher.stdout.close()
    while any(is_training(run) for run in runs_of(folder)):
        assert time.monotonic() < deadline, "a job outlived its launcher"
        time.sleep(0.05)

    code, text = call(folder, "submit", *GRID)
    assert code == 0, text
    runs = runs_of(folder)
    assert len(runs) == 4
    assert all(summary and summary.updates == 40 for summary in map(read_summary, runs))
    assert any(len(read_lines(run.attempts)) > 2 for run in runs), "nothing was interrupted"

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    code, text = call(folder, "submit", *GRID)
    assert code == 0 and "nothing to do" in text
    changed = [path for path, when in before.items() if path.stat().st_mtime_ns != when]
    assert [path.name for path in changed if "lock" not in path.name] == []

    code, text = call(folder, "report", "smoke")
    assert code == 0 and "S = 4" in text and "two laws" in text, text
    report = SweepPaths(folder / "outputs" / "smoke").report
    assert len(json.loads((report / "results.json").read_text())["collapse_table"]) == 4
    page = (report / "index.html").read_text()
    assert "stable" in page and 'src="http' not in page and all(run.run_id in page for run in runs)

    code, text = call(folder, "sync", "smoke")
    assert code == 0 and "4 runs" in text, text
    code, text = call(folder, "sync", "smoke")
    assert code == 0 and "0 new points" in text, text
    code, text = call(folder, "status", "smoke", "-f", "json")
    assert code == 0 and "finished" in text


def test_a_changed_setting_is_refused_before_anything_is_written(tmp_path):
    for overrides, said in (
        (["sweep=smoke", "sync_interval=0"], "must be at least 1"),
        (["sweep=smoke", "learing_rate=1"], "did you mean learning_rate?"),
        (["sweep=nonesuch"], "smoke"),
    ):
        code, text = call(tmp_path, "submit", *overrides)
        assert code == 2 and said in text and "Traceback" not in text
    assert not list(tmp_path.iterdir())
