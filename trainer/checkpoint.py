"""Checkpoints: a folder of safetensors and JSON that is either complete or ignored; nothing is pickled.

checkpoints/step-00000200/
  weights.safetensors, behaviour.safetensors, optimizer.safetensors, …   named groups of tensors
  meta.json        counters and states that are not tensors
  complete.json    the marker, written last: step and the checksum of every file
checkpoints/best/
  weights.safetensors, complete.json    weights alone: those that did best in evaluations
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.errors import UserError
from trainer.files import fsync_path, read_json, sha256, write_json
from trainer.record import CHECKPOINT_MARKER as MARKER


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds: learner updates done, groups of tensors, and plain data."""

    step: int
    groups: Mapping[str, Mapping[str, Tensor]]
    meta: Mapping[str, Any]


def save_checkpoint(
    folder: Path, checkpoint: Checkpoint, keep: int, fence: Callable[[], None] = lambda: None
) -> Path:
    """Write a checkpoint under `folder` and drop all but the newest `keep`.

    It is built in a hidden sibling and renamed, so that a kill leaves either all of it or nothing that
    counts. `fence` is called just before it counts; what it raises leaves nothing that does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{checkpoint.step:08d}"
    for left in folder.glob(".step-*.building"):
        shutil.rmtree(left, ignore_errors=True)
    # a name of this process's own: where the file system keeps no locks, two may be at it
    building = folder / f".{target.name}.{os.getpid()}.building"
    building.mkdir()
    for name, tensors in checkpoint.groups.items():
        path = building / f"{name}.safetensors"
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, path)
        fsync_path(path)
    write_json(building / "meta.json", checkpoint.meta)
    sums = {path.name: sha256(path) for path in sorted(building.iterdir())}
    write_json(building / MARKER, {"step": checkpoint.step, "sha256": sums})
    fence()
    if target.exists():
        shutil.rmtree(target)
    building.rename(target)
    fsync_path(folder)
    prune_checkpoints(folder, keep)
    return target


def save_weights(folder: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Replace a folder that holds nothing but weights and, in its marker, what they are."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    path = building / "weights.safetensors"
    save_file({key: value.detach().contiguous() for key, value in weights.items()}, path)
    fsync_path(path)
    write_json(building / MARKER, {**about, "sha256": {path.name: sha256(path)}})
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    fsync_path(folder.parent)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Drop all complete checkpoints but the newest `keep`, marker first."""
    for path in sorted(folder.glob("step-*"))[:-keep]:
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)


def load_newest(folder: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest complete checkpoint, or None; damaged and half-written ones are skipped with a notice.

    Raises `UserError` where it holds no more than weights.
    """
    for path in sorted(folder.glob("step-*"), reverse=True):
        fault = _fault(path)
        if fault is None:
            if json.loads((path / MARKER).read_text(encoding="utf-8")).get("slimmed"):
                raise UserError(
                    f"{path} was slimmed by `grposweep gc`: it can be exported, not trained on; begin the "
                    "run anew with `grposweep resume SWEEP RUN --retry config --restart`"
                )
            return _load(path)
        notice(f"checkpoint {path.name} is skipped: {fault}")
    return None


def _fault(path: Path) -> str | None:
    try:
        marker = read_json(path / MARKER)
    except ValueError:
        return f"{MARKER} is not readable"
    if marker is None:
        return f"it has no {MARKER}, so writing it was cut off"
    for name, expected in marker["sha256"].items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if sha256(path / name) != expected:
            return f"{name} does not match its checksum"
    return None


def _load(path: Path) -> Checkpoint:
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    groups = {item.stem: load_file(item) for item in path.glob("*.safetensors")}
    return Checkpoint(json.loads((path / MARKER).read_text())["step"], groups, meta)


def pack_batches(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Equal-shaped tensors of several batches stacked under their names; empty for no batch."""
    if not batches:
        return {}
    return {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}


def unpack_batches(packed: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """The inverse of `pack_batches`."""
    return [{name: tensor[index].clone() for name, tensor in packed.items()} for index in range(count)]
