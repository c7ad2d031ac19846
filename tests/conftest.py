"""What every test can rely on."""

import signal

# A shell starts background jobs with SIGINT ignored, and processes inherit that; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.cluster_fixture import slurm_cluster, slurm_cluster_without_accounting

__all__ = ["slurm_cluster", "slurm_cluster_without_accounting"]
