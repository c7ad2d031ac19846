"""Whole sweeps with stand-in jobs: killed, stopped, doubled, failing, repeated. No cell ever runs twice."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from launcher_fakes import FAKE_JOB, expand
from launcher_shell import Shell, finish, until
from rich.console import Console

from launcher import sweep_folder
from launcher.executors import ProcessExecutor
from launcher.ledger import LedgerWriter, read_ledger
from launcher.locate import sweep_paths
from launcher.progress import Progress, duration, time_left
from launcher.runner import Runner, longest_first
from launcher.state import job_states
from trainer.files import is_locked, locked, read_json, read_lines
from trainer.record import JobState, RunPaths, SweepPaths, is_training, read_budget, read_state, read_sweep

ALL = list(range(20))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def runs(shell: Shell) -> list[RunPaths]:
    folder = shell.folder / "outputs" / "tiny" / "runs"
    return [RunPaths(item) for item in sorted(folder.glob("[!.]*"))]


def in_the_middle(shell: Shell) -> bool:
    """Two runs have begun and are not at their end."""
    states = [state for state in map(read_state, runs(shell)) if state is not None]
    return len(states) >= 2 and all(0 < state.step < state.horizon for state in states)


def job_pids(shell: Shell) -> list[int]:
    states = [read_state(run) for run in runs(shell) if is_training(run)]
    return [state.pid for state in states if state is not None]


def attempts(shell: Shell) -> list[int]:
    return [len([line for line in read_lines(r.attempts) if line["event"] == "started"]) for r in runs(shell)]


@pytest.mark.end_to_end
def test_a_grid_runs_and_the_second_time_there_is_nothing_to_do(shell: Shell) -> None:
    words = ("submit", "seed=0,1,2", "budget.horizon.updates=20")
    code, output, errors = shell.run(*words, seeds={"1": "collapse"})
    assert (code, errors) == (0, "")
    assert "3 new" in output and "2 stable, 1 collapsed" in output
    assert "grposweep report tiny" in output and "mlflow ui --backend-store-uri" in output
    assert sorted(shell.updates(), key=len) == [ALL[:5], ALL, ALL]
    before = shell.files()
    code, output, errors = shell.run(*words)
    assert (code, errors) == (0, "")
    assert "nothing to do: 2 stable, 1 collapsed" in output
    assert {name: entry for name, entry in shell.files().items() if not name.endswith("runner.lock")} == {
        name: entry for name, entry in before.items() if not name.endswith("runner.lock")
    }


@pytest.mark.end_to_end
def test_jobs_get_a_clean_environment_and_the_snapshot(shell: Shell) -> None:
    shell.run("submit", "seed=0", "budget.horizon.updates=1")
    (run,) = runs(shell)
    log = run.log(1).read_text()
    assert "attempt 1 of seed 0 at step 0" in log
    assert "FAKE_JOB" in log and "SLURM_CPU_BIND" not in log and "MLFLOW_RUN_ID" not in log
    (entry,) = read_sweep(shell.paths()).history
    assert (shell.paths().code / entry["code"] / "trainer" / "files.py").is_file()


@pytest.mark.end_to_end
def test_a_new_seed_leaves_finished_runs_untouched(shell: Shell) -> None:
    shell.run("submit", "seed=0,1")
    before = {run.folder: {p: p.stat().st_mtime_ns for p in run.folder.rglob("*")} for run in runs(shell)}
    code, output, _ = shell.run("submit", "seed=0,1,2")
    assert code == 0 and "1 new, 2 kept" in output and "1 to run" in output
    for folder, times in before.items():
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times


@pytest.mark.end_to_end
def test_kill_9_of_the_launcher_ends_the_jobs_and_the_same_command_continues(shell: Shell) -> None:
    words = ("submit", "seed=0,1,2,3")
    launcher = shell.start(*words, pause=0.05)
    until(lambda: in_the_middle(shell))
    launcher.kill()
    finish(launcher)
    code, output, errors = shell.run(*words)
    assert (code, errors) == (0, "")
    assert shell.updates() == [ALL] * 4
    assert max(attempts(shell)) == 2 and "4 stable" in output
    configs = {run.run_id: run.config.read_bytes() for run in runs(shell)}
    assert len(set(configs.values())) == 4


@pytest.mark.end_to_end
def test_an_orphan_of_a_killed_launcher_is_waited_for_and_not_doubled(shell: Shell) -> None:
    """The launcher dies at once after starting a job, and the next one comes while the job still lives."""
    launcher = shell.start("submit", "seed=0", "budget.horizon.updates=20", pause=0.5)
    until(lambda: bool(job_pids(shell)))
    (orphan,) = job_pids(shell)
    os.kill(orphan, signal.SIGSTOP)  # it cannot notice that its launcher is gone
    launcher.kill()
    finish(launcher)
    second = shell.start("submit", "seed=0", "budget.horizon.updates=20")
    try:
        until(lambda: is_locked(shell.paths().runner_lock))
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(2)
        assert attempts(shell) == [1] and is_training(runs(shell)[0])
    finally:
        os.kill(orphan, signal.SIGCONT)
    code, output, _ = finish(second)
    assert code == 0 and "waiting for 1 job(s) of an earlier launcher" in output
    assert shell.updates() == [ALL] and attempts(shell) == [2]


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_jobs_with_a_checkpoint_and_says_how_to_go_on(
    shell: Shell, number: signal.Signals
) -> None:
    launcher = shell.start("submit", "seed=0,1,2", pause=0.05)
    until(lambda: in_the_middle(shell))
    launcher.send_signal(number)
    code, output, errors = finish(launcher)
    assert code == 130 and "Traceback" not in output + errors
    assert "stopping: 2 running job(s)" in output and "the same command again continues" in output
    states = sorted(str(status.job) for status in shell.statuses().values())
    assert states == ["interrupted", "interrupted", "planned"]
    code, output, _ = shell.run("submit", "seed=0,1,2")
    assert code == 0 and shell.updates() == [ALL] * 3


@pytest.mark.end_to_end
def test_a_second_ctrl_c_kills_jobs_that_do_not_listen(shell: Shell) -> None:
    launcher = shell.start("submit", "seed=0", pause=0.05, seeds={"0": "deaf"})
    until(lambda: bool(job_pids(shell)))
    (job,) = job_pids(shell)
    launcher.send_signal(signal.SIGINT)
    until(lambda: "stopping" in os.read(launcher.stdout.fileno(), 10_000).decode())  # type: ignore[union-attr]
    launcher.send_signal(signal.SIGINT)
    code, _, _ = finish(launcher)
    assert code == 130
    assert not Path(f"/proc/{job}").exists()
    assert [status.job for status in shell.statuses().values()] == [JobState.KILLED]


@pytest.mark.end_to_end
def test_failures_leave_the_others_alone_and_are_listed_with_reason_and_log(shell: Shell) -> None:
    ways = {"1": "raise", "2": "die", "3": "die early", "4": "silent"}
    code, output, errors = shell.run("submit", "seed=0,1,2,3,4", seeds=ways)
    assert (code, errors) == (1, "")
    found = {seed: status.job for seed, status in shell.by_seed().items()}
    assert found == {0: "finished", 1: "failed", 2: "killed", 3: "killed", 4: "failed"}
    assert "RuntimeError: seed 1 cannot be trained" in output
    assert "killed by SIGKILL" in output and "exit code 0 without a finished record" in output
    for seed in (1, 2, 3):
        assert f"log: outputs/tiny/runs/{shell.by_seed()[seed].run_id}/logs/attempt-1.out" in output
    assert "grposweep resume tiny" in output
    # submit takes up what was killed, and leaves what failed
    code, output, _ = shell.run("submit", "seed=0,1,2,3,4")
    assert code == 1 and "2 to run" in output
    found = {seed: status.job for seed, status in shell.by_seed().items()}
    assert found == {0: "finished", 1: "failed", 2: "finished", 3: "finished", 4: "failed"}
    # resume tries again what failed, and says what there is first
    code, output, _ = shell.run("resume", "tiny")
    assert code == 1 and output.startswith("sweep 'tiny': 3 stable, 2 failed (exception)\nto run: 0\n")
    assert "not run again: 2 exception; once the cause is gone: --retry exception" in output
    code, output, _ = shell.run("resume", "tiny", "--retry", "exception")
    assert code == 0 and "to run: 2, of these after 2 exception\n" in output
    assert shell.updates() == [ALL] * 5


@pytest.mark.end_to_end
def test_a_folder_with_a_space_and_quotes(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "quoted" $HOME; folder'
    folder.mkdir()
    shell, name = Shell(folder), 'my "best" sweep\'s name'
    code, output, errors = shell.run("submit", "seed=0", "--name", name)
    assert (code, errors) == (0, "")
    assert shell.updates(name) == [ALL]
    code, output, _ = shell.run("status", name)
    assert code == 0 and "1 stable" in output


@pytest.mark.end_to_end
def test_two_submits_at_once_run_each_cell_once(shell: Shell) -> None:
    first = shell.start("submit", "seed=0,1,2", pause=0.03)
    second = shell.start("submit", "seed=0,1,2", pause=0.03)
    ended = sorted([finish(first), finish(second)])
    assert [code for code, _, _ in ended] == [0, 2]
    assert "is being run by process" in ended[1][2] and "Traceback" not in ended[1][2]
    assert shell.updates() == [ALL] * 3 and attempts(shell) == [1, 1, 1]


@pytest.mark.end_to_end
def test_extend_continues_stable_runs_only(shell: Shell) -> None:
    shell.run("submit", "seed=0,1", seeds={"1": "collapse"})
    code, output, errors = shell.run("extend", "tiny", "--horizon", "30")
    assert (code, errors) == (0, "")
    assert "1 of 2 runs continue to 30 updates" in output and "1 collapsed" in output
    assert shell.updates() == [list(range(30)), ALL[:5]]
    # the grid as typed before is still the same grid
    code, output, _ = shell.run("submit", "seed=0,1")
    assert code == 0 and "nothing to do" in output and "keep the larger budget" in output
    code, _, errors = shell.run("extend", "tiny", "--horizon", "30")
    assert code == 2 and "use more than" in errors
    code, _, errors = shell.run("submit", "seed=0,1", "budget.horizon.updates=10")
    assert code == 2 and "budgets only grow" in errors


def prepared(tmp_path: Path, *overrides: str) -> SweepPaths:
    paths = sweep_paths(tmp_path, "tiny")
    sweep_folder.apply(paths, sweep_folder.compare(paths, expand(overrides)), {})
    return paths


def test_longest_runs_start_first(tmp_path: Path) -> None:
    paths = prepared(tmp_path, "seed=0,1,2,3")
    ids = [cell.run_id for cell in read_sweep(paths).cells]
    statuses = job_states(map(paths.run, ids), read_ledger(paths))
    budget = read_budget(paths.run(ids[0]))
    horizons = dict(zip(ids, (500, 2000, 1000, 1000), strict=True))
    budgets = {run: budget.model_copy(update={"horizon": horizon}) for run, horizon in horizons.items()}
    assert longest_first(statuses, budgets, ids) == [ids[1], ids[2], ids[3], ids[0]]


def test_a_run_that_stays_busy_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that says the run is busy while nobody holds its lock is not started for ever."""
    monkeypatch.setattr("launcher.runner.FOREIGN_SECONDS", 0.0)
    paths = prepared(tmp_path, "seed=0")
    sweep = read_sweep(paths)
    executor = ProcessExecutor("local", 1, tmp_path, ("/bin/sh", "-c", "exit 76"))
    progress = Progress(Console(quiet=True), sweep, {sweep.cells[0].run_id: 20}, 1)
    result = Runner(paths, sweep, executor, LedgerWriter(paths, "t"), progress).run([sweep.cells[0].run_id])
    assert result.exit_code == 1
    started = [line for line in read_lines(paths.submissions) if line["event"] == "started"]
    assert len(started) == 5


