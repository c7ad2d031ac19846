"""The rollouts that a store holds, as rows of preallocated tensors: admitted by copy, read by copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.rollouts import TENSORS

EXTRA = ("versions_first", "versions_last", "created", "informative")
"""Columns beside the rollouts' own tensors, one number each."""


class Arena:
    """Rows by rollout number, written once, when a rollout is admitted, and read-only until freed."""

    def __init__(self) -> None:
        self.row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._columns: dict[str, Tensor] = {}

    def admit(self, rollouts: Sequence[int], columns: dict[str, Tensor]) -> None:
        """Copy rows in; `columns` has all of `TENSORS` and `EXTRA`, [n, …] each."""
        if len(self._free) < len(rollouts):
            self._grow(len(rollouts), columns)
        rows = [self._free.pop() for _ in rollouts]
        self.row_of.update(zip(rollouts, rows, strict=True))
        place = torch.tensor(rows, dtype=torch.int64)
        for name, column in self._columns.items():
            column[place] = columns[name]

    def free(self, rollouts: Sequence[int]) -> None:
        """Let go of rollouts."""
        self._free += [self.row_of.pop(rollout) for rollout in rollouts]

    def take(self, rollouts: Sequence[int]) -> dict[str, Tensor]:
        """Copies of rows, in order; repeats are allowed."""
        place = torch.tensor([self.row_of[rollout] for rollout in rollouts], dtype=torch.int64)
        return {name: column[place] for name, column in self._columns.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All held rows in order of their numbers, and the numbers; for a checkpoint."""
        if not self.row_of:
            return {}
        rollouts = sorted(self.row_of)
        return self.take(rollouts) | {"rollouts": torch.tensor(rollouts)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self.__init__()  # type: ignore[misc]
        if tensors:
            self.admit(tensors["rollouts"].tolist(), tensors)

    def _grow(self, least: int, columns: dict[str, Tensor]) -> None:
        held = len(self.row_of) + len(self._free)
        more = max(least, held)
        for name in (*TENSORS, *EXTRA):
            new = torch.empty((more, *columns[name].shape[1:]), dtype=columns[name].dtype)
            old = self._columns.get(name)
            self._columns[name] = new if old is None else torch.cat([old, new])
        self._free += range(held + more - 1, held - 1, -1)
