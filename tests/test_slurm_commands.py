"""Slurm's commands as functions: over fake commands and, where Slurm is installed, over a real cluster."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.slurm.commands import NoAnswer, Refused, Slurm, slurm_environment
from launcher.slurm.evidence import OVER, Evidence, observe, queue_state
from tests.cluster_fixture import Cluster, wait_until
from tests.fake_slurm_fixture import FakeSlurm
from trainer.errors import UserError
from trainer.record import JobState

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@dataclass(frozen=True)
class Machine:
    """A cluster to submit to, fake or real."""

    slurm: Slurm
    run: Callable[[str], None]
    """Let the jobs of an array run to their end."""
    real: bool


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "fake":
        fake: FakeSlurm = request.getfixturevalue("fake_slurm")
        return Machine(Slurm(fake.env), lambda array: _run(fake, array), False)
    cluster: Cluster = request.getfixturevalue("slurm_cluster")
    wait_until(lambda: set(cluster.node_states().values()) == {"idle"}, 30, "idle nodes")

    def released(array: str) -> None:
        cluster.run("scontrol", "release", array)
        wait_until(lambda: not any(job.startswith(array) for job in cluster.jobs()), 30, "the jobs' end")

    request.addfinalizer(cluster.cancel_all)
    return Machine(Slurm(cluster.env), released, True)


def _run(fake: FakeSlurm, array: str) -> None:
    for index, task in fake.jobs[array]["tasks"].items():
        if task["word"] == "PENDING":
            fake.run(f"{array}_{index}")


def script(folder: Path, *lines: str) -> Path:
    path = folder / "job.sh"
    path.write_text("\n".join(("#!/bin/bash", *lines)) + "\n")
    return path


def flags(folder: Path, name: str, *more: str) -> list[str]:
    return [f"--job-name={name}", f"--chdir={folder}", f"--output={folder}/%a.out", "--hold", *more]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter pauses before a command is tried again."""
    monkeypatch.setattr("launcher.slurm.commands.PAUSE", 0.01)


# Contract of the fake and the real commands


def test_an_array_from_its_submission_to_its_end(machine: Machine, tmp_path: Path):
    slurm, name = machine.slurm, f"an-array-{time.time_ns()}"
    sent = time.time()
    assert slurm.find(name, sent) is None
    array = slurm.submit(
        flags(tmp_path, name, "--array=0-3"), script(tmp_path, 'exit "$SLURM_ARRAY_TASK_ID"')
    )
    assert array.isdecimal() and slurm.find(name, sent) == array
    queue = slurm.queue([array])
    assert sorted(queue) == [f"{array}_{task}" for task in range(4)]
    assert queue[f"{array}_0"].word == "PENDING" and queue[f"{array}_0"].queued
    assert queue[f"{array}_0"].reason in ("JobHeldUser", "JobHeldAdmin")  # root's holds are an admin's
    assert slurm.queue(["999999"]) == {}
    assert slurm.submitted_count() >= 4

    slurm.cancel([f"{array}_3"])
    wait_until(lambda: len(slurm.queue([array])) == 3, 10, "the cancelled task to leave")
    machine.run(array)
    wait_until(lambda: f"{array}_2" in _over(slurm, array, sent), 15, "accounting to know the ends")
    ended = _over(slurm, array, sent)
    assert (ended[f"{array}_0"].word, ended[f"{array}_0"].exit_code) == ("COMPLETED", 0)
    assert (ended[f"{array}_2"].word, ended[f"{array}_2"].exit_code) == ("FAILED", 2)
    assert f"{array}_3" not in ended  # one task that is cancelled while it waits leaves no trace
    assert slurm.no_accounting is None
    assert slurm.find(name, sent) == array
    slurm.cancel([f"{array}_0", array])  # they have ended


def _over(slurm: Slurm, array: str, sent: float) -> dict[str, Evidence]:
    ended = slurm.accounting([array], sent)
    assert ended is not None
    return {job: evidence for job, evidence in ended.items() if evidence.word in OVER}


