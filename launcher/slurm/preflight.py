"""What can be known to go wrong before anything is sent: GPUs, memory, space, time to write a checkpoint.

An error is what surely fails; what may fail is a notice. Runs of one kind are looked at once.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from launcher.mlflow_store import checked_uri, network_filesystem, sqlite_path
from launcher.slurm.memory import (
    GIB,
    Memory,
    Size,
    checkpoint_bytes,
    disk_bytes,
    disk_files,
    memory,
    model_size,
)
from launcher.slurm.needs import Needs, needs, runs_per_task
from launcher.slurm.site import SiteProfile
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.record import SweepPaths
from trainer.task_config import canonical_json

UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Of Slurm's memory; without a unit it is megabytes."""
MB = 1e6


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, and what is worth knowing."""

    errors: tuple[str, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs that take the same."""

    config: RunConfig
    budget: Budget
    runs: Sequence[str]
    needs: Needs
    together: int
    """Runs in its fullest task."""
    size: Size | None

    @property
    def text(self) -> str:
        return f"{len(self.runs)} runs" if len(self.runs) > 1 else f"run {self.runs[0]}"


def check(
    runs: Mapping[str, tuple[RunConfig, Budget]],
    site: SiteProfile,
    folder: Path,
    environment: Mapping[str, str],
    *,
    checkpoint_seconds: float | None = None,
) -> Findings:
    """Look at runs of the sweep in `folder` that are to be sent to a site; `environment` is the user's.

    `checkpoint_seconds` is what a pilot took to write a checkpoint.
    """
    paths = SweepPaths(folder)
    kinds = _kinds(runs, site, paths)
    errors: list[str] = []
    notices: list[str] = []
    for kind in kinds:
        errors += _gpus(kind, site)
        if kind.size is not None:
            found = memory(kind.config, kind.size)
            for wrong, may in (_device_memory(kind, site, found), _host_memory(kind, site, found)):
                errors += wrong
                notices += may
            errors += _writing(kind, site, kind.size)
    if checkpoint_seconds is not None and checkpoint_seconds > site.signal_lead:
        errors.append(
            f"signal_lead={site.signal_lead:g} s is too short: the pilot took {checkpoint_seconds:.0f} s to "
            f"write a checkpoint; raise signal_lead to {2 * checkpoint_seconds:.0f}"
        )
    notices += _unknown(kinds)
    if site.gpus.per_node and kinds and not any(kind.needs.gpus for kind in kinds):
        notices.append("no run uses a GPU of this site: set resources.device=cuda to use one for each")
    errors += _space(kinds, paths)
    notices += _tracking(environment)
    return Findings(tuple(dict.fromkeys(errors)), tuple(dict.fromkeys(notices)))


def _kinds(runs: Mapping[str, tuple[RunConfig, Budget]], site: SiteProfile, paths: SweepPaths) -> list[Kind]:
    groups: dict[str, list[str]] = {}
    for run, (config, budget) in runs.items():
        groups.setdefault(_key(config, budget), []).append(run)
    sizes: dict[str, Size | None] = {}
    wanted = {run: needs(config, site) for run, (config, _) in runs.items()}
    alike = Counter(wanted.values())
    kinds = []
    for ids in groups.values():
        config, budget = runs[ids[0]]
        model = canonical_json([config.model.model_dump(), config.task.alphabet, config.task.name])
        if model not in sizes:
            sizes[model] = model_size(config, paths.prepared)
        need = wanted[ids[0]]
        together = min(runs_per_task(site, need), alike[need])
        kinds.append(Kind(config, budget, ids, need, together, sizes[model]))
    return kinds


def _key(config: RunConfig, budget: Budget) -> str:
    """Equal for runs of one kind: all but seed, rate and what the loss does."""
    scalars = (
        *(config.batch_size, config.group_size, config.sync_interval, config.schedule, config.buffer_size),
        *(config.store.capacity, config.store.delay, bool(config.loss.kl_weight), config.task.name),
        *(config.task.length, config.task.alphabet, config.task.max_prompt_tokens),
        *(config.task.max_response_tokens, budget.keep_checkpoints, budget.evaluation.every > 0),
        *(budget.horizon, budget.usage_window, budget.evaluation.keep_best),
    )
    return canonical_json([scalars, config.model.model_dump(), config.resources.model_dump()])


def _gpus(kind: Kind, site: SiteProfile) -> Iterator[str]:
    """GPUs of a task against those of a node."""
    if not kind.needs.gpus or (site.gpus.flag == "none" and not site.gpus.per_node):
        return
    together = kind.together * kind.needs.gpus
    if not site.gpus.per_node:
        yield (
            f"resources.device=cuda of {kind.text} needs a GPU, and the site profile's gpus.per_node=0 says "
            "that a node has none: set it to the GPUs of a node"
        )
    elif together > site.gpus.per_node:
        yield (
            f"cells_per_task={site.cells_per_task} needs {together} GPUs in one task, and a node has "
            f"gpus.per_node={site.gpus.per_node}: use {site.gpus.per_node // kind.needs.gpus}, or fit"
        )


def _device_memory(kind: Kind, site: SiteProfile, found: Memory) -> tuple[list[str], list[str]]:
    limit = None if site.gpus.memory_gib is None else site.gpus.memory_gib * GIB
    if limit is None or not found.device:
        return [], []
    name = f"gpus.memory_gib={site.gpus.memory_gib:g}"
    return _against(kind, name, limit, found.device, found.device_most, found, "a GPU with more memory")


