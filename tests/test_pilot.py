"""The pilot: which run it is, what is measured, and that an interrupted one leaves the last one in place."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from launcher.pilot import Candidate, most_demanding
from launcher.pilot_record import Pilot, measure, read_pilot
from tests.helpers import ROOT
from trainer.budget import CellConfig
from trainer.errors import UserError
from trainer.record import RunPaths, SweepPaths
from trainer.schema import parse


def candidate(name="r", **fields):
    cell = parse(CellConfig, fields)
    return Candidate(name, cell.run(), cell.budget.resolve(cell.run()))


def grposweep(*words, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", *words, "--outputs", str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(*words, folder):
    process = grposweep(*words, folder=folder)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_the_most_demanding_run_is_taken(tmp_path):
    cells = [
        candidate("small", batch_size=256),
        candidate("rare", model={"hidden_size": 64}, batch_size=64, sync_interval=8),
        candidate("often", model={"hidden_size": 64}, batch_size=64),
        candidate("little", model={"hidden_size": 64}, batch_size=32),
    ]
    assert most_demanding(cells, SweepPaths(tmp_path)).run_id == "often"
    unknown = candidate(
        "unknown",
        model={"pretrained": "some/model", "revision": "a" * 40},
        task={"name": "text", "source": {"path": "p"}, "max_response_tokens": 8},
    )
    assert most_demanding([*cells, unknown], SweepPaths(tmp_path)).run_id == "unknown"


def recorded(folder, updates, *, generated=64, generate=lambda step: 0.4, trained=64, slow=9.0):
    """A run record in which the first four updates are slow, with a checkpoint of 2 s at update 8."""
    run = RunPaths(folder / "pilot" / "runs" / "r")
    run.folder.mkdir(parents=True)
    times, metrics = [], []
    for step in range(updates):
        line = {"step": step, "learn": 0.15, "optimizer": 0.05, "generate": generate(step), "record": 0.01}
        times.append(
            line | ({"generate": slow} if step < 4 else {}) | ({"checkpoint": 2.0} if step == 8 else {})
        )
        metrics.append(
            {"step": step, "rollouts_generated": generated * (step + 1), "rollouts_held": 0}
            | {"rollouts_trained": trained * (step + 1), "response_length": 10.0}
        )
    run.timings.write_text("".join(json.dumps(line) + "\n" for line in times))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics))
    working = sum(value for line in times for name, value in line.items() if name != "step")
    attempt = {"attempt": 1, "host": "h", "peak_memory": 7, "peak_device_memory": None}
    lines = [attempt | {"event": "started", "time": 103.0}]
    lines.append(attempt | {"event": "ended", "how": "finished", "time": 105.0 + working + 2.0})
    run.attempts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_what_is_measured_leaves_the_warm_up_out(tmp_path):
    cell = candidate(budget={"checkpoint_every": 100})
    found = measure(recorded(tmp_path, 20), cell.config, cell.budget, 5, launched=100.0)
    assert (found.updates, found.left_out) == (16, 4)
    assert found.generation_cost_ratio == pytest.approx(2.0)
    assert found.tokens_per_second == pytest.approx(64 * 10 / 0.4)
    assert found.seconds_per_update == pytest.approx(0.61 + 2.0 / 100)
    assert found.startup_seconds == pytest.approx(5.0) and found.checkpoint_seconds == 2.0


def test_a_buffer_generates_fewer_than_it_trains_on(tmp_path):
    cell = candidate(buffer_size=128, replay_ratio=4.0)
    run = recorded(tmp_path, 20, generated=16, generate=lambda step: 0.1)
    # never full in 20 updates: the plain warm-up is all there is
    assert measure(run, cell.config, cell.budget, 5, 100.0).generation_cost_ratio == pytest.approx(2.0)


def test_only_whole_cycles_count(tmp_path):
    # all of a cycle's rollouts are generated in its first update
    cell = candidate(sync_interval=8)
    run = recorded(tmp_path, 20, generate=lambda step: 3.2 if step % 8 == 0 else 0.0)
    found = measure(run, cell.config, cell.budget, 5, 100.0)
    assert (found.left_out, found.updates) == (8, 8)
    assert found.generation_cost_ratio == pytest.approx(2.0)
    rare = candidate(sync_interval=64)
    assert measure(run, rare.config, rare.budget, 5, 100.0).generation_cost_ratio is None


def test_a_run_that_ended_at_once_is_no_measurement(tmp_path):
    cell = candidate()
    with pytest.raises(UserError, match="ended after 3 updates, and the first 4 do not count"):
        measure(recorded(tmp_path, 3), cell.config, cell.budget, 5, 100.0)


@pytest.mark.end_to_end
def test_a_pilot_from_the_command_line_serves_plan_and_submit(tmp_path):
    folder = tmp_path / "out puts"
    code, output = finished("pilot", "sweep=smoke", folder=folder)
    assert code == 0, output
    paths = SweepPaths(folder / "smoke")
    found = read_pilot(paths)
    assert isinstance(found, Pilot) and found.updates == 16 and found.parameters == 21_408
    assert found.peak_memory > 2**27 and found.checkpoint_bytes > 400_000
    assert "cost ratio μ" in output and "the whole grid: 4 runs, 80 updates; at most" in output
    assert not paths.sweep.exists() and not list(paths.folder.glob("pilot/runs/*/checkpoints"))
    code, output = finished("plan", "sweep=smoke", folder=folder)
    assert code == 0 and "from the pilot" in output
    code, output = finished("submit", "sweep=smoke", "learning_rate=1e-3", folder=folder)
    assert code == 0, output
    assert len(list(paths.folder.glob("warm_starts/*/weights.safetensors"))) == 1

    before = (paths.folder / "pilot.json").read_bytes()
    shutil.rmtree(paths.folder / "pilot")
    process = grposweep("pilot", "smoke", folder=folder)
    run = paths.folder / "pilot" / "runs"
    deadline = time.monotonic() + 60
    while not list(run.glob("*/state.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 130
    assert (paths.folder / "pilot.json").read_bytes() == before and not list(run.iterdir())


@pytest.mark.end_to_end
def test_a_pilot_that_fails_says_why(tmp_path):
    code, output = finished("pilot", "sweep=smoke", "resources.device=cuda", folder=tmp_path)
    if "no GPU can be used here" not in output:
        pytest.skip("there is a GPU here")
    assert code == 1 and "the pilot failed; its log:" in output
    assert read_pilot(SweepPaths(tmp_path / "smoke")) is None
