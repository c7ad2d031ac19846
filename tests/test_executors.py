"""Executors keep one contract: start, tell of ends, terminate, kill. Snapshots are what jobs run from."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.executors import Ended, ProcessExecutor, job_environment, make_executor
from launcher.provenance import checkout, provenance
from launcher.snapshot import content_hash, take_snapshot
from trainer.errors import UserError
from trainer.record import RunPaths, SweepPaths

SCRIPT = {
    "ok": "print('hello')",
    "fail": "raise SystemExit(7)",
    "deaf": "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
    "sleep": "import time; print('up', flush=True); time.sleep(60)",
    "look": "import os, sys; print(os.getcwd(), sys.argv[1], os.getsid(0) == os.getpid(), sys.stdin.read())",
    "child": (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); time.sleep(60)"
    ),
}


def run_paths(folder: Path, name: str = "r1") -> RunPaths:
    run = RunPaths(folder / "runs" / name)
    run.folder.mkdir(parents=True)
    return run


def wait_for(executor: ProcessExecutor, seconds: float = 20) -> Ended:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended = executor.ended()
        if ended:
            assert len(ended) == 1
            return ended[0]
        time.sleep(0.01)
    raise AssertionError("no job ended in time")


def wait_for_log(run: RunPaths, seconds: float = 20) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = run.log(1).read_text()
        if text.endswith("\n"):
            return text
        time.sleep(0.01)
    raise AssertionError("nothing was printed in time")


@pytest.fixture(params=["local", "inline"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(kind: str, code: Path, script: str) -> ProcessExecutor:
    made = make_executor(kind, code)  # type: ignore[arg-type]
    return ProcessExecutor(made.name, made.slots, code, (sys.executable, "-c", SCRIPT[script]))


def test_a_job_runs_in_its_folder_in_a_session_of_its_own(kind: str, tmp_path: Path) -> None:
    run = run_paths(tmp_path / 'it\'s a "test"')
    executor = make(kind, tmp_path, "look")
    started = executor.start(run, 1, 1)
    assert executor.running == ("r1",) and started.born is not None
    assert wait_for(executor) == Ended("r1", 1, 0, None)
    assert executor.running == () and executor.ended() == []
    assert run.log(1).read_text() == f"{run.folder} {run.folder} True \n"


def test_exit_codes_and_signals_are_told_apart(kind: str, tmp_path: Path) -> None:
    executor = make(kind, tmp_path, "fail")
    executor.start(run_paths(tmp_path), 3, 1)
    assert wait_for(executor) == Ended("r1", 3, 7, None)


def test_terminate_asks_and_kill_ends(kind: str, tmp_path: Path) -> None:
    run = run_paths(tmp_path)
    executor = make(kind, tmp_path, "sleep")
    executor.start(run, 1, 1)
    wait_for_log(run)
    executor.terminate()
    assert wait_for(executor) == Ended("r1", 1, None, signal.SIGTERM)
    executor = make(kind, tmp_path, "deaf")
    deaf = run_paths(tmp_path, "r2")
    executor.start(deaf, 1, 1)
    wait_for_log(deaf)
    executor.terminate()
    time.sleep(0.05)
    assert executor.ended() == []
    executor.kill()
    assert wait_for(executor) == Ended("r2", 1, None, signal.SIGKILL)


def test_kill_takes_the_processes_that_a_job_started(tmp_path: Path) -> None:
    run = run_paths(tmp_path)
    executor = make("local", tmp_path, "child")
    executor.start(run, 1, 1)
    child = int(wait_for_log(run))
    executor.kill()
    wait_for(executor)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]:
            break
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists() or ") Z" in Path(f"/proc/{child}/stat").read_text()


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    run = run_paths(tmp_path)
    executor = make("local", tmp_path, "ok")
    for _ in range(2):
        executor.start(run, 1, 1)
        wait_for(executor)
    assert run.log(1).read_text() == "hello\nhello\n"


def test_slots_follow_the_cores_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert make_executor("local", tmp_path).slots == 6
    assert make_executor("local", tmp_path, jobs=4).slots == 4
    assert make_executor("local", tmp_path, jobs=9).slots == 6
    assert make_executor("local", tmp_path, threads=4).slots == 1
    assert make_executor("local", tmp_path, threads=8).slots == 1
    assert make_executor("inline", tmp_path, jobs=4).slots == 1


def test_the_environment_of_a_job(tmp_path: Path) -> None:
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": f"relative{os.pathsep}{os.pathsep}/absolute",
        "OMP_NUM_THREADS": "64",
        "GRPOSWEEP_CODE": "old",
        "RANK": "3",
        **dict.fromkeys(("SLURM_CPU_BIND", "SLURM_JOB_ID", "SBATCH_X", "PMIX_RANK", "RAY_ADDRESS"), "1"),
        **dict.fromkeys(("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"), "1"),
    }
    code = tmp_path / "code"
    environment = job_environment(inherited, code, 2)
    assert environment["PATH"] == "/bin"
    assert environment["PYTHONPATH"].split(os.pathsep) == [
        str(code),
        str(Path("relative").absolute()),
        "/absolute",
    ]
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"2"}
    assert environment["GRPOSWEEP_CODE"] == str(code)
    assert environment["GRPOSWEEP_LAUNCHER"] == str(os.getpid())
    foreign = ("SLURM_", "SBATCH_", "PMIX_", "RAY_", "MLFLOW_", "RANK")
    assert not [name for name in environment if name.startswith(foreign)]


def checkout_with_code(folder: Path) -> Path:
    (folder / "trainer" / "__pycache__").mkdir(parents=True)
    (folder / "trainer" / "__init__.py").write_text("MARK = 1\n")
    (folder / "trainer" / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    (folder / "launcher").mkdir()
    (folder / "launcher" / "x.py").write_text("")
    return folder


def test_a_snapshot_is_taken_once_per_content_and_later_edits_do_not_reach_it(tmp_path: Path) -> None:
    root, paths = checkout_with_code(tmp_path / "root"), SweepPaths(tmp_path / "sweep")
    first = take_snapshot(paths, root)
    assert first.folder == paths.code / first.code
    copied = [item.relative_to(first.folder).as_posix() for item in first.folder.rglob("*") if item.is_file()]
    assert copied == ["trainer/__init__.py"]
    (root / "launcher" / "x.py").write_text("edited")
    again = take_snapshot(paths, root)
    assert again.code == first.code and len(list(paths.code.iterdir())) == 1
    (root / "trainer" / "__init__.py").write_text("MARK = 2\n")
    second = take_snapshot(paths, root)
    assert second.code != first.code
    assert (first.folder / "trainer" / "__init__.py").read_text() == "MARK = 1\n"


def test_content_and_names_both_count(tmp_path: Path) -> None:
    root = checkout_with_code(tmp_path)
    before = content_hash(root)
    (root / "trainer" / "__init__.py").rename(root / "trainer" / "other.py")
    assert content_hash(root) != before


def test_an_edited_snapshot_is_refused(tmp_path: Path) -> None:
    root, paths = checkout_with_code(tmp_path / "root"), SweepPaths(tmp_path / "sweep")
    snapshot = take_snapshot(paths, root)
    (snapshot.folder / "trainer" / "__init__.py").write_text("MARK = 3\n")
    with pytest.raises(UserError, match="was changed after it was written"):
        take_snapshot(paths, root)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_provenance_with_and_without_git(tmp_path: Path) -> None:
    root, paths = checkout_with_code(tmp_path / "root"), SweepPaths(tmp_path / "sweep")
    assert checkout(root) is None
    assert take_snapshot(paths, root).provenance["commit"] is None
    git(root, "init")
    (root / ".gitignore").write_text("__pycache__\n")
    git(root, "add", ".")
    git(root, "commit", "-m", "one")
    clean = take_snapshot(paths, root).provenance
    assert clean["dirty"] is False and len(str(clean["commit"])) == 40 and "patch" not in clean
    assert checkout(root / "trainer") is None  # not the top: somebody else's repository
    (root / "trainer" / "__init__.py").write_text("MARK = 2\n")
    (root / "new file.py").write_text("")
    dirty = take_snapshot(paths, root).provenance
    assert dirty["dirty"] is True and dirty["untracked"] == ["new file.py"]
    assert "+MARK = 2" in (paths.code / str(dirty["patch"])).read_text()
    assert "numpy" in dict(provenance(None)["packages"])
