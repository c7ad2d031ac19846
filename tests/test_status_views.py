"""`status` and its watch: what is shown of runs in every state, at what price; nothing is written."""

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import synthetic_records as record
from launcher_fakes import expand
from launcher_shell import Shell, finish, until
from rich.console import Console

from launcher import status, watch
from launcher.ledger import LedgerWriter
from launcher.pace import Paces, remaining, silent_for, to_horizon
from launcher.state import RunStatus
from launcher.sweep_folder import apply, compare
from launcher.sweep_view import Reader
from trainer.errors import UserError
from trainer.files import append_line, locked
from trainer.record import Cell, JobState, RunState, SweepPaths, read_sweep, write_sweep


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    """S × η of two seeds: eight runs that never ran."""
    paths = SweepPaths(tmp_path / "outputs" / "grid")
    words = ["sync_interval=1,4", "learning_rate=1e-3,2e-3", "seed=0,1", "budget.horizon.updates=100"]
    apply(paths, compare(paths, expand(words)), {})
    return paths


def ids(paths: SweepPaths) -> list[str]:
    return [cell.run_id for cell in read_sweep(paths).cells]


def text(paths: SweepPaths, *words: str) -> str:
    shown = io.StringIO()
    status.print_status(paths, Console(file=shown, width=160), words)
    return shown.getvalue()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = [folder, *folder.rglob("*")]
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in found}


def in_all_states(paths: SweepPaths) -> None:
    """Run 0 collapsed, 1 runs, 2 failed for want of memory, 3 was interrupted; the others never ran."""
    runs = [paths.run(run) for run in ids(paths)]
    record.start(runs[0])
    record.finish(runs[0], 40)
    runs[0].timings.write_text('{"step": 0, "train": 0.5, "generate": 1.5}\n')
    record.start(runs[1])
    now = time.time()
    speed = {"updates_per_second": 2.0, "reward": 0.51, "lag": 1.5}
    record.write_state(runs[1], "running", step=60, heartbeat=now - 720, **speed)
    record.write_state(runs[2], "failed", step=10, error="MemoryError")
    record.write_state(runs[3], "interrupted", step=10)


def test_every_state_is_shown_with_its_numbers(paths):
    in_all_states(paths)
    with locked(paths.run(ids(paths)[1]).lock):
        shown = text(paths)
        data = json.loads(status.status_json(paths))
    lines = shown.splitlines()
    (row,) = [line for line in lines if ids(paths)[1] in line]
    assert row.split()[0] == "1"
    assert "60/100" in row and "0.51" in row and "1.5" in row and "20 s" in row
    assert "silent for 12 min 0" in row  # suspect, and still running
    assert any(line.split()[:2] == ["failed", "1"] and "1 out_of_memory" in line for line in lines)
    # 40 + 90 + 90 + 4·100 updates at the 2 s that the collapsed run took
    assert "left: 7 runs, 620 updates, at most 20 min 40 s of core time (0.34 core hours" in shown
    assert [run["index"] for run in data["runs"]] == list(range(8))
    assert [run["job"] for run in data["runs"]] == [
        *("finished", "running", "failed", "interrupted", "planned", "planned", "planned", "planned")
    ]
    running, failed = data["runs"][1:3]
    assert (running["reward"], running["lag"], running["updates_per_second"]) == (0.51, 1.5, 2.0)
    assert running["time_left"] == 20.0 and running["job_time_left"] is None and running["job_id"] is None
    assert 719 < time.time() - running["heartbeat"] < 780 and 719 < running["silent"] < 780
    assert failed["failure"] == "out_of_memory" and data["failures"] == {"out_of_memory": 1}
    assert data["counts"]["running"] == {"-": 1}
    assert data["runs"][0]["attempts"][0]["number"] == 1 and data["runs"][5]["attempts"] == []
    assert data["remaining"] == {"runs": 7, "updates": 620, "core_seconds": 1240.0, "unmeasured": 0}


