"""Slurm's commands as functions: argument lists, never a shell; bounded in time; answers as data."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.executors import CREDENTIALS, FOREIGN
from launcher.slurm.answers import (
    ACCOUNTING_FORMAT,
    QUEUE_FORMAT,
    SEPARATOR,
    Unreadable,
    accounting_answer,
    config_answer,
    first_number,
    queue_answer,
    release,
    submitted_job,
)
from launcher.slurm.evidence import Evidence
from launcher.slurm.refusals import NoAnswer as NoAnswer
from launcher.slurm.refusals import Refused as Refused
from launcher.slurm.refusals import SlurmError as SlurmError
from launcher.slurm.refusals import disabled, sentence, unanswered
from trainer.errors import UserError

ANSWER_SECONDS = 60.0
"""For commands that ask. With its controller away, squeue gives up by itself after half a minute."""
SUBMIT_SECONDS = 180.0
"""For sbatch, which asks a full controller again for two minutes before it says so."""
RETRY_SECONDS = 20.0
"""A command that asks is tried again only this long after its first call."""
PAUSE = 1.0
"""Seconds between two tries, doubled each time."""
MARGIN = 86_400.0
"""Accounting is asked from a day before a job was sent: clocks and time zones differ, and an hour of the year
comes twice. Names and ids are what selects."""
VARIABLES = (*FOREIGN, "PMI", "SLURMD_", "SINFO_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SALLOC_")
"""Starts of variables that change what Slurm's commands do or print."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What `scontrol show config` says of this cluster."""

    max_array_size: int
    """Most tasks of an array that begins at 0: MaxArraySize, or max_array_tasks where that is less."""
    version: tuple[int, int]
    """Release of Slurm: (22, 5)."""
    kill_wait: int
    """Seconds from SIGTERM to SIGKILL at the end of a job."""
    max_job_count: int
    """Most jobs of all users that the controller holds."""
    accounting: bool
    """Whether ended jobs are recorded."""


