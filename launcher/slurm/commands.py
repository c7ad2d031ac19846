"""Slurm's commands as functions: argument lists, never a shell; bounded in time; answers as data."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.executors import CREDENTIALS, FOREIGN
from launcher.slurm.evidence import Evidence
from trainer.errors import UserError

ANSWER_SECONDS = 60.0
"""For commands that ask."""
SUBMIT_SECONDS = 180.0
TRIES = 3
"""Of a command that asks, before it counts as unanswered."""
PAUSE = 2.0
"""Seconds between two tries, doubled each time."""
SEPARATOR = "\x1f"
"""Between the fields of an answer: no name holds it."""

TRANSIENT = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted",
    "Unexpected message received",
    "slurm_receive_msg",
    "Slurm backup controller in standby mode",
    "Transport endpoint is not connected",
    "SlurmDBD connection",
    "slurm_persist_conn",
)
"""What a controller or database says, or has said for it, that is busy or away."""
UNDELIVERED = ("Unable to contact slurm controller (connect failure)", "Connection refused")
ROOM = (
    "QOSMaxSubmitJob",
    "QOSMaxJobs",
    "QOSGrpSubmitJobs",
    "AssocMaxSubmitJob",
    "AssocGrpSubmitJobs",
    "AssocMaxJobs",
    "MaxSubmitJobs",
    "job submit limit",
    "Slurm temporarily unable to accept job",
    "Reached MaxJobCount",
)
"""Refusals that mean "not so many"; the general sentence on policy names the submit limit among others."""


class SlurmError(RuntimeError):
    """Slurm did not do what was asked."""


class NoAnswer(SlurmError):  # noqa: N818 - says what it is
    """The controller or the database did not answer; what was asked may or may not have happened."""

    @property
    def undelivered(self) -> bool:
        """Whether the controller cannot have heard of it."""
        return any(words in str(self) for words in UNDELIVERED)


class Refused(SlurmError):  # noqa: N818 - says what it is
    """sbatch made no job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.room = any(words in reason for words in ROOM)
        """Whether fewer tasks, or the same ones later, may be taken."""
        self.away = any(words in reason for words in UNDELIVERED)
        """Whether there was nobody to refuse."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What `scontrol show config` says of this cluster."""

    max_array_size: int
    """Highest array index + 1."""
    version: tuple[int, int]
    """Release of Slurm: (22, 5)."""