def test_selectors_narrow_everything(paths):
    in_all_states(paths)
    shown = text(paths, "S=1", "!0")
    rows = [line.split() for line in shown.splitlines() if line[:1].isdecimal()]
    # the indices of the whole grid
    assert [int(row[0]) for row in rows if row[1] in ids(paths)] == [1, 4, 5]
    assert all((run in shown) == (index in (1, 4, 5)) for index, run in enumerate(ids(paths)))
    data = json.loads(status.status_json(paths, ["class=oom"]))
    assert [run["index"] for run in data["runs"]] == [2] and data["counts"] == {"failed": {"-": 1}}
    with pytest.raises(UserError, match="no run is selected by state=lost"):
        text(paths, "state=lost")


@pytest.mark.parametrize(
    ("age", "speed", "pace", "silent"),
    [
        *((59, 100.0, None, False), (61, 100.0, None, True)),
        *((190, 0.1, None, False), (210, 0.1, None, True)),
        *((190, None, 10.0, False), (210, None, 10.0, True), (61, None, None, True)),
    ],
)
def test_silence_is_measured_by_the_speed_of_the_run(age, speed, pace, silent):
    state = RunState(
        state="running",
        attempt=1,
        pid=1,
        host="h",
        heartbeat=1000.0,
        step=1,
        horizon=9,
        updates_per_second=speed,
    )
    found = silent_for(RunStatus("x", JobState.RUNNING, 1, state, None), pace, 1000.0 + age)
    assert (found is not None) == silent
    # the state file of an earlier attempt tells nothing of this one
    assert silent_for(RunStatus("x", JobState.RUNNING, 2, state, None), pace, 1e6) is None
    assert to_horizon(RunStatus("x", JobState.RUNNING, 2, state, None)) is None
    assert silent_for(RunStatus("x", JobState.INTERRUPTED, 1, state, None), pace, 1e6) is None


def test_runs_whose_kind_has_no_speed_are_counted_apart(tmp_path):
    paths = SweepPaths(tmp_path / "grid")
    apply(paths, compare(paths, expand(["batch_size=16,32", "budget.horizon.updates=10"])), {})
    small, _ = (paths.run(run) for run in ids(paths))
    record.write_state(small, "interrupted", step=4)
    small.timings.write_text('{"step": 0, "train": 3.0}\n')
    view = Reader(paths).look()
    left = remaining(view, Paces().measure(view))
    assert (left.runs, left.updates, left.core_seconds, left.unmeasured) == (2, 16, 18.0, 1)


def test_status_writes_nothing(paths):
    in_all_states(paths)
    LedgerWriter(paths, "t").submitted("local", "c", ids(paths))
    before = contents(paths.folder.parent)
    text(paths)
    text(paths, "S=1")
    status.status_json(paths)
    assert watch.watch(paths, Console(file=io.StringIO())) == 0
    assert contents(paths.folder.parent) == before


