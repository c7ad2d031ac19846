"""Every random draw of a run derives from (seed, purpose, counter), never from process start."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, purpose: str, counter: int) -> int:
    """A 63-bit seed, independent for different purposes and counters.

    >>> derive_seed(0, "prompts", 0) == derive_seed(0, "prompts", 1)
    False
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{counter}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, purpose: str, counter: int) -> torch.Generator:
    """A CPU generator at the start of the stream named by (seed, purpose, counter)."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, counter))
