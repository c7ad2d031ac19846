"""`logs`: the right attempt, its end, what comes later, and anything that a log may hold."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launcher_shell import TESTS, Shell, finish, until

from launcher import logs
from launcher.ledger import LedgerWriter
from trainer.errors import UserError
from trainer.files import append_line, locked, write_json
from trainer.record import RunPaths, SweepPaths

TOKEN = "20261130T200000-1a2b3c4d"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path / "outputs" / "grid" / "runs" / "abc123")
    (run.folder / "logs").mkdir(parents=True)
    run.config.write_text("seed: 0\n")
    return run


def shown(run: RunPaths, **options: object) -> str:
    found = bytearray()
    assert logs.logs(run, write=found.extend, **options) == 0
    return found.decode(errors="replace")


def test_the_newest_attempt_with_its_job_and_its_end(run):
    place = {"job": "17_3", "node": "n1", "host": "login", "time": 1.0}
    append_line(run.attempts, {"attempt": 9, "event": "started", **place})
    append_line(run.attempts, {"attempt": 9, "event": "ended", "how": "interrupted", "step": 7, "time": 2.0})
    append_line(
        run.attempts, {"attempt": 9, "event": "left", "asked": "preempted", "exit_code": 75, "time": 2.0}
    )
    append_line(run.attempts, {"attempt": 10, "event": "started", **place})
    append_line(run.attempts, {"attempt": 10, "event": "left", "signal": 9, "exit_code": None, "time": 3.0})
    run.log(9).write_text("nine\n")
    run.log(10).write_text("ten\n")
    text = shown(run)
    head, body = text.split("\n", 1)
    assert head.startswith("==> attempt 10, job 17_3, on n1, from ") and head.endswith(": signal 9 <==")
    assert body == "ten\n"
    assert "interrupted at update 7 (preempted) <==\nnine\n" in shown(run, attempt=9)
    with pytest.raises(UserError, match=r"--attempt 3: .* there are 9, 10"):
        shown(run, attempt=3)
    with pytest.raises(UserError, match="exclude each other"):
        shown(run, attempt=9, follow=True)


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("count", [1, 3, 20_000, 100_000])
def test_the_last_lines(run, count, end):
    """More lines than one block of the file holds."""
    lines = [f"line {number}" for number in range(50_000)]
    run.log(1).write_text("\n".join(lines) + end)
    assert shown(run, lines=count).split("\n", 1)[1] == "\n".join(lines[-count:]) + end
    run.log(1).write_text("")
    assert shown(run, lines=count) == "==> attempt 1, before its first line <==\n"
    with pytest.raises(UserError, match="--lines 0 must be 1 or more"):
        shown(run, lines=0)


def test_anything_may_stand_in_a_log(run):
    garbage = bytes(range(256)) * 3 + b"\xf0\x9f"
    run.log(1).write_bytes(garbage)
    append_line(run.attempts, {"attempt": 1, "event": "ended", "how": "exception", "reason": "\udcff"})
    found = bytearray()
    logs.logs(run, write=found.extend)
    assert found.endswith(garbage)


def test_before_an_attempt_the_script_of_the_job_speaks(run):
    sweep = SweepPaths(run.folder.parent.parent)
    with pytest.raises(UserError, match="no log yet"):
        shown(run, output=logs.batch_output(run))
    writer = LedgerWriter(sweep, TOKEN)
    writer.submitted("slurm", "c", [run.run_id])
    writer.sending(f"grid-{TOKEN}-0", [["other"], [run.run_id]])
    writer.accepted(f"grid-{TOKEN}-0", "17")
    output = sweep.jobs / TOKEN / "0-1.out"
    output.parent.mkdir(parents=True)
    output.write_text("module: command not found\n")
    text = shown(run, output=logs.batch_output(run))
    assert str(output) in text and text.endswith("module: command not found\n")
    run.log(1).write_text("one\n")
    assert "module" not in shown(run, output=logs.batch_output(run))


def test_following_goes_over_attempts_and_ends_with_the_run(run, monkeypatch):
    """A second attempt starts while the first is shown; the run then finishes."""
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logs, "STATE_SECONDS", 0.0)
    found = bytearray()
    run.log(1).write_text("one\nunended")
    state = {"pid": 1, "host": "h", "heartbeat": 0.0, "step": 1, "horizon": 1}
    with locked(run.lock):
        write_json(run.state, {"state": "running", "attempt": 1} | state)
        options = {"write": found.extend, "follow": True, "lines": 1}
        reader = threading.Thread(target=lambda: logs.logs(run, **options))
        reader.start()
        until(lambda: b"unended" in found)
        with run.log(1).open("a") as file:
            file.write(" line\nlast")
        until(lambda: b"last" in found)
        run.log(2).write_text("two\n")
        append_line(
            run.attempts, {"attempt": 2, "event": "started", "time": 1.0, "job": "17_0", "node": "n2"}
        )
        until(lambda: b"two" in found)
        write_json(run.state, {"state": "interrupted", "attempt": 2} | state)
        assert reader.is_alive()
    reader.join(20)
    assert not reader.is_alive()
    text = found.decode()
    assert "\none\n" not in text  # of the first log, the last line alone was asked for
    assert "unended line\nlast\n==> attempt 2" in text
    assert text.endswith("two\n==> run abc123: interrupted <==\n")


@pytest.mark.end_to_end
def test_the_command_follows_a_run_to_its_end(tmp_path):
    shell = Shell(tmp_path)
    launcher = shell.start("submit", "seed=0", "budget.horizon.updates=8", pause=0.3)
    until(lambda: bool(list(shell.folder.glob("outputs/tiny/runs/*/logs/attempt-1.out"))))
    (folder,) = shell.folder.glob("outputs/tiny/runs/*")
    code, output, errors = shell.run("logs", folder.name[:6], "-f")
    assert (code, errors) == (0, "")
    assert "attempt 1 of seed 0 at step 0" in output
    assert output.endswith(f"==> run {folder.name}: finished, stable <==\n")
    assert finish(launcher)[0] == 0
    code, _, errors = shell.run("logs", "ffffffff")
    assert code == 2 and "no run 'ffffffff'" in errors


@pytest.mark.end_to_end
def test_a_reader_that_goes_away_is_no_error(tmp_path, run):
    run.log(1).write_bytes(b"x\n" * 1_000_000)
    command = [sys.executable, "-m", "launcher.cli", "logs", "abc123"]
    process = subprocess.Popen(
        command,
        cwd=run.folder.parents[3],
        env={"PYTHONPATH": str(TESTS.parent), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline().startswith(b"==> attempt 1")
    process.stdout.close()
    assert process.stderr is not None and process.stderr.read() == b""
    assert process.wait(20) == 0
