"""Site profiles: what a cluster wants to be told, as YAML in `slurm/sites`, typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from launcher.executors import CREDENTIALS
from launcher.failures import AT_RESUME
from launcher.provenance import ROOT
from launcher.slurm.profile_file import read_profile
from trainer.errors import UserError
from trainer.fields import Count, Positive
from trainer.schema import Section, nearest, parse

SITES = ROOT / "slurm" / "sites"
SIGNALS = ("USR2", "HUP", "URG", "WINCH")
"""Signals that may warn of the end. Slurm sends CONT and TERM on its own, verifiers use ALRM."""
OWN_VARIABLES = ("PYTHONPATH", "GRPOSWEEP_CODE", "GRPOSWEEP_LAUNCHER", "CUDA_VISIBLE_DEVICES")
"""Set for each job by us or by Slurm."""
OWN_FLAGS = {
    "--array": "-a", "--job-name": "-J", "--output": "-o", "--open-mode": "", "--chdir": "-D", "--wrap": "",
    "--signal": "", "--time": "-t", "--export": "", "--error": "-e", "--wait": "-W", "--test-only": "",
}  # fmt: skip
"""Flags of sbatch that the launcher relies on, with their short forms."""
MEMORY_FLAGS = ("--mem", "--mem-per-cpu", "--mem-per-gpu")


def _memory(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]*[KMGT]?", value):
        return value
    raise ValueError(
        f'{value!r} is no amount of memory as Slurm reads it: write "8G", or "0" for all of a node\'s'
    )


Memory = Annotated[str, BeforeValidator(_memory)]
"""As Slurm reads it: 8G; 0 is all of a node's; without a unit, megabytes."""


class Gpus(Section):
    """How GPUs are asked for."""

    flag: Literal["gres", "gpus_per_node", "none"] = "gres"
    """`--gres=gpu[:type]:n`, `--gpus-per-node=[type:]n`, or nothing where a node comes with its GPUs."""
    type: str | None = None
    per_node: Annotated[int, Field(ge=0)] = 0
    memory_gib: Positive | None = None
    """Of one GPU."""


class Container(Section):
    """What runs are started in."""

    kind: Literal["none", "pyxis", "apptainer"] = "none"
    image: str | None = None
    """pyxis: a registry's name with #, or a .sqsh file; apptainer: a .sif file."""
    mounts: tuple[str, ...] = Field((), strict=False)
    """SRC:DST[:ro]. The sweep's folder is mounted without being named."""
    flags: tuple[str, ...] = Field((), strict=False)
    """For srun with pyxis, for `apptainer exec` with apptainer."""

    @model_validator(mode="after")
    def _image_goes_with_kind(self) -> Container:
        if (self.kind == "none") != (self.image is None):
            image = "null" if self.image is None else self.image
            raise ValueError(f"kind={self.kind} and image={image}: give both, or neither")
        return self


