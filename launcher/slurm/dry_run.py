"""`submit --dry-run`: what would be handed to Slurm, written out and looked at, with nothing sent.

<sweep>/dry-run/jobs/<token>/<chunk>.sh, .json    script and task file of each array
<sweep>/dry-run/runs/<run id>/                    configuration and budget of each run
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.ledger import new_token
from launcher.locate import sweep_paths
from launcher.messages import change_lines, say, shown
from launcher.pending import Pending, of_grid
from launcher.provenance import ROOT
from launcher.slurm.ask import show
from launcher.slurm.commands import NoAnswer, Slurm
from launcher.slurm.job_files import write_job
from launcher.slurm.launch import failed_nodes, highest_rate_first
from launcher.slurm.needs import arrays, needs
from launcher.slurm.site import full_name, load_site
from launcher.slurm.submission import Order, slug
from launcher.snapshot import Snapshot, content_hash
from launcher.submit import Settings, Work, find_work
from launcher.sweep_folder import compare
from trainer.errors import UserError
from trainer.record import SweepPaths, write_budget, write_config

if TYPE_CHECKING:
    from sweeps.grid import Grid

MAX_ARRAY_SIZE = 1001
"""Slurm's own default, where there is no cluster to ask."""


def dry_run(grid: Grid, name: str | None, outputs: Path, settings: Settings, console: Console) -> int:
    """Write what `submit` would send into the sweep's folder `dry-run`, and print the calls of sbatch.

    Nothing else is touched, and no Slurm is needed. Returns the exit code; raises `UserError` with what
    `submit` would refuse.
    """
    assert settings.site is not None
    paths = sweep_paths(outputs, name or grid.name)
    site = load_site(settings.site)
    changes = compare(paths, grid)
    changes.require_accepted()
    say(console, *grid.notices, *change_lines(paths, changes))
    work = find_work(paths, changes.sweep)
    runs = of_grid(grid, changes).runs(work)
    if not runs:
        say(console, "nothing to do")
        return 0
    show(paths, runs, work, grid.cost, site, settings, console)
    target = SweepPaths(paths.folder / "dry-run")
    shutil.rmtree(target.folder, ignore_errors=True)
    for run in runs:
        write_config(target.run(run.run_id), run.config)
        write_budget(target.run(run.run_id), run.budget)
    commands = _write_jobs(_order(target, runs, work, settings.site), paths.folder.name)
    if site.max_submit is not None:
        say(console, f"no more than max_submit={site.max_submit} tasks are sent at once, the others later")
    say(console, f"written to {shown(target.folder)}, nothing was sent:", *commands)
    return 0


def _order(target: SweepPaths, runs: Sequence[Pending], work: Work, site: str) -> Order:
    code = content_hash(ROOT)
    configs = {run.run_id: run.config for run in runs}
    return Order(
        paths=target,
        runs=highest_rate_first(configs),
        configs=configs,
        site=load_site(site),
        site_name=full_name(site),
        snapshot=Snapshot(code, target.code / code, {}),
        again={},
        exclude=failed_nodes(work, configs),
    )


def _write_jobs(order: Order, sweep: str) -> list[str]:
    """Scripts and task files; returns the calls of sbatch as they are typed."""
    wanted = [(run, needs(order.configs[run], order.site)) for run in order.runs]
    token, commands = new_token(), []
    for chunk, array in enumerate(arrays(wanted, order.site, _max_array_size())):
        job = f"{slug(sweep)}-{token}-{chunk}"
        script, arguments = write_job(order, array, order.paths.jobs / token, chunk, job)
        commands.append(shlex.join(["sbatch", *arguments, str(script)]))
    return commands


def _max_array_size() -> int:
    try:
        return Slurm().limits().max_array_size
    except (UserError, NoAnswer):
        return MAX_ARRAY_SIZE
