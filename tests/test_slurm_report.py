"""Why a job is asked to stop, from what a real Slurm 22.05 said at the moment of each signal."""

from datetime import datetime
from typing import Any

import pytest

from trainer.attempts import Asked
from trainer.slurm_report import JobReport, parse_report, requeued, why_asked

BEGIN = "JobId=5 ArrayJobId=17 ArrayTaskId=3 JobName=laptop-0 UserId=root(0) JobState="
PREEMPTED = (
    BEGIN + "RUNNING Reason=None Requeue=1 Restarts=0 TimeLimit=00:30:00 StartTime=2026-11-30T20:08:58 "
    "EndTime=2026-11-30T20:09:19 PreemptTime=2026-11-30T20:09:09 WorkDir=/a EndTime=x"
)
PREEMPTED_WITHOUT_GRACE = (
    BEGIN + "COMPLETING Reason=None Restarts=1 StartTime=2026-11-30T20:09:09 EndTime=2026-11-30T20:39:09"
)
CANCELLED = BEGIN + "COMPLETING Reason=None Restarts=0 EndTime=2026-11-30T20:09:09 PreemptTime=None"
LIMIT_WARNING = BEGIN + "RUNNING Reason=None Restarts=0 EndTime=2026-11-30T20:09:58 PreemptTime=None"
LIMIT_END = BEGIN + "COMPLETING Reason=TimeLimit Restarts=0 EndTime=2026-11-30T20:09:09 PreemptTime=None"
RUNNING = BEGIN + "RUNNING Reason=None Restarts=0 EndTime=2026-11-30T20:38:58 PreemptTime=None"
NOW = datetime(2026, 11, 30, 20, 9, 9).timestamp()


def why(text: str | None, warned: bool = True, **other: Any) -> Asked:
    known = {"restart": 0, "end": None, "lead": 20.0, "now": NOW} | other
    return why_asked(None if text is None else parse_report(text), warned=warned, **known)


@pytest.mark.parametrize(
    ("text", "warned", "expected"),
    [
        (PREEMPTED, True, "preempted"),
        (PREEMPTED, False, "preempted"),
        (PREEMPTED_WITHOUT_GRACE, False, "preempted"),
        (CANCELLED, False, "cancelled"),
        (CANCELLED.replace("COMPLETING", "CANCELLED"), False, "cancelled"),
        (LIMIT_WARNING, True, "time_limit"),
        (LIMIT_END, False, "time_limit"),
        (RUNNING, True, "preempted"),  # somebody warned though there is time left
        (RUNNING, False, "stopped"),
    ],
)
def test_the_controllers_words_decide(text: str, warned: bool, expected: str):
    assert why(text, warned) == expected


def test_a_short_job_that_is_preempted_has_not_timed_out():
    # five minutes long, preempted after one: within the span in which a warning may come early
    assert why(PREEMPTED, lead=300.0) == Asked.PREEMPTED
    assert why(PREEMPTED, lead=300.0, end=NOW + 240) == Asked.PREEMPTED


def test_without_a_controller_the_time_left_decides():
    assert why(None, end=NOW + 90) == Asked.TIME_LIMIT
    assert why(None, end=NOW + 240) == Asked.PREEMPTED
    assert why(None, warned=False, end=NOW + 10) == Asked.TIME_LIMIT
    # TERM never comes early
    assert why(None, warned=False, end=NOW + 90) == Asked.STOPPED
    assert why(None) == Asked.PREEMPTED


def test_a_preemption_planned_for_later_does_not_count_yet():
    later = PREEMPTED.replace("PreemptTime=2026-11-30T20:09:09", "PreemptTime=2026-11-30T22:00:00")
    assert why(later.replace("EndTime=2026-11-30T20:09:19", "EndTime=2026-11-30T20:09:20")) == "time_limit"


def test_a_report_is_read_and_what_is_none_is_not():
    report = parse_report(PREEMPTED)
    assert report == JobReport("RUNNING", "None", 0, NOW + 10, NOW)
    assert not requeued(report, 0)
    assert requeued(parse_report(PREEMPTED_WITHOUT_GRACE), 0)
    assert not requeued(parse_report(PREEMPTED_WITHOUT_GRACE), 1)
    assert parse_report("slurm_load_jobs error: Invalid job id specified") is None
    unknown = parse_report("JobId=5 JobState=PENDING EndTime=Unknown")
    assert unknown is not None and unknown.end is None and unknown.preempted is None
