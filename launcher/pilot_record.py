"""`<sweep>/pilot.json`: what one short run says about the speed of a sweep, and how it is measured.

The first updates are left out: kernels are chosen, caches filled, and a replay buffer is waited for. What is
left is cut to whole cycles of sync_interval updates, as a cycle's rollouts may all be generated in its first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.cost import PilotSpeed
from trainer.attempts import read_attempts
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import read_json, read_lines
from trainer.record import Record, RunPaths, SweepPaths

WARM_UP = 4
"""Updates that are left out at least."""
NOW_AND_THEN = ("evaluate", "checkpoint")
"""Phases that not every update has."""


class Pilot(Record):
    """What was measured, and on what it rests."""

    run_id: str
    host: str
    device: str
    threads: int
    updates: int
    """That were measured."""
    left_out: int
    """Updates before them."""
    parameters: int | None
    phases: dict[str, float]
    """Mean seconds of each phase; of `evaluate` and `checkpoint` each time that they come."""
    seconds_per_update: float
    """With the sweep's own cadence of evaluations and checkpoints."""
    startup_seconds: float
    """From the start of the process to its first update, the making of initial weights aside."""
    generation_cost_ratio: float | None
    """μ̂: seconds to generate a rollout over seconds to train on it once (learn and optimizer); null where no
    whole cycle was measured."""
    tokens_per_second: float | None
    """Response tokens over the seconds of generation."""
    peak_memory: int | None
    peak_device_memory: int | None
    """Bytes."""
    checkpoint_seconds: float | None
    checkpoint_bytes: int

    @property
    def speed(self) -> PilotSpeed:
        """For the cost of a grid."""
        return PilotSpeed(self.seconds_per_update, self.startup_seconds)


def pilot_file(paths: SweepPaths) -> Path:
    return paths.folder / "pilot.json"


def read_pilot(paths: SweepPaths) -> Pilot | None:
    """What the sweep's last pilot measured; None without one."""
    data = read_json(pilot_file(paths))
    return None if data is None else Pilot.model_validate(data)


def measure(
    run: RunPaths, config: RunConfig, budget: Budget, parameters: int | None, launched: float
) -> Pilot:
    """Read what a finished pilot run says; `budget` is that of the sweep's own run.

    `launched` is when its process was started, in Unix seconds.

    Raises `UserError` when it ended before there was anything to measure.
    """
    times, metrics = read_lines(run.timings), read_lines(run.metrics)
    first, whole = _window(config, metrics)
    if len(times) <= first:
        raise UserError(
            f"the pilot {run.run_id} ended after {len(times)} updates, and the first {first} do not count: "
            f"{run.summary} says why"
        )
    last = whole or len(times)
    phases = _phases(times[first:last], times)
    every = {"evaluate": budget.evaluation.every, "checkpoint": budget.checkpoint_every}
    shares = {name: phases[name] / (every[name] or 1) for name in NOW_AND_THEN if name in phases}
    steady = sum(seconds for name, seconds in phases.items() if name not in NOW_AND_THEN)
    ended: Mapping[str, Any] = read_attempts(run)[-1].ended or {}
    return Pilot(
        run_id=run.run_id,
        host=str(ended.get("host")),
        device=config.resources.device,
        threads=config.resources.threads,
        updates=last - first,
        left_out=first,
        parameters=parameters,
        phases={name: round(seconds, 6) for name, seconds in phases.items()},
        seconds_per_update=steady + sum(shares.values()),
        startup_seconds=_startup(run, launched, ended, times, phases.get("checkpoint", 0.0)),
        generation_cost_ratio=_cost_ratio(phases, metrics, first, last) if whole else None,
        tokens_per_second=_tokens(metrics, first, last, phases) if whole else None,
        peak_memory=ended.get("peak_memory"),
        peak_device_memory=ended.get("peak_device_memory"),
        checkpoint_seconds=phases.get("checkpoint"),
        checkpoint_bytes=_largest(run),
    )


def _window(config: RunConfig, metrics: Sequence[Mapping[str, Any]]) -> tuple[int, int | None]:
    """First update that is measured, and the end of the last whole cycle; None where there is none."""
    cycle, count = config.sync_interval, len(metrics)
    full = [line["step"] for line in metrics if line["rollouts_held"] >= config.buffer_size]
    wanted = max(WARM_UP, full[0] if config.buffer_size and full else 0)
    for least in (wanted, WARM_UP):
        first, last = -(-least // cycle) * cycle, count // cycle * cycle
        if last > first:
            return first, last
    return WARM_UP, None


def _phases(
    times: Sequence[Mapping[str, float]], all_times: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    names = list(dict.fromkeys(name for line in times for name in line if name != "step"))
    found = {
        name: sum(line.get(name, 0.0) for line in times) / len(times)
        for name in names
        if name not in NOW_AND_THEN
    }
    for name in NOW_AND_THEN:  # rare: all of them count, wherever they fell
        seconds = [line[name] for line in all_times if name in line]
        if seconds:
            found[name] = sum(seconds) / len(seconds)
    return found


def _between(metrics: Sequence[Mapping[str, Any]], first: int, last: int, name: str) -> int:
    before = metrics[first - 1][name] if first else 0
    return int(metrics[last - 1][name] - before)


def _cost_ratio(
    phases: Mapping[str, float], metrics: Sequence[Mapping[str, Any]], first: int, last: int
) -> float | None:
    """As `analysis.replay` measures it, per rollout: without a buffer as many are generated as trained on."""
    generated = _between(metrics, first, last, "rollouts_generated")
    trained = _between(metrics, first, last, "rollouts_trained")
    training = phases.get("learn", 0.0) + phases.get("optimizer", 0.0)
    if not generated or not training:
        return None
    return (phases.get("generate", 0.0) / generated) / (training / trained)


def _tokens(
    metrics: Sequence[Mapping[str, Any]], first: int, last: int, phases: Mapping[str, float]
) -> float | None:
    total = sum(
        (metrics[step]["response_length"] or 0.0) * _between(metrics, step, step + 1, "rollouts_generated")
        for step in range(first, last)
    )
    seconds = phases.get("generate", 0.0) * (last - first)
    return total / seconds if seconds else None


def _startup(
    run: RunPaths,
    begin: float,
    ended: Mapping[str, Any],
    times: Sequence[Mapping[str, float]],
    last_checkpoint: float,
) -> float:
    end = float(ended["time"])
    made = [path.stat().st_mtime for path in run.warm_starts.glob("*/weights.safetensors")]
    ready = max([begin, *(moment for moment in made if begin < moment < end)])
    working = sum(seconds for line in times for name, seconds in line.items() if name != "step")
    return max(0.0, end - ready - working - last_checkpoint)


def _largest(run: RunPaths) -> int:
    sizes = (
        sum(file.stat().st_size for file in folder.iterdir()) for folder in run.checkpoints.glob("step-*")
    )
    return max(sizes, default=0)
