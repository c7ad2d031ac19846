"""Loss and gradient on the device against the CPU, against bfloat16, and however the work is split.

Tolerances: in float32 with TF32 off a log-probability differs by about 1e-5 between two machines, as sums are
taken in another order; a loss is a mean of such terms, a gradient's norm a little worse. bfloat16 has 8 bits:
log-probabilities differ by about 1e-2, some ratios cross the clip, and the gradient turns by some degrees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu.material import Material
from gpu.report import Section
from trainer.gradients import cosine

CPU = torch.device("cpu")
LOSSES: dict[str, dict[str, Any]] = {
    "grpo, token": {},
    "grpo, sequence": {"ratio_level": "sequence", "aggregation": "token_mean"},
    "asymre": {"kind": "asymre", "aggregation": "token_mean"},
    "truncated": {"kind": "truncated", "weight_cap": 1.2, "aggregation": "constant_length"},
    "grpo with reference": {"kl_weight": 0.1},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    loss: float
    norm: float
    gradient: Tensor
    """float32, one value per weight, on the device under test."""


def check(material: Material, section: Section) -> None:
    if material.device != CPU:  # the CPU then does a large model's work; a toy's is slower on many threads
        torch.set_num_threads(os.cpu_count() or 1)
    rows = []
    for name, loss in LOSSES.items():
        here, there = (_outcome(material, loss=loss, device=device) for device in (material.device, CPU))
        half = _outcome(material, loss=loss, compute_dtype="bfloat16")
        turned = cosine(here.gradient, there.gradient)
        rows.append(
            {
                "loss": name,
                "value": here.loss,
                "gradient norm": here.norm,
                "loss vs CPU": _apart(here.loss, there.loss),
                "norm vs CPU": _apart(here.norm, there.norm),
                "1 - cosine": 1 - turned,
                "bf16 loss": half.loss,
                "bf16 cosine": (in_half := cosine(half.gradient, here.gradient)),
            }
        )
        section.below(f"{name}: relative difference of the loss to the CPU", rows[-1]["loss vs CPU"], 1e-4)
        section.below(f"{name}: that of the gradient's norm", rows[-1]["norm vs CPU"], 1e-3)
        section.above(f"{name}: cosine of both gradients", turned, 0.9999)
        section.above(f"{name}: cosine of bfloat16's gradient with float32's", in_half, 0.98)
    section.tables["float32 on the device against float32 on the CPU, and against bfloat16"] = rows
    _splits(material, section)


def _splits(material: Material, section: Section) -> None:
    """The same update with less memory; the reference policy takes part."""
    loss = {"kl_weight": 0.1}
    chunk = 7  # divides no part evenly
    tokens = 2 * (material.sizes.prompt + material.sizes.response)
    plain = _outcome(material, loss=loss)
    splits: dict[str, dict[str, Any]] = {
        "activation_checkpointing": {"activation_checkpointing": True},
        "logit_chunk": {"logit_chunk": chunk},
        "micro_batch_tokens": {"micro_batch_tokens": tokens},
        "micro_batch": {"micro_batch": 5},
        "all": {"activation_checkpointing": True, "logit_chunk": chunk, "micro_batch_tokens": tokens},
    }
    for name, resources in splits.items():
        found = _outcome(material, loss=loss, resources=resources)
        section.below(f"{name}: relative difference of the loss", _apart(found.loss, plain.loss), 1e-4)
        section.below(f"{name}: that of the gradient", _distance(found.gradient, plain.gradient), 1e-4)


def _outcome(
    material: Material,
    *,
    loss: dict[str, Any],
    device: torch.device | None = None,
    compute_dtype: str = "float32",
    resources: dict[str, Any] | None = None,
) -> Outcome:
    """Of one update of the batch at rate 0."""
    config = material.config(
        loss=loss, model={"compute_dtype": compute_dtype}, resources=dict(resources or {})
    )
    learner = material.moved_learner(config, device or material.device)
    update = learner.update(material.batch, 0)
    assert learner.previous_gradient is not None
    return Outcome(update.loss, update.gradient_norm, learner.previous_gradient.to(material.device))


def _apart(one: float, other: float) -> float:
    """Relative difference."""
    return abs(one - other) / abs(other)


def _distance(one: Tensor, other: Tensor) -> float:
    """Norm of the difference over the norm."""
    return ((one - other).norm() / other.norm()).item()