def test_a_clock_ahead_of_slurms_hides_no_job(machine: Machine, tmp_path: Path):
    array = machine.slurm.submit(flags(tmp_path, "ahead", "--array=0-0"), script(tmp_path, "true"))
    machine.run(array)
    tomorrow = time.time() + 86_400
    wait_until(lambda: _over(machine.slurm, array, tomorrow), 15, "accounting to know the end")


@pytest.mark.parametrize("step", [2, 3, 5])
def test_what_is_left_of_a_long_array_is_told_apart(machine: Machine, tmp_path: Path, step: int):
    """They share a line, [0,3,6,…], which is cut off unless asked for in full; and `squeue --array` forgets
    the last of [0-198:3]."""
    slurm, sent = machine.slurm, time.time()
    array = slurm.submit(flags(tmp_path, "long", "--array=0-199"), script(tmp_path, "true"))
    slurm.cancel([f"{array}_{task}" for task in range(200) if task % step])
    left = {f"{array}_{task}" for task in range(0, 200, step)}
    wait_until(lambda: len(slurm.queue([array])) <= len(left), 20, "the others to leave")
    assert set(slurm.queue([array])) == left
    slurm.cancel([array])
    # for a moment accounting has the array under its bare number
    wait_until(lambda: set(_over(slurm, array, sent)) == left, 20, "accounting to know the ends")
    ended = _over(slurm, array, sent)
    assert {(evidence.word, evidence.nodes) for evidence in ended.values()} == {("CANCELLED", None)}
    assert all((evidence.reason or "").startswith("by ") for evidence in ended.values())


def test_an_array_beyond_the_limit_is_refused(machine: Machine, tmp_path: Path):
    limits = machine.slurm.limits()
    assert limits.version >= (22, 5) and machine.slurm.version() == limits.version
    assert limits.accounting and limits.kill_wait > 0 and limits.max_job_count > 0
    size = limits.max_array_size
    with pytest.raises(Refused, match="Invalid job array specification") as refused:
        machine.slurm.submit(flags(tmp_path, "large", f"--array={size - 1}-{size}"), script(tmp_path))
    assert refused.value.room and not refused.value.later


def test_a_limit_on_submitted_jobs_is_a_matter_of_room(
    machine: Machine, request: pytest.FixtureRequest, tmp_path: Path
):
    if machine.real:
        limit = ("sacctmgr", "-i", "modify", "qos", "normal", "set")
        cluster: Cluster = request.getfixturevalue("slurm_cluster")
        cluster.run(*limit, "MaxSubmitJobsPerUser=5")
        request.addfinalizer(lambda: cluster.run(*limit, "MaxSubmitJobsPerUser=-1"))
    else:
        request.getfixturevalue("fake_slurm").set(max_submit=5)
    with pytest.raises(Refused) as refused:
        machine.slurm.submit(flags(tmp_path, "many", "--array=0-9"), script(tmp_path, "true"))
    assert refused.value.limit == "QOSMaxSubmitJobPerUserLimit"
    assert refused.value.room and refused.value.later and refused.value.certain
    machine.slurm.submit(flags(tmp_path, "few", "--array=0-4"), script(tmp_path, "true"))


# A real cluster alone


@pytest.mark.cluster
def test_without_accounting_the_queue_alone_is_asked(
    slurm_cluster_without_accounting: Cluster, tmp_path: Path
):
    slurm = Slurm(slurm_cluster_without_accounting.env)
    assert not slurm.limits().accounting
    assert slurm.find("nobody-has-this-name", time.time()) is None
    array = slurm.submit(flags(tmp_path, "unaccounted", "--array=0-1"), script(tmp_path, "true"))
    assert slurm.find("unaccounted", time.time()) == array
    assert slurm.accounting([array], time.time()) is None
    assert slurm.no_accounting == "this cluster keeps no accounts of ended jobs"
    slurm.cancel([array])
    wait_until(lambda: not slurm.queue([array]), 10, "the array to leave")
    assert slurm.find("unaccounted", time.time()) == array  # the controller still remembers it


