"""Before anything is sent to Slurm: what speaks against it, what it will cost, and a question."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from launcher.messages import say
from launcher.pending import Pending
from launcher.pilot_record import read_pilot
from launcher.progress import duration
from launcher.slurm.preflight import check
from launcher.slurm.site import SiteProfile
from launcher.submit import Settings, Work
from sweeps.cost import CostFigures, Estimate, estimate, over_budget
from trainer.errors import UserError
from trainer.record import SweepPaths, read_config

MOST_MEASURED = 200
"""Runs that are asked for their speed."""


def findings(paths: SweepPaths, runs: Sequence[Pending], site: SiteProfile, console: Console) -> None:
    """Say what a user should know; raises `UserError` with everything that speaks against the runs."""
    pilot = read_pilot(paths)
    found = check(
        {run.run_id: (run.config, run.budget) for run in runs},
        site,
        paths.folder,
        os.environ,
        checkpoint_seconds=None if pilot is None else pilot.checkpoint_seconds,
    )
    say(console, *found.notices)
    if found.errors:
        raise UserError(*found.errors)


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
    )


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
    """Raises `UserError` where the runs must not be sent, `typer.Abort` where the user does not want it."""
    findings(paths, runs, site, console)
    found = cost(paths, runs, work, figures, site)
    say(console, f"to submit: {cost_line(found)}")
    limit = settings.max_gpu_hours
    if limit is not None and (fault := over_budget(found, limit)):
        raise UserError(fault)
    if settings.yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"--site {settings.site} submits {len(runs)} runs: without a terminal to ask on, give -y"
        )
    if not typer.confirm(f"submit {len(runs)} runs to {settings.site}?", default=True):
        raise UserError("nothing was submitted")
