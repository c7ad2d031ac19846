"""What is done with a gradient before the optimizer sees it: measure, align, clip.

A gradient is one flat vector over all weights. Its arithmetic is in float64, a part of it at a time: at small
learning rates the cosine of consecutive gradients is what the experiment reads. A vector that is kept from
update to update lies on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PART = 2**24
"""Elements that are held in float64 at once."""


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


def scale(parameters: Sequence[Tensor], factor: float) -> None:
    """Multiply the parameters' gradients."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def norm_of(gradient: Tensor, device: torch.device | None = None) -> float:
    """Euclidean norm, computed on `device`; by default where the gradient is."""
    parts = (part.to(device or part.device) for part in gradient.split(PART))
    return math.sqrt(sum(_square(part) for part in parts))


def cosine(gradient: Tensor, previous: Tensor | None, norms: tuple[float, float] | None = None) -> float:
    """Cosine of two gradients (math.md B1); NaN without a previous one or where a norm is 0 or infinite.

    `norms` are those of both, where they are known.
    """
    if previous is None:
        return math.nan
    one, other = norms or (norm_of(gradient), norm_of(previous, gradient.device))
    product = one * other
    if not 0 < product < math.inf:
        return math.nan
    pairs = zip(_parts(gradient), _parts(previous, gradient.device), strict=True)
    return sum((left @ right).item() for left, right in pairs) / product


def distance(parameters: Sequence[Tensor], initial: Tensor) -> float:
    """Root mean square difference of the parameters from a flat vector of initial ones."""
    total, start = 0.0, 0
    for parameter in parameters:
        for part in parameter.detach().reshape(-1).split(PART):
            there = initial[start : start + len(part)].to(part.device)
            total += _square(part - there)
            start += len(part)
    return math.sqrt(total / start)


def _square(part: Tensor) -> float:
    """Sum of squares, added up in float64 without a copy in it."""
    return float(torch.linalg.vector_norm(part, dtype=torch.float64).item()) ** 2


def _parts(vector: Tensor, device: torch.device | None = None) -> Iterator[Tensor]:
    """The vector in float64, a part at a time; on `device`, to which it travels in its own, shorter type."""
    return (part.to(device or vector.device).double() for part in vector.split(PART))


def limit_alignment(gradient: Tensor, previous: Tensor | None, limit: float) -> Tensor:
    """The gradient, float64, with its component along the previous one cut so that their cosine is `limit`.

    With g = a·u + g⊥, u the previous direction, a becomes τ‖g⊥‖/√(1−τ²) where the cosine exceeds τ. Below the
    limit, and where there is no cosine, nothing changes; a gradient exactly along the previous one has no
    such a and becomes 0.
    """
    wide = gradient.double()
    if previous is None or not cosine(gradient, previous) > limit:
        return wide
    direction = previous.to(wide) / norm_of(previous, wide.device)
    along = wide @ direction
    across = wide - along * direction
    return across + limit / math.sqrt(1 - limit**2) * across.norm() * direction
