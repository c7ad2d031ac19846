"""Every random draw of a run derives from (seed, purpose, counter), never from process start."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, purpose: str, counter: int) -> int:
    """A 63-bit seed, independent for different purposes and counters.

    >>> derive_seed(0, "prompts", 0) == derive_seed(0, "prompts", 1)
    False
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{counter}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_generator(seed: int, purpose: str, counter: int) -> np.random.Generator:
    """A NumPy generator at the start of the stream named by (seed, purpose, counter)."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, purpose, counter)))


def generator(seed: int, purpose: str, counter: int) -> torch.Generator:
    """A torch CPU generator at the start of the stream named by (seed, purpose, counter)."""
    import torch  # what has no model, as stores and the clock, works without it

    return torch.Generator().manual_seed(derive_seed(seed, purpose, counter))
