"""Classes of failure: from Slurm's word, the run's last attempt, and what was printed last."""

from typing import Any

import pytest

from launcher.failures import HINTS, Failure, class_of_ending, class_of_text, classify
from launcher.slurm.evidence import Evidence
from trainer.attempts import AttemptRecord
from trainer.record import JobState, RunState

STEP_KILLED = "srun: error: n7: task 0: Killed"
TASKS_KILLED = "srun: error: node-12: tasks 0-3: Killed"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM."
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no'
LIMIT = "slurmstepd: error: *** JOB 20 ON n1 CANCELLED AT 2026-11-30T21:05:44 DUE TO TIME LIMIT ***"
PREEMPTED = "slurmstepd: error: *** JOB 25 ON n4 CANCELLED AT 2026-11-30T21:04:44 DUE TO PREEMPTION ***"
NODE = (
    "slurmstepd: error: *** STEP 21.0 ON n3 CANCELLED AT 2026-11-30T21:04:21 DUE TO NODE FAILURE, "
    "SEE SLURMCTLD LOG FOR DETAILS ***"
)
CANCELLED = "slurmstepd: error: *** JOB 11 ON n1 CANCELLED AT 2026-11-30T21:02:36 ***"


def says(word: str, code: int = 0, number: int | None = None, reason: str | None = None) -> Evidence:
    return Evidence(word, False, reason, code, number, "n1")


def attempt(left: dict[str, Any] | None = None, ended: dict[str, Any] | None = None) -> AttemptRecord:
    base = {"exit_code": None, "signal": None, "asked": None, "requeue": False}
    return AttemptRecord(1, {"job": "17_3"}, ended, None if left is None else base | left)


def run_state(state: str, error: str | None = None) -> RunState:
    fields = {"attempt": 1, "pid": 1, "host": "h", "heartbeat": 0.0, "step": 3, "horizon": 9}
    return RunState.model_validate(fields | {"state": state, "error": error})