def test_status_of_a_folder_that_cannot_be_written(paths):
    in_all_states(paths)
    folders = [paths.folder, *(p for p in paths.folder.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert "1 collapsed" in text(paths) and json.loads(status.status_json(paths))["sweep"] == "grid"
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_moved_or_copied_sweep_shows_the_same(paths, tmp_path):
    in_all_states(paths)
    before = json.loads(status.status_json(paths))
    paths.folder.parent.rename(tmp_path / "elsewhere")
    after = json.loads(status.status_json(SweepPaths(tmp_path / "elsewhere" / "grid")))
    assert [run["job"] for run in after["runs"]] == [run["job"] for run in before["runs"]]
    assert after["counts"] == before["counts"]


def test_without_slurm_its_jobs_are_unknown_and_never_dead(paths, tmp_path, monkeypatch):
    """Another machine without Slurm's commands: what is on disk is shown, with one line on the rest."""
    monkeypatch.setenv("PATH", str(tmp_path))
    writer = LedgerWriter(paths, "20261130T200000-1a2b3c4d")
    writer.submitted("slurm", "c", ids(paths)[:2])
    writer.sending("grid-20261130T200000-1a2b3c4d-0", [[run] for run in ids(paths)[:2]])
    writer.accepted("grid-20261130T200000-1a2b3c4d-0", "17")
    finished = paths.run(ids(paths)[0])
    append_line(finished.attempts, {"attempt": 1, "event": "started", "time": 1.0, "job": "17_0"})
    record.finish(finished, 40)
    shown = text(paths)
    assert "1 unknown" in shown and "1 collapsed" in shown
    assert shown.count("squeue does not answer") == 1
    data = json.loads(status.status_json(paths))
    assert [(run["job"], run["job_id"]) for run in data["runs"][:2]] == [
        ("finished", "17_0"),
        ("unknown", "17_1"),
    ]


def test_a_second_look_does_not_read_finished_runs_again(paths, monkeypatch):
    in_all_states(paths)
    reader = Reader(paths)
    reader.look()
    read: list[str] = []
    look = reader._look_at
    monkeypatch.setattr(reader, "_look_at", lambda run, *rest: read.append(run.run_id) or look(run, *rest))
    assert reader.look().statuses[ids(paths)[0]].outcome == "collapsed"
    assert read == ids(paths)[1:]
    read.clear()
    record.write_state(paths.run(ids(paths)[0]), "running", 2)  # it goes on
    assert reader.look().statuses[ids(paths)[0]].job == JobState.KILLED and read == ids(paths)


def test_a_thousand_runs_are_shown_in_a_second(tmp_path):
    paths = SweepPaths(tmp_path / "grid")
    apply(paths, compare(paths, expand(["seed=0"])), {})
    (cell,) = read_sweep(paths).cells
    record.finish(paths.run(cell.run_id), 40)
    cells = [Cell(run_id=f"{seed:012x}", values={"seed": seed}) for seed in range(1000)]
    for other in cells:
        shutil.copytree(paths.run(cell.run_id).folder, paths.run(other.run_id).folder)
    axes = {"seed": list(range(1000))}
    write_sweep(paths, read_sweep(paths).model_copy(update={"cells": cells, "axes": axes}))
    reader = Reader(paths)
    spent = [time.process_time()]
    for _ in range(2):
        view = reader.look()
        spent.append(time.process_time())
    assert len(view.statuses) == 1000
    text(paths)
    spent.append(time.process_time())
    first, again, whole = (after - before for before, after in itertools.pairwise(spent))
    # many times what it takes on an idle machine, so that only a change of its order fails
    assert first < 2.5 and again < 0.5 and whole < 4


def test_watch_ends_by_itself_and_says_how_it_ended(paths, monkeypatch):
    """A run goes on for two looks; each is one plain line, as this is no terminal."""
    in_all_states(paths)
    run = paths.run(ids(paths)[1])
    lock = locked(run.lock)
    lock.__enter__()
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert seconds == watch.PLAIN_SECONDS and looks < 3
        if looks == 2:
            record.finish(run, 100)
            lock.__exit__(None, None, None)

    monkeypatch.setattr(watch.time, "sleep", sleep)
    shown = io.StringIO()
    assert watch.watch(paths, Console(file=shown, width=200), ["S=1"]) == 0
    lines = [line for line in shown.getvalue().splitlines() if "sweep 'grid'" in line]
    assert len(lines) == 3 and "2 updates/s" in lines[0] and "1 running" in lines[1]
    assert "2 collapsed" in lines[2] and "running" not in lines[2]


def test_watch_of_a_sweep_that_rests_shows_it_once(paths, monkeypatch):
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: pytest.fail("nothing is to be waited for"))
    shown = io.StringIO()
    assert watch.watch(paths, Console(file=shown, force_terminal=True, width=120)) == 0
    assert "8 planned" in shown.getvalue()


@pytest.mark.end_to_end
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_ends_a_watch_with_130_and_no_traceback(tmp_path, terminal):
    shell = Shell(tmp_path)
    launcher = shell.start("submit", "seed=0", pause=0.5)
    until(lambda: bool(list(shell.folder.glob("outputs/tiny/runs/*/state.json"))))
    environment = os.environ | ({"FORCE_COLOR": "1"} if terminal else {})
    driver = Path(__file__).with_name("launcher_driver.py")
    command = [sys.executable, "-P", str(driver), "status", "tiny", "--watch"]
    search = os.pathsep.join([str(driver.parent.parent), str(driver.parent)])
    process = subprocess.Popen(
        command,
        cwd=shell.folder,
        env=environment | {"PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code, _, errors = finish(process)
        assert code == 130 and "Traceback" not in errors
    finally:
        launcher.send_signal(signal.SIGTERM)
        finish(launcher)
