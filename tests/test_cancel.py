"""`cancel`: the right processes and jobs end, no others, and their runs go on later."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_fakes import expand
from launcher_shell import Shell, finish, until
from rich.console import Console

from launcher import cancel as module
from launcher.cancel import cancel
from launcher.ledger import LedgerWriter
from launcher.process import birth
from launcher.slurm.evidence import Evidence, Observation
from launcher.sweep_folder import apply, compare
from trainer.errors import UserError
from trainer.files import append_line, locked, write_json
from trainer.record import JobState, SweepPaths, read_state, read_sweep

TOKEN = "20261130T200000-1a2b3c4d"
NAME = f"grid-{TOKEN}-0"


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    paths = SweepPaths(tmp_path / "outputs" / "grid")
    apply(paths, compare(paths, expand(["seed=0,1,2,3,4,5"])), {})
    return paths


def ids(paths: SweepPaths) -> list[str]:
    return [cell.run_id for cell in read_sweep(paths).cells]


def call(paths: SweepPaths, *words: str, yes: bool = True, **options: object) -> tuple[int, str]:
    shown = io.StringIO()
    return cancel(paths, words, Console(file=shown, width=200), yes=yes, **options), shown.getvalue()


@pytest.fixture
def in_slurm(paths: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> SweepPaths:
    """Jobs 17_0 (runs 0 and 1, running), 17_1 (run 2, queued), 17_2 (run 3, completing); 4, 5 never ran."""
    runs = ids(paths)
    writer = LedgerWriter(paths, TOKEN)
    writer.submitted("slurm", "c", runs[:4])
    writer.sending(NAME, [runs[:2], [runs[2]], [runs[3]]])
    writer.accepted(NAME, "17")
    words = {"17_0": "RUNNING", "17_1": "PENDING", "17_2": "COMPLETING"}
    seen = Observation({job: Evidence(word, True) for job, word in words.items()})
    monkeypatch.setattr("launcher.sweep_view.ask_slurm", lambda ledger, runs: seen)
    return paths


def test_jobs_of_slurm_are_cancelled_once_each(in_slurm):
    asked: list[str] = []
    code, shown = call(in_slurm, cancel_jobs=asked.extend)
    assert code == 0 and asked == ["17_0", "17_1"]  # two runs are one job; one that is ending is left alone
    assert "cancelled: 2 running in Slurm, 1 queued in Slurm" in shown
    asked.clear()
    assert call(in_slurm, "state=queued", cancel_jobs=asked.extend)[0] == 0
    assert asked == ["17_1"]


def test_runs_that_share_a_job_are_named_and_asked_for(in_slurm):
    with pytest.raises(UserError) as caught:
        call(in_slurm, "0,2", cancel_jobs=lambda jobs: pytest.fail("nothing may be cancelled"))
    message = str(caught.value)
    assert "1 runs that are not selected would end too" in message and ids(in_slurm)[1] in message
    assert message.endswith(" 0,1,2`")
    asked: list[str] = []
    assert call(in_slurm, "0,1,2", cancel_jobs=asked.extend)[0] == 0
    assert asked == ["17_0", "17_1"]


def test_a_finished_run_of_the_same_job_needs_no_mention(in_slurm):
    run = in_slurm.run(ids(in_slurm)[1])
    append_line(run.attempts, {"attempt": 1, "event": "started", "job": "17_0", "time": 1.0})
    state = {"pid": 1, "host": "h", "heartbeat": 0.0, "step": 1, "horizon": 1}
    write_json(run.summary, SUMMARY | {"run_id": run.run_id})
    write_json(run.state, {"state": "finished", "attempt": 1} | state)
    asked: list[str] = []
    assert call(in_slurm, "0", cancel_jobs=asked.extend)[0] == 0 and asked == ["17_0"]


SUMMARY = {
    "outcome": "stable",
    "updates": 1,
    "horizon": 1,
    "cumulative_rate": 0.1,
    "collapse": {},
    "rule_version": "1",
    "peak_reward": None,
    "peak_step": None,
    "final_reward": None,
    "warm_start": "",
}


def test_without_a_way_to_slurm_the_command_is_named(in_slurm):
    with pytest.raises(UserError, match="scancel 17_0 17_1"):
        call(in_slurm)


def test_nothing_to_cancel_is_1(in_slurm, paths):
    code, shown = call(paths, "4-5", cancel_jobs=lambda jobs: pytest.fail("there is no job"))
    assert code == 1 and "nothing to cancel" in shown
    with pytest.raises(UserError, match="no run is selected"):
        call(paths, "state=lost")


def test_it_asks_first(in_slurm, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(UserError, match="Cancel 2 running in Slurm, 1 queued in Slurm"):
        call(in_slurm, yes=False, cancel_jobs=asked.extend)
    questions: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "n")
    code, shown = call(in_slurm, yes=False, cancel_jobs=asked.extend)
    assert code == 1 and "nothing was cancelled" in shown and len(questions) == 1 and asked == []
    monkeypatch.setattr("builtins.input", lambda text: "y")
    assert call(in_slurm, yes=False, cancel_jobs=asked.extend)[0] == 0 and asked == ["17_0", "17_1"]


def test_a_process_that_only_has_the_same_id_is_never_signalled(paths):
    """The job died, and its process id went to another program."""
    run = paths.run(ids(paths)[0])
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        born = birth(bystander.pid)
        assert born is not None
        writer = LedgerWriter(paths, TOKEN)
        writer.submitted("local", "c", ids(paths))
        writer.started(run.run_id, 1, bystander.pid, born - 1)
        with locked(run.lock):
            code, shown = call(paths)
        assert code == 1 and "1 runs: they were started on" in shown
        assert bystander.poll() is None
        start = module.Start(TOKEN, 1, bystander.pid, born - 1, os.uname().nodename)
        assert not module._ask_to_stop(start) and bystander.poll() is None
        start = module.Start(TOKEN, 1, bystander.pid, born, os.uname().nodename)
        assert module._ask_to_stop(start) and bystander.wait(10) == -signal.SIGTERM
        assert not module._ask_to_stop(start)
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.end_to_end
def test_a_cancelled_run_ends_with_a_checkpoint_alone_and_goes_on_later(tmp_path):
    shell = Shell(tmp_path)
    words = ("submit", "seed=0,1", "budget.horizon.updates=20")
    launcher = shell.start(*words, pause=0.15)
    until(lambda: len(list(shell.folder.glob("outputs/tiny/runs/*/state.json"))) == 2)
    code, output, errors = shell.run("cancel", "tiny", "seed=1")
    assert code == 2 and "Cancel 1 running here? Nobody can be asked here: add --yes" in errors
    code, output, errors = shell.run("cancel", "tiny", "seed=1", "-y")
    assert (code, errors) == (0, "") and "cancelled: 1 running here" in output
    assert finish(launcher)[0] == 1
    by_seed = shell.by_seed()
    assert by_seed[0].outcome == "stable" and by_seed[1].job == JobState.INTERRUPTED
    state = read_state(shell.paths().run(by_seed[1].run_id))
    assert state is not None and 0 < state.step < 20
    assert shell.run("cancel", "tiny", "-y")[0] == 1
    code, output, _ = shell.run(*words)
    assert code == 0 and shell.updates() == [list(range(20))] * 2
