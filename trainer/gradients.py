"""What is done with a gradient before the optimizer sees it: measure, align, clip. Pure but for `put_back`.

A gradient is one flat vector over all weights. Its arithmetic is in float64: at small learning rates the
cosine of consecutive gradients is what the experiment reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One detached vector of all elements, in order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def gather(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters' gradients as one float32 vector; zeros where there is none."""
    return flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])


def put_back(gradient: Tensor, parameters: Sequence[Tensor]) -> None:
    """Overwrite the parameters' gradients with a vector laid out as `gather` does."""
    parts = gradient.split([parameter.numel() for parameter in parameters])
    for part, parameter in zip(parts, parameters, strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(part.view_as(parameter))


def cosine(gradient: Tensor, previous: Tensor | None) -> float:
    """Cosine of two gradients (math.md B1); NaN without a previous one or where a norm is 0 or infinite."""
    if previous is None:
        return math.nan
    product = gradient.double().norm().item() * previous.double().norm().item()
    if not 0 < product < math.inf:
        return math.nan
    return (gradient.double() @ previous.double()).item() / product


def limit_alignment(gradient: Tensor, previous: Tensor | None, limit: float) -> Tensor:
    """The gradient, float64, with its component along the previous one cut so that their cosine is `limit`.

    With g = a·u + g⊥, u the previous direction, a becomes τ‖g⊥‖/√(1−τ²) where the cosine exceeds τ. Below the
    limit, and where there is no cosine, nothing changes; a gradient exactly along the previous one has no
    such a and becomes 0.
    """
    wide = gradient.double()
    measured = cosine(wide, previous)
    if previous is None or not measured > limit:
        return wide
    direction = previous.double() / previous.double().norm()
    along = wide @ direction
    across = wide - along * direction
    return across + limit / math.sqrt(1 - limit**2) * across.norm() * direction


def clip_norm(gradient: Tensor, limit: float) -> Tensor:
    """The gradient, float64, scaled down to norm `limit` where it is longer."""
    wide = gradient.double()
    norm = wide.norm()
    return wide * (limit / norm) if norm > limit else wide
