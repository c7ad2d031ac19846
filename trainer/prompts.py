"""Prompts as tensors, and the verdicts on responses to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TRAINING = "training"
HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Prompts:
    """n prompts of one set."""

    tokens: Tensor
    """int64 [n, p]; padded on the left."""
    lengths: Tensor
    """int64 [n]; tokens of each without padding."""
    items: Tensor
    """int64 [n]; places in the set; what a built-in task does not need."""
    name: str = TRAINING
    """The set's name."""

    def __len__(self) -> int:
        return len(self.tokens)

    def repeated(self, times: int) -> Prompts:
        """Each prompt `times` times in a row."""
        parts = (self.tokens, self.lengths, self.items)
        return Prompts(*(part.repeat_interleave(times, dim=0) for part in parts), self.name)

    def __getitem__(self, rows: slice | Tensor) -> Prompts:
        return Prompts(self.tokens[rows], self.lengths[rows], self.items[rows], self.name)

    @staticmethod
    def unpadded(tokens: Tensor, name: str = TRAINING) -> Prompts:
        """Prompts of one length, int64 [n, p]."""
        lengths = torch.full((len(tokens),), tokens.shape[1])
        return Prompts(tokens, lengths, torch.arange(len(tokens)), name)

    @staticmethod
    def concatenated(parts: Sequence[Prompts]) -> Prompts:
        """Several of the same set and width as one."""
        columns = ("tokens", "lengths", "items")
        return Prompts(*(torch.cat([getattr(p, c) for p in parts]) for c in columns), parts[0].name)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a verifier said of n responses."""

    correct: Tensor
    """bool [n]; false where unscored."""
    scored: Tensor
    """bool [n]; false where no verdict could be had, as after a crash of the user's checker."""

    @staticmethod
    def certain(correct: Tensor) -> Verdicts:
        """Every response was judged."""
        return Verdicts(correct, torch.ones_like(correct))
