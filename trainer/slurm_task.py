"""`python -P -m trainer.slurm_task <task file>`: supervise the runs of one array task of a Slurm job.

It starts a trainer for each run of the task, side by side, and is the only one that listens to Slurm
(`trainer.supervisor`). The task file, <sweep>/jobs/<token>/<chunk>.json, has paths relative to the sweep
folder, so that a sweep that was moved goes on:

    tasks             run folders by array index
    signal            the warning signal, "USR2"; signal_lead, seconds that it comes before the time limit
    time_limit        seconds, or null
    max_timeouts      time limits after which a run is asked to be run again, per submission
    threads           of each run
    devices_per_run   GPUs of each run; 0: none of our business
    code, packages    snapshot to run from, and versions that must be installed

Exit codes: 0 all runs are finished; 85 the job script is to requeue the task; 2 a run was refused; 1 one
failed; 75 one was interrupted and nothing is to be done. Imports neither torch nor pydantic: it costs 60 ms.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trainer.attempts import Exit, slurm_job
from trainer.errors import UserError
from trainer.files import write_json
from trainer.paths import RunPaths
from trainer.run_history import is_finished
from trainer.supervisor import Supervisor

TRAINER = (sys.executable, "-P", "-m", "trainer")
"""Start of a trainer's command; the run folder follows."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Task:
    """One array task, as its task file and Slurm's environment describe it."""

    job: str
    """As `squeue -r` shows it: 17_3."""
    restart: int
    """How often Slurm has requeued it."""
    runs: tuple[RunPaths, ...]
    warning: signal.Signals
    lead: float
    end: float | None
    """Unix time of its time limit, as far as can be told without asking Slurm."""
    max_timeouts: int
    threads: int
    devices_per_run: int
    code: Path
    packages: Mapping[str, str]


def read_task(file: Path, environment: Mapping[str, str]) -> Task:
    """Raises `UserError` where the file, or Slurm's environment, names no such task."""
    index = environment.get("SLURM_ARRAY_TASK_ID", "")
    job, restart = slurm_job(environment)
    if job is None or restart is None or not index.isdigit():
        raise UserError(
            f"SLURM_ARRAY_TASK_ID={index!r} is no index: trainer.slurm_task runs in a task of a job array "
            "only; start it with the sweep's job script"
        )
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        tasks, name = data["tasks"], str(data["signal"])
        sweep = file.resolve().parent.parent.parent
        started = float(environment.get("SLURM_JOB_START_TIME") or time.time())
        limit = data["time_limit"]
        end = environment.get("SLURM_JOB_END_TIME") or (None if limit is None else started + limit)
        task = Task(
            job=job,
            restart=restart,
            runs=tuple(RunPaths(sweep / folder) for folder in tasks[int(index)]),
            warning=signal.Signals["SIG" + name.removeprefix("SIG")],
            lead=float(data["signal_lead"]),
            end=None if end is None else float(end),
            max_timeouts=int(data["max_timeouts"]),
            threads=int(data["threads"]),
            devices_per_run=int(data["devices_per_run"]),
            code=sweep / data["code"],
            packages=dict(data["packages"]),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"task {index} of {file} cannot be read ({error!r}): submit the sweep again to write it"
        ) from error
    return task


def refusal(task: Task, visible_devices: str | None) -> str | None:
    """Why no run of the task may start here, in one sentence; None where nothing speaks against it."""
    if not (task.code / "trainer").is_dir():
        return (
            f"code={task.code} is not there, from which the runs were submitted: put the sweep's code folder "
            "back, or submit again"
        )
    for name, wanted in task.packages.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "none"
        if found != wanted:
            return (
                f"{name} is {found} here and was {wanted} when the runs were submitted: let the site profile "
                "activate the environment that they were submitted from, or submit again from this one"
            )
    wanted_devices = task.devices_per_run * len(task.runs)
    # a single run on a site that does not set the variable uses what it finds
    if visible_devices is not None or len(task.runs) > 1:
        devices = split_devices(visible_devices)
        if len(devices) < wanted_devices:
            return (
                f"CUDA_VISIBLE_DEVICES={visible_devices or ''} names {len(devices)} devices, "
                f"{len(task.runs)} runs with devices_per_run={task.devices_per_run} need {wanted_devices}: "
                "ask for as many in the site profile, or lower cells_per_task"
            )
    return None


def split_devices(visible: str | None) -> list[str]:
    """Devices in CUDA_VISIBLE_DEVICES, by number or UUID.

    >>> split_devices("4,5"), split_devices("GPU-8f2a,MIG-77"), split_devices(None)
    (['4', '5'], ['GPU-8f2a', 'MIG-77'], [])
    """
    return [name.strip() for name in (visible or "").split(",") if name.strip()]


def trainer_environment(task: Task, place: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of the trainer of the task's run number `place`: code, threads, devices of its own."""
    path = [str(task.code), *(item for item in inherited.get("PYTHONPATH", "").split(os.pathsep) if item)]
    own = {
        "GRPOSWEEP_CODE": str(task.code),
        "GRPOSWEEP_LAUNCHER": str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if task.devices_per_run and len(task.runs) > 1:
        first = place * task.devices_per_run
        devices = split_devices(inherited.get("CUDA_VISIBLE_DEVICES"))
        own["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first : first + task.devices_per_run])
    return {**inherited, **dict.fromkeys(THREADS, str(task.threads)), **own}


def supervise(file: Path, environment: Mapping[str, str], command: Sequence[str] = TRAINER) -> int:
    """Run the task; exit code as in the module's docstring."""
    try:
        task = read_task(file, environment)
    except UserError as error:
        print(error, flush=True)
        return Exit.USER_ERROR
    reason = refusal(task, environment.get("CUDA_VISIBLE_DEVICES"))
    if reason is not None:
        print(f"no run of task {task.job} was started: {reason}", flush=True)
        for run in (run for run in task.runs if not is_finished(run)):
            line = {"job": task.job, "restart": task.restart, "time": time.time(), "reason": reason}
            write_json(run.refused, line)
        return Exit.USER_ERROR
    environments = [trainer_environment(task, place, environment) for place in range(len(task.runs))]
    return Supervisor(
        job=task.job,
        restart=task.restart,
        warning=task.warning,
        lead=task.lead,
        end=task.end,
        max_timeouts=task.max_timeouts,
        command=command,
    ).supervise(list(zip(task.runs, environments, strict=True)))


def main() -> int:
    """Exit code as in the module's docstring."""
    if len(sys.argv) != 2:
        print("usage: python -P -m trainer.slurm_task <task file>")
        return Exit.USER_ERROR
    return supervise(Path(sys.argv[1]), os.environ)


if __name__ == "__main__":
    sys.exit(main())
