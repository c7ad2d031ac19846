"""What Slurm's commands print, read. The texts are those of a real cluster of Slurm 22.05."""

import pytest

from launcher.slurm.answers import (
    SEPARATOR,
    Unreadable,
    accounting_answer,
    queue_answer,
    submitted_job,
)
from launcher.slurm.evidence import Evidence
from launcher.slurm.refusals import Refused, sentence, unanswered

POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)\n"
)
FAILED = "sbatch: error: Batch job submission failed: "

QUEUE = """\
2_2|PENDING|JobArrayTaskLimit||1:00:00
3_0|PENDING|JobHeldUser||1:00:00
1_1|PENDING|BeginTime||1:00:00
1_2|PENDING|job requeued in held state||1:00:00
28_0|PENDING|ReqNodeNotAvail, UnavailableNodes:n4||10:00
1_0|RUNNING|None|n1|59:58
"""
ACCOUNTS = """\
1_0|1796072522|CANCELLED by 0|0:0|n1
1_1|1796072522|REQUEUED|0:0|n1
1_3|1796072522|RUNNING|0:0|n1
1_1|1796072559|RUNNING|0:0|n1
2_[2-3%2]|1796072522|PENDING|0:0|None assigned
3_[0,2]|1796072522|CANCELLED by 0|0:0|None assigned
4_0|1796072522|COMPLETED|0:0|n1
5_0|1796072522|FAILED|3:0|n2
6_0|1796072522|FAILED|0:9|n2
19_[1-199:2]|1796072654|CANCELLED by 0|0:0|None assigned
20_0|1796072659|TIMEOUT|0:0|n1
21_0|1796072659|NODE_FAIL|0:0|n3
24_0|1796072659|FAILED|0:53|n1
25_0|1796072659|PREEMPTED|0:0|n4
25_0|1796072684|PENDING|0:0|None assigned
"""


def answer(text: str) -> str:
    return text.replace("|", SEPARATOR)


def test_the_queue_of_a_real_cluster_is_read():
    jobs = queue_answer(answer(QUEUE))
    assert jobs["1_0"] == Evidence("RUNNING", True, None, nodes="n1", time_left=3598.0)
    assert jobs["3_0"] == Evidence("PENDING", True, "JobHeldUser", time_left=3600.0)
    assert jobs["28_0"].reason == "ReqNodeNotAvail, UnavailableNodes:n4"
    assert len(jobs) == 6
    with pytest.raises(Unreadable, match="has not 5 fields"):
        queue_answer("17_0 RUNNING\n")
    steps = queue_answer(answer("35_[0-198:3]|PENDING|JobHeldUser||1:00:00\n"))
    assert set(steps) == {f"35_{task}" for task in range(0, 199, 3)}
    with pytest.raises(Unreadable, match="cannot be told"):  # some would look as if they had left
        queue_answer(answer("31_[1-2,4-5,...]|PENDING|JobHeldUser||1:00:00\n"))


def test_accounts_of_a_real_cluster_are_read():
    jobs = accounting_answer(answer(ACCOUNTS))
    assert jobs["1_0"] == Evidence("CANCELLED", False, "by 0", 0, None, "n1")
    assert jobs["5_0"] == Evidence("FAILED", False, None, 3, None, "n2")
    assert (jobs["6_0"].signal, jobs["24_0"].signal) == (9, 53)
    assert jobs["20_0"].word == "TIMEOUT"


def test_of_several_lines_of_a_task_the_one_submitted_last_counts():
    lines = ACCOUNTS.splitlines()
    for order in (lines, lines[::-1]):
        jobs = accounting_answer(answer("\n".join(order)))
        assert (jobs["1_1"].word, jobs["25_0"].word) == ("RUNNING", "PENDING")


def test_tasks_that_never_started_share_a_line():
    jobs = accounting_answer(answer(ACCOUNTS))
    assert {job: jobs[job].word for job in ("3_0", "3_2", "2_2", "2_3")} == {
        **dict.fromkeys(("3_0", "3_2"), "CANCELLED"),
        **dict.fromkeys(("2_2", "2_3"), "PENDING"),
    }
    assert "3_1" not in jobs
    assert sum(job.startswith("19_") for job in jobs) == 100
    assert "19_199" in jobs and "19_0" not in jobs


@pytest.mark.parametrize(
    ("stderr", "limit", "room", "later", "certain"),
    [
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + POLICY,
            "QOSMaxSubmitJobPerUserLimit",
            *(True, True, True),
        ),
        ("sbatch: error: AssocMaxSubmitJobLimit\n" + POLICY, "AssocMaxSubmitJobLimit", True, True, True),
        ("sbatch: error: AssocGrpSubmitJobsLimit\n" + POLICY, "AssocGrpSubmitJobsLimit", True, True, True),
        ("sbatch: error: QOSGrpSubmitJobsLimit\n" + POLICY, "QOSGrpSubmitJobsLimit", True, True, True),
        ("sbatch: error: MaxSubmitJobsPerAccount\n" + POLICY, "MaxSubmitJobsPerAccount", True, True, True),
        # limits of time and size come with the same general sentence, and waiting does not help
        (
            "sbatch: error: QOSMaxWallDurationPerJobLimit\n" + POLICY,
            "QOSMaxWallDurationPerJobLimit",
            *(False, False, True),
        ),
        ("sbatch: error: QOSMaxCpuPerJobLimit\n" + POLICY, "QOSMaxCpuPerJobLimit", False, False, True),
        ("sbatch: error: QOSMinGRES\n" + POLICY, "QOSMinGRES", False, False, True),
        # older releases name no limit
        (POLICY, None, True, True, False),
        (FAILED + "Invalid job array specification\n", None, True, False, True),
        (
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
            + FAILED
            + "Resource temporarily unavailable\n",
            *(None, True, True, True),
        ),
        (FAILED + "Requested node configuration is not available\n", None, False, False, True),
        (FAILED + "Invalid account or account/partition combination specified\n", None, False, False, True),
        (FAILED + "Invalid qos specification\n", None, False, False, True),
    ],
)
def test_a_refusal_tells_whether_fewer_or_later_helps(
    stderr: str, limit: str | None, room: bool, later: bool, certain: bool
):
    reason = sentence(stderr, "")
    assert not unanswered(reason)
    refused = Refused(reason)
    assert (refused.limit, refused.room, refused.later, refused.certain) == (limit, room, later, certain)


@pytest.mark.parametrize(
    "last",
    [
        "Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Resource temporarily unavailable",
        "Message receive failure",
    ],
)
def test_what_may_have_been_taken_all_the_same_is_no_refusal(last: str):
    assert unanswered(sentence(FAILED + last + "\n", ""))
    if last != "Resource temporarily unavailable":
        busy = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
        assert unanswered(sentence(busy + FAILED + last + "\n", ""))


def test_a_job_id_is_found_among_what_a_wrapper_prints():
    assert submitted_job("17\n") == submitted_job("17;cluster\n") == "17"
    assert submitted_job("Your quota: 80 %\n17\n") == "17"
    assert submitted_job("Submitted batch job\n") is None
