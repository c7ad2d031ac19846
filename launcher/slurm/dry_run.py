"""`submit --dry-run`: everything that would be sent, written into `<sweep>/dry-run` and nowhere else."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.locate import sweep_paths
from launcher.messages import change_lines, say, shown
from launcher.pending import of_grid
from launcher.provenance import ROOT
from launcher.slurm.ask import show
from launcher.slurm.commands import NoAnswer, Slurm
from launcher.slurm.job_files import write_job
from launcher.slurm.launch import failed_nodes, highest_rate_first
from launcher.slurm.needs import arrays, needs
from launcher.slurm.site import full_name, load_site
from launcher.slurm.submission import Order, slug
from launcher.snapshot import Snapshot, content_hash
from launcher.submit import Settings, find_work
from launcher.sweep_folder import compare
from trainer.errors import UserError
from trainer.record import RunPaths, write_budget, write_config

if TYPE_CHECKING:
    from pathlib import Path

    from sweeps.grid import Grid

USUAL_ARRAY = 1001
"""MaxArraySize of a cluster that is not here to be asked."""


def dry_run(grid: Grid, name: str | None, outputs: Path, settings: Settings, console: Console) -> int:
    """Write scripts, task files and the runs' configurations; print the calls of sbatch.

    Returns the exit code; raises `UserError` with what `submit` would refuse the runs for.
    """
    if settings.site is None:
        raise UserError("--dry-run needs --site: it writes what would be sent to Slurm")
    paths, site = sweep_paths(outputs, name or grid.name), load_site(settings.site)
    changes = compare(paths, grid)
    changes.require_accepted()
    work = find_work(paths, changes.sweep)
    say(console, *grid.notices, *change_lines(paths, changes))
    runs = of_grid(grid, changes).runs(work)
    if not runs:
        say(console, "nothing to do")
        return 0
    show(paths, runs, work, grid.cost, site, settings, console)
    folder = paths.folder / "dry-run"
    shutil.rmtree(folder, ignore_errors=True)
    for run in runs:
        write_config(RunPaths(folder / "runs" / run.run_id), run.config)
        write_budget(RunPaths(folder / "runs" / run.run_id), run.budget)
    configs = {run.run_id: run.config for run in runs}
    code = content_hash(ROOT)
    order = Order(
        paths=paths,
        runs=highest_rate_first([run.run_id for run in runs], configs),
        configs=configs,
        site=site,
        site_name=full_name(settings.site),
        snapshot=Snapshot(code, paths.code / code, {}),
        again={},
        exclude=failed_nodes(work, configs),
    )
    wanted = [(run, needs(configs[run], site)) for run in order.runs]
    for chunk, array in enumerate(arrays(wanted, site, _max_array_size())):
        script, arguments = write_job(
            order, array, folder, chunk, f"{slug(paths.folder.name)}-dry-run-{chunk}"
        )
        say(console, "", shlex.join(["sbatch", *arguments, str(script)]))
    say(console, "", f"written to {shown(folder)}; nothing was sent")
    return 0


def _max_array_size() -> int:
    try:
        return Slurm().limits().max_array_size
    except (UserError, NoAnswer):
        return USUAL_ARRAY
