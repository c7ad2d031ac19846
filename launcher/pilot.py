"""`pilot`: one short run of a sweep's most demanding kind, measured, and what the whole grid would cost then.

<sweep>/pilot/runs/<run id>/    an ordinary run of `UPDATES` updates; its checkpoints are dropped afterwards
<sweep>/pilot/prepared, warm_starts    links to the sweep's own: what is made for the pilot serves the runs
<sweep>/pilot.json              what was measured (`launcher.pilot_record`), replaced as a whole
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.executors import ProcessExecutor, available_slots, make_executor
from launcher.locate import sweep_paths
from launcher.messages import say, shown
from launcher.pilot_record import Pilot, measure, pilot_file
from launcher.prefetch import prefetch, runs_of
from launcher.progress import duration
from launcher.runner import GRACE, TICK, StopSignals, runner_lock
from launcher.snapshot import take_snapshot
from sweeps.cost import CostFigures, estimate
from sweeps.size import parameters, vocabulary
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.files import write_json
from trainer.record import RunPaths, SweepPaths, read_budget, read_config, write_budget, write_config

if TYPE_CHECKING:
    from sweeps.grid import Grid

UPDATES = 20
CHECKPOINT_EVERY = 8
LINKED = ("prepared", "warm_starts")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that may be the pilot."""

    run_id: str
    config: RunConfig
    budget: Budget


def pilot_grid(grid: Grid, name: str | None, outputs: Path, console: Console) -> int:
    """For a grid that need not be submitted yet. Returns the exit code."""
    paths = sweep_paths(outputs, name or grid.name)
    runs = [(cell.run_id, cell.config.run(), cell.config.budget) for cell in grid.cells]
    return pilot(
        paths, [Candidate(name, config, budget.resolve(config)) for name, config, budget in runs], console
    )


def pilot_sweep(paths: SweepPaths, console: Console) -> int:
    """For a sweep on disk. Returns the exit code."""
    runs = [paths.run(run_id) for run_id in runs_of(paths)]
    return pilot(paths, [Candidate(run.run_id, read_config(run), read_budget(run)) for run in runs], console)


def pilot(paths: SweepPaths, cells: Sequence[Candidate], console: Console) -> int:
    """Run and measure the most demanding of the cells. Returns the exit code: 1 failed, 130 interrupted."""
    with runner_lock(paths):
        chosen = most_demanding(cells, paths)
        prefetch(paths, [(chosen.config, chosen.budget.evaluation)], console)
        run = _write(paths, chosen)
        say(console, f"pilot: {UPDATES} updates of {chosen.run_id}; log in {shown(run.log(1))}")
        executor = make_executor(
            "inline", take_snapshot(paths).folder, threads=chosen.config.resources.threads
        )
        launched = time.time()
        code = _run(executor, run, chosen.config)
        if code is None:
            shutil.rmtree(run.folder)
            say(console, "interrupted: nothing was measured")
            return 130
        if code:
            say(console, *_last_lines(run), f"the pilot failed; its log: {shown(run.log(1))}")
            return 1
        size = parameters(chosen.config.model, vocabulary(chosen.config.task), paths.prepared)
        found = measure(run, chosen.config, chosen.budget, size, launched)
        shutil.rmtree(run.checkpoints)
        write_json(pilot_file(paths), found.model_dump(mode="json"))
        say(console, *_lines(found), "", _cost(found, cells))
    return 0


def most_demanding(cells: Sequence[Candidate], paths: SweepPaths) -> Candidate:
    """The run with the most parameters, then the most tokens per update; of these one that syncs often.

    A small sync_interval, since whole cycles are measured; it hardly changes the time of an update.
    """

    def demand(cell: Candidate) -> tuple[float, ...]:
        config = cell.config
        size = parameters(config.model, vocabulary(config.task), paths.prepared)
        tokens = config.batch_size * config.task.max_response_tokens
        fresh = 1 / (config.replay_ratio or 1)
        return (float("inf") if size is None else size, tokens, fresh, -config.sync_interval)

    return max(cells, key=demand)


