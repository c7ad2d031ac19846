"""The ledger, and job states put together from lock, state file and ledger."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.failures import Failure
from launcher.ledger import End, LedgerWriter, classify, new_token, read_ledger
from launcher.process import birth, is_alive
from launcher.retry import Policy, resume_policy, retried
from launcher.state import RunStatus, job_state
from trainer.budget import Budget, BudgetConfig
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import append_line, locked, write_json
from trainer.record import JobState, Outcome, Summary, SweepPaths

RUN = "abc"


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    return SweepPaths(tmp_path)


def look(sweep: SweepPaths) -> RunStatus:
    return job_state(sweep.run(RUN), read_ledger(sweep))


def put_state(
    sweep: SweepPaths, state: str, attempt: int = 1, step: int = 7, error: str | None = None
) -> None:
    fields = {"pid": 1, "host": "h", "heartbeat": 0.0, "step": step, "horizon": 20, "error": error}
    write_json(sweep.run(RUN).state, {"state": state, "attempt": attempt} | fields)


def put_summary(sweep: SweepPaths, outcome: str = "stable", updates: int = 20) -> None:
    summary = Summary(
        run_id=RUN,
        outcome=Outcome(outcome),
        updates=updates,
        horizon=updates,
        cumulative_rate=0.1,
        collapse={},
        rule_version="1",
        peak_reward=None,
        peak_step=None,
        final_reward=None,
        warm_start="",
    )
    write_json(sweep.run(RUN).summary, summary.model_dump(mode="json"))


def put_log(sweep: SweepPaths, text: str, attempt: int = 1) -> None:
    log = sweep.run(RUN).log(attempt)
    log.parent.mkdir(exist_ok=True)
    log.write_text(text)


def dead_process() -> tuple[int, int | None]:
    process = subprocess.Popen(["sleep", "10"])
    born = birth(process.pid)
    process.kill()
    process.wait()
    return process.pid, born


def begin(sweep: SweepPaths, attempt: int = 1) -> LedgerWriter:
    writer = LedgerWriter(sweep, new_token())
    writer.submitted("local", "c0de", [RUN])
    writer.started(RUN, attempt, *dead_process())
    return writer


@pytest.mark.parametrize(
    ("code", "number", "recorded", "end"),
    [
        (0, None, True, End.FINISHED),
        (0, None, False, End.FAILED),
        (1, None, False, End.FAILED),
        (1, None, True, End.FAILED),
        (2, None, False, End.FAILED),
        (75, None, False, End.INTERRUPTED),
        (76, None, True, End.BUSY),
        (None, signal.SIGKILL, False, End.KILLED),
        (None, signal.SIGSEGV, True, End.KILLED),
        (None, signal.SIGTERM, False, End.INTERRUPTED),
    ],
)
def test_exits_are_classified(code: int | None, number: int | None, recorded: bool, end: End) -> None:
    assert classify(code, number, recorded) == end


def test_tokens_are_never_given_twice_and_sort_by_time() -> None:
    tokens = [new_token() for _ in range(1000)]
    assert len(set(tokens)) == 1000
    assert [token[:15] for token in tokens] == sorted(token[:15] for token in tokens)


def test_ledger_lines_have_the_documented_fields(sweep: SweepPaths) -> None:
    writer = begin(sweep)
    writer.ended(RUN, 1, None, 9, End.KILLED)
    lines = [json.loads(line) for line in sweep.submissions.read_text().splitlines()]
    assert all({"event", "time", "token", "host"} <= set(line) for line in lines)
    assert [set(line) - {"event", "time", "token", "host"} for line in lines] == [
        {"executor", "code", "runs"},
        {"run", "attempt", "job", "pid", "born"},
        {"run", "attempt", "exit_code", "signal", "class"},
    ]


def test_unknown_events_and_torn_lines_are_passed_over(sweep: SweepPaths) -> None:
    writer = begin(sweep)
    append_line(sweep.submissions, {"event": "accepted", "token": writer.token, "jobs": {RUN: "17_0"}})
    with sweep.submissions.open("a") as file:
        file.write('{"event": "ended", "ru')
    writer.ended(RUN, 1, 75, None, End.INTERRUPTED)
    assert read_ledger(sweep).last[RUN].end == End.INTERRUPTED


def test_a_start_that_found_the_run_busy_never_happened(sweep: SweepPaths) -> None:
    first = begin(sweep)
    second = LedgerWriter(sweep, new_token())
    second.started(RUN, 2, *dead_process())
    second.ended(RUN, 2, 76, None, End.BUSY)
    assert read_ledger(sweep).last[RUN].token == first.token
    assert look(sweep).job == JobState.KILLED


def test_never_started_is_planned_and_queued_under_a_live_launcher(sweep: SweepPaths) -> None:
    LedgerWriter(sweep, new_token()).submitted("local", "c0de", [RUN])
    assert look(sweep).job == JobState.PLANNED
    with locked(sweep.runner_lock):
        assert look(sweep).job == JobState.QUEUED
    assert look(sweep).job == JobState.PLANNED


def test_running_needs_a_live_process(sweep: SweepPaths) -> None:
    put_state(sweep, "running")
    append_line(sweep.run(RUN).attempts, {"event": "started", "attempt": 1})
    assert look(sweep).job == JobState.KILLED
    with locked(sweep.run(RUN).lock):
        assert look(sweep).job == JobState.RUNNING
    assert look(sweep).job == JobState.KILLED


def test_a_lock_file_left_behind_holds_nobody(sweep: SweepPaths) -> None:
    sweep.run(RUN).lock.write_text("12345")
    sweep.runner_lock.write_text("12345")
    with locked(sweep.run(RUN).lock, wait=0), locked(sweep.runner_lock, wait=0):
        pass


def test_finished_needs_state_and_summary(sweep: SweepPaths) -> None:
    put_state(sweep, "finished", step=20)
    status = look(sweep)
    assert status.job == JobState.FAILED and "no summary.json" in (status.detail or "")
    put_summary(sweep)
    status = look(sweep)
    assert (status.job, status.outcome) == (JobState.FINISHED, Outcome.STABLE)
    put_state(sweep, "running", step=20)
    status = look(sweep)
    assert (status.job, status.outcome) == (JobState.KILLED, None)


def test_exit_code_0_without_a_record_is_a_failure(sweep: SweepPaths) -> None:
    put_log(sweep, "one\ntwo\n")
    begin(sweep).ended(RUN, 1, 0, None, End.FAILED)
    status = look(sweep)
    assert status.job == JobState.FAILED
    assert status.detail == "exit code 0 without a finished record\none\ntwo"


def test_an_exception_carries_its_last_lines(sweep: SweepPaths) -> None:
    put_state(sweep, "failed", error="ValueError: no")
    assert (look(sweep).job, look(sweep).detail) == (JobState.FAILED, "ValueError: no")
    put_log(sweep, "\n".join(map(str, range(100))))
    put_state(sweep, "failed")
    assert (look(sweep).detail or "").splitlines() == [str(line) for line in range(88, 100)]


def test_killed_names_the_signal_and_the_log(sweep: SweepPaths) -> None:
    put_state(sweep, "running")
    put_log(sweep, "update 7")
    begin(sweep).ended(RUN, 1, None, 9, End.KILLED)
    status = look(sweep)
    assert status.detail == "killed by SIGKILL (often: out of memory)\nupdate 7"
    assert status.log == sweep.run(RUN).log(1)


def test_killed_before_the_first_line_is_no_longer_running(sweep: SweepPaths) -> None:
    begin(sweep)
    assert look(sweep).job == JobState.KILLED


def test_a_job_that_has_not_taken_its_lock_yet_is_running(sweep: SweepPaths) -> None:
    writer = LedgerWriter(sweep, new_token())
    writer.started(RUN, 1, os.getpid(), birth(os.getpid()))
    assert look(sweep).job == JobState.RUNNING
    writer.started(RUN, 1, os.getpid(), 1)  # the process id was used again
    assert look(sweep).job == JobState.KILLED


def test_the_last_attempt_wins(sweep: SweepPaths) -> None:
    put_state(sweep, "finished", step=20)
    put_summary(sweep)
    writer = begin(sweep, attempt=2)  # killed before it could write its state
    assert (look(sweep).job, look(sweep).attempt, look(sweep).outcome) == (JobState.KILLED, 2, None)
    put_state(sweep, "failed", attempt=2, error="ValueError: later")
    writer.ended(RUN, 2, 1, None, End.FAILED)
    assert (look(sweep).job, look(sweep).outcome, look(sweep).detail) == (
        JobState.FAILED,
        None,
        "ValueError: later",
    )


def test_an_attempt_started_by_hand_counts_without_a_ledger_line(sweep: SweepPaths) -> None:
    begin(sweep).ended(RUN, 1, None, 9, End.KILLED)
    put_state(sweep, "finished", attempt=2, step=20)
    put_summary(sweep)
    assert (look(sweep).job, look(sweep).attempt) == (JobState.FINISHED, 2)


def budget(horizon: int) -> Budget:
    return BudgetConfig().resolve(RunConfig()).model_copy(update={"horizon": horizon})


@pytest.mark.parametrize(
    ("outcome", "continues"),
    [
        *(("stable", True), ("pending", True), ("undetectable", True)),
        *(("collapsed", False), ("recovered", False), ("invalid", False)),
    ],
)
def test_a_larger_budget_continues_what_has_not_collapsed(
    sweep: SweepPaths, outcome: str, continues: bool
) -> None:
    put_state(sweep, "finished", step=20)
    put_summary(sweep, outcome)
    assert look(sweep).to_run(budget(21)) is continues
    assert look(sweep).to_run(budget(20)) is False


@pytest.mark.parametrize(
    ("state", "error", "submit", "resume", "failure"),
    [
        ("interrupted", None, True, True, None),
        ("running", None, True, True, Failure.KILLED),
        ("failed", "OSError: [Errno 28] No space left on device", False, True, Failure.DISK_FULL),
        ("failed", "ValueError: no", False, False, Failure.EXCEPTION),
        ("failed", "torch.OutOfMemoryError: CUDA out of memory", False, False, Failure.OUT_OF_MEMORY),
    ],
)
def test_submit_continues_resume_also_retries_and_some_failures_have_to_be_named(
    sweep: SweepPaths, state: str, error: str | None, submit: bool, resume: bool, failure: Failure | None
) -> None:
    put_state(sweep, state, error=error)
    ledger, found = read_ledger(sweep), look(sweep)
    assert found.failure == failure
    assert Policy().to_run(found, budget(20), ledger) is submit
    assert resume_policy(None, {}, None).to_run(found, budget(20), ledger) is resume
    assert resume_policy("failed", {}, None).to_run(found, budget(20), ledger)
    assert not resume_policy("failed", {}, {"another"}).to_run(found, budget(20), ledger)


def test_a_budget_of_retries_is_used_up_and_a_named_class_has_none(sweep: SweepPaths) -> None:
    put_state(sweep, "failed", error="OSError: [Errno 28] No space left on device")
    policy = resume_policy(None, {"disk_full": 1}, None)
    assert policy.to_run(look(sweep), budget(20), read_ledger(sweep))
    LedgerWriter(sweep, new_token()).submitted("slurm", "c0de", [RUN], again={RUN: "disk_full"})
    ledger = read_ledger(sweep)
    assert policy.spent(look(sweep), ledger) and not policy.to_run(look(sweep), budget(20), ledger)
    assert resume_policy("disk_full", {"disk_full": 1}, None).to_run(look(sweep), budget(20), ledger)


def test_a_class_of_failure_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="--retry exeption: no class of failure; did you mean exception"):
        retried("exeption")


def test_reading_writes_nothing_even_where_it_could_not(sweep: SweepPaths) -> None:
    put_state(sweep, "running")
    begin(sweep)
    with locked(sweep.run(RUN).lock), locked(sweep.runner_lock):
        pass
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*")}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert look(sweep).job == JobState.KILLED
    finally:
        for path in before:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*")} == before


def test_a_zombie_and_another_host_are_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert birth(process.pid) is None
    process.wait()
    assert not is_alive(os.getpid(), birth(os.getpid()), "another host")