class Slurm:
    """The cluster of this machine, or the one that SLURM_CONF names."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._environment = slurm_environment(os.environ if environment is None else environment)
        # the whole of a long array, and times that need no time zone
        self._asking = self._environment | {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}
        self._answer_seconds = answer_seconds
        self.no_accounting: str | None = None
        """Why the last call of `accounting` or `find` had no accounting to ask."""

    def submit(self, arguments: Sequence[str], script: Path, timeout: float = SUBMIT_SECONDS) -> str:
        """Call sbatch once; the job's id. Raises `Refused`, or `NoAnswer` when the job may exist."""
        done = self._call(["sbatch", "--parsable", *arguments, str(script)], timeout, self._environment)
        job = submitted_job(done.stdout)
        if job is not None and done.returncode == 0:
            return job
        reason = _reason(done)
        # a job that was accepted, and an sbatch that says nothing, are not refusals
        if job is not None or unanswered(reason) or not done.stderr.strip():
            raise NoAnswer(reason)
        raise Refused(reason)

    def find(self, name: str, since: float) -> str | None:
        """Id of the job of this name, sent at `since`; None when there is none.

        Raises `NoAnswer` when that cannot be known. Without accounting a job is found while the controller
        remembers it, some minutes after its end.
        """
        words = ["squeue", "--noheader", "--me", "--states=all", f"--name={name}", "--format=%F"]
        found = self._ask(words).split()
        if found:
            return found[0]
        columns = ["sacct", "-n", "-X", "-P", f"--name={name}", _since(since), "--format=JobID"]
        listed = self._accounting(columns)
        if listed is None:
            return None
        return listed.split()[0].partition("_")[0] if listed.split() else None

    def queue(self, arrays: Collection[str] | None = None) -> dict[str, Evidence]:
        """Every task of this user that is in the queue, or of these arrays, by job: `17_3`.

        Raises `NoAnswer`. All are asked for, as squeue fails for an id that it has forgotten.
        """
        words = ["squeue", "--noheader", "--me", f"--format={QUEUE_FORMAT}"]
        try:
            jobs = queue_answer(self._ask(words))
        except Unreadable as fault:
            raise NoAnswer(f"squeue's answer is not readable: {fault}") from None
        return {
            job: evidence
            for job, evidence in jobs.items()
            if arrays is None or job.partition("_")[0] in arrays
        }

    def accounting(self, arrays: Collection[str], since: float) -> dict[str, Evidence] | None:
        """How tasks of arrays sent at `since` or later ended.

        None where no accounting answers; `no_accounting` then says why. States of jobs that have not ended
        are among the answers, and may be old.
        """
        self.no_accounting = None
        if not arrays:
            return {}
        words = ["sacct", "-n", "-X", "-P", "-D", f"--delimiter={SEPARATOR}", _since(since)]
        words += [f"--jobs={','.join(sorted(arrays))}", f"--format={ACCOUNTING_FORMAT}"]
        try:
            listed = self._accounting(words)
            return None if listed is None else accounting_answer(listed)
        except (NoAnswer, Unreadable) as fault:
            last = str(fault).rpartition("; ")[2]
            self.no_accounting = f"accounting does not answer ({last})"
            return None

    def submitted_count(self) -> int:
        """Tasks of this user in the queue, arrays expanded. Raises `NoAnswer`."""
        return len(self.queue())

    def limits(self) -> Limits:
        """Raises `NoAnswer`, or `UserError` where the cluster takes no arrays."""
        values = config_answer(self._ask(["scontrol", "show", "config"]))
        try:
            size = int(values["MaxArraySize"])
            version = release(values["SLURM_VERSION"])
        except (KeyError, ValueError) as fault:
            raise NoAnswer(f"the answer of `scontrol show config` is not readable: {fault!r}") from None
        if size < 1:
            raise UserError("MaxArraySize=0 in slurm.conf switches job arrays off: --site needs arrays")
        tasks = re.search(r"\bmax_array_tasks=(\d+)", values.get("SchedulerParameters", ""))
        return Limits(
            max_array_size=min(size, int(tasks[1])) if tasks else size,
            version=version,
            kill_wait=first_number(values.get("KillWait", ""), 30),
            max_job_count=first_number(values.get("MaxJobCount", ""), 10_000),
            accounting="slurmdbd" in values.get("AccountingStorageType", ""),
        )

    def version(self) -> tuple[int, int]:
        """Release of the commands here, which needs no controller. Raises `NoAnswer`."""
        try:
            return release(self._ask(["sbatch", "--version"]))
        except Unreadable as fault:
            raise NoAnswer(f"the answer of `sbatch --version` is not readable: {fault}") from None

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs and array tasks; those that have ended are passed over.

        Raises `NoAnswer`, or `SlurmError` where Slurm does not let us.
        """
        for first in range(0, len(jobs), 500):
            words = ["scancel", "--quiet", *jobs[first : first + 500]]
            done = self._call(words, self._answer_seconds, self._environment)
            if done.returncode:
                reason = _reason(done)
                raise NoAnswer(reason) if unanswered(reason) else SlurmError(reason)

    def _accounting(self, words: Sequence[str]) -> str | None:
        """Answer of sacct; None where the cluster keeps no accounts. Raises `NoAnswer`."""
        self.no_accounting = None
        try:
            return self._ask(words)
        except _MissingError:
            self.no_accounting = "there is no sacct on this machine"
        except NoAnswer as fault:
            if not disabled(str(fault)):
                raise
            self.no_accounting = "this cluster keeps no accounts of ended jobs"
        return None

    def _ask(self, words: Sequence[str]) -> str:
        """Answer of a command that changes nothing; tried a few times. Raises `NoAnswer`."""
        pause, end = PAUSE, time.monotonic() + RETRY_SECONDS
        while True:
            done = self._call(words, self._answer_seconds, self._asking)
            if not done.returncode:
                return done.stdout
            reason = _reason(done)
            if not unanswered(reason) or time.monotonic() + pause > end:
                raise NoAnswer(reason)
            time.sleep(pause)
            pause *= 2

    def _call(
        self, words: Sequence[str], timeout: float, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except (FileNotFoundError, PermissionError):
            raise _MissingError(
                f"there is no {words[0]} on the path: --site needs Slurm's commands, so run this on a "
                "machine from which jobs are submitted, or leave --site out"
            ) from None
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{words[0]} took longer than {timeout:g} s") from None


class _MissingError(UserError):
    """A command of Slurm's is not on this machine."""


def slurm_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of Slurm's commands, and so of jobs: nothing of an allocation that we may be in, no
    credentials, but the cluster.

    sbatch hands it on to the job, which is why the language is C in UTF-8 and not plain C.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(VARIABLES) and name not in CREDENTIALS
    }
    if "SLURM_CONF" in inherited:
        kept["SLURM_CONF"] = inherited["SLURM_CONF"]
    return kept | {"LC_ALL": "C.UTF-8"}


def _since(unix: float) -> str:
    """Local time as sacct reads it. It must lie before now, by the clock here."""
    return time.strftime("--starttime=%Y-%m-%dT%H:%M:%S", time.localtime(min(unix, time.time()) - MARGIN))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    return sentence(done.stderr, f"{done.args[0]} ended with {done.returncode}")
