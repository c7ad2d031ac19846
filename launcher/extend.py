"""`extend`: larger horizons for the runs of a sweep, which then continue from their last checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from launcher import sweep_folder
from launcher.messages import quoted, say
from launcher.prefetch import cells_on_disk
from launcher.runner import runner_lock
from launcher.state import OPEN_OUTCOMES, RunStatus
from launcher.submit import Settings, adopt_jobs, find_work, launch
from launcher.sweep_folder import Growth
from trainer.errors import UserError
from trainer.files import read_json
from trainer.record import (
    CHECKPOINT_FORMAT,
    SweepPaths,
    is_slimmed,
    newest_checkpoint_format,
    read_budget,
    read_config,
    read_sweep,
)


def extend(
    paths: SweepPaths, horizon: int | None, kappa: float | None, settings: Settings, console: Console
) -> int:
    """Grow the horizons to `horizon` updates, or to ceil(kappa·c2/η) for each run, and run on.

    c2 is the upper end of the collapse clock's constant in the sweep's report (math.md C). Runs that
    collapsed have shown their result and are left as they are. Returns the exit code; raises `UserError`
    when exactly one of both is not given, when there is no c2, or when no budget would grow.
    """
    if (horizon is None) == (kappa is None):
        raise UserError("extend needs one of --horizon UPDATES and --kappa FACTOR")
    with runner_lock(paths):
        sweep = read_sweep(paths)
        if unsettled := adopt_jobs(paths, settings, console):
            return unsettled
        statuses = find_work(paths, sweep).statuses
        constant = None if kappa is None else kappa * clock_constant(paths)
        growths, over = _growths(paths, statuses, horizon, constant)
        if over:
            say(console, f"{over} collapsed or invalid runs are not continued")
        _refuse_old_checkpoints(paths, growths)
        _refuse_slimmed(paths, growths)
        if growths:
            low = min(growth.new.horizon for growth in growths)
            high = max(growth.new.horizon for growth in growths)
            span = str(low) if low == high else f"{low} to {high}"
            say(console, f"{len(growths)} of {len(statuses)} runs continue to {span} updates")
        elif over < len(statuses):
            raise UserError(_nothing_grows(paths, statuses, horizon, kappa))
        words = [f"--horizon {horizon}" if kappa is None else f"--kappa {kappa}"]

        def write(provenance: Mapping[str, object]) -> None:
            sweep_folder.grow(paths, growths, sweep_folder.history_entry("extend", words, provenance))

        cells = cells_on_disk(paths, [growth.run_id for growth in growths])
        return launch(paths, sweep, settings, console, write, altered=bool(growths), cells=cells)


def _refuse_old_checkpoints(paths: SweepPaths, growths: Sequence[Growth]) -> None:
    formats = [newest_checkpoint_format(paths.run(growth.run_id)) for growth in growths]
    old = [found for found in formats if found not in (None, CHECKPOINT_FORMAT)]
    if old:
        raise UserError(
            f"runs of {quoted(paths)} have checkpoints of format {old[0]}, this version continues format "
            f"{CHECKPOINT_FORMAT}: extend them with the version that wrote them, or submit a new "
            "sweep with a longer horizon and --name"
        )


def _refuse_slimmed(paths: SweepPaths, growths: Sequence[Growth]) -> None:
    slimmed = [growth.run_id for growth in growths if is_slimmed(paths.run(growth.run_id))]
    if slimmed:
        raise UserError(
            f"{len(slimmed)} runs of {quoted(paths)} cannot be continued, as `grposweep gc --stable` removed "
            f"the state of their optimizers ({', '.join(slimmed[:3])}, …): submit a new sweep with a longer "
            "horizon and --name"
        )


def clock_constant(paths: SweepPaths) -> float:
    """Upper end of c2 in the sweep's report: of the feasible set or, where it is empty, the posterior."""
    results = paths.report / "results.json"
    content = read_json(results)
    for keys in (("clock", "c2", "high"), ("clock", "posterior", "c2", "high")):
        value: Any = content
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and math.isfinite(value) and value > 0:
            return float(value)
    reason = "holds no clock.c2.high: too few runs collapsed" if results.is_file() else "does not exist"
    raise UserError(
        f"--kappa needs the collapse clock of this sweep, but {results} {reason}; "
        f"run `grposweep report {quoted(paths)}` after enough cells have collapsed, or use --horizon"
    )


def _growths(
    paths: SweepPaths, statuses: Mapping[str, RunStatus], horizon: int | None, constant: float | None
) -> tuple[list[Growth], int]:
    """Budgets to grow, and the number of runs whose result is final."""
    growths, over = [], 0
    for run_id, status in statuses.items():
        if status.outcome is not None and status.outcome not in OPEN_OUTCOMES:
            over += 1
            continue
        present = read_budget(paths.run(run_id))
        wanted = horizon if constant is None else _horizon(constant, paths, run_id)
        if wanted is not None and wanted > present.horizon:
            growths.append(Growth(run_id, present, present.model_copy(update={"horizon": wanted})))
    return growths, over


def _horizon(constant: float, paths: SweepPaths, run_id: str) -> int | None:
    """Updates in which a run reaches the cumulative rate `constant`; None at rate 0, which never does."""
    rate = read_config(paths.run(run_id)).learning_rate
    return math.ceil(round(constant / rate, 6)) if rate else None


def _nothing_grows(
    paths: SweepPaths, statuses: Mapping[str, RunStatus], horizon: int | None, kappa: float | None
) -> str:
    least = min(read_budget(paths.run(run_id)).horizon for run_id in statuses)
    if kappa is None:
        return f"--horizon {horizon}: every run has {least} updates or more already; use more than {least}"
    return f"--kappa {kappa}: every run has as long a horizon already ({least} or more); use a larger one"
