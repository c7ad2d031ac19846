"""The files of one array: its script and its task file, in `<sweep>/jobs/<token>`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.provenance import package_versions
from launcher.slurm.needs import Array
from launcher.slurm.script import job_script, sbatch_arguments
from trainer.files import write_atomic, write_json

if TYPE_CHECKING:
    from launcher.slurm.submission import Order

CHECKED = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "pydantic")
"""Packages whose version at the start of a job has to be that at its submission."""


def write_job(order: Order, array: Array, folder: Path, chunk: int, name: str) -> tuple[Path, list[str]]:
    """Write script and task file of an array; returns the script and sbatch's arguments."""
    site, paths = order.site, order.paths
    task_file, script = folder / f"{chunk}.json", folder / f"{chunk}.sh"
    installed = package_versions(CHECKED)
    write_json(
        task_file,
        {
            "tasks": [[f"runs/{run}" for run in runs] for runs in array.tasks],
            "signal": site.signal,
            "signal_lead": site.signal_lead,
            "time_limit": site.time_seconds,
            "max_timeouts": site.max_timeouts,
            "threads": array.needs.threads,
            "code": f"code/{order.snapshot.code}",
            "packages": installed if site.container.kind == "none" else {},
            "devices_per_run": array.needs.gpus,
        },
    )
    text = job_script(site, array, sweep=paths.folder, task_file=task_file, code=order.snapshot.folder)
    write_atomic(script, text)
    arguments = sbatch_arguments(
        site,
        array,
        name=name,
        folder=folder,
        chunk=chunk,
        exclude=order.exclude,
        comment=f"grposweep {paths.folder.name}",
    )
    return script, arguments
