"""What can be known to go wrong before anything is sent to Slurm: GPUs, memory, disk, time to save.

Bytes per weight of a run, all float32 unless said:

    where it computes   weights 4, gradients 4, two moments 8; the behaviour policy 4, or 2 in bfloat16; the
                        reference policy as many, where the loss has a KL term; keys and values of the
                        responses that are sampled together
    on the CPU          initial weights 4 (resources.displacement), previous gradient 4 or 2
    on disk             weights 4, behaviour 4 or 2, moments 8, previous gradient 4 or 2
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from launcher.slurm.needs import needs, runs_per_task
from launcher.slurm.site import SiteProfile
from sweeps.size import parameters, shape, vocabulary
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.task_config import canonical_json

GIB = 1 << 30
PROCESS_BYTES = GIB
"""Of a process with the libraries loaded: a toy run was measured at half of it on a CPU."""
FILES_PER_RUN, FILES_PER_CHECKPOINT = 25, 12
LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class Findings:
    """What speaks against sending the runs, and what a user should know."""

    errors: tuple[str, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a run needs, at least."""

    device: int
    """On its GPU; 0 where it computes on the CPU."""
    host: int
    """In the memory that Slurm counts."""
    checkpoint: int
    best: int
    """Of the kept best weights."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs that differ in nothing that matters here."""

    config: RunConfig
    budget: Budget
    runs: int
    size: int | None
    """Parameters."""
    memory: Memory | None


def check(
    runs: Sequence[tuple[RunConfig, Budget]],
    site: SiteProfile,
    outputs: Path,
    environment: Mapping[str, str],
    *,
    prepared: Path | None = None,
    checkpoint_seconds: float | None = None,
) -> Findings:
    """Look at the runs of a submission.

    `prepared` is the sweep's folder of models, `checkpoint_seconds` what a pilot measured.
    """
    kinds = _kinds(runs, prepared)
    errors = [fault for kind in kinds for fault in (*_gpus(kind, site), *_memory(kind, site))]
    errors += _disk(kinds, outputs)
    errors += _saving(kinds, site, checkpoint_seconds)
    notices = _store(environment)
    unknown = sorted({str(kind.config.model.pretrained) for kind in kinds if kind.size is None})
    if unknown:
        notices.append(
            f"the size of {', '.join(unknown)} is not known before it is fetched, so memory and disk were "
            "not checked: `grposweep prefetch` fetches it"
        )
    return Findings(tuple(dict.fromkeys(errors)), tuple(notices))


def memory(config: RunConfig, budget: Budget, size: int, cached_numbers: int = 0) -> Memory:
    """Bytes of a run with `size` parameters and `cached_numbers` keys and values per token."""
    half = config.model.compute_dtype == "bfloat16"
    behaviour = 2 if half else 4
    gradient = {"float32": 4, "bfloat16": 2, "off": 0}[config.resources.previous_gradient]
    copies = behaviour * (2 if config.loss.kl_weight else 1)
    together = min(config.resources.generation_chunk, config.batch_size * config.sync_interval)
    cache = together * config.task.max_response_tokens * cached_numbers * (2 if half else 4)
    computing = size * (16 + copies) + cache
    kept = size * ((4 if config.resources.displacement == "memory" else 0) + gradient)
    best = 4 * size if budget.evaluation.every and budget.evaluation.keep_best else 0
    on_gpu = config.resources.device == "cuda"
    return Memory(
        device=computing if on_gpu else 0,
        host=PROCESS_BYTES + kept + (0 if on_gpu else computing),
        checkpoint=size * (4 + behaviour + 8 + gradient),
        best=best,
    )


def _kinds(runs: Sequence[tuple[RunConfig, Budget]], prepared: Path | None) -> list[Kind]:
    groups: dict[str, list[tuple[RunConfig, Budget]]] = {}
    for config, budget in runs:
        # what a sweep varies most says nothing about needs; a thousand runs are a few kinds
        plain = config.model_copy(update={"learning_rate": 0.0, "seed": 0})
        groups.setdefault(canonical_json([plain.model_dump(), budget.model_dump()]), []).append(
            (config, budget)
        )
    return [_kind(*found[0], len(found), prepared) for found in groups.values()]


def _kind(config: RunConfig, budget: Budget, runs: int, prepared: Path | None) -> Kind:
    vocab = vocabulary(config.task)
    size = parameters(config.model, vocab, prepared)
    found = shape(config.model, vocab, prepared)
    numbers = 0 if found is None else found.cached_numbers
    return Kind(config, budget, runs, size, None if size is None else memory(config, budget, size, numbers))


