"""Arguments of sbatch and job scripts: words, and scripts run for real over stand-ins of Slurm's commands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.slurm.needs import Array, Needs, arrays, needs
from launcher.slurm.script import job_script, sbatch_arguments
from launcher.slurm.site import SiteProfile
from tests.cluster_fixture import Cluster, running_cluster, wait_until
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.schema import parse

CPU = Needs(cpus=2, gpus=0, threads=2)
GPU = Needs(cpus=4, gpus=1, threads=1)


def profile(**fields):
    return parse(SiteProfile, fields)


def arguments(site, array, folder="/s/jobs/t", **more):
    return sbatch_arguments(site, array, name="a-t-0", folder=folder, chunk=0, **more)


def flags(words):
    return dict(word.partition("=")[::2] for word in words)


def test_arrays_fit_the_cluster_and_keep_the_order():
    runs = [(f"r{index}", CPU) for index in range(14)]
    found = arrays(runs, profile(), max_array_size=6)
    assert [len(array.tasks) for array in found] == [6, 6, 2]
    assert [task for array in found for task in array.tasks] == [[run] for run, _ in runs]
    assert flags(arguments(profile(max_parallel=3), found[0]))["--array"] == "0-5%3"


def test_runs_of_a_task_share_its_request_and_what_is_left_over_asks_for_less():
    site = profile(gpus={"per_node": 8}, cells_per_task="fit", mem_per_run="10G")
    runs = [(f"g{index}", GPU) for index in range(9)] + [("c", CPU)]
    found = arrays(runs, site, 1000)
    assert [[len(task) for task in array.tasks] for array in found] == [[8], [1], [1]]
    asked = [flags(arguments(site, array)) for array in found]
    assert [each.get("--gres") for each in asked] == ["gpu:8", "gpu:1", None]
    assert [each["--mem"] for each in asked] == ["80G", "10G", "10G"]
    assert [each["--cpus-per-task"] for each in asked] == ["32", "4", "2"]


def test_needs_follow_the_run_and_the_site():
    on_gpu = parse(RunConfig, {"resources": {"device": "cuda", "threads": 3}})
    assert needs(on_gpu, profile()) == Needs(3, 1, 3)
    assert needs(RunConfig(), profile(cpus_per_run=8)) == Needs(8, 0, 1)


def test_every_default_can_be_left_out_and_extra_flags_come_last():
    array = Array(CPU, [["r"]])
    plain = arguments(profile(), array, exclude=["n1", "n2"])
    assert not {"--mem", "--mem-per-cpu", "--gres", "--partition", "--exclusive"} & set(flags(plain))
    assert flags(plain)["--exclude"] == "n1,n2" and flags(plain)["--signal"] == "USR2@120"
    bare = profile(omit=["--cpus-per-task", "--requeue", "--nodes", "--ntasks", "--export"], requeue=False)
    words = arguments(bare, array)
    assert not {"--cpus-per-task", "--no-requeue", "--nodes", "--export"} & set(flags(words))
    assert "cpus-per-task" not in job_script(bare, array, sweep="/s", task_file="/t", code="/c")
    assert arguments(profile(extra=["--mem=0"], mem_per_cpu=None), array)[-1] == "--mem=0"
    zero = profile(mem_per_run="0")
    assert flags(arguments(zero, Array(CPU, [["a", "b"]])))["--mem"] == "0"


def test_gpus_are_asked_for_as_the_site_wants():
    array = Array(GPU, [["r"]])
    assert "--gpus-per-node=a100:1" in arguments(
        profile(gpus={"flag": "gpus_per_node", "type": "a100"}), array
    )
    assert "--gres=gpu:h100:1" in arguments(profile(gpus={"type": "h100"}), array)
    assert "gpu" not in " ".join(arguments(profile(gpus={"flag": "none"}), array))


def test_folders_that_slurm_would_read_otherwise(tmp_path):
    array = Array(CPU, [["r"]])
    assert flags(arguments(profile(), array, "/s 100%, 'q'/j"))["--output"] == "/s 100%%, 'q'/j/0-%a.out"
    with pytest.raises(UserError, match="backslash"):
        arguments(profile(), array, "/a\\b")
    boxed = profile(container={"kind": "pyxis", "image": "i"}, python="/p")
    with pytest.raises(UserError, match="cannot be mounted"):
        job_script(boxed, array, sweep="/a,b", task_file="/t", code="/c")


SRUN = """#!/bin/bash
/usr/bin/env python3 - "$@" <<'P'
import json, os, sys
json.dump({"words": sys.argv[1:], "env": dict(os.environ)}, open(os.environ["SEEN"], "w"))
P
[ -n "${KILL_SHELL:-}" ] && { kill -TERM "$PPID"; kill -USR2 "$PPID"; sleep 0.3; }
exit "$CODE"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> "$ASKED"
exit "$SCONTROL_CODE"
"""


class Ran:
    """A job script run in a folder with quotes and spaces."""

    def __init__(self, tmp_path, site, code=0, scontrol=0, array=None, **env):
        folder = tmp_path / 'a b\'s "q" $x 100%'
        folder.mkdir()
        commands = tmp_path / "bin"
        commands.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sleep", "#!/bin/bash\n")):
            if name != "sleep" or not env.get("KILL_SHELL"):
                (commands / name).write_text(text)
                (commands / name).chmod(0o755)
        self.sweep, seen, asked = folder, tmp_path / "seen.json", tmp_path / "asked"
        script = folder / "0.sh"
        script.write_text(
            job_script(
                site,
                array or Array(CPU, [["r"]]),
                sweep=folder,
                task_file=folder / "0.json",
                code=folder / "code",
            )
        )
        base = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
        base |= {"PATH": f"{commands}:/usr/bin:/bin", "CODE": str(code), "SCONTROL_CODE": str(scontrol)}
        base |= {"SEEN": str(seen), "ASKED": str(asked), "SLURM_JOB_ID": "19"}
        base |= {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"} | env
        done = subprocess.run(
            ["bash", str(script)], env=base, capture_output=True, text=True, timeout=60, check=False
        )
        self.code, self.errors = done.returncode, done.stderr
        self.step = json.loads(seen.read_text()) if seen.exists() else {"words": [], "env": {}}
        self.asked = asked.read_text().splitlines() if asked.exists() else []


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_the_task_ends_as_its_supervisor_did(tmp_path, code):
    ran = Ran(tmp_path, profile(), code)
    assert (ran.code, ran.asked, ran.errors) == (code, [], "")
    job = ["-P", "-m", "trainer.slurm_task", str(ran.sweep / "0.json")]
    assert ran.step["words"][:2] == ["--ntasks=1", "--cpus-per-task=2"] and ran.step["words"][-4:] == job


def test_only_the_task_itself_is_requeued(tmp_path):
    ran = Ran(tmp_path, profile(), code=85)
    assert (ran.code, ran.asked) == (0, ["requeue 17_3"])


def test_a_requeue_that_fails_is_said_and_its_code_kept(tmp_path):
    ran = Ran(tmp_path, profile(), code=85, scontrol=1)
    assert ran.code == 85 and ran.asked == ["requeue 17_3"] * 3
    assert "task 17_3 was not requeued: grposweep resume starts it again" in ran.errors


def test_a_site_without_requeue_is_not_asked_for_it(tmp_path):
    ran = Ran(tmp_path, profile(requeue=False), code=85)
    assert ran.code == 85 and ran.asked == [] and "not requeued" in ran.errors


def test_signals_that_reach_the_shell_do_not_end_it_before_the_step(tmp_path):
    assert Ran(tmp_path, profile(), code=85, KILL_SHELL="1").asked == ["requeue 17_3"]


def test_the_environment_of_a_job(tmp_path):
    foreign = {"RAY_ADDRESS": "x", "MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_URI": "x", "HF_TOKEN": "x"}
    foreign |= {"MASTER_PORT": "1", "RANK": "0", "GRPOSWEEP_LAUNCHER": "1", "PYTHONPATH": "/other"}
    site = profile(
        env={"NCCL_SOCKET_IFNAME": "ib0", "OMP_NUM_THREADS": "7", "TEXT": "a 'b' $HOME `c`"},
        cache="$WORK/h f",
        scratch="${WORK}/tmp $(touch bad) $SLURM_JOB_ID",
        setup=["set -e", "SITE=there; export SITE", "false || true"],
    )
    ran = Ran(tmp_path, site, WORK=str(tmp_path / "w"), **foreign)
    env = ran.step["env"]
    assert ran.code == 0, ran.errors
    assert not (set(foreign) - {"PYTHONPATH"}) & set(env)
    assert env["PYTHONPATH"] == str(ran.sweep / "code") == env["GRPOSWEEP_CODE"]
    assert env["OMP_NUM_THREADS"] == "7" and env["MKL_NUM_THREADS"] == "2" and env["HF_HUB_OFFLINE"] == "1"
    assert env["TEXT"] == "a 'b' $HOME `c`" and env["SITE"] == "there"
    assert env["HF_HOME"] == f"{tmp_path}/w/h f"
    assert env["TMPDIR"] == f"{tmp_path}/w/tmp $(touch bad) 19" and Path(env["TMPDIR"]).is_dir()


def test_a_module_that_is_not_there_is_a_fault_of_the_configuration(tmp_path):
    site = profile(modules=["no/such"], setup=["module() { return 1; }"])
    ran = Ran(tmp_path, site)
    assert ran.code == 2 and "module load no/such failed" in ran.errors and not ran.step["words"]


def test_modules_are_loaded_before_the_setup(tmp_path):
    exported = {"BASH_FUNC_module%%": '() { export LOADED="$*"; }'}
    ran = Ran(tmp_path, profile(modules=["cuda/13 x"], setup=['export THEN="$LOADED"']), **exported)
    assert ran.step["env"]["THEN"] == "load cuda/13 x"


def test_containers_see_the_sweep_and_its_folders(tmp_path):
    fields = {"image": "r#img:1", "mounts": ["/d:/d:ro"], "flags": ["--no-container-mount-home"]}
    site = profile(
        container=fields | {"kind": "pyxis"}, python="/opt/p y", cache="$W", srun=["--cpu-bind=none"]
    )
    ran = Ran(tmp_path, site, W="/w w")
    words, sweep = ran.step["words"], ran.sweep
    assert words[2:6] == [
        "--container-image=r#img:1",
        f"--container-mounts={sweep}:{sweep},/w w:/w w,/d:/d:ro",
        "--no-container-mount-home",
        "--cpu-bind=none",
    ]
    assert words[-5:-1] == ["/opt/p y", "-P", "-m", "trainer.slurm_task"]
    # inside, the image's own variables would win
    assert words[6] == "/usr/bin/env"
    assert {"HF_HOME=/w w", "OMP_NUM_THREADS=2", f"PYTHONPATH={sweep}/code"} <= set(words[7:-5]), words


def test_apptainer_gets_the_gpus_where_there_are_some(tmp_path):
    site = profile(container={"kind": "apptainer", "image": "/i.sif", "flags": ["--cleanenv"]}, python="/p")
    ran = Ran(tmp_path, site, array=Array(GPU, [["a", "b"]]))
    words, sweep = ran.step["words"], ran.sweep
    assert words[1:6] == ["--cpus-per-task=8", "apptainer", "exec", "--nv", f"--bind={sweep}:{sweep}"]
    assert words[6:9] == ["--cleanenv", "/i.sif", "/usr/bin/env"] and words[-5] == "/p"
    script = job_script(site, Array(CPU, [["a"]]), sweep=sweep, task_file="/t", code="/c")
    assert not re.search(r"--nv", script)


SUPERVISOR = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1]).parent
task, turn = os.environ["SLURM_ARRAY_TASK_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
(place / f"turn-{task}-{turn}").write_text(f"{os.getcwd()} {os.environ['SLURM_CPUS_PER_TASK']}")
if turn != "0":
    sys.exit(0)
if task == "1":
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), (place / "saved").touch(), sys.exit(1)))
    (place / "waits").touch()
    time.sleep(60)
sys.exit(85)
"""
"""Task 0 asks for another turn, task 1 waits to be cancelled and then needs a moment."""