class Slurm:
    """The cluster of this machine, or the one that SLURM_CONF names."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        inherited = os.environ if environment is None else environment
        self._environment = slurm_environment(inherited)

    def submit(self, arguments: Sequence[str], script: Path) -> str:
        """Call sbatch once; the job's id. Raises `Refused`, or `NoAnswer` when the job may exist."""
        done = self._call(["sbatch", "--parsable", *arguments, str(script)], SUBMIT_SECONDS)
        if done.returncode:
            reason = _sentence(done)
            if _transient(reason):
                raise NoAnswer(reason)
            raise Refused(reason)
        return done.stdout.strip().splitlines()[-1].partition(";")[0]

    def find(self, name: str, since: float) -> str | None:
        """Id of the job of this name, sent at `since`; None when there is none.

        Raises `NoAnswer` when that cannot be known.
        """
        found = self._ask(["squeue", "--noheader", "--array", f"--name={name}", "--format=%F"]).split()
        if found:
            return found[0]
        words = ["sacct", "-n", "-X", "-P", f"--name={name}", f"--starttime={_time(since)}", "--format=JobID"]
        listed = self._accounting(words)
        ids = listed.split() if listed else []
        return ids[0].partition("_")[0] if ids else None

    def queue(self) -> dict[str, Evidence]:
        """Every task of this user that is in the queue, by job: `17_3`. Raises `NoAnswer`."""
        columns = SEPARATOR.join(("%i", "%T", "%r", "%N", "%L"))
        words = ["squeue", "--noheader", "--array", "--me", f"--format={columns}"]
        jobs = {}
        for line in self._ask(words).splitlines():
            job, word, reason, nodes, left = (piece.strip() for piece in line.split(SEPARATOR))
            because = None if reason in ("None", "") else reason
            jobs[job] = Evidence(word, True, because, nodes=nodes or None, time_left=_seconds(left))
        return jobs

    def accounting(self, arrays: Sequence[str], since: float) -> dict[str, Evidence] | None:
        """How tasks of arrays sent at `since` or later ended; None without accounting."""
        if not arrays:
            return {}
        columns = "JobID,State,ExitCode,NodeList"
        listed = self._accounting(
            [
                *("sacct", "-n", "-X", "-P", f"--delimiter={SEPARATOR}", f"--format={columns}"),
                *(f"--starttime={_time(since)}", f"--jobs={','.join(arrays)}"),
            ]
        )
        if listed is None:
            return None
        jobs: dict[str, Evidence] = {}
        for line in listed.splitlines():
            job, state, code, nodes = line.split(SEPARATOR)
            word, _, by = state.partition(" ")  # CANCELLED by 1000
            exit_code, _, number = code.partition(":")
            found = Evidence(
                word,
                False,
                by or None,
                int(exit_code) if exit_code.isdecimal() else None,
                int(number) if number.isdecimal() and int(number) else None,
                None if nodes in ("None assigned", "") else nodes,
            )
            jobs |= dict.fromkeys(array_tasks(job), found)
        return jobs

    def submitted_count(self) -> int:
        """Tasks of this user in the queue. Raises `NoAnswer`."""
        return len(self._ask(["squeue", "--noheader", "--array", "--me", "--format=%i"]).split())

    def limits(self) -> Limits:
        """Raises `NoAnswer`."""
        values = {}
        for line in self._ask(["scontrol", "show", "config"]).splitlines():
            name, sign, value = line.partition("=")
            if sign:
                values[name.strip()] = value.strip()
        version = values.get("SLURM_VERSION", "0.0").split(".")
        return Limits(int(values["MaxArraySize"]), (int(version[0]), int(version[1])))

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs and array tasks; those that have ended are passed over. Raises `NoAnswer`."""
        for first in range(0, len(jobs), 500):
            done = self._call(["scancel", "--quiet", *jobs[first : first + 500]], ANSWER_SECONDS)
            if done.returncode and _transient(_sentence(done)):
                raise NoAnswer(_sentence(done))

    def _accounting(self, words: Sequence[str]) -> str | None:
        """Answer of sacct; None where there is no accounting, or none that answers."""
        try:
            done = self._call(words, ANSWER_SECONDS)
        except (UserError, NoAnswer):
            return None
        return None if done.returncode else done.stdout

    def _ask(self, words: Sequence[str]) -> str:
        """Answer of a command that changes nothing; tried a few times. Raises `NoAnswer`."""
        pause = PAUSE
        for last in (*[False] * (TRIES - 1), True):
            try:
                done = self._call(words, ANSWER_SECONDS)
            except NoAnswer:
                if last:
                    raise
            else:
                if not done.returncode:
                    return done.stdout
                if last or not _transient(_sentence(done)):
                    raise NoAnswer(_sentence(done))
            time.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _call(self, words: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError:
            raise UserError(
                f"there is no {words[0]} on the path: a site profile needs Slurm's commands, so run this on "
                "a machine from which jobs are submitted, or leave --site out"
            ) from None
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{words[0]} took longer than {seconds:g} s") from None


def slurm_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of Slurm's commands, and so of jobs: nothing of an allocation that we may be in, no
    credentials, but the cluster.

    sbatch hands it on to the job.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(FOREIGN) and not name.startswith(("SLURMD_", "SINFO_", "SQUEUE_", "SACCT_"))
    }
    kept = {name: value for name, value in kept.items() if name not in CREDENTIALS}
    if "SLURM_CONF" in inherited:
        kept["SLURM_CONF"] = inherited["SLURM_CONF"]
    return kept | {"LC_ALL": "C.UTF-8"}


def array_tasks(text: str) -> list[str]:
    """The tasks that accounting shows as one: those that never left the queue for a node.

    >>> array_tasks("17_[0-2,7%4]"), array_tasks("17_3")
    (['17_0', '17_1', '17_2', '17_7'], ['17_3'])
    """
    found = re.fullmatch(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]", text)
    if not found:
        return [text]
    tasks: list[int] = []
    for piece in found[2].split(","):
        ends, _, step = piece.partition(":")
        first, _, last = ends.partition("-")
        tasks += range(int(first), int(last or first) + 1, int(step or 1))
    return [f"{found[1]}_{task}" for task in tasks]


def _sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a command said that failed, in one line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    text = "; ".join(line.partition("error: ")[2] or line for line in lines)
    return text or f"{done.args[0]} ended with {done.returncode}"


def _transient(reason: str) -> bool:
    return any(words in reason for words in TRANSIENT)


def _time(unix: float) -> str:
    """Local time as sacct reads it, a minute early: clocks differ."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(unix - 60))


def _seconds(left: str) -> float | None:
    """Seconds in squeue's `1-02:03:04` or `3:04`; None for UNLIMITED, INVALID or NOT_SET.

    >>> _seconds("1-00:00:10"), _seconds("3:04"), _seconds("UNLIMITED")
    (86410.0, 184.0, None)
    """
    days, sign, clock = left.rpartition("-")
    pieces = clock.split(":")
    if not all(piece.isdecimal() for piece in (*pieces, *([days] if sign else []))):
        return None
    total = 0
    for piece in pieces:
        total = 60 * total + int(piece)
    return float(total + (86_400 * int(days) if sign else 0))
