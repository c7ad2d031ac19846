"""What a grid still costs on this machine before it runs, and on what that figure rests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainer.config import RunConfig
from trainer.fields import Positive
from trainer.files import read_lines
from trainer.record import RunPaths
from trainer.schema import Section
from trainer.task_config import canonical_json

MOST_READ = 4
"""Runs whose timings are read for each kind of run: a plan has to stay quick in a sweep of thousands."""


class CostFigures(Section):
    """What a preset says about the speed of its runs, for plans before anything has run."""

    seconds_per_update: Positive | None = None
    """Measured on one idle core."""
    startup_seconds: Annotated[float, Field(ge=0)] = 0.0
    """From the start of a job to its first update."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An upper estimate: runs that collapse end earlier."""

    runs: int
    updates: int
    core_seconds: float | None
    """None when the speed of some run is not known."""
    wall_seconds: float | None
    basis: str
    """Where the speed comes from."""
    core_hours: float | None = None
    """Of CPU cores that runs hold."""
    gpu_hours: float | None = None
    """None when the speed of some run is not known."""


@dataclass(frozen=True, slots=True)
class PilotSpeed:
    """What a pilot says about the speed of a sweep's runs; it ran the most demanding kind of them."""

    seconds_per_update: float
    startup_seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """What a run keeps from others as long as it runs; shares of a node that is given out whole."""

    cores: float
    gpus: float


def own_needs(config: RunConfig) -> Held:
    """A run's threads and GPUs."""
    return Held(config.resources.threads, gpus_of(config))


def gpus_of(config: RunConfig) -> int:
    """GPUs that a run holds."""
    return 1 if config.resources.device == "cuda" else 0


def over_budget(found: Estimate, limit: float) -> str | None:
    """Why runs must not be submitted under `--max-gpu-hours`; None where they may."""
    if found.gpu_hours is None:
        return (
            f"--max-gpu-hours={limit:g}, but what the runs cost is not known before one has run: measure it "
            "with `grposweep pilot` first"
        )
    if found.gpu_hours <= limit:
        return None
    return (
        f"the runs take up to {found.gpu_hours:.3g} GPU hours ({found.basis}), more than "
        f"--max-gpu-hours={limit:g}: submit fewer runs or shorter ones, or raise it"
    )


def estimate(
    todo: Sequence[tuple[RunConfig, int]],
    done: Iterable[tuple[RunConfig, RunPaths]],
    figures: CostFigures,
    *,
    slots: int,
    pilot: PilotSpeed | None = None,
    held: Callable[[RunConfig], Held] | None = None,
) -> Estimate:
    """Cost of `todo` (run, updates to do), `slots` at a time, the longest started first.

    A run is as fast as the runs in `done` with the same model, task and batch were, by their timings; where
    there are none, as the `pilot` was, which bounds it from above; else as the preset's
    `figures` say. `held` says what a run takes of a cluster; None: its threads and GPUs.
    """
    stand_in = figures.seconds_per_update if pilot is None else pilot.seconds_per_update
    startup = figures.startup_seconds if pilot is None else pilot.startup_seconds
    measured = {kind: seconds_per_update(paths) for kind, paths in _by_kind(done).items()}
    own = [measured.get(_kind(config)) for config, _ in todo]
    paces = [stand_in if pace is None else pace for pace in own]
    updates = sum(count for _, count in todo)
    training = [count * pace for (_, count), pace in zip(todo, paces, strict=True) if pace is not None]
    if len(training) < len(todo):
        return Estimate(len(todo), updates, None, None, "their speed is not known before one has run")
    seconds = [startup + each for each in training]
    taken = [(held or own_needs)(config) for config, _ in todo]
    average = f"{1000 * sum(training) / updates:.0f} ms per update, " if updates else ""
    return Estimate(
        len(todo),
        updates,
        sum(seconds),
        _wall(seconds, slots),
        average + _source(own, "from the preset" if pilot is None else "from the pilot"),
        core_hours=_hours(seconds, [each.cores for each in taken]),
        gpu_hours=_hours(seconds, [each.gpus for each in taken]),
    )


def _hours(seconds: Sequence[float], held: Sequence[float]) -> float:
    return sum(each * count for each, count in zip(seconds, held, strict=True)) / 3600


def _source(own: Sequence[float | None], elsewhere: str) -> str:
    others = own.count(None)
    if not others:
        return "measured here"
    if others == len(own):
        return elsewhere
    return f"measured here for {len(own) - others}, {elsewhere} for {others}"


def seconds_per_update(runs: Sequence[RunPaths]) -> float | None:
    """Mean over all updates of some of the runs (`MOST_READ`, evenly picked); None without an update."""
    total, count = 0.0, 0
    for paths in runs[:: -(-len(runs) // MOST_READ) or 1]:
        for line in read_lines(paths.timings):
            total += sum(value for phase, value in line.items() if phase != "step")
            count += 1
    return total / count if count else None


def _wall(seconds: Sequence[float], slots: int) -> float:
    ends = [0.0] * slots
    for job in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + job)
    return max(ends)


def _by_kind(done: Iterable[tuple[RunConfig, RunPaths]]) -> dict[str, list[RunPaths]]:
    kinds: dict[str, list[RunPaths]] = {}
    for config, paths in done:
        if paths.timings.is_file():
            kinds.setdefault(_kind(config), []).append(paths)
    return kinds


def _kind(config: RunConfig) -> str:
    """What decides the time of an update, S aside (its effect is within a third)."""
    shape = config.model.model_dump(exclude={"initializer_range"})
    settings = (shape, config.task.model_dump(), config.batch_size, config.resources.model_dump())
    return canonical_json(settings)
