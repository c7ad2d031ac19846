"""What a run needs of a node, and runs of equal needs as arrays of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.slurm.site import SiteProfile
from sweeps.cost import gpus_of
from trainer.config import RunConfig


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one run."""

    cpus: int
    gpus: int
    threads: int
    """That its libraries start."""


@dataclass(frozen=True, slots=True)
class Array:
    """Tasks of equal needs."""

    needs: Needs
    """Of each run."""
    tasks: Sequence[Sequence[str]]
    """Run ids of each task."""

    @property
    def runs_per_task(self) -> int:
        """Of the fullest task, which decides what all of them ask for."""
        return max(map(len, self.tasks), default=1)


def needs(config: RunConfig, site: SiteProfile) -> Needs:
    """A run in lockstep takes its threads, and one GPU where it runs on one."""
    threads = config.resources.threads
    return Needs(max(threads, site.cpus_per_run or threads), gpus_of(config), threads)


def arrays(runs: Sequence[tuple[str, Needs]], site: SiteProfile, max_array_size: int) -> list[Array]:
    """Runs of equal needs as arrays, in the order given, none larger than the cluster allows.

    `max_array_size` is the highest index + 1.
    """
    kinds: dict[Needs, list[str]] = {}
    for run, need in runs:
        kinds.setdefault(need, []).append(run)
    found = []
    for need, ids in kinds.items():
        size = runs_per_task(site, need)
        full = len(ids) // size * size
        tasks = [ids[first : first + size] for first in range(0, full, size)]
        found += [
            Array(need, tasks[first : first + max_array_size])
            for first in range(0, len(tasks), max_array_size)
        ]
        if full < len(ids):  # an array of its own, that it asks for no more than it needs
            found.append(Array(need, [ids[full:]]))
    return found


def runs_per_task(site: SiteProfile, need: Needs) -> int:
    """Runs of these needs that share a task."""
    if site.cells_per_task != "fit":
        return site.cells_per_task
    return max(1, site.gpus.per_node // need.gpus) if need.gpus else 1
