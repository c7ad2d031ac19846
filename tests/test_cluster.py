"""The private cluster does what tests of submission rely on, failures included."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm.cluster.configuration import slurm_conf
from slurm.cluster.layout import Layout
from slurm.cluster.options import Options
from slurm.cluster.ports import Ports
from slurm.cluster.processes import descendants, parents
from tests.cluster_fixture import (
    Cluster,
    manage,
    need_programs,
    running_cluster,
    try_manage,
    wait_until,
)
from tests.helpers import ROOT

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Cluster:
    wait_until(lambda: set(slurm_cluster.node_states().values()) == {"idle"}, 30, "idle nodes")
    return slurm_cluster


def test_up_again_leaves_the_cluster_as_it_is(cluster: Cluster):
    before = (cluster.folder / "run" / "slurmctld.pid").read_text()
    started = time.monotonic()
    assert "already up" in manage("up", str(cluster.folder), "--limits")
    assert time.monotonic() - started < 5
    assert (cluster.folder / "run" / "slurmctld.pid").read_text() == before


def test_an_array_completes_and_is_accounted(cluster: Cluster):
    job = cluster.submit("--array=0-3", "--wrap=true")
    expected = {f"{job}_{task}": "COMPLETED" for task in range(4)}
    wait_until(lambda: cluster.accounted(job) == expected, 30, "four completed tasks")


def test_an_array_completes_without_accounting(
    slurm_cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    cluster = slurm_cluster_without_accounting
    job = cluster.submit("--array=0-3", f"--wrap=touch '{tmp_path}'/$SLURM_ARRAY_TASK_ID")
    wait_until(lambda: not cluster.jobs(), 30, f"the end of {job}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    assert "accounting storage is disabled" in cluster.attempt("sacct").stderr


def test_jobs_on_a_node_get_different_gpus(cluster: Cluster, tmp_path: Path):
    show = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
    wrap = f'--wrap={show} >"{tmp_path}/$SLURM_ARRAY_TASK_ID"; sleep 600'
    cluster.submit("--array=0-1", "--nodelist=n1", "--gres=gpu:4", wrap)
    wait_until(lambda: len(gpus := _read_all(tmp_path)) == 2 and all(gpus), 20, "both jobs to run")
    nodes, devices = zip(*(text.split() for text in _read_all(tmp_path)), strict=True)
    assert set(nodes) == {"n1"}
    assert sorted(",".join(devices).split(",")) == list("01234567")
    cluster.cancel_all()


def _read_all(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.iterdir()]


def test_a_failed_node_requeues_its_job(cluster: Cluster):
    job = cluster.submit("--requeue", "--nodelist=n2", "--wrap=sleep 600")
    wait_until(lambda: cluster.jobs() == {job: "RUNNING"}, 20, "the job to run")
    cluster.fail_node("n2")
    wait_until(lambda: cluster.jobs() == {job: "PENDING"}, 20, "the job to be requeued")
    wait_until(lambda: cluster.node_states()["n2"] == "idle", 20, "the node to be back")
    cluster.cancel_all()


def test_a_killed_node_takes_its_job_along_and_comes_back(cluster: Cluster, tmp_path: Path):
    marker = f"{tmp_path}/job"
    job = cluster.submit("--no-requeue", "--nodelist=n3", f"--wrap=bash -c 'exec -a {marker} sleep 600'")
    wait_until(lambda: cluster.jobs() == {job: "RUNNING"}, 20, "the job to run")
    wait_until(lambda: _processes_with(marker), 10, "the job's process")
    cluster.kill_node("n3")
    assert not _processes_with(marker)
    assert _processes_with("slurmd\0-N\0n4") & _all_of(cluster)
    wait_until(lambda: cluster.accounted(job) == {job: "NODE_FAIL"}, 60, "the node's failure to be noticed")
    assert cluster.node_states()["n3"] == "down*"
    cluster.start_node("n3")
    assert cluster.node_states()["n3"] == "idle"
    again = _processes_with("slurmd\0-N\0n3") & _all_of(cluster)
    assert again, "a node that was started again belongs to the supervisor, and so ends with the cluster"


def test_jobs_go_on_without_the_controller(cluster: Cluster, tmp_path: Path):
    wait_for_go = "until [ -e go ]; do sleep 0.1; done"
    wrap = f"--wrap=cd {tmp_path}; touch begun; {wait_for_go}; touch done"
    job = cluster.submit(wrap)
    wait_until((tmp_path / "begun").exists, 20, "the job to run")
    cluster.wait_until_saved(job)
    cluster.kill_controller()
    assert cluster.attempt("scontrol", "ping").returncode != 0
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists, 20, "the job to end")
    cluster.start_controller()
    assert set(cluster.node_states()) == {"n1", "n2", "n3", "n4"}
    wait_until(lambda: cluster.accounted(job) == {job: "COMPLETED"}, 30, "the job to be accounted")


def test_a_limit_of_the_quality_of_service_refuses(cluster: Cluster):
    def limit(number: int) -> None:
        cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={number}")

    limit(2)
    try:
        wait_until(lambda: "QOSMaxSubmitJobPerUserLimit" in _refusal(cluster), 20, "a refusal")
    finally:
        limit(-1)
    wait_until(lambda: _refusal(cluster) == "", 20, "submission without a limit")
    cluster.cancel_all()


def _refusal(cluster: Cluster) -> str:
    return cluster.attempt("sbatch", "--hold", "--output=/dev/null", "--array=0-2", "--wrap=true").stderr


def test_down_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    marker = str(tmp_path / "stubborn")
    with running_cluster("--nodes", "2", accounting=False) as cluster:
        hidden = f'env -i setsid bash -c \'trap "" TERM; exec -a "{marker}" sleep 600\' &'
        cluster.submit("--wrap=" + hidden + " wait")
        wait_until(lambda: _processes_with(marker), 20, "the job's process")
        everything = _all_of(cluster)
        assert _processes_with(marker) <= everything
    assert not _living(everything)
    assert not cluster.folder.exists()


def test_a_gentle_down_keeps_the_records(tmp_path: Path) -> None:
    with running_cluster("--nodes", "1", "--auth", "none", accounting=False) as cluster:
        job = cluster.submit("--wrap=sleep 600")
        everything = _all_of(cluster)
        manage("down", str(cluster.folder))
        assert not _living(everything)
        refused = try_manage("kill-node", str(cluster.folder), "n1")
        assert refused.returncode == 1 and "no cluster runs" in refused.stdout
        manage("up", str(cluster.folder), "--no-accounting", "--nodes", "1", "--auth", "none")
        assert int(cluster.submit("--wrap=true")) > int(job)


def test_a_cluster_ends_with_its_owner(tmp_path: Path) -> None:
    need_programs(accounting=False)
    code = (
        "import time\nfrom tests.cluster_fixture import running_cluster\n"
        "with running_cluster('--nodes', '1', accounting=False) as cluster:\n"
        "    print(cluster.folder, flush=True)\n    time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    everything = _all_of(Cluster(folder))
    assert len(everything) >= 4  # supervisor, munged, slurmctld, slurmd
    owner.kill()
    owner.wait()
    wait_until(lambda: not _living(everything) and not folder.exists(), 20, "the cluster to end")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/tmp/a folder"], "does not take spaces"),
        (["/tmp/" + "a" * 80], "too long"),
        (["/etc"], "something else than a cluster"),
        (["/tmp/a", "--nodes", "0"], "--nodes 0"),
        (["/tmp/a", "--no-accounting", "--limits"], "--limits needs accounting"),
        (["/tmp/a", "--extra", "MaxArraySize"], "KEY=VALUE"),
    ],
)
def test_what_cannot_work_is_refused(arguments: list[str], message: str):
    result = try_manage("up", *arguments)
    assert result.returncode == 2
    assert message in result.stdout and "Traceback" not in result.stdout


def test_missing_programs_are_named_by_their_packages(tmp_path: Path) -> None:
    code = (
        "from slurm.cluster import programs\nfrom slurm.cluster.options import Options\n"
        "programs.search_path = lambda: '/nowhere'\nprograms.check_installed(Options(munge=False))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "apt-get install --no-install-recommends slurmctld slurmd slurm-client slurmdbd" in result.stderr


def test_an_extra_line_replaces_the_default_of_its_key() -> None:
    extra = ("maxarraysize=11", "PartitionName=high Nodes=n1 State=UP", "Prolog=/bin/true")
    text = slurm_conf(Layout(Path("/x")), Options(extra=extra), Ports(21000))
    assert [line for line in text.splitlines() if line.lower().startswith("maxarray")] == [extra[0]]
    partitions = [line for line in text.splitlines() if line.startswith("PartitionName")]
    assert partitions[0] == extra[1] and partitions[1].startswith("PartitionName=main ")
    assert len(partitions) == 2 and extra[2] in text.splitlines()


def _processes_with(text: str) -> set[int]:
    """Living processes whose command line contains the text; arguments end in a zero byte."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text in (entry / "cmdline").read_text(errors="replace") and entry.name != str(os.getpid()):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def _all_of(cluster: Cluster) -> set[int]:
    supervisor = _processes_with(f"supervise\0{cluster.folder}")
    return supervisor | descendants(supervisor)


def _living(processes: set[int]) -> set[int]:
    return processes & parents().keys()
