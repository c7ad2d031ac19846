"""Executors: how the jobs of a sweep are started and watched. One process per run on this machine.

`local` runs as many at once as there are cores for, `inline` one at a time; both are `ProcessExecutor`.
Why not a job library: docs/decisions/0003-local-executor.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from launcher.process import birth
from trainer.record import RunPaths

JOB = (sys.executable, "-P", "-m", "trainer")
"""Start of a job's command; the run folder follows."""

FOREIGN = (
    *("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "OMPI_", "MLFLOW_", "RAY_", "GRPOSWEEP_"),
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
"""Starts of variables that describe somebody else's job, allocation or tracking run; not for our jobs."""

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Set for jobs: what they need was fetched before."""
CREDENTIALS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Not for jobs, which fetch nothing."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Started:
    """A job that was started."""

    pid: int
    born: int | None
    """`launcher.process.birth` of the process."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that ended: with an exit code, or by a signal."""

    run_id: str
    attempt: int
    exit_code: int | None
    signal: int | None


class Executor(Protocol):
    """Starts jobs and tells how they ended. One caller, no threads."""

    name: str
    slots: int
    """Most jobs at once."""

    def start(self, run: RunPaths, attempt: int, threads: int) -> Started:
        """Start the job of a run; its output goes to the attempt's log."""

    def ended(self) -> list[Ended]:
        """Jobs that ended since the last call, each once. Does not wait."""

    @property
    def running(self) -> Sequence[str]:
        """Run ids of started jobs that `ended` has not told of yet."""

    def terminate(self) -> None:
        """Ask every job to write a checkpoint and end."""

    def kill(self) -> None:
        """End every job now, with all processes it started."""


class ProcessExecutor:
    """Each job a process in a session of its own: Ctrl-C in the terminal reaches the launcher alone."""

    def __init__(self, name: str, slots: int, code: Path, command: Sequence[str]) -> None:
        self.name = name
        self.slots = slots
        self._code = code
        self._command = tuple(command)
        self._jobs: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def start(self, run: RunPaths, attempt: int, threads: int) -> Started:
        log = run.log(attempt)
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self._command, str(run.folder)],
                cwd=run.folder,
                env=job_environment(os.environ, self._code, threads),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._jobs[run.run_id] = (attempt, process)
        return Started(process.pid, birth(process.pid))

    def ended(self) -> list[Ended]:
        found = []
        for run_id, (attempt, process) in list(self._jobs.items()):
            code = process.poll()
            if code is not None:
                del self._jobs[run_id]
                found.append(Ended(run_id, attempt, code if code >= 0 else None, -code if code < 0 else None))
        return found

    @property
    def running(self) -> Sequence[str]:
        return tuple(self._jobs)

    def terminate(self) -> None:
        # the job alone, not its group: it decides how to end the processes that it started
        for _, process in self._jobs.values():
            process.terminate()

    def kill(self) -> None:
        for _, process in self._jobs.values():
            # a job that was not waited for keeps its process id, so the group is still its own
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def make_executor(
    name: Literal["local", "inline"], code: Path, *, threads: int = 1, jobs: int | None = None
) -> ProcessExecutor:
    """`local` or `inline` for runs of at most `threads` threads."""
    return ProcessExecutor(name, available_slots(name, threads=threads, jobs=jobs), code, JOB)


def available_slots(name: Literal["local", "inline"], *, threads: int, jobs: int | None) -> int:
    """How many runs go at once: `jobs`, where the cores allow it.

    The cores are those this process may use, not those the machine has.
    """
    cores = max(1, len(os.sched_getaffinity(0)) // threads)
    return 1 if name == "inline" else min(cores, jobs or cores)


def job_environment(inherited: Mapping[str, str], code: Path, threads: int) -> dict[str, str]:
    """Environment of a job: as `code_environment`, offline, and told who its launcher is."""
    kept = {name: value for name, value in inherited.items() if name not in CREDENTIALS}
    own = {"GRPOSWEEP_CODE": str(code), "GRPOSWEEP_LAUNCHER": str(os.getpid())}
    return code_environment(kept, code, threads) | dict.fromkeys(OFFLINE, "1") | own


def code_environment(inherited: Mapping[str, str], code: Path, threads: int) -> dict[str, str]:
    """Environment of a process that runs training code: that first on the path, threads, nothing foreign."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(FOREIGN)}
    more = [str(Path(item).absolute()) for item in kept.get("PYTHONPATH", "").split(os.pathsep) if item]
    return (
        kept
        | dict.fromkeys(THREADS, str(threads))
        | {
            "PYTHONPATH": os.pathsep.join([str(code), *more]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
    )