def _host_memory(kind: Kind, site: SiteProfile, found: Memory) -> tuple[list[str], list[str]]:
    if site.mem_per_run not in (None, "0"):
        assert site.mem_per_run is not None
        name, limit = f"mem_per_run={site.mem_per_run}", in_bytes(site.mem_per_run)
    elif site.mem_per_cpu not in (None, "0"):
        assert site.mem_per_cpu is not None
        name = f"mem_per_cpu={site.mem_per_cpu} on {kind.needs.cpus} CPUs"
        limit = in_bytes(site.mem_per_cpu) * kind.needs.cpus
    else:
        return [], []
    most = found.host_most
    return _against(kind, name, limit, found.host, most, found, "more memory in the site profile")


def _against(
    kind: Kind, name: str, limit: float, sure: float, most: float, found: Memory, more: str
) -> tuple[list[str], list[str]]:
    """An error where what is sure exceeds the limit, a notice where only what may be does."""
    assert kind.size is not None
    model = f"{kind.text} of {kind.size.parameters / 1e6:,.1f} million weights"
    if sure > limit:
        return [
            f"{name} is too little for {model}: weights, optimizer and what is kept beside them take "
            f"{_gib(sure)}: use {more}, or a smaller model"
        ], []
    if most > limit:
        chunk = (
            f", {_gib(found.generating)} of it for rollouts sampled together: "
            f"resources.generation_chunk={kind.config.resources.generation_chunk} can be lower"
        )
        much = found.generating > 0.1 * most
        return [], [
            f"{name} may be too little for {model}, which can take {_gib(most)}{chunk if much else ''}"
        ]
    return [], []


def _writing(kind: Kind, site: SiteProfile, size: Size) -> Iterator[str]:
    """A checkpoint has to be on disk between the warning and the end."""
    if site.write_mb_per_second is None:
        return
    count = kind.together
    each = checkpoint_bytes(kind.config, size)
    seconds = count * each / (site.write_mb_per_second * MB)
    if seconds > site.signal_lead:
        written = (
            f"a checkpoint of {each / 1e9:.2f} GB takes"
            if count == 1
            else (f"{count} checkpoints of {each / 1e9:.2f} GB take")
        )
        yield (
            f"signal_lead={site.signal_lead:g} s is too short for {kind.text}: {written} {seconds:.0f} s at "
            f"write_mb_per_second={site.write_mb_per_second:g}: raise signal_lead to {2 * seconds:.0f}"
        )


def _unknown(kinds: Sequence[Kind]) -> Iterator[str]:
    names = {kind.config.model.pretrained for kind in kinds if kind.size is None}
    for name in sorted(filter(None, names)):
        yield (
            f"how large {name} is cannot be told before it is at hand, so neither memory nor space is "
            "checked: `grposweep prefetch` fetches it"
        )


def _space(kinds: Sequence[Kind], paths: SweepPaths) -> Iterator[str]:
    """Checkpoints against free space and files, those already there aside."""
    wanted = files = 0.0
    for kind in kinds:
        files += disk_files(kind.budget) * len(kind.runs)
        if kind.size is not None:
            each = disk_bytes(kind.config, kind.budget, kind.size)
            wanted += sum(max(0.0, each - _held(paths.run(run).checkpoints)) for run in kind.runs)
    if not kinds:
        return
    place = next(item for item in (paths.folder, *paths.folder.parents) if item.exists())
    system = os.statvfs(place)
    free = system.f_bavail * system.f_frsize
    runs = sum(len(kind.runs) for kind in kinds)
    keep = kinds[0].budget.keep_checkpoints
    if wanted > free:
        yield (
            f"checkpoints of {runs} runs take up to {wanted / 1e9:,.1f} GB with "
            f"budget.keep_checkpoints={keep}, and {place} has {free / 1e9:,.1f} GB left: make room, lower "
            "budget.keep_checkpoints, or choose other --outputs"
        )
    # file systems without a fixed number of files say 0
    if system.f_files and files > system.f_favail:
        yield (
            f"{runs} runs write up to {files:,.0f} files, and {place} takes {system.f_favail:,} more: make "
            "room, raise budget.usage_window, or choose other --outputs"
        )


def _held(folder: Path) -> float:
    """Bytes of the files one level down."""
    if not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*/*"))


def _tracking(environment: Mapping[str, str]) -> Iterator[str]:
    """Where `sync` will write; jobs need no store."""
    uri = environment.get("MLFLOW_TRACKING_URI", "").strip()
    if uri and (address := _loopback(uri)):
        yield (
            f"MLFLOW_TRACKING_URI={address} is reached from this machine only; jobs need no store, as "
            "`grposweep sync` writes it from their records: run it here"
        )
        return
    try:
        database = sqlite_path(checked_uri(uri)) if uri else None
    except UserError as error:
        yield f"{error}; jobs need no store, `grposweep sync` does"
        return
    system = None if database is None else network_filesystem(database)
    if system is not None:
        yield (
            f"the MLflow database {database} lies on {system}, where two writers at once damage it: only "
            "`grposweep sync` writes it, one at a time; run no tracking server on it"
        )


def _loopback(uri: str) -> str | None:
    """The address, without a password, where only this machine reaches it."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if host not in ("localhost", "::1", "0.0.0.0") and not re.fullmatch(r"127(\.\d+){3}", host):
        return None
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" + (f":{port}" if port else "")


def in_bytes(memory: str) -> float:
    """Bytes of an amount of memory as Slurm reads it.

    >>> in_bytes("8G") / 2**30, in_bytes("512") / 2**20
    (8.0, 512.0)
    """
    unit = memory[-1] if memory[-1] in UNITS else ""
    return float(memory.removesuffix(unit)) * UNITS[unit]


def _gib(count: float) -> str:
    return f"{count / GIB:,.1f} GiB"