@pytest.mark.cluster
def test_a_requeued_task_is_in_the_queue_and_not_failed(slurm_cluster: Cluster, tmp_path: Path):
    slurm, sent = Slurm(slurm_cluster.env), time.time()
    arguments = flags(tmp_path, "node", "--array=0-0", "--nodelist=n2", "--requeue")
    array = slurm.submit([word for word in arguments if word != "--hold"], script(tmp_path, "sleep 600"))
    job = f"{array}_0"
    wait_until(lambda: slurm.queue().get(job, _NONE).word == "RUNNING", 20, "the job to run")
    slurm_cluster.fail_node("n2")
    wait_until(lambda: slurm.queue()[job].word == "PENDING", 20, "the job to be requeued")
    evidence = observe(slurm, {job: sent}).of(job)
    assert evidence is not None and queue_state(evidence) == JobState.QUEUED
    slurm_cluster.cancel_all()
    wait_until(lambda: slurm_cluster.node_states()["n2"] == "idle", 30, "the node to be back")


_NONE = Evidence("", False)


# Faults


def test_a_busy_controller_is_asked_again(fake_slurm: FakeSlurm, quick: None):
    fake_slurm.fail("squeue", AWAY, times=2)
    assert Slurm().queue() == {}
    assert len(fake_slurm.calls("squeue")) == 3


def test_a_controller_that_is_away_is_not_asked_for_ever(
    fake_slurm: FakeSlurm, quick: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("launcher.slurm.commands.RETRY_SECONDS", 0.5)
    fake_slurm.fail("squeue", AWAY, times=1000)
    begun = time.monotonic()
    with pytest.raises(NoAnswer, match="Unable to contact slurm controller"):
        Slurm().queue()
    assert time.monotonic() - begun < 5
    seen = observe(Slurm(), {"17_0": time.time()})
    assert not seen.answered and seen.of("17_0") is None
    assert "unknown" in seen.notices[0]


def test_a_command_that_hangs_is_given_up(fake_slurm: FakeSlurm):
    fake_slurm.fail("squeue", "", sleep=20)
    with pytest.raises(NoAnswer, match="squeue took longer than"):
        Slurm(answer_seconds=0.5).queue()


def test_sbatch_is_never_called_twice(fake_slurm: FakeSlurm, tmp_path: Path):
    timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    fake_slurm.fail("sbatch", timed_out, queued=True)
    with pytest.raises(NoAnswer, match="Socket timed out"):
        Slurm().submit(flags(tmp_path, "sweep-1", "--array=0-1"), script(tmp_path, "true"))
    assert len(fake_slurm.calls("sbatch")) == 1
    assert Slurm().find("sweep-1", time.time()) == "1"
    fake_slurm.fail("sbatch", timed_out)
    with pytest.raises(NoAnswer):
        Slurm().submit(flags(tmp_path, "sweep-2", "--array=0-1"), script(tmp_path, "true"))
    assert Slurm().find("sweep-2", time.time()) is None


def test_an_sbatch_that_says_nothing_is_no_refusal(fake_slurm: FakeSlurm, tmp_path: Path):
    fake_slurm.fail("sbatch", "", code=0)
    with pytest.raises(NoAnswer):
        Slurm().submit(flags(tmp_path, "quiet"), script(tmp_path, "true"))
    fake_slurm.fail("sbatch", "sbatch: error: QOSMaxSubmitJobPerUserLimit", code=0)
    with pytest.raises(Refused):  # a site's wrapper may lose the exit code
        Slurm().submit(flags(tmp_path, "quiet"), script(tmp_path, "true"))


def test_whether_a_job_exists_stays_open_while_slurm_does_not_say(fake_slurm: FakeSlurm, quick: None):
    fake_slurm.fail("squeue", "squeue: error: Invalid user: nobody", times=1)
    with pytest.raises(NoAnswer):
        Slurm().find("sweep", time.time())
    fake_slurm.fail("sacct", "sacct: error: Access denied", times=1)
    with pytest.raises(NoAnswer):
        Slurm().find("sweep", time.time())
    fake_slurm.set(accounting=False)
    assert Slurm().find("sweep", time.time()) is None


def test_the_third_of_three_arrays_is_refused_by_its_number(fake_slurm: FakeSlurm, tmp_path: Path):
    fake_slurm.fail("sbatch", "sbatch: error: QOSMaxSubmitJobPerUserLimit", call=3)
    arguments, file = flags(tmp_path, "x", "--array=0-0"), script(tmp_path, "true")
    assert [Slurm().submit(arguments, file) for _ in range(2)] == ["1", "2"]
    with pytest.raises(Refused):
        Slurm().submit(arguments, file)
    assert Slurm().submit(arguments, file) == "3"


def test_commands_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"there is no sbatch on the path: --site needs Slurm"):
        Slurm().submit([], script(tmp_path, "true"))
    assert not observe(Slurm(), {"17_0": 0.0}).answered


