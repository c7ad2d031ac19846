"""Why Slurm asks a job to stop, from what its controller says of the job. Standard library alone.

Seen on a real cluster at the moment of the signal (Slurm 22.05, without accounting):

    preemption with a grace time   JobState=RUNNING, PreemptTime=now, EndTime=now + grace
    preemption without             JobState=COMPLETING, Restarts one higher, no PreemptTime
    scancel                        JobState=COMPLETING, EndTime=now, never CANCELLED as yet
    time limit, the warning        JobState=RUNNING, EndTime=the limit
    time limit, its end            JobState=COMPLETING, Reason=TimeLimit
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from trainer.attempts import Asked

ANSWER_SECONDS = 10.0
"""Longest wait for the controller's answer."""
EARLY_SECONDS = 75.0
"""A warning may come this much before its time: Slurm's manual says up to 60 s, it looks every 30 s."""
SKEW_SECONDS = 60.0
"""Most that this node's clock may be behind the controller's."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What `scontrol show job` says of one job."""

    state: str
    reason: str
    restarts: int
    end: float | None
    """Unix time of its limit, or of its end."""
    preempted: float | None
    """Unix time at which it was preempted."""


def parse_report(text: str) -> JobReport | None:
    """The report in the output of `scontrol show job … -o`; None where there is no job in it.

    >>> parse_report("JobId=5 JobState=RUNNING Reason=None Restarts=1 EndTime=Unknown").restarts
    1
    """
    fields: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            # the first one counts: paths and comments, which may hold anything, come last
            fields.setdefault(key, value)
    if "JobState" not in fields:
        return None
    restarts = fields.get("Restarts", "0")
    return JobReport(
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        restarts=int(restarts) if restarts.isdigit() else 0,
        end=_moment(fields.get("EndTime")),
        preempted=_moment(fields.get("PreemptTime")),
    )


def _moment(text: str | None) -> float | None:
    """Unix time of a local time; None for Unknown, None and N/A."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return None


def requeued(report: JobReport | None, restart: int) -> bool:
    """Whether Slurm has put the job back into its queue by itself, so that nobody else has to."""
    return report is not None and report.restarts > restart


def why_asked(
    report: JobReport | None, *, warned: bool, restart: int, end: float | None, lead: float, now: float
) -> Asked:
    """Why a signal came, or the time is nearly up.

    `warned`: it was the warning signal, which Slurm sends `lead` seconds before the time limit and, on some
    sites, at a preemption. `end` is the time limit as known without the controller, for when it is silent.
    """
    if report is not None:
        if requeued(report, restart):
            return Asked.PREEMPTED
        if report.state.startswith("CANCELLED"):
            return Asked.CANCELLED
        if report.preempted is not None and report.preempted <= now + SKEW_SECONDS:
            return Asked.PREEMPTED
        if report.state in ("COMPLETING", "TIMEOUT"):
            return Asked.TIME_LIMIT if report.reason == "TimeLimit" else Asked.CANCELLED
        end = report.end if report.end is not None else end
    if end is not None and end - now <= lead + (EARLY_SECONDS if warned else 0.0):
        return Asked.TIME_LIMIT
    # somebody warned though there is time left, and only a preemption does
    return Asked.PREEMPTED if warned else Asked.STOPPED


class Question:
    """One call of scontrol, under way; the signals in `ignored`, sent to the whole step, do not end it."""

    def __init__(
        self, job: str, ignored: Iterable[signal.Signals], environment: Mapping[str, str] = os.environ
    ) -> None:
        ignored = tuple(ignored)

        def ignore() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        self.report: JobReport | None = None
        self._deadline = time.monotonic() + ANSWER_SECONDS
        program = shutil.which("scontrol", path=environment.get("PATH"))
        self._process: subprocess.Popen[bytes] | None = None
        if program is not None:
            self._process = subprocess.Popen(
                [program, "show", "job", job, "-o"],
                env={**environment, "SLURM_TIME_FORMAT": "standard"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # the supervisor has one thread, so that code between fork and exec is safe
                preexec_fn=ignore,
            )

    def answered(self) -> bool:
        """Whether the answer is in `report`, or none is to be had. Does not wait."""
        process = self._process
        if process is None:
            return True
        if process.poll() is None:
            if time.monotonic() < self._deadline:
                return False
            process.kill()
            process.wait()
        assert process.stdout is not None
        with process.stdout as output:
            # a report is smaller than a pipe, so that a process that has ended has written all of it
            self.report = parse_report(output.read().decode(errors="replace"))
        self._process = None
        return True