def _write(paths: SweepPaths, chosen: Candidate) -> RunPaths:
    """The pilot's run folder, new."""
    home = paths.folder / "pilot"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for name in LINKED:
        (paths.folder / name).mkdir(exist_ok=True)
        (home / name).symlink_to(Path("..") / name)
    run = RunPaths(home / "runs" / chosen.run_id)
    evaluation = chosen.budget.evaluation
    if evaluation.every:
        evaluation = evaluation.model_copy(update={"every": min(evaluation.every, UPDATES // 2)})
    short = {"horizon": UPDATES, "checkpoint_every": CHECKPOINT_EVERY, "evaluation": evaluation}
    write_config(run, chosen.config)
    write_budget(run, chosen.budget.model_copy(update=short))
    return run


def _run(executor: ProcessExecutor, run: RunPaths, config: RunConfig) -> int | None:
    """Exit code of the run's job (128 + n for signal n); None when a person stopped it."""
    with StopSignals() as stop:
        executor.start(run, 1, config.resources.threads)
        try:
            while not (ended := executor.ended()) and not stop.count:
                time.sleep(TICK)
        finally:
            executor.terminate()
            _wait(executor, GRACE)
            executor.kill()
            _wait(executor, 10)
    if stop.count or not ended:
        return None
    return 128 + (ended[0].signal or 0) if ended[0].exit_code is None else ended[0].exit_code


def _wait(executor: ProcessExecutor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while executor.running and time.monotonic() < deadline:
        executor.ended()
        time.sleep(TICK)


def _last_lines(run: RunPaths) -> list[str]:
    log = run.log(1)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return [f"    {line}" for line in lines[-5:]]


def _lines(found: Pilot) -> list[str]:
    """What was measured, and on what it rests."""
    size = "" if found.parameters is None else f", {found.parameters:,} parameters"
    phases = ", ".join(f"{name} {1000 * seconds:.3g}" for name, seconds in found.phases.items())
    lines = [
        f"measured on {found.host} ({found.device}, threads {found.threads}{size}): {found.updates} updates, "
        f"the first {found.left_out} left out",
        f"  update             {1000 * found.seconds_per_update:.3g} ms ({phases})",
        f"  start              {found.startup_seconds:.1f} s",
    ]
    if found.generation_cost_ratio is not None:
        lines.append(
            f"  cost ratio μ       {found.generation_cost_ratio:.2f} (generating over training, a rollout)"
        )
    if found.tokens_per_second is not None:
        lines.append(f"  generation         {found.tokens_per_second:,.0f} tokens per second")
    memory = {"memory": found.peak_memory, "GPU memory": found.peak_device_memory}
    lines += [f"  {name:<18} {_size(value)} at most" for name, value in memory.items() if value is not None]
    seconds = "" if found.checkpoint_seconds is None else f" in {found.checkpoint_seconds:.2f} s"
    return [*lines, f"  checkpoint         {_size(found.checkpoint_bytes)}{seconds}"]


def _cost(found: Pilot, cells: Sequence[Candidate]) -> str:
    """The whole grid from its first update on."""
    slots = available_slots("local", threads=max(cell.config.resources.threads for cell in cells), jobs=None)
    todo = [(cell.config, cell.budget.horizon) for cell in cells]
    cost = estimate(todo, [], CostFigures(), slots=slots, pilot=found.speed)
    assert cost.core_hours is not None and cost.wall_seconds is not None and cost.gpu_hours is not None
    gpus = f", {cost.gpu_hours:.3g} GPU hours" if cost.gpu_hours else ""
    return (
        f"the whole grid: {cost.runs} runs, {cost.updates} updates; at most {cost.core_hours:.3g} core "
        f"hours{gpus}, about {duration(cost.wall_seconds)} with {slots} at a time here ({cost.basis})"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
