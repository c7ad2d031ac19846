"""The command line: messages, exit codes, nothing written by readers, nothing heavy imported."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_fakes import install
from launcher_shell import TESTS, Shell, finish, until

from launcher import cli
from launcher.progress import duration
from trainer.files import write_json
from trainer.record import read_budget, read_sweep


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    modules: dict[str, object] = {}
    install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("launcher.executors.JOB", (sys.executable, "-P", str(TESTS / "launcher_fake_job.py")))
    return Shell(tmp_path)


@pytest.fixture
def call(shell: Shell, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run a command in this process: exit code, output, errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["grposweep", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        output, errors = capfd.readouterr()
        return int(caught.value.code or 0), output, errors

    return run


def test_help_loads_little_and_names_every_command() -> None:
    script = """
import sys
sys.argv = ["grposweep", "--help"]
from launcher.cli import main
try:
    main()
except SystemExit:
    pass
print("LOADED", *sorted({"hydra", "pandas", "matplotlib", "scipy", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=TESTS.parent, check=True
    )
    for command in ("submit", "plan", "extend", "resume", "status", "report", "sync"):
        assert f"  {command} " in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_no_command_imports_what_only_jobs_and_sync_need(tmp_path: Path) -> None:
    """Every command in one process, with the real grid; jobs are replaced by a stand-in."""
    script = f"""
import sys
sys.path[:0] = [{str(TESTS.parent)!r}, {str(TESTS)!r}]
import launcher_fakes, launcher.executors
from launcher import cli
launcher.executors.JOB = launcher_fakes.FAKE_JOB
mlflow_sync = {{}}
launcher_fakes.install(mlflow_sync)
sys.modules["launcher.mlflow_sync"] = mlflow_sync["launcher.mlflow_sync"]
for words in (
    ["--help"], ["plan", "sweep=smoke"], ["submit", "sweep=smoke", "-y"], ["status", "smoke"],
    ["status", "smoke", "-f", "json"], ["extend", "smoke", "--horizon", "25"], ["resume", "smoke"],
):
    sys.argv = ["grposweep", *words]
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, words
heavy = [name for name in ("torch", "transformers", "mlflow", "ray", "vllm") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 cells, 4 new" in done.stdout


def test_plan_shows_the_grid_and_writes_nothing(shell: Shell, call) -> None:  # type: ignore[no-untyped-def]
    before = shell.files()
    code, output, errors = call("plan", "learning_rate=1e-3,2e-3", "seed=0,1")
    assert (code, errors) == (0, "")
    assert "4 cells, 4 new, 0 kept" in output and "to run: 4 runs, 80 updates" in output
    assert "500 ms per update, from the preset" in output
    assert shell.files() == before == {}
    assert call("submit", "learning_rate=1e-3,2e-3", "seed=0")[0] == 0
    before = shell.files()
    code, output, _ = call("plan", "learning_rate=1e-3,2e-3", "seed=0,1", "budget.horizon.updates=30")
    assert code == 0 and "2 new, 2 kept, 2 with a larger budget" in output
    assert "to run: 4 runs, 80 updates" in output  # two of 30, two from 20 to 30
    assert call("plan", "learning_rate=1e-3,2e-3", "loss.clip_high=0.3")[0] == 2
    assert call("status", "tiny")[0] == call("status", "tiny", "-f", "json")[0] == 0
    assert shell.files() == before


def test_status_as_table_and_as_json(shell: Shell, call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("FAKE_JOB", json.dumps({"seeds": {"1": "collapse", "2": "raise"}}))
    assert call("submit", "seed=0,1,2", "sync_interval=4")[0] == 1
    code, output, _ = call("status", "tiny")
    assert code == 0 and "1 stable, 1 collapsed, 1 failed" in output
    assert "cannot be trained" in output and "attempt-1.out" in output
    data = json.loads(call("status", "tiny", "-f", "json")[1])
    assert data["counts"] == {"finished": {"stable": 1, "collapsed": 1}, "failed": {"-": 1}}
    assert [(run["job"], run["outcome"], run["step"]) for run in data["runs"]] == [
        ("finished", "stable", 20),
        ("finished", "collapsed", 5),
        ("failed", None, 10),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit", "learnin_rate=1"], "unknown field learnin_rate"),
        (["submit", "group_size=1"], "use group_size=2 or more"),
        (["submit", "learning_rate=fast"], "learning_rate='fast' must be a number"),
        (["submit", "seed=0", "--name", "a/b"], "--name 'a/b'"),
        (["status", "tinny"], "submit one first"),
        (["extend", "tiny", "--horizon", "3", "--kappa", "2"], "no sweep 'tiny'"),
        (["resume", ""], "no sweep ''"),
        (["submit", "--jobs", "0"], "--jobs"),
    ],
)
def test_a_mistake_is_one_message_exit_code_2_and_nothing_written(
    shell: Shell,
    call,  # type: ignore[no-untyped-def]
    words: list[str],
    message: str,
) -> None:
    code, output, errors = call(*words)
    assert code == 2 and message in errors
    assert "Traceback" not in errors and output == ""
    assert shell.files() == {}


def test_a_changed_field_shows_the_diff_and_name_gives_it_a_place(shell: Shell, call) -> None:  # type: ignore[no-untyped-def]
    call("submit", "seed=0")
    code, _, errors = call("submit", "seed=0", "loss.clip_high=0.3")
    assert code == 2 and "loss.clip_high: 0.2 → 0.3" in errors and "--name" in errors
    assert call("submit", "seed=0", "loss.clip_high=0.3", "--name", "other")[0] == 0
    assert read_sweep(shell.paths("other")).fixed["loss.clip_high"] == 0.3
    code, _, errors = call("status", "othr")
    assert code == 2 and "did you mean other?" in errors


def test_kappa_uses_the_clock_of_the_report(shell: Shell, call) -> None:  # type: ignore[no-untyped-def]
    call("submit", "learning_rate=1e-2,2e-2")
    code, _, errors = call("extend", "tiny", "--kappa", "2")
    assert code == 2 and "results.json does not exist" in errors and "grposweep report tiny" in errors
    write_json(shell.paths().report / "results.json", {"clock": {"c2": None}})
    assert "holds no clock.c2.high" in call("extend", "tiny", "--kappa", "2")[2]
    clock = {"c2": {"high": None}, "posterior": {"c2": {"high": 0.15}}}
    write_json(shell.paths().report / "results.json", {"clock": clock})
    code, output, _ = call("extend", "tiny", "--kappa", "2")
    assert code == 0 and "1 of 2 runs continue to 30 updates" in output
    horizons = {
        cell.values["learning_rate"]: read_budget(shell.paths().run(cell.run_id)).horizon
        for cell in read_sweep(shell.paths()).cells
    }
    assert horizons == {0.01: 30, 0.02: 20}  # 2·0.15/0.01, and 15 is less than it has
    assert read_sweep(shell.paths()).history[-1]["overrides"] == ["--kappa 2.0"]


def test_extend_wants_one_of_two(shell: Shell, call) -> None:  # type: ignore[no-untyped-def]
    call("submit", "seed=0")
    for words in ((), ("--horizon", "30", "--kappa", "2")):
        code, _, errors = call("extend", "tiny", *words)
        assert code == 2 and "one of --horizon" in errors


def test_runs_with_checkpoints_of_another_format_are_not_extended(shell: Shell, call) -> None:  # type: ignore[no-untyped-def]
    call("submit", "seed=0")
    (cell,) = read_sweep(shell.paths()).cells
    checkpoint = shell.paths().run(cell.run_id).checkpoints / "step-00000020"
    write_json(checkpoint / "meta.json", {"cumulative_rate": 0.1})
    write_json(checkpoint / "complete.json", {"step": 20, "sha256": {}})

    def content() -> dict[str, object]:
        return {name: found for name, found in shell.files().items() if not name.endswith("runner.lock")}

    before = content()
    code, _, errors = call("extend", "tiny", "--horizon", "30")
    assert code == 2 and "checkpoints of format 1" in errors and "Traceback" not in errors
    assert content() == before


def test_a_folder_that_cannot_be_written_is_one_message(
    shell: Shell,
    call,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/outputs/tiny")

    monkeypatch.setattr("launcher.submit.runner_lock", refuse)
    code, _, errors = call("submit", "seed=0")
    assert code == 1 and errors == "error: cannot write /outputs/tiny: Permission denied\n"


@pytest.mark.end_to_end
def test_ctrl_c_before_anything_runs_is_130_without_a_traceback(shell: Shell) -> None:
    """The grid is still being read when the interrupt comes."""
    pipe = shell.folder / "conf"
    os.mkfifo(pipe)
    script = (
        f"import sys, types; sys.path.insert(0, {str(TESTS.parent)!r})\n"
        "grid = types.ModuleType('sweeps.grid')\n"
        f"grid.expand = lambda *_: (print('reading', flush=True), open({str(pipe)!r}).read())\n"
        "sys.modules['sweeps.grid'] = grid; from launcher.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "plan"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    code, _, errors = finish(process)
    assert code == 130 and "Traceback" not in errors


@pytest.mark.end_to_end
def test_the_launcher_itself_costs_little(shell: Shell) -> None:
    process = shell.start("submit", "seed=0,1", pause=0.2)
    until(lambda: len(list((shell.folder / "outputs").glob("tiny/runs/*/state.json"))) == 2)
    began, spent = time.monotonic(), cpu_seconds(process.pid)
    time.sleep(2.5)
    share = (cpu_seconds(process.pid) - spent) / (time.monotonic() - began)
    assert finish(process)[0] == 0
    assert share < 0.03


def cpu_seconds(pid: int) -> float:
    """CPU time of a process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_durations_are_short() -> None:
    assert duration(17.0) == "17 s"