STARTED = attempt()
CASES: list[tuple[str, Evidence | None, AttemptRecord | None, RunState | None, str, Failure | None]] = [
    # a node that dies looks like the end of the time (143 is 128 + SIGTERM)
    ("node, rc 143", says("FAILED", 143), STARTED, None, TASKS_KILLED, Failure.NODE_FAILURE),
    ("node, signal 15", says("FAILED", 0, 15), STARTED, None, STEP_KILLED, Failure.NODE_FAILURE),
    ("rc 143 alone", says("FAILED", 143), STARTED, None, "", Failure.KILLED),
    ("killed step", says("FAILED", 137), STARTED, None, STEP_KILLED, Failure.KILLED),
    ("node's word", says("NODE_FAIL"), STARTED, None, "", Failure.NODE_FAILURE),
    ("node did not boot", says("BOOT_FAIL"), None, None, "", Failure.NODE_FAILURE),
    ("node, no accounting", None, STARTED, None, NODE, Failure.NODE_FAILURE),
    # memory
    ("word", says("OUT_OF_MEMORY", 0, 125), STARTED, None, "", Failure.OUT_OF_MEMORY),
    ("trainer killed", says("OUT_OF_MEMORY"), attempt({"signal": 9}), None, "", Failure.OUT_OF_MEMORY),
    ("step", says("FAILED", 1), attempt({"signal": 9}), None, OOM, Failure.OUT_OF_MEMORY),
    ("step and srun", says("FAILED", 143), STARTED, None, OOM + "\n" + STEP_KILLED, Failure.OUT_OF_MEMORY),
    (
        "device",
        says("FAILED", 1),
        attempt({"exit_code": 1}),
        run_state("failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        "",
        Failure.OUT_OF_MEMORY,
    ),
    ("python", says("FAILED", 1), attempt({"exit_code": 1}), None, "MemoryError", Failure.OUT_OF_MEMORY),
    # disk
    (
        "full",
        says("FAILED", 1),
        attempt({"exit_code": 1}),
        run_state("failed", "OSError: [Errno 28] No space left on device: 'x'"),
        "",
        Failure.DISK_FULL,
    ),
    ("quota", None, STARTED, None, "OSError: [Errno 122] Disk quota exceeded", Failure.DISK_FULL),
    # asked to stop
    ("limit's word", says("TIMEOUT"), STARTED, None, "", Failure.TIME_LIMIT),
    ("deadline", says("DEADLINE"), None, None, "", Failure.TIME_LIMIT),
    (
        "limit, told by the supervisor",
        says("FAILED", 85),
        attempt({"exit_code": 75, "asked": "time_limit"}),
        None,
        "",
        Failure.TIME_LIMIT,
    ),
    ("limit, no accounting", None, STARTED, None, LIMIT, Failure.TIME_LIMIT),
    ("preemption's word", says("PREEMPTED"), STARTED, None, "", Failure.PREEMPTED),
    ("preempted", None, attempt({"exit_code": 75, "asked": "preempted"}), None, "", Failure.PREEMPTED),
    ("preempted before", None, STARTED, None, PREEMPTED + "\n" + LIMIT, Failure.TIME_LIMIT),
    ("scancel", says("CANCELLED", 0, 15, "by 1000"), STARTED, None, "", Failure.CANCELLED),
    ("scancel while it waited", says("CANCELLED", reason="by 0"), None, None, "", Failure.CANCELLED),
    ("cancelled", None, attempt({"exit_code": 75, "asked": "cancelled"}), None, "", Failure.CANCELLED),
    ("scancel, no accounting", None, STARTED, None, CANCELLED, Failure.CANCELLED),
    ("stopped", says("FAILED", 1), attempt({"exit_code": 75, "asked": "stopped"}), None, "", None),
    ("script could not requeue", says("FAILED", 85), STARTED, None, "", None),
    ("stopped itself", says("FAILED", 1), attempt(ended={"how": "interrupted"}), None, "", None),
    # the run's own fault
    ("refused", says("FAILED", 2), attempt({"exit_code": 2}), None, "", Failure.CONFIG),
    ("refused, then the limit", says("TIMEOUT"), attempt({"exit_code": 2}), None, "", Failure.CONFIG),
    ("no module", says("FAILED", 1), None, None, "ModuleNotFoundError: No module named 'x'", Failure.CONFIG),
    ("no module, no accounting", None, None, None, "ImportError: libcuda.so", Failure.CONFIG),
    ("no output file", says("FAILED", 0, 53), None, None, "", Failure.CONFIG),
    (
        "exception",
        says("FAILED", 1),
        attempt({"exit_code": 1}),
        run_state("failed", TRACEBACK),
        "",
        Failure.EXCEPTION,
    ),
    (
        "exception, while an earlier turn was preempted",
        says("FAILED", 1),
        attempt({"exit_code": 1}),
        None,
        PREEMPTED + "\n" + TRACEBACK,
        Failure.EXCEPTION,
    ),
    (
        "exception, and another run of the task to the limit",
        says("TIMEOUT"),
        attempt({"exit_code": 1}),
        run_state("failed", TRACEBACK),
        "",
        Failure.EXCEPTION,
    ),
    ("ended by an exception", None, attempt(ended={"how": "exception"}), None, "", Failure.EXCEPTION),
    # completed, it says, but nothing is finished
    ("completed", says("COMPLETED"), attempt({"exit_code": 0}), None, "", Failure.EXCEPTION),
    ("completed, nothing tried", says("COMPLETED"), None, None, "", Failure.EXCEPTION),
    # nobody knows
    ("killed", says("FAILED", 1), attempt({"signal": 9}), None, "", Failure.KILLED),
    ("killed with all", says("FAILED", 0, 9), STARTED, None, "", Failure.KILLED),
    ("gone", None, None, None, "", Failure.LOST),
    ("gone while it ran", None, STARTED, run_state("running"), "", Failure.LOST),
]
STATES_OF = {
    **dict.fromkeys((Failure.OUT_OF_MEMORY, Failure.NODE_FAILURE, Failure.KILLED), JobState.KILLED),
    **dict.fromkeys((Failure.DISK_FULL, Failure.CONFIG, Failure.EXCEPTION), JobState.FAILED),
    **dict.fromkeys((Failure.TIME_LIMIT, Failure.PREEMPTED, Failure.CANCELLED, None), JobState.INTERRUPTED),
    Failure.LOST: JobState.LOST,
}


@pytest.mark.parametrize(
    ("evidence", "last", "state", "text", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_every_way_to_end_has_its_class(
    evidence: Evidence | None,
    last: AttemptRecord | None,
    state: RunState | None,
    text: str,
    expected: Failure | None,
):
    job, failure, reason = classify(evidence, last, state, text)
    assert (failure, job) == (expected, STATES_OF[expected])
    assert expected is None or reason


def test_a_finished_record_is_the_last_word():
    for word in ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "A_NEW_WORD"):
        found = classify(says(word, 1), attempt({"signal": 9}), run_state("finished"), OOM, finished=True)
        assert found == (JobState.FINISHED, None, "")


def test_a_word_that_is_not_known_is_never_dead():
    job, failure, reason = classify(says("A_NEW_WORD", 1), STARTED, None, TRACEBACK)
    assert (job, failure) == (JobState.UNKNOWN, None)
    assert "A_NEW_WORD" in reason


def test_reasons_say_who_and_where_and_what_to_do():
    _, _, reason = classify(says("CANCELLED", reason="by 1000"), None, None, "")
    assert reason == "Slurm says CANCELLED by user 1000 on n1"
    _, _, reason = classify(says("OUT_OF_MEMORY", 0, 9), attempt({"signal": 9}), None, "the last line")
    assert reason.splitlines() == [
        "Slurm says OUT_OF_MEMORY on n1, signal 9; the trainer was ended by signal 9",
        HINTS[Failure.OUT_OF_MEMORY],
        "the last line",
    ]
    assert "mem_per_run" in HINTS[Failure.OUT_OF_MEMORY] and "micro_batch_tokens" in reason
    _, _, reason = classify(says("FAILED", 0, 53), None, None, "")
    assert "could not enter the sweep's folder or open the output file" in reason
    _, _, reason = classify(None, STARTED, None, "")
    assert "neither accounting nor the run says" in reason and "grposweep resume" in reason
    assert "leaves no trace" not in reason
    _, _, reason = classify(None, None, None, "")
    assert "cancelled while it waits leaves no trace" in reason


def test_what_slurm_wrote_last_into_the_output_counts():
    assert class_of_ending("\n".join((LIMIT, PREEMPTED, NODE))) == Failure.NODE_FAILURE
    assert class_of_ending("\n".join((NODE, CANCELLED))) == Failure.CANCELLED
    assert class_of_ending("\n".join((OOM, CANCELLED))) == Failure.OUT_OF_MEMORY
    assert class_of_ending("all is well") is None
    assert class_of_text("all is well") is None
