"""The MLflow mirror: what it shows of a run record, and that nothing is doubled, lost or left hanging."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

import launcher.mlflow_store as store
import launcher.mlflow_view as shown
from launcher.mlflow_sync import SyncResult, sync, ui_command
from tests.synthetic_records import (
    METRICS,
    START,
    checkpoint,
    end,
    finish,
    make_sweep,
    start,
    update_line,
    write_state,
    write_updates,
)
from trainer.errors import UserError
from trainer.files import locked, write_atomic
from trainer.record import RunPaths, SweepPaths

ONE = {"a": {"sync_interval": 4, "learning_rate": 1e-6}}


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as `sync` creates it; copying it spares each test the second that this takes."""
    sweep = make_sweep(tmp_path_factory.mktemp("template") / "nothing", ONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        sync(sweep)
    return sweep.folder.parent / "mlflow.db"


@pytest.fixture
def outputs(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / 'it\'s "outputs" #1'
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copyfile(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def sweep(outputs: Path) -> SweepPaths:
    return make_sweep(outputs / "grid", ONE)


def client_of(result: SyncResult) -> MlflowClient:
    return MlflowClient(result.uri)


def runs_of(result: SyncResult, view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
    client = client_of(result)
    experiment = client.get_experiment_by_name(result.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], run_view_type=view))


def series(result: SyncResult, run: Run, metric: str) -> list[tuple[int, float]]:
    """Stored points by step; a doubled step shows as two entries."""
    history = client_of(result).get_metric_history(run.info.run_id, metric)
    return sorted((point.step, point.value) for point in history)


def expected(metric: str, updates: int) -> list[tuple[int, float]]:
    values = [(step, update_line(step)[metric]) for step in range(updates)]
    return [(step, value) for step, value in values if value is not None]


def assert_mirrored(result: SyncResult, run: Run, updates: int) -> None:
    for metric in METRICS:
        assert series(result, run, metric) == expected(metric, updates), metric


def finished(run: RunPaths, updates: int) -> None:
    start(run)
    write_updates(run, updates)
    finish(run, updates)


def test_a_finished_run_is_shown_in_full(sweep: SweepPaths, outputs: Path) -> None:
    finished(sweep.run("a"), 120)
    result = sync(sweep)
    (run,) = runs_of(result)
    assert (result.experiment, result.runs, result.problems) == ("grid", 1, ())
    assert result.points == 120 * len(
        METRICS
    )  # the missing cosine of update 0 is made up by nonfinite_updates
    assert_mirrored(result, run, 120)
    assert (run.info.status, run.info.start_time, run.info.end_time) == (
        "FINISHED",
        round(START + 100) * 1000,
        round(START + 150) * 1000,
    )
    assert run.info.run_name == "sync_interval=4, learning_rate=1e-06"
    assert run.data.params["learning_rate"] == "1e-06"
    assert run.data.params["task.length"] == "8"
    assert not [name for name in run.data.params if name.startswith("resources")]
    tags = run.data.tags
    assert {
        key.removeprefix("grposweep."): value for key, value in tags.items() if key.startswith("grpo")
    } == {
        "run_id": "a",
        "sweep": "grid",
        "cell": '{"sync_interval": 4, "learning_rate": 1e-06}',
        "attempt": "1",
        "job_state": "finished",
        "points_to": "120",
        "outcome": "collapsed",
        "rule_version": "1",
        "horizon": "120",
        "warm_start": "abc",
        "collapse.cumulative_rate": "[0.1, 0.2]",
        "collapse.snapshot": "7",
        "collapse.snapshot_low": "6",
        "collapse.snapshot_high": "8",
    }
    times = [point.timestamp for point in client_of(result).get_metric_history(run.info.run_id, "reward")]
    assert sorted(times) == [run.info.start_time + step for step in range(120)]
    assert not (outputs / "mlruns").exists()


def test_a_second_sync_writes_nothing(sweep: SweepPaths) -> None:
    finished(sweep.run("a"), 60)
    first = sync(sweep)
    (before,) = runs_of(first)
    again = sync(sweep)
    (after,) = runs_of(again)
    assert (again.points, again.runs, again.problems) == (0, 1, ())
    assert after.to_dictionary() == before.to_dictionary()


def test_a_cell_that_never_started_is_not_shown(sweep: SweepPaths) -> None:
    result = sync(sweep)
    assert (result.runs, result.points, result.problems) == (0, 0, ())
    assert runs_of(result) == []


def test_an_unfinished_run_is_shown_up_to_its_newest_complete_checkpoint(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    start(run)
    write_updates(run, 90)
    write_state(run, "running")
    checkpoint(run, 20)
    checkpoint(run, 50)
    checkpoint(run, 80, complete=False)
    with locked(run.lock):
        result = sync(sweep)
        (mirrored,) = runs_of(result)
    assert_mirrored(result, mirrored, 50)
    assert (mirrored.info.status, mirrored.info.end_time) == ("RUNNING", None)


def test_a_kill_and_a_resume_double_nothing(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    start(run)
    write_updates(run, 77)
    write_state(run, "running")
    checkpoint(run, 50)
    (killed,) = runs_of(sync(sweep))
    assert (killed.info.status, killed.info.end_time) == ("KILLED", round(START + 140) * 1000)
    write_updates(run, 50)  # the resume cuts the journals
    start(run, attempt=2)
    write_state(run, "running", attempt=2)
    with locked(run.lock):
        (resumed,) = runs_of(sync(sweep))
    assert (resumed.info.status, resumed.info.run_id) == ("RUNNING", killed.info.run_id)
    assert resumed.data.tags["grposweep.attempt"] == "2"
    write_updates(run, 130)
    finish(run, 130, attempt=2)
    result = sync(sweep)
    (done,) = runs_of(result)
    assert (done.info.status, done.info.end_time) == ("FINISHED", round(START + 250) * 1000)
    assert_mirrored(result, done, 130)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_sync_killed_between_points_and_tag_doubles_nothing(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    finished(sweep.run("a"), 110)
    log_batch = MlflowClient.log_batch
    seen = 0

    def killed(self: MlflowClient, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        nonlocal seen
        if metrics and seen == batches:
            log_batch(self, run_id, metrics)
            raise KeyboardInterrupt
        seen += bool(metrics)
        log_batch(self, run_id, metrics, params, tags)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MlflowClient, "log_batch", killed)
        sync(sweep)
    result = sync(sweep)
    (run,) = runs_of(result)
    assert_mirrored(result, run, 110)
    assert run.data.tags["grposweep.points_to"] == "110"


def test_numbers_that_are_not_finite_are_counted_and_left_out(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    start(run)
    nan, inf = float("nan"), float("inf")
    write_updates(run, 6, {2: {"loss": nan}, 4: {"ratio_max": inf, "kl": nan}})
    text = run.metrics.read_text().replace(f'"entropy": {update_line(5)["entropy"]}', '"entropy": Infinity')
    write_atomic(run.metrics, text)
    finish(run, 6)
    result = sync(sweep)
    (mirrored,) = runs_of(result)
    assert [step for step, _ in series(result, mirrored, "loss")] == [0, 1, 3, 4, 5]
    assert [step for step, _ in series(result, mirrored, "ratio_max")] == [0, 1, 2, 3, 5]
    assert [step for step, _ in series(result, mirrored, "entropy")] == [0, 1, 2, 3, 4]
    assert series(result, mirrored, "nonfinite_updates") == [(0, 0), (2, 1), (4, 2), (5, 3)]


def test_long_values_are_kept_whole_as_artifacts(
    sweep: SweepPaths, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sweep.run("a")
    start(run)
    error, prompt = "E" * 9000, "p" * 7000
    write_state(run, "failed", error=error)
    end(run)
    monkeypatch.setattr(shown, "scientific_fields", lambda config: {"task.prompt": prompt, "seed": 0})
    result = sync(sweep)
    (mirrored,) = runs_of(result)
    assert mirrored.info.status == "FAILED"
    for key, text, value in (
        ("grposweep.error", mirrored.data.tags["grposweep.error"], error),
        ("task.prompt", mirrored.data.params["task.prompt"], prompt),
    ):
        assert text.startswith(f"see artifact long_values/{key}.txt: {len(value)} characters")
        path = outputs / "mlartifacts/grid" / mirrored.info.run_id / "artifacts/long_values" / f"{key}.txt"
        assert path.read_text() == value
        path.unlink()
    assert sync(sweep).problems == ()
    assert not list((outputs / "mlartifacts").rglob("*.txt")), "an unchanged long value was uploaded again"


def test_tags_that_no_longer_hold_are_removed(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    start(run)
    write_state(run, "failed", error="out of memory")
    end(run)
    (failed,) = runs_of(sync(sweep))
    assert failed.data.tags["grposweep.error"] == "out of memory"
    start(run, attempt=2)
    write_updates(run, 3)
    finish(run, 3, attempt=2)
    (done,) = runs_of(sync(sweep))
    assert "grposweep.error" not in done.data.tags
    assert done.info.status == "FINISHED"


@pytest.mark.parametrize(
    ("state", "status"),
    [("interrupted", "KILLED"), ("running", "KILLED"), ("failed", "FAILED"), (None, "KILLED")],
)
def test_status_follows_the_job(sweep: SweepPaths, state: str | None, status: str) -> None:
    run = sweep.run("a")
    start(run)
    if state:
        write_state(run, state)
    (mirrored,) = runs_of(sync(sweep))
    assert mirrored.info.status == status
    assert mirrored.info.end_time == round(START + (140 if state else 100)) * 1000


def test_a_number_written_differently_is_the_same_parameter(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    finished(run, 2)
    sync(sweep)
    text = run.config.read_text()
    assert "learning_rate: 1.0e-06" in text
    write_atomic(run.config, text.replace("learning_rate: 1.0e-06", "learning_rate: 0.000001"))
    assert sync(sweep).problems == ()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_canonical_text_keeps_the_value(value: float) -> None:
    assert float(shown.canonical(value)) == value
    assert shown.canonical(float(f"{value:.17e}")) == shown.canonical(value)


def test_a_changed_parameter_is_reported_and_the_other_runs_go_on(outputs: Path) -> None:
    sweep = make_sweep(outputs / "grid", {"a": {"seed": 0}, "b": {"seed": 1}})
    finished(sweep.run("a"), 2)
    sync(sweep)
    config = sweep.run("a").config
    write_atomic(config, config.read_text().replace("group_size: 8", "group_size: 4"))
    finished(sweep.run("b"), 2)
    result = sync(sweep)
    (problem,) = result.problems
    assert "a: group_size is 4 in" in problem and "but 8 in MLflow run" in problem
    assert result.runs == 1
    assert {run.data.tags["grposweep.run_id"] for run in runs_of(result)} == {"a", "b"}


def test_a_damaged_record_is_reported_and_the_other_runs_go_on(outputs: Path) -> None:
    sweep = make_sweep(outputs / "grid", {"a": {"seed": 0}, "b": {"seed": 1}, "c": {"seed": 2}})
    for name in "abc":
        finished(sweep.run(name), 5)
    write_updates(sweep.run("a"), 3)
    sweep.run("b").config.write_text("seed: [")
    calls: list[tuple[int, int]] = []
    result = sync(sweep, on_progress=lambda done, of: calls.append((done, of)))
    assert [problem[:2] for problem in result.problems] == ["a:", "b:"]
    assert "metrics.jsonl has no line for update 3, of 5 that are final" in result.problems[0]
    assert result.runs == 1
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_a_deleted_experiment_says_how_to_restore_it(sweep: SweepPaths) -> None:
    finished(sweep.run("a"), 3)
    first = sync(sweep)
    client = client_of(first)
    experiment = client.get_experiment_by_name("grid")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(UserError) as caught:
        sync(sweep)
    command = str(caught.value).split("`")[1]
    words = shlex.split(command)
    assert words[:2] == ["env", f"MLFLOW_TRACKING_URI={first.uri}"]
    assert words[2:] == ["mlflow", "experiments", "restore", "--experiment-id", experiment.experiment_id]
    client.restore_experiment(experiment.experiment_id)
    result = sync(sweep)
    assert (result.runs, result.points) == (1, 0)


def test_a_renamed_experiment_is_found_again(sweep: SweepPaths) -> None:
    finished(sweep.run("a"), 3)
    client = client_of(sync(sweep))
    experiment = client.get_experiment_by_name("grid")
    assert experiment is not None
    client.rename_experiment(experiment.experiment_id, "my best grid")
    result = sync(sweep)
    assert (result.experiment, result.points) == ("my best grid", 0)
    assert client.get_experiment_by_name("grid") is None


def test_a_deleted_run_is_reported_and_continued_once_restored(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    start(run)
    write_updates(run, 30)
    checkpoint(run, 20)
    first = sync(sweep)
    (mirrored,) = runs_of(first)
    client_of(first).delete_run(mirrored.info.run_id)
    finish(run, 30)
    result = sync(sweep)
    (problem,) = result.problems
    assert f"mlflow runs restore --run-id {mirrored.info.run_id}" in problem
    assert (result.runs, len(runs_of(result, ViewType.ALL))) == (0, 1)
    client_of(first).restore_run(mirrored.info.run_id)
    assert_mirrored(sync(sweep), mirrored, 30)


def test_a_record_started_anew_gets_a_run_of_its_own(sweep: SweepPaths) -> None:
    run = sweep.run("a")
    finished(run, 30)
    (old,) = runs_of(sync(sweep))
    for path in (run.attempts, run.summary, run.metrics, run.state):
        path.unlink()
    start(run, attempt=3)
    write_updates(run, 10)
    checkpoint(run, 10)
    result = sync(sweep)
    assert old.info.run_id in result.problems[0]
    new = next(item for item in runs_of(result) if item.info.run_id != old.info.run_id)
    assert_mirrored(result, new, 10)
    assert_mirrored(result, old, 30)


def test_stale_variables_do_not_redirect_a_sync(sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "0123456789")
    before = dict(os.environ)
    finished(sweep.run("a"), 2)
    assert sync(sweep).runs == 1
    assert dict(os.environ) == before


def test_the_environment_names_the_store(sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere/mine.db")
    Path("elsewhere").mkdir()
    shutil.copyfile("mlflow.db", "elsewhere/mine.db")
    finished(sweep.run("a"), 2)
    result = sync(sweep)
    assert result.uri == f"sqlite:///{Path.cwd()}/elsewhere/mine.db"
    assert len(runs_of(result)) == 1
    assert sqlite_mode(Path("elsewhere/mine.db")) == "wal"


def sqlite_mode(database: Path) -> str:
    import sqlite3

    connection = sqlite3.connect(database)
    try:
        return str(connection.execute("pragma journal_mode").fetchone()[0])
    finally:
        connection.close()


def test_a_file_that_is_no_database_is_reported(sweep: SweepPaths, outputs: Path) -> None:
    (outputs / "notes.db").write_text("a shopping list, long enough to be read as a header" * 20)
    with pytest.raises(UserError, match="file is not a database"):
        sync(sweep, f"sqlite:///{outputs}/notes.db")


def test_a_killed_creation_is_started_over(sweep: SweepPaths, outputs: Path) -> None:
    (outputs / "mlflow.db").unlink()
    (outputs / ".mlflow.db.unfinished").write_bytes(b"SQLite format 3\0 and then the power went")
    (outputs / ".mlflow.db.unfinished-journal").write_bytes(b"torn")
    finished(sweep.run("a"), 2)
    result = sync(sweep)
    assert len(runs_of(result)) == 1
    assert not list(outputs.glob(".mlflow.db*"))


def test_a_sync_that_waits_too_long_says_for_whom(
    sweep: SweepPaths, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_WAIT", 0.1)
    with (
        locked(outputs / "mlflow.db.lock"),
        pytest.raises(UserError, match=rf"held by process {os.getpid()}; wait for it or stop it"),
    ):
        sync(sweep)


def test_a_closed_port_is_reported_soon(sweep: SweepPaths) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="records are complete on disk: sync again"):
        sync(sweep, f"http://127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 20


def test_a_server_that_never_answers_is_given_up(sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(UserError, match="timed out"):
        sync(sweep, f"http://127.0.0.1:{mute.getsockname()[1]}")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("uri", ["nosuch+driver://somewhere/mlflow", "mysql+nosuch://somewhere/mlflow"])
def test_a_database_without_a_driver_is_reported(sweep: SweepPaths, uri: str) -> None:
    with pytest.raises(UserError, match="records are complete on disk"):
        sync(sweep, uri)


def test_a_network_file_system_is_warned_of(sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.mlflow_sync.network_filesystem", lambda path: "nfs4")
    finished(sweep.run("a"), 2)
    result = sync(sweep)
    assert result.runs == 1
    assert "network file system (nfs4)" in result.problems[0]


SYNC_ONCE = """
import sys
from pathlib import Path
from launcher.mlflow_sync import sync
from trainer.record import SweepPaths
assert "mlflow" not in sys.modules
result = sync(SweepPaths(Path(sys.argv[1])))
assert result.problems == () and result.runs == 1, result
assert "torch" not in sys.modules
"""


@pytest.mark.end_to_end
def test_two_syncs_at_once_create_and_fill_one_store(sweep: SweepPaths, outputs: Path) -> None:
    (outputs / "mlflow.db").unlink()
    finished(sweep.run("a"), 100)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", SYNC_ONCE, str(sweep.folder)]
    both = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=outputs)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    result = sync(sweep)
    assert (result.points, result.problems) == (0, ())
    (run,) = runs_of(result)
    assert_mirrored(result, run, 100)


@pytest.mark.end_to_end
def test_the_ui_opens_and_its_server_can_be_synced_to(sweep: SweepPaths, outputs: Path) -> None:
    finished(sweep.run("a"), 60)
    local = sync(sweep)
    other = make_sweep(outputs / "second", ONE)
    run = other.run("a")
    start(run)
    write_updates(run, 60)
    write_state(run, "failed", error="E" * 9000)
    end(run)
    checkpoint(run, 50)
    with serving(ui_command(local.uri), outputs) as address:
        assert b"<html" in fetch(address)
        body = json.dumps({"experiment_ids": [str(experiment_id(local))]}).encode()
        found = json.loads(fetch(f"{address}/api/2.0/mlflow/runs/search", body))["runs"]
        assert [item["info"]["status"] for item in found] == ["FINISHED"]
        result = sync(other, address)
        assert result.problems == ()
        (mirrored,) = runs_of(result)
        assert_mirrored(result, mirrored, 50)
        finish(run, 60)
        client_of(result).set_tag(mirrored.info.run_id, "grposweep.points_to", "10")
        result = sync(other, address)
        assert result.problems == ()
        assert_mirrored(result, mirrored, 60)


def experiment_id(result: SyncResult) -> str:
    experiment = client_of(result).get_experiment_by_name(result.experiment)
    assert experiment is not None
    return str(experiment.experiment_id)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(address: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """Run the UI's command on a free port, in a process group of its own that is stopped at the end."""
    port = free_port()
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            f"exec {command} --port {port}",
            shell=True,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                fetch(f"http://127.0.0.1:{port}/health")
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)
