"""`attempts.jsonl`: what is known of each attempt at a run, by the trainer and by the supervisor of its task.

Three lines per attempt at most, each with `attempt`, `event`, `time` (Unix seconds), `host`:

    started   by the trainer   pid; job, "17_3" or "17", and restart, how often Slurm had requeued it (null
                               elsewhere); node, as Slurm names it; devices, as in CUDA_VISIBLE_DEVICES
    ended     by the trainer   how: finished, interrupted, exception, superseded (a newer attempt writes), or
                               killed (written by the next attempt); reason; step; peak_memory and
                               peak_device_memory, bytes
    left      by the supervisor of a Slurm task, after the trainer's process ended
                               job, restart; exit_code or signal (the other is null); asked, why it had been
                               asked to stop (`Asked`, null when it was not); requeue, whether Slurm is asked
                               to run the task again, or does so by itself

Readers pass over events and fields that they do not know. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from trainer.files import read_lines
from trainer.paths import RunPaths


class Exit(IntEnum):
    """Exit codes of `python -P -m trainer <run folder>`."""

    FINISHED = 0
    FAILED = 1
    """An exception; its last lines are in state.json, all of it in the attempt's log."""
    USER_ERROR = 2
    """The run folder is not valid; nothing was trained."""
    INTERRUPTED = 75
    """SIGINT, SIGTERM or the launcher's death: a checkpoint was written, another attempt continues."""
    BUSY = 76
    """Another process trains this run."""


class Asked(StrEnum):
    """Why a supervisor asked its trainers to stop."""

    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """A signal whose cause Slurm did not tell."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The lines of one attempt; null where there is none (yet)."""

    number: int
    started: Mapping[str, Any] | None
    """None when the trainer died before its first line."""
    ended: Mapping[str, Any] | None
    left: Mapping[str, Any] | None

    @property
    def job(self) -> str | None:
        """Its job in Slurm, as squeue has it."""
        line = self.started or self.left
        return None if line is None else line.get("job")


def read_attempts(paths: RunPaths) -> list[AttemptRecord]:
    """Attempts in order."""
    lines: dict[int, dict[str, Mapping[str, Any]]] = {}
    for line in read_lines(paths.attempts):
        number, event = line.get("attempt"), line.get("event")
        if isinstance(number, int) and event in ("started", "ended", "left"):
            lines.setdefault(number, {})[event] = line
    return [
        AttemptRecord(number, found.get("started"), found.get("ended"), found.get("left"))
        for number, found in sorted(lines.items())
    ]


def next_attempt(paths: RunPaths) -> int:
    """Number of the next attempt, from 1."""
    attempts = read_attempts(paths)
    return attempts[-1].number + 1 if attempts else 1


def slurm_job(environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Slurm's name of this job, as `squeue -r` shows it, and how often it was requeued; None elsewhere.

    >>> slurm_job({"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"})
    ('17_3', 0)
    """
    job = environment.get("SLURM_JOB_ID")
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        # the job id of an array's task is a number of its own that no command shows
        job = f"{array}_{task}"
    return (job, int(environment.get("SLURM_RESTART_COUNT") or 0)) if job else (None, None)
