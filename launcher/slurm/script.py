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
from trainer.errors import UserError

REQUEUE = 85
"""Exit code with which a supervisor asks to be started again."""
NOT_OURS = (
    *("${!MLFLOW_@}", "${!RAY_@}", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *("LOCAL_WORLD_SIZE", "GRPOSWEEP_LAUNCHER", *CREDENTIALS),
)
"""Variables of somebody else's job; `${!X_@}` are all that start with X_."""
MODULE = r"""if ! type module >/dev/null 2>&1; then
    for init in /etc/profile.d/{lmod,z00_lmod,modules}.sh; do
        if [ -r "$init" ]; then . "$init"; break; fi
    done
fi"""
"""A batch shell is no login shell, and may not know `module`."""


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

    The profile's own flags come last, so that they win. Raises `UserError` for a folder that Slurm cannot
    write to.
    """
    if "\\" in str(folder):
        raise UserError(
            f"{folder} holds a backslash, which Slurm drops from paths: give --outputs without one"
        )
    runs = array.runs_per_task
    parallel = f"%{site.max_parallel}" if site.max_parallel else ""
    words = [
        f"--job-name={name}",
        f"--array=0-{len(array.tasks) - 1}{parallel}",
        # a percent sign would be one of Slurm's placeholders
        f"--output={str(folder).replace('%', '%%')}/{chunk}-%a.out",
        "--open-mode=append",
        "--export=ALL",
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
    words = [word for word in words if not _omitted(site, word)]
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
        "# Slurm warns the step alone. TERM reaches this shell too, which then has to wait for the step:",
        "# handled, not ignored, since what is ignored is so in all that is started from here.",
        f"trap : {site.signal} TERM",
        *([MODULE] if site.modules else []),
        *(
            f"module load {shlex.quote(name)} || {{ echo 'module load {name} failed' >&2; exit 2; }}"
            for name in site.modules
        ),
        *site.setup,
        "set +e -u",
        f"unset {' '.join(NOT_OURS)}",
        *(f"export {name}={value}" for name, value in _environment(site, array, code).items()),
        *(['mkdir -p "$TMPDIR" || exit 1'] if site.scratch else []),
        "",
        # a step does not inherit the task's CPUs in every version of Slurm
        _step(site, array, sweep, task_file, code),
        "code=$?",
        *_requeue(site),
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _requeue(site: SiteProfile) -> list[str]:
    """Asking for another turn: of this task alone, never of its whole array."""
    ask = [
        "    for pause in 0 5 15; do",
        '        sleep "$pause"',
        '        if scontrol requeue "$task"; then exit 0; fi',
        "    done",
    ]
    return [
        f'if [ "$code" -eq {REQUEUE} ]; then',
        '    task="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"',
        *(ask if site.requeue else []),
        '    echo "task $task was not requeued: grposweep resume starts it again" >&2',
        "fi",
    ]


def _environment(site: SiteProfile, array: Array, code: Path) -> dict[str, str]:
    """Variables of the supervisor and its trainers, as shell text."""
    own = {
        "PYTHONPATH": str(code),
        "GRPOSWEEP_CODE": str(code),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **dict.fromkeys(THREADS, str(array.needs.threads)),
        **dict.fromkeys(OFFLINE, "1"),
    }
    plain = {name: shlex.quote(value) for name, value in (own | site.env).items()}
    folders = {"HF_HOME": site.cache, "TMPDIR": site.scratch}
    return {name: _expandable(folder) for name, folder in folders.items() if folder} | plain


def _step(site: SiteProfile, array: Array, sweep: Path, task_file: Path, code: Path) -> str:
    """The command of the one step, as shell text."""
    cpus = array.needs.cpus * array.runs_per_task
    words = ["srun", "--ntasks=1", f"--cpus-per-task={cpus}"]
    words = [word for word in words if not _omitted(site, word)]
    job = [site.python or sys.executable, "-P", "-m", "trainer.slurm_task", str(task_file)]
    box = site.container
    if box.kind == "none":
        return shlex.join([*words, *site.srun, *job])
    mounts = _mounts(site, sweep)
    # an image's own variables win over the job's, unless they are set again inside
    again = " ".join(f'{name}="${name}"' for name in _environment(site, array, code))
    inside = f"/usr/bin/env {again} {shlex.join(job)}"
    if box.kind == "pyxis":
        image = shlex.quote(f"--container-image={box.image}")
        box_words = f"{image} --container-mounts={','.join(mounts)} {shlex.join([*box.flags, *site.srun])}"
        return f"{shlex.join(words)} {box_words.rstrip()} {inside}"
    start = ["apptainer", "exec", *(["--nv"] if array.needs.gpus else [])]
    binds = " ".join(f"--bind={mount}" for mount in mounts)
    image = shlex.join([*box.flags, str(box.image)])
    return f"{shlex.join([*words, *site.srun, *start])} {binds} {image} {inside}"


def _mounts(site: SiteProfile, sweep: Path) -> list[str]:
    """What a container has to see, as shell text: sweep, caches, scratch, and the profile's own mounts."""
    if set(str(sweep)) & set(":,"):
        raise UserError(
            f"{sweep} cannot be mounted into a container, as : and , separate mounts: give --outputs or "
            "--name without them"
        )
    own = [shlex.quote(str(sweep))] + [_expandable(each) for each in (site.cache, site.scratch) if each]
    return [f"{folder}:{folder}" for folder in own] + [shlex.quote(each) for each in site.container.mounts]


def _omitted(site: SiteProfile, word: str) -> bool:
    name = word.partition("=")[0]
    return name in site.omit or (name == "--no-requeue" and "--requeue" in site.omit)


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
    """Text in double quotes in which $NAME and ${NAME} alone are replaced."""
    kept = re.sub(r'(["\\`])', r"\\\1", text)
    return '"' + re.sub(r"\$(?![A-Za-z_]|\{[A-Za-z_]\w*\})", r"\\$", kept) + '"'