def test_nothing_of_an_allocation_reaches_slurm(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_CLUSTERS", "SBATCH_PARTITION", "SRUN_DEBUG"):
        monkeypatch.setenv(name, "x")
    for name in ("PMIX_RANK", "PMI_RANK", "SQUEUE_FORMAT", "SACCT_FORMAT", "SCANCEL_STATE", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    slurm = Slurm()
    slurm.submit(flags(tmp_path, "x", "--array=0-0"), script(tmp_path, "true"))
    slurm.queue()
    starts = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "SQUEUE_", "SACCT_", "SCANCEL_", "HF_TOKEN")
    [sent] = fake_slurm.calls("sbatch")
    found = {name for name in sent["env"] if name.startswith(starts)}
    assert found == {"SLURM_CONF"}  # also the job's, as sbatch hands its environment on
    asked = fake_slurm.calls("squeue")[0]["env"]
    assert {name for name in asked if name.startswith(starts)} == {
        *("SLURM_CONF", "SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT")
    }
    assert slurm_environment({"PATH": "/bin"}) == {"PATH": "/bin", "LC_ALL": "C.UTF-8"}
    assert os.environ["SLURM_CPU_BIND"] == "x"


def test_arrays_are_no_larger_than_the_scheduler_takes(fake_slurm: FakeSlurm):
    fake_slurm.set(max_array_size=6)
    assert Slurm().limits().max_array_size == 6
    fake_slurm.set(max_array_tasks=4, version="23.11.0-0rc1")
    assert (Slurm().limits().max_array_size, Slurm().limits().version) == (4, (23, 11))
    fake_slurm.set(max_array_size=0)
    with pytest.raises(UserError, match="MaxArraySize=0"):
        Slurm().limits()


# Tasks of the fake cluster


def test_the_fake_runs_a_script_as_a_node_would(fake_slurm: FakeSlurm, tmp_path: Path):
    """A task that asks for another turn gets it, and its output is continued."""
    file = script(
        tmp_path,
        'srun --ntasks=1 --cpus-per-task=2 echo "$SLURMD_NODENAME turn ${SLURM_RESTART_COUNT:-0}"',
        'if [ -z "$SLURM_RESTART_COUNT" ]; then',
        '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        "fi",
        "exit 3",
    )
    array = Slurm().submit([f"--chdir={tmp_path}", "--output=%a.out", "--array=0-1"], file)
    fake_slurm.run(f"{array}_1")
    assert {job: found.word for job, found in Slurm().queue().items()} == {
        f"{array}_0": "PENDING",  # only the task that asked
        f"{array}_1": "PENDING",
    }
    restarts = {index: task.get("restarts", 0) for index, task in fake_slurm.jobs[array]["tasks"].items()}
    assert restarts == {"0": 0, "1": 1}
    assert fake_slurm.run(f"{array}_1") == 3
    assert (tmp_path / "1.out").read_text() == "n1 turn 0\nn1 turn 1\n"
    ended = Slurm().accounting([array], time.time())
    assert ended is not None and ended[f"{array}_1"] == Evidence("FAILED", False, None, 3, None, "n1")
    assert not (tmp_path / "0.out").exists()
