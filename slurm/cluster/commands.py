"""Slurm's commands, asked about one cluster."""

from __future__ import annotations

import os
import subprocess

from slurm.cluster.errors import ClusterError
from slurm.cluster.layout import Layout
from slurm.cluster.programs import find, search_path


def environment_of(layout: Layout) -> dict[str, str]:
    """The caller's environment with this cluster in it, and no trace of another one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH_"))}
    return kept | {"SLURM_CONF": str(layout.slurm_conf), "PATH": search_path(), "LC_ALL": "C"}


def try_command(layout: Layout, *command: str, seconds: float = 30) -> tuple[int, str]:
    """Exit status and all output; a command that takes too long counts as failed."""
    try:
        result = subprocess.run(
            [find(command[0]), *command[1:]],
            env=environment_of(layout),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {seconds:g} s"
    return result.returncode, result.stdout


def command(layout: Layout, *arguments: str, seconds: float = 30) -> str:
    status, output = try_command(layout, *arguments, seconds=seconds)
    if status != 0:
        raise ClusterError(f"{' '.join(arguments)} ended with {status}: {output.strip()}")
    return output


def succeeds(layout: Layout, *arguments: str) -> bool:
    return try_command(layout, *arguments, seconds=10)[0] == 0
