"""Arguments of sbatch and the script of a task. Pure functions."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.executors import CREDENTIALS, OFFLINE, THREADS
from launcher.slurm.needs import Array
from launcher.slurm.site import SiteProfile

REQUEUE = 85
"""Exit code with which a supervisor asks to be started again."""
NOT_OURS = ("RAY_ADDRESS", "MLFLOW_RUN_ID", "MASTER_ADDR", "MASTER_PORT", *CREDENTIALS)


def sbatch_arguments(
    site: SiteProfile,
    array: Array,
    *,
    name: str,
    folder: Path,
    chunk: int,
    exclude: Sequence[str] = (),
    comment: str = "",
) -> list[str]:
    """Flags of sbatch for an array whose files are `<folder>/<chunk>.…`, the script aside.

    The profile's own flags come last, so that they win.
    """
    runs = array.runs_per_task
    parallel = f"%{site.max_parallel}" if site.max_parallel else ""
    words = [
        f"--job-name={name}",
        f"--array=0-{len(array.tasks) - 1}{parallel}",
        # a percent sign would be one of Slurm's placeholders
        f"--output={str(folder).replace('%', '%%')}/{chunk}-%a.out",
        "--open-mode=append",
        f"--chdir={folder}",
        f"--signal={site.signal}@{round(site.signal_lead)}",
        "--requeue" if site.requeue else "--no-requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={array.needs.cpus * runs}",
        f"--time={_minutes(site.time_seconds)}",
    ]
    optional = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "mem": site.mem_per_run and _times(site.mem_per_run, runs),
        "mem-per-cpu": site.mem_per_cpu,
        "exclude": ",".join(exclude),
        "comment": comment,
    }
    words += [f"--{flag}={value}" for flag, value in optional.items() if value]
    words += ["--exclusive"] if site.nodes_exclusive else []
    words += _gpu_flags(site, array.needs.gpus * runs)
    return [*words, *site.extra]


def job_script(site: SiteProfile, array: Array, *, sweep: Path, task_file: Path, code: Path) -> str:
    """The script of every task of an array.

    It runs outside any container: that is where `scontrol` is.
    """
    lines = [
        "#!/bin/bash",
        "# One task of a sweep: starts the supervisor of its runs, and asks for another turn if told so.",
        # the supervisor answers these; a shell that dies of them would take it along
        f"trap '' {site.signal} TERM",
        *(f"module load {shlex.quote(name)}" for name in site.modules),
        *site.setup,
        *(f"unset {name}" for name in NOT_OURS),
        *(f"export {name}={shlex.quote(value)}" for name, value in _environment(site, array, code).items()),
        *([f'export TMPDIR="{_expandable(site.scratch)}"', 'mkdir -p "$TMPDIR"'] if site.scratch else []),
        "",
        # a step does not inherit the task's CPUs in every version of Slurm
        shlex.join(_step(site, array, sweep, task_file)),
        "code=$?",
        f'if [ "$code" -eq {REQUEUE} ]; then',
        '    task="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        '    if scontrol requeue "$task"; then',
        "        sleep 60  # Slurm ends this script",
        "        exit 0",
        "    fi",
        '    echo "could not requeue $task: grposweep resume starts it again" >&2',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _environment(site: SiteProfile, array: Array, code: Path) -> dict[str, str]:
    """Variables of the supervisor and its trainers."""
    own = {
        "PYTHONPATH": str(code),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **dict.fromkeys(THREADS, str(array.needs.threads)),
        **dict.fromkeys(OFFLINE, "1"),
    }
    return own | ({"HF_HOME": site.cache} if site.cache else {}) | site.env


def _step(site: SiteProfile, array: Array, sweep: Path, task_file: Path) -> list[str]:
    """The command of the one step."""
    cpus = array.needs.cpus * array.runs_per_task
    words = ["srun", "--ntasks=1", f"--cpus-per-task={cpus}"]
    job = [site.python or sys.executable, "-P", "-m", "trainer.slurm_task", str(task_file)]
    box, mounts = site.container, [f"{sweep}:{sweep}", *site.container.mounts]
    if box.kind == "pyxis":
        words += [f"--container-image={box.image}", f"--container-mounts={','.join(mounts)}", *box.flags]
    words += site.srun
    if box.kind == "apptainer":
        gpu = ["--nv"] if array.needs.gpus else []
        words += ["apptainer", "exec", *gpu, *(f"--bind={mount}" for mount in mounts), *box.flags]
        words += [str(box.image)]
    return [*words, *job]


def _gpu_flags(site: SiteProfile, count: int) -> list[str]:
    if not count or site.gpus.flag == "none":
        return []
    kind = f"{site.gpus.type}:" if site.gpus.type else ""
    if site.gpus.flag == "gres":
        return [f"--gres=gpu:{kind}{count}"]
    return [f"--gpus-per-node={kind}{count}"]


def _times(memory: str, runs: int) -> str:
    """Memory of several runs; 0, all of a node's, stays."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", memory)
    assert found
    return f"{int(found[1]) * runs}{found[2]}"


def _minutes(seconds: float) -> str:
    """Slurm's m:ss, which every version reads."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _expandable(text: str) -> str:
    """Text inside double quotes in which only variables are replaced."""
    return re.sub(r'(["\\`])', r"\\\1", text)
