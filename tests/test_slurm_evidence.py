"""What Slurm says of the tasks of a sweep, put together from squeue and sacct."""

import time
from pathlib import Path

import pytest

from launcher.slurm.commands import Slurm
from launcher.slurm.evidence import (
    OVER,
    SETTLING,
    STATES,
    Evidence,
    after_queue,
    observe,
    queue_state,
    with_release,
)
from tests.fake_slurm_fixture import FakeSlurm
from trainer.record import JobState

EVERY_WORD = {
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    *("COMPLETING", "CONFIGURING", "RESIZING", "REVOKED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"),
    *("RESV_DEL_HOLD", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT", "STOPPED", "POWER_UP_NODE", "UPDATE_DB"),
    "EXPEDITING",
}


def submit(folder: Path, tasks: int) -> str:
    script = folder / "job.sh"
    script.write_text("#!/bin/bash\n")
    return Slurm().submit([f"--chdir={folder}", f"--array=0-{tasks - 1}"], script)


def test_squeue_and_sacct_are_called_once_for_a_thousand_tasks(fake_slurm: FakeSlurm, tmp_path: Path):
    array = submit(tmp_path, 1000)
    fake_slurm.say(f"{array}_7", "TIMEOUT", nodes="n3")
    begun = time.monotonic()
    seen = observe(Slurm(), {f"{array}_{task}": time.time() for task in range(1000)})
    assert time.monotonic() - begun < 5
    assert len(seen.jobs) == 1000 and seen.answered and seen.accounting and not seen.notices
    assert seen.of(f"{array}_7") == Evidence("TIMEOUT", False, None, 0, None, "n3")
    assert (len(fake_slurm.calls("squeue")), len(fake_slurm.calls("sacct"))) == (1, 1)
    observe(Slurm(), {f"{array}_0": time.time()})
    assert len(fake_slurm.calls("sacct")) == 1  # it is in the queue


def test_without_accounting_there_is_one_notice(fake_slurm: FakeSlurm, tmp_path: Path):
    array = submit(tmp_path, 3)
    fake_slurm.set(accounting=False)
    fake_slurm.say(f"{array}_0", "COMPLETED")
    fake_slurm.say(f"{array}_1", "RUNNING")
    seen = observe(Slurm(), {f"{array}_{task}": time.time() for task in range(3)})
    assert seen.answered and not seen.accounting and len(seen.notices) == 1
    assert seen.of(f"{array}_0") is None
    assert [seen.jobs[f"{array}_{task}"].word for task in (1, 2)] == ["RUNNING", "PENDING"]


def test_accounting_that_lags_tells_nothing(fake_slurm: FakeSlurm, tmp_path: Path):
    """Gone from the queue, and accounting has it not yet, or still as running: no end is known."""
    array = submit(tmp_path, 1)
    job = f"{array}_0"
    fake_slurm.say(job, "COMPLETED")
    fake_slurm.set(accounting_from=time.time() + 1000)
    assert observe(Slurm(), {job: time.time()}).of(job) is None
    fake_slurm.set(accounting_from=0)
    assert observe(Slurm(), {job: time.time()}).of(job) is not None


@pytest.mark.parametrize("word", ["RUNNING", "PENDING", "REQUEUED", "COMPLETING"])
def test_what_accounting_calls_running_but_no_queue_has_is_no_evidence(word: str):
    class Lagging(Slurm):
        def queue(self, arrays=None):
            return {}

        def accounting(self, arrays, since):
            return {"17_0": Evidence(word, False), "17_1": Evidence("FAILED", False, None, 1)}

    seen = observe(Lagging(), {"17_0": 0.0, "17_1": 0.0})
    assert set(seen.jobs) == {"17_1"}


def test_a_job_that_left_without_a_word_is_finishing_and_then_lost():
    assert after_queue(100.0, 100.0 + SETTLING - 1) == JobState.FINISHING
    assert after_queue(100.0, 100.0 + SETTLING) == JobState.LOST


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("PENDING", "JobHeldUser"),
        ("PENDING", "JobHeldAdmin"),
        ("PENDING", "launch failed requeued held"),
        ("PENDING", "launch_failed_requeued_held"),
        ("PENDING", "job requeued in held state"),
        ("REQUEUE_HOLD", None),
        ("SPECIAL_EXIT", None),
    ],
)
def test_a_held_job_is_queued_and_says_what_lets_it_go(word: str, reason: str | None):
    evidence = with_release("17_3", Evidence(word, True, reason))
    assert queue_state(evidence) == JobState.QUEUED
    assert evidence.reason is not None and "scontrol release 17_3" in evidence.reason
    plain = Evidence("PENDING", True, "Priority")
    assert with_release("17_3", plain) == plain


def test_every_word_of_slurms_has_a_row_and_only_ends_are_ends():
    assert set(STATES) == EVERY_WORD
    going_on = {word for word in EVERY_WORD if word not in OVER}
    assert {STATES[word][0] for word in going_on} == {JobState.QUEUED, JobState.RUNNING, JobState.FINISHING}
    assert {"SUSPENDED", "CONFIGURING", "REQUEUE_HOLD", "COMPLETING"} <= going_on
    assert queue_state(Evidence("A_NEW_WORD", True)) == JobState.UNKNOWN
    # cleaning up, or on its way back: not over as long as squeue has it
    assert queue_state(Evidence("NODE_FAIL", True)) == JobState.FINISHING


def test_a_job_that_comes_back_is_queued_whatever_accounting_says(fake_slurm: FakeSlurm, tmp_path: Path):
    """Slurm requeues a job whose node failed; the same attempts go on."""
    array = submit(tmp_path, 1)
    job = f"{array}_0"
    fake_slurm.say(job, "NODE_FAIL", nodes="n2")
    assert observe(Slurm(), {job: time.time()}).jobs[job].word == "NODE_FAIL"
    fake_slurm.requeue(job)
    seen = observe(Slurm(), {job: time.time()}).jobs[job]
    assert (seen.word, seen.queued, queue_state(seen)) == ("PENDING", True, JobState.QUEUED)


def test_accounting_that_is_away_is_told_in_one_sentence(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("launcher.slurm.commands.RETRY_SECONDS", 0.0)
    array = submit(tmp_path, 1)
    fake_slurm.say(f"{array}_0", "COMPLETED")
    away = "sacct: error: Sending PersistInit msg: Connection refused"
    last = "sacct: error: Problem talking to the database: Connection refused"
    fake_slurm.fail("sacct", f"{away}\n{last}", times=9)
    seen = observe(Slurm(), {f"{array}_0": time.time()})
    assert seen.answered and not seen.accounting
    assert seen.notices == (
        "accounting does not answer (Problem talking to the database: Connection refused): "
        "how jobs ended is told from what they wrote",
    )