def _gpus(kind: Kind, site: SiteProfile) -> list[str]:
    each = needs(kind.config, site)
    wanted, per_node = each.gpus * runs_per_task(site, each), site.gpus.per_node
    if not wanted:
        return []
    if not per_node:
        return [
            "resources.device=cuda needs GPUs, and the site profile has gpus.per_node=0: set it to the GPUs "
            "of a node, or set resources.device=cpu"
        ]
    if wanted > per_node:
        return [
            f"a task needs {wanted} GPUs ({each.gpus} per run, cells_per_task={site.cells_per_task}), a node "
            f"has gpus.per_node={per_node}: use cells_per_task={per_node // each.gpus or 1} or fit"
        ]
    return []


def _memory(kind: Kind, site: SiteProfile) -> list[str]:
    if kind.memory is None:
        return []
    errors, size = [], f"{kind.size:,} parameters"
    room = site.gpus.memory_gib
    if kind.memory.device and room is not None and kind.memory.device > room * GIB:
        errors.append(
            f"a run with {size} needs at least {_gib(kind.memory.device)} of GPU memory, a GPU has "
            f"gpus.memory_gib={room:g}: use a smaller model, GPUs with more memory, or a smaller "
            "resources.generation_chunk"
        )
    asked, field = _host_memory(kind, site)
    if asked and kind.memory.host > asked:
        errors.append(
            f"a run with {size} needs at least {_gib(kind.memory.host)} of memory, {field} gives it "
            f"{_gib(asked)}: raise it, or set resources.displacement=disk and "
            "resources.previous_gradient=bfloat16"
        )
    return errors


def _host_memory(kind: Kind, site: SiteProfile) -> tuple[int, str]:
    """Bytes that a run may use, and the field that says so; 0 where that is not known."""
    if site.mem_per_run:
        return _bytes(site.mem_per_run), f"mem_per_run={site.mem_per_run}"
    if site.mem_per_cpu:
        cpus = needs(kind.config, site).cpus
        return _bytes(site.mem_per_cpu) * cpus, f"mem_per_cpu={site.mem_per_cpu} on {cpus} CPUs"
    return 0, ""


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)", text)
    assert found
    return int(found[1]) << {"K": 10, "": 20, "M": 20, "G": 30, "T": 40}[found[2]]


def _disk(kinds: Sequence[Kind], outputs: Path) -> list[str]:
    room = os.statvfs(_existing(outputs))
    wanted = files = runs = 0
    for kind in kinds:
        keep, runs = kind.budget.keep_checkpoints, runs + kind.runs
        if kind.memory is not None:
            wanted += kind.runs * (keep * kind.memory.checkpoint + kind.memory.best)
        parts = -(-kind.budget.horizon // kind.budget.usage_window)
        files += kind.runs * (FILES_PER_RUN + FILES_PER_CHECKPOINT * (keep + 1) + parts)
    errors, free = [], room.f_bavail * room.f_frsize
    if wanted > free:
        errors.append(
            f"checkpoints of {runs} runs take {_gib(wanted)}, {_existing(outputs)} has {_gib(free)} free: "
            "use --outputs on a larger file system, budget.keep_checkpoints=1, or fewer runs"
        )
    # some file systems make inodes as they go, and say that there are none
    if room.f_files and files > room.f_favail:
        errors.append(
            f"{runs} runs write about {files:,} files, {_existing(outputs)} has room for {room.f_favail:,}: "
            "use --outputs on another file system, or fewer runs"
        )
    return errors


def _existing(folder: Path) -> Path:
    """The nearest folder above that is there."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


def _saving(kinds: Sequence[Kind], site: SiteProfile, measured: float | None) -> list[str]:
    """Whether a checkpoint is written between the warning and the end."""
    largest = max((kind.memory.checkpoint for kind in kinds if kind.memory), default=0)
    needed, basis = measured, "as the pilot measured"
    if needed is None and site.write_mb_per_second is not None:
        needed = largest / (1e6 * site.write_mb_per_second)
        basis = f"{largest / 1e9:.2f} GB at write_mb_per_second={site.write_mb_per_second:g}"
    if needed is None or needed < site.signal_lead:
        return []
    return [
        f"a checkpoint takes {needed:.0f} s to write ({basis}), and the warning comes "
        f"signal_lead={site.signal_lead:g} s before the end: use {2 * needed:.0f} or more"
    ]


def _store(environment: Mapping[str, str]) -> list[str]:
    uri = environment.get("MLFLOW_TRACKING_URI", "")
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not (parts.hostname or "").startswith(LOOPBACK):
        return []
    return [
        f"MLFLOW_TRACKING_URI={parts.scheme}://{parts.hostname}:{parts.port or ''} is reached from this "
        "machine alone; jobs need no store, `grposweep sync` run here writes it"
    ]


def _gib(count: float) -> str:
    return f"{count / GIB:.3g} GiB"
