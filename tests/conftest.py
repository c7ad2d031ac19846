"""What every test can rely on."""

import signal

from tests.cluster_fixture import slurm_cluster, slurm_cluster_without_accounting
from tests.fake_slurm_fixture import fake_slurm

__all__ = ["fake_slurm", "slurm_cluster", "slurm_cluster_without_accounting"]

# A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and processes inherit that; tests
# send both.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