def test_an_error_in_the_loop_leaves_no_job_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JOB", '{"pause": 0.05}')
    paths = prepared(tmp_path, "seed=0")
    sweep = read_sweep(paths)
    executor = ProcessExecutor("local", 1, Path(__file__).parent.parent, FAKE_JOB)
    progress = Progress(Console(quiet=True), sweep, {sweep.cells[0].run_id: 20}, 1)
    monkeypatch.setattr(progress, "due", lambda: 1 / (read_state(paths.run(sweep.cells[0].run_id)) is None))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        Runner(paths, sweep, executor, LedgerWriter(paths, "t"), progress).run([sweep.cells[0].run_id])
    assert executor.running == () and not is_training(paths.run(sweep.cells[0].run_id))
    state = read_state(paths.run(sweep.cells[0].run_id))
    assert state is not None and state.state == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_never_turns_a_job_away(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock):
        pass
    handle = os.open(lock, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_SH)
        assert not is_locked(lock)  # two readers do not take each other for a holder
    finally:
        os.close(handle)
    assert read_json(tmp_path / "none.json") is None


def test_time_left_is_bounded_by_the_longest_run() -> None:
    assert time_left([100, 100], [10.0, 10.0], 2) == pytest.approx(10)
    assert time_left([1000, 10, 10], [10.0], 3) == pytest.approx(100)
    assert time_left([60, 60, 60, 60], [10.0, 30.0], 2) == pytest.approx(6)
    assert time_left([10], [0.0], 2) is None
    assert time_left([], [1.0], 2) is None


def test_durations_read_well() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.4, 59.6, 200, 7500)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 20 s",
        "2 h 05 min",
    ]
