"""What Slurm says of jobs: one call of squeue, one of sacct for those that left the queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """What Slurm says of one job or array task."""

    word: str
    """Its state in one word, as Slurm's long form has it: RUNNING, NODE_FAIL, …"""
    queued: bool
    """Whether squeue says so; else accounting does."""
    reason: str | None = None
    """Why it waits, or the controller's remark."""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str | None = None
    time_left: float | None = None
    """Seconds to its time limit, while it runs."""
