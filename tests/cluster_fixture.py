"""A private Slurm cluster for a session of tests. With pytest-xdist each worker has one of its own."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers import ROOT

# The Python of the system: the cluster must start without the project's environment.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or "python3"
REQUIRE_ALL = "GRPOSWEEP_REQUIRE_ALL"


@dataclass
class Cluster:
    """A running cluster of nodes n1, n2, ..., with 8 CPUs and 8 fake GPUs each."""

    folder: Path
    env: dict[str, str] = field(init=False)
    """For processes that are to use this cluster, whichever one the tests themselves run in."""

    def __post_init__(self) -> None:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH_"))
        }
        self.env = kept | {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def run(self, *command: str, timeout: float = 30) -> str:
        """The output of a command that must succeed."""
        result = self.attempt(*command, timeout=timeout)
        assert result.returncode == 0, (
            f"{command} ended with {result.returncode}: {result.stderr}{result.stdout}"
        )
        return result.stdout

    def attempt(self, *command: str, timeout: float = 30) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )

    def jobs(self) -> dict[str, str]:
        """The state of every job in the queue, finished ones left out; a task of an array is `12_3`."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def accounted(self, job: str) -> dict[str, str]:
        """The states that accounting has of a job's tasks: 12_3 → COMPLETED."""
        lines = self.run("sacct", "-n", "-X", "-P", "-j", job, "--format=JobID,State").splitlines()
        return dict(line.split("|") for line in lines)

    def submit(self, *arguments: str) -> str:
        return self.run("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *arguments).strip()

    def node_states(self) -> dict[str, str]:
        """idle, mixed, allocated, down ...; with a star the node does not answer."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def kill_node(self, node: str) -> None:
        """Kills the node's slurmd, steps and jobs at once. Slurm notices after half a minute."""
        self._manage("kill-node", node)

    def start_node(self, node: str) -> None:
        self._manage("start-node", node)

    def fail_node(self, node: str) -> None:
        """Slurm takes the node for dead at once: its jobs fail, and as it still answers it comes back."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def wait_until_saved(self, job: str) -> None:
        """Waits until the controller's state on disk has the job as it is now; else a kill may forget it."""
        saved = self.folder / "state" / "job_state"
        before = time.time()
        self.run("scontrol", "update", f"jobid={job}", "comment=saved")  # a change, so that it saves
        wait_until(lambda: saved.exists() and saved.stat().st_mtime > before, 20, "the state to be saved")

    def kill_controller(self) -> None:
        self._manage("kill-controller")

    def start_controller(self) -> None:
        self._manage("start-controller")

    def cancel_all(self) -> None:
        """Ends what a test left in the queue."""
        jobs = {job.split("_")[0] for job in self.jobs()}
        if jobs:
            self.run("scancel", "--quiet", *jobs)
        wait_until(lambda: not self.jobs(), 20, "the queue to be empty")

    def _manage(self, command: str, *arguments: str) -> None:
        manage(command, str(self.folder), *arguments)


def manage(command: str, *arguments: str, timeout: float = 180) -> str:
    """A command of slurm/cluster; raises with all it said if it fails."""
    result = try_manage(command, *arguments, timeout=timeout)
    assert result.returncode == 0, f"cluster {command} ended with {result.returncode}: {result.stdout}"
    return result.stdout


def try_manage(command: str, *arguments: str, timeout: float = 180) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PYTHON, str(ROOT / "slurm" / "cluster"), command, *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)


def need_programs(accounting: bool) -> None:
    """Skips the test without Slurm's programs; fails it where they must be there."""
    packages = manage("packages", *([] if accounting else ["--no-accounting"])).strip()
    if packages:
        message = f"Slurm's programs are not installed: apt-get install --no-install-recommends {packages}"
        if os.environ.get(REQUIRE_ALL):
            pytest.fail(message)
        pytest.skip(message)


@contextmanager
def running_cluster(*options: str, accounting: bool) -> Iterator[Cluster]:
    """A cluster that ends with the block, or with this process if that is killed."""
    need_programs(accounting)
    # not pytest's folder for temporary files, which may be too deep for the paths of sockets
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        accounting_option = "--accounting" if accounting else "--no-accounting"
        manage("up", str(folder), accounting_option, "--owner", str(os.getpid()), *options)
        yield Cluster(folder)
    finally:
        manage("down", str(folder), "--wipe")


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """With accounting, and with limits enforced: `sacctmgr modify qos normal set MaxSubmitJobsPerUser=10`."""
    with running_cluster("--limits", accounting=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_cluster_without_accounting() -> Iterator[Cluster]:
    with running_cluster(accounting=False) as cluster:
        yield cluster
