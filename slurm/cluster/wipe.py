"""Removes what a cluster wrote."""

from __future__ import annotations

import shutil

from slurm.cluster.errors import UsageError
from slurm.cluster.layout import Layout


def wipe(layout: Layout) -> None:
    """Removes the cluster's folder, and no folder that is not one."""
    if not layout.is_cluster() and any(layout.folder.iterdir()):
        raise UsageError(f"{layout.folder} is not the folder of a cluster and is left alone")
    shutil.rmtree(layout.folder)