@pytest.fixture(scope="module")
def cluster():
    with running_cluster(accounting=False) as running:
        yield running


@pytest.mark.cluster
def test_a_real_cluster_writes_requeues_and_waits(cluster: Cluster, tmp_path):
    folder = tmp_path / 'a b\'s "q", $x 100%A %%y' / "jobs" / "t"
    package = folder.parent.parent / "code" / "trainer"
    for each in (folder, package):
        each.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "slurm_task.py").write_text(SUPERVISOR)
    array = Array(CPU, [["a"], ["b"]])
    site = profile(python=sys.executable, time=5, signal_lead=20.0)
    script = folder / "0.sh"
    script.write_text(
        job_script(site, array, sweep=folder.parent.parent, task_file=folder / "0.json", code=package.parent)
    )
    words = sbatch_arguments(site, array, name="a-t-0", folder=folder, chunk=0, comment="a 'b' \"c\"")
    job = cluster.run("sbatch", "--parsable", *words, str(script)).strip()
    wait_until((folder / "waits").exists, 30, "task 1 to start")
    cluster.run("scancel", f"{job}_1")
    wait_until((folder / "turn-0-1").exists, 60, "task 0 to be requeued")
    wait_until(lambda: not cluster.jobs(), 30, "both tasks to end")
    assert (folder / "turn-0-0").read_text() == f"{folder} 2"
    assert (folder / "saved").exists(), "the step did not get the time to write a checkpoint"
    assert not (folder / "turn-1-1").exists()
    assert "requeue" not in (folder / "0-1.out").read_text().lower()
    assert (folder / "0-0.out").exists()
