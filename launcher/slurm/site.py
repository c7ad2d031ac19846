"""Site profiles: what a cluster wants to be told, as YAML in `slurm/sites`, typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from launcher.provenance import ROOT
from trainer.errors import UserError
from trainer.fields import Count, Positive
from trainer.files import read_yaml
from trainer.schema import Section, nearest, parse

SITES = ROOT / "slurm" / "sites"
SIGNALS = ("USR2", "HUP", "ALRM", "CONT", "URG", "WINCH")
"""Signals that may warn of the end: each can be ignored by a process's children."""
Memory = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*[KMGT]?)$")]
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
            raise ValueError(
                f"container.kind={self.kind} and container.image={self.image}: give both, or neither"
            )
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
    signal_lead: Positive = 120.0
    """Seconds before the end at which a run is to write its checkpoint."""
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
    """Shared folder of the hub's caches (HF_HOME)."""
    scratch: str | None = None
    """Folder on the node's own disk (TMPDIR); may hold variables, $SLURM_JOB_ID say."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the runs: NCCL's, say."""
    extra: tuple[str, ...] = Field((), strict=False)
    """Further flags of sbatch, as they are; the last one wins."""
    srun: tuple[str, ...] = Field((), strict=False)
    """Further flags of srun."""
    max_parallel: Count | None = None
    """Tasks of an array that run at once."""
    max_submit: Count | None = None
    """Tasks of this user in the queue at once."""
    cells_per_task: Count | Literal["fit"] = 1
    """Runs that share a task; fit: as many as a node's GPUs (without GPUs: one)."""
    write_mb_per_second: Positive | None = None
    """Of the file system that holds the sweeps, when all tasks write."""

    @field_validator("signal")
    @classmethod
    def _can_warn(cls, value: str) -> str:
        name = value.removeprefix("SIG")
        if name == "USR1":
            raise ValueError("USR1 is used by NCCL: use USR2")
        if name not in SIGNALS:
            raise ValueError(f"cannot warn of the end of a job: use one of {', '.join(SIGNALS)}")
        return name

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name of a variable: use letters, digits and _")
        return value

    @field_validator("retries")
    @classmethod
    def _known_classes(cls, value: dict[str, int]) -> dict[str, int]:
        from launcher.failures import Failure

        for name in value:
            if name not in set(Failure):
                raise ValueError(f"{name} is no class of failure{nearest(name, list(Failure))}")
        return value

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
        if self.cells_per_task == "fit" and self.gpus.flag != "none" and not self.gpus.per_node:
            raise ValueError("cells_per_task=fit needs gpus.per_node: set it to the GPUs of a node")
        return self

    @property
    def time_seconds(self) -> float:
        """The time limit in seconds; raises `ValueError` when it is none."""
        return time_limit(self.time)


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


def load_site(name: str) -> SiteProfile:
    """A profile by its name in `slurm/sites`, or by the path of its file; raises `UserError`."""
    path = Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else SITES / f"{name}.yaml"
    if not path.is_file():
        known = sorted(item.stem for item in SITES.glob("*.yaml"))
        if path.parent == SITES:
            raise UserError(f"--site {name}: no such profile{nearest(name, known)}, or give a file")
        raise UserError(f"--site {name}: no such file; the profiles by name are {', '.join(known)}")
    try:
        content: dict[str, Any] = read_yaml(path)
    except ValueError as error:
        raise UserError(f"--site {name}: {' '.join(str(error).split())}") from None
    return parse(SiteProfile, content, where=str(path))