class SiteProfile(Section):
    """One cluster, or one partition of it."""

    description: str = ""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gpus: Gpus = Gpus()
    cpus_per_run: Count | None = None
    """null: the run's threads."""
    mem_per_run: Memory | None = None
    """null leaves the flag out, 0 is all of a node's."""
    mem_per_cpu: Memory | None = None
    nodes_exclusive: bool = False
    """Ask for whole nodes."""
    time: Annotated[str | int, Field(union_mode="left_to_right")] = "4:00:00"
    """Limit of a task: minutes, h:mm:ss or d-hh:mm:ss. Runs go on in another one when it is over."""
    signal: str = "USR2"
    """Warns of the end."""
    signal_lead: Annotated[float, Field(ge=1, le=65_535)] = 120.0
    """Seconds before the end at which a run is to write its checkpoint; Slurm takes 65,535 at most."""
    requeue: bool = True
    """Let Slurm start a task again whose node failed, or that was preempted."""
    max_timeouts: Annotated[int, Field(ge=0)] = 20
    """How often a task may reach its time limit before a resume is needed."""
    retries: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=lambda: {"node_failure": 3, "lost": 3, "disk_full": 3}
    )
    """Failure class → how often `resume` starts a run again after it."""
    modules: tuple[str, ...] = Field((), strict=False)
    """For `module load`."""
    setup: tuple[str, ...] = Field((), strict=False)
    """Lines of bash before anything is started."""
    python: str | None = None
    """Interpreter on the nodes, or in the container; null: the one that submits."""
    container: Container = Container()
    cache: str | None = None
    """Shared folder of the hub's caches (HF_HOME), where models are fetched to and read from; may hold
    variables, $WORK say."""
    scratch: str | None = None
    """Folder on the node's own disk (TMPDIR); may hold variables, $SLURM_JOB_ID say."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the runs: NCCL's, say."""
    extra: tuple[str, ...] = Field((), strict=False)
    """Further flags of sbatch, as they are; the last one wins."""
    srun: tuple[str, ...] = Field((), strict=False)
    """Further flags of srun, after ours, so that they win."""
    omit: tuple[
        Literal["--nodes", "--ntasks", "--cpus-per-task", "--requeue", "--export", "--comment"], ...
    ] = Field((), strict=False)
    """Flags of ours that this cluster refuses; left out of sbatch and srun."""
    max_parallel: Count | None = None
    """Tasks of an array that run at once."""
    max_submit: Count | None = None
    """Tasks of this user in the queue at once."""
    cells_per_task: Count | Literal["fit"] = 1
    """Runs that share a task; fit: as many as a node's GPUs (without GPUs: one)."""
    write_mb_per_second: Positive | None = None
    """Of the file system that holds the sweeps, when all tasks write."""

    @field_validator("cells_per_task", mode="before")
    @classmethod
    def _number_or_fit(cls, value: object) -> object:
        if value != "fit" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{value!r} is neither a whole number from 1 nor fit")
        return value

    @field_validator("signal")
    @classmethod
    def _can_warn(cls, value: str) -> str:
        name = value.removeprefix("SIG")
        if name == "USR1":
            raise ValueError(f"{value} is used by NCCL, which would take it for its own: use USR2")
        if name not in SIGNALS:
            raise ValueError(f"{value} cannot warn of the end of a job: use one of {', '.join(SIGNALS)}")
        return name

    @field_validator("env", mode="before")
    @classmethod
    def _variables(cls, value: object) -> object:
        for name, text in value.items() if isinstance(value, dict) else ():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
                raise ValueError(f"{name!r} is no name of a variable: use letters, digits and _")
            if name in CREDENTIALS:
                raise ValueError(
                    f"{name} is a secret, and jobs fetch nothing: leave it out, `grposweep prefetch` has it "
                    "from the environment"
                )
            if name in OWN_VARIABLES:
                raise ValueError(f"{name} is set for each job: leave it out")
            if not isinstance(text, str):
                raise ValueError(f"{name}={text} must be text: write it in quotes")
        return value

    @field_validator("extra")
    @classmethod
    def _flags_of_the_user(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for flag in value:
            for own, short in OWN_FLAGS.items():
                if _is_flag(flag, own, short):
                    field = own.removeprefix("--")
                    what = f"set {field} instead" if field in ("time", "signal") else "leave it out"
                    raise ValueError(f"{flag}: the launcher sets {own} itself: {what}")
        return value

    @field_validator("python")
    @classmethod
    def _found_from_anywhere(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError(f"{value} is no absolute path: write it as it is on the nodes, from / on")
        return value

    @field_validator("retries")
    @classmethod
    def _known_classes(cls, value: dict[str, int]) -> dict[str, int]:
        known: list[str] = sorted(AT_RESUME)
        for name in value:
            if name not in known:
                raise ValueError(
                    f"{name} is no class of failure that `resume` starts a run again after"
                    f"{nearest(name, known)}"
                )
        return {"node_failure": 3, "lost": 3, "disk_full": 3} | value

    @model_validator(mode="after")
    def _fits_together(self) -> SiteProfile:
        if self.mem_per_run is not None and self.mem_per_cpu is not None:
            raise ValueError(
                f"mem_per_run={self.mem_per_run} and mem_per_cpu={self.mem_per_cpu} exclude each other, as "
                "Slurm's --mem and --mem-per-cpu do: keep one"
            )
        limit = self.time_seconds
        if self.signal_lead >= limit:
            raise ValueError(
                f"signal_lead={self.signal_lead:g} s is not below time={self.time} ({limit:g} s): lower it, "
                "or raise time"
            )
        if self.cells_per_task == "fit" and not self.gpus.per_node:
            raise ValueError("cells_per_task=fit needs gpus.per_node: set it to the GPUs of a node")
        memory = {"mem_per_run": self.mem_per_run, "mem_per_cpu": self.mem_per_cpu}
        for flag in self.extra:
            if any(_is_flag(flag, name) for name in MEMORY_FLAGS) and any(memory.values()):
                given = next(f"{name}={value}" for name, value in memory.items() if value)
                raise ValueError(f"extra: {flag} and {given} exclude each other in Slurm: keep one")
        return self

    @model_validator(mode="after")
    def _python_in_the_container(self) -> SiteProfile:
        if self.container.kind != "none" and self.python is None:
            raise ValueError(
                f"container.kind={self.container.kind} needs python, the path of an interpreter in "
                f"{self.container.image}: /usr/bin/python3 say"
            )
        return self

    @property
    def time_seconds(self) -> float:
        """The time limit in seconds; raises `ValueError` when it is none."""
        return time_limit(self.time)


def _is_flag(word: str, name: str, short: str = "") -> bool:
    """Whether a word of a command line gives this flag."""
    return word == name or word.startswith((f"{name}=", f"{name} ")) or bool(short and word.startswith(short))


def time_limit(text: str | int) -> float:
    """Seconds of a time limit as Slurm reads it.

    >>> time_limit(90), time_limit("4:00:00"), time_limit("1-12"), time_limit("10:30")
    (5400.0, 14400.0, 129600.0, 630.0)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(text))
    if not found:
        raise ValueError(f"time={text} is no time limit: write minutes, h:mm:ss or d-hh:mm:ss")
    days, first, second, third = (None if piece is None else int(piece) for piece in found.groups())
    if days is not None:  # d-hh[:mm[:ss]]
        seconds = 86_400 * days + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)
    elif third is not None:  # hh:mm:ss
        seconds = 3600 * (first or 0) + 60 * (second or 0) + third
    else:  # mm[:ss]
        seconds = 60 * (first or 0) + (second or 0)
    if seconds < 60:
        raise ValueError(f"time={text} is {seconds} s: Slurm counts in minutes, use 1 or more")
    return float(seconds)


def full_name(name: str) -> str:
    """A profile as it is found from any folder: its name, or its absolute path."""
    return str(Path(name).absolute()) if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_site(name: str) -> SiteProfile:
    """A profile by its name in `slurm/sites`, or by the path of its file; raises `UserError`."""
    path = Path(name) if _is_path(name) else SITES / f"{name}.yaml"
    if not path.is_file():
        known = sorted(item.stem for item in SITES.glob("*.yaml"))
        if path.parent == SITES:
            raise UserError(f"--site {name}: no such profile{nearest(name, known)}, or give a file")
        raise UserError(f"--site {name}: no such file; the profiles by name are {', '.join(known)}")
    return parse(SiteProfile, read_profile(path), where=str(path))
