"""Before anything is sent to Slurm: what speaks against it, what it will cost, and a question."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from launcher.confirm import confirmed
from launcher.messages import say
from launcher.pending import Pending
from launcher.pilot_record import read_pilot
from launcher.progress import duration
from launcher.slurm.needs import needs, runs_per_task
from launcher.slurm.preflight import Findings, check
from launcher.slurm.site import SiteProfile
from launcher.submit import Settings, Work
from sweeps.cost import CostFigures, Estimate, Held, estimate, over_budget
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.record import SweepPaths, read_config

MOST_MEASURED = 200
"""Runs that are asked for their speed."""


def show(
    paths: SweepPaths,
    runs: Sequence[Pending],
    work: Work,
    figures: CostFigures,
    site: SiteProfile,
    settings: Settings,
    console: Console,
    *,
    opening: str = "to submit",
) -> None:
    """Say what a user should know, and the cost; raises `UserError` with all that speaks against the runs."""
    findings = _findings(paths, runs, site)
    say(console, *findings.notices)
    found = cost(paths, runs, work, figures, site)
    say(console, f"{opening}: {cost_line(found)}")
    limit = settings.max_gpu_hours
    fault = None if limit is None else over_budget(found, limit)
    if findings.errors or fault:
        raise UserError(*findings.errors, *([fault] if fault else []))


def _findings(paths: SweepPaths, runs: Sequence[Pending], site: SiteProfile) -> Findings:
    pilot = read_pilot(paths)
    return check(
        {run.run_id: (run.config, run.budget) for run in runs},
        site,
        paths.folder,
        os.environ,
        checkpoint_seconds=None if pilot is None else pilot.checkpoint_seconds,
    )


def cost(
    paths: SweepPaths, runs: Sequence[Pending], work: Work, figures: CostFigures, site: SiteProfile
) -> Estimate:
    """Of the runs; measured ones go before a pilot, that before the preset's figures."""
    measured = [run for run, status in work.statuses.items() if status.state is not None][:MOST_MEASURED]
    pilot = read_pilot(paths)
    return estimate(
        [(run.config, run.updates) for run in runs],
        [(read_config(paths.run(run)), paths.run(run)) for run in measured],
        figures,
        slots=min(site.max_parallel or len(runs), len(runs)) or 1,
        pilot=None if pilot is None else pilot.speed,
        held=lambda config: _held(config, site, len(runs)),
    )


def _held(config: RunConfig, site: SiteProfile, runs: int) -> Held:
    """A run's CPUs and GPUs, or its share of those of a node that is given out whole."""
    need = needs(config, site)
    if site.nodes_exclusive and site.gpus.per_node:
        return Held(need.cpus, site.gpus.per_node / min(runs_per_task(site, need), runs))
    return Held(need.cpus, need.gpus)


def cost_line(found: Estimate) -> str:
    """`24 runs, 3600 updates; at most 2 h 10 min of core time, 2.2 GPU hours (…)`."""
    start = f"{found.runs} runs, {found.updates} updates"
    if found.core_hours is None:
        return f"{start}; {found.basis}: grposweep pilot measures it"
    gpus = f", {found.gpu_hours:.3g} GPU hours" if found.gpu_hours else ""
    return f"{start}; at most {duration(3600 * found.core_hours)} of core time{gpus} ({found.basis})"


def ask_first(
    paths: SweepPaths,
    runs: Sequence[Pending],
    work: Work,
    figures: CostFigures,
    site: SiteProfile,
    settings: Settings,
    console: Console,
) -> None:
    """Raises `UserError` where the runs must not be sent, or the user does not want it."""
    show(paths, runs, work, figures, site, settings, console)
    if not confirmed(f"Submit {len(runs)} runs to {settings.site}?", yes=settings.yes):
        raise UserError("nothing was submitted")
