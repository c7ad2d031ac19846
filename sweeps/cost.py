"""What running a grid costs on one machine, before it runs: updates, core time, wall time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """An upper estimate: runs that collapse end earlier."""

    updates: int
    core_seconds: float
    wall_seconds: float


def estimate(
    updates: Sequence[int], seconds_per_update: float, startup_seconds: float, *, slots: int
) -> Cost:
    """Cost of runs with these updates to do, `slots` at a time, the longest started first."""
    seconds = sorted((startup_seconds + count * seconds_per_update for count in updates), reverse=True)
    ends = [0.0] * slots
    for job in seconds:
        heapq.heapreplace(ends, ends[0] + job)
    return Cost(sum(updates), sum(seconds), max(ends))
