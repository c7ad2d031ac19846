"""Time on the virtual clock of schedule=free: per configuration, how long an update takes and who waits.

Everything is read from the last line of each run's metrics.jsonl, so warm-up is included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import Records, Run
from analysis.wording import titled


@dataclass(frozen=True)
class ClockRow:
    """All seeds of one configuration; numbers are seed medians."""

    configuration: str
    seeds: int
    time_per_update: float
    """In learner updates' work on one trainer; 1/T is the least."""
    worker_idle_share: float
    trainer_idle_share: float
    uses: float
    """Uses per rollout that entered the store."""
    run_ids: tuple[str, ...]

    def texts(self) -> tuple[str, ...]:
        """As printed, in the order of `HEADINGS`."""
        shares = (self.worker_idle_share, self.trainer_idle_share)
        return (
            self.configuration,
            str(self.seeds),
            f"{self.time_per_update:.3f}",
            *(f"{100 * share:.1f}%" for share in shares),
            f"{self.uses:.2f}",
        )


HEADINGS = ("configuration", "seeds", "time per update", "workers idle", "trainers idle", "uses y")


def clock_rows(records: Records) -> tuple[ClockRow, ...]:
    """One row per configuration with a clock, in order of appearance; empty where no run has one."""
    groups: dict[str, list[Run]] = {}
    for run in records.runs:
        if run.complete and run.metrics and run.metrics[-1].get("virtual_time") is not None:
            science = {name: value for name, value in run.science.items() if name != "seed"}
            groups.setdefault(repr(science), []).append(run)
    firsts = [runs[0] for runs in groups.values()]
    names = [
        name
        for name in (firsts[0].science if firsts else ())
        if name != "seed" and len({str(run.science[name]) for run in firsts}) > 1
    ]
    return tuple(_row(runs, names) for runs in groups.values())


def _row(runs: Sequence[Run], names: Sequence[str]) -> ClockRow:
    last = [run.metrics[-1] for run in runs]

    def middle(values: Sequence[Any]) -> float:
        return float(np.median(values))

    return ClockRow(
        configuration=titled((name.rsplit(".", 1)[-1], runs[0].science[name]) for name in names)
        or "all runs",
        seeds=len(runs),
        time_per_update=middle([line["virtual_time"] / (line["step"] + 1) for line in last]),
        worker_idle_share=middle([line["worker_idle_share"] for line in last]),
        trainer_idle_share=middle([line["trainer_idle_share"] for line in last]),
        uses=middle([line["rollouts_trained"] / line["rollouts_generated"] for line in last]),
        run_ids=tuple(run.run_id for run in runs),
    )
