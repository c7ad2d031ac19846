"""Rollout stores: what lies between generation and training (math.md A5). Torch-free.

    Queue    FIFO or LIFO of bounded capacity, each rollout used once; optionally a number of batches late
    Buffer   the N newest rollouts, optionally some places kept for correct ones; drawing removes nothing

A buffer is divided into T shards: rollout i belongs to shard i mod T, and trainer k draws B/T from shard k. A
queue is one for all trainers. A store knows rollouts by number and by what `Entry` says; their tensors lie in
`trainer.arena`. Use counts live in the store, and every draw is a function of (seed, step) and what is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.config import RunConfig, positive_places
from trainer.seeding import numpy_generator
from trainer.selection import ROW, Floats, Places, Rows, select


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store knows of a rollout."""

    rollout: int
    """Arrival number, from 0, increasing."""
    created: int
    """Learner update before which it entered the store."""
    version: int
    """Policy version at its first token."""
    reward: float
    correct: bool
    """Reward 1, as scored when it was generated."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One batch, trainer by trainer."""

    rollouts: Places
    """int64 [B]."""
    previous_use: Places
    """int64 [B]: update of the rollout's previous use, this one's for a repeat within the batch; -1: new."""
    left: tuple[int, ...]
    """Rollouts that are no longer held because of this draw."""


class RolloutStore(Protocol):
    """Admits, selects and evicts; all shards together."""

    def admit(self, entries: Sequence[Entry], step: int) -> tuple[int, ...]:
        """Take rollouts in; returns those that left for it. Raises `RuntimeError` beyond `room`."""

    def room(self) -> int | None:
        """Rollouts that can be admitted now; None: any number."""

    def expire(self, step: int) -> tuple[int, ...]:
        """Drop and return the rollouts whose lag at `step` exceeds `store.max_lag`."""

    def ready(self) -> bool:
        """Whether every trainer can draw its share of a batch."""

    def draw(self, step: int) -> Draw:
        """The batch of update `step`. Raises `RuntimeError` when not ready."""

    def record_gradient_norms(self, rollouts: Places, norms: Floats) -> None:
        """Note what rollouts contributed to the last gradient; of a repeat the last counts."""

    def __len__(self) -> int:
        """Rollouts held."""

    def rows(self) -> Rows:
        """All that is held, shard by shard, each in order of arrival."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types; holds no random state, as there is none."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""


class Queue:
    """Each rollout is used once; when the queue is full, workers wait."""

    def __init__(self, config: RunConfig) -> None:
        store = config.store
        self.batch, self.newest_first, self.max_lag = config.batch_size, store.order == "lifo", store.max_lag
        self.behind = store.delay * config.batch_size
        """Rollouts that stay in the queue when a batch is taken."""
        self.capacity = store.capacity or (store.delay + 2) * config.batch_size
        self._rows = np.zeros(0, dtype=ROW)

    def admit(self, entries: Sequence[Entry], step: int) -> tuple[int, ...]:
        if len(entries) > self.room():
            raise RuntimeError(f"{len(entries)} rollouts for a queue with room for {self.room()}")
        self._rows = np.concatenate([self._rows, _new_rows(entries)])
        return ()

    def room(self) -> int:
        return self.capacity - len(self._rows)

    def expire(self, step: int) -> tuple[int, ...]:
        self._rows, dropped = _expire(self._rows, step, self.max_lag)
        return dropped

    def ready(self) -> bool:
        return len(self._rows) >= self.batch + self.behind

    def draw(self, step: int) -> Draw:
        if not self.ready():
            raise RuntimeError(f"the queue holds {len(self._rows)} rollouts, a batch needs more")
        if self.newest_first:
            end = len(self._rows) - self.behind
            places = np.arange(end - 1, end - 1 - self.batch, -1)
        else:
            places = np.arange(self.batch)
        rollouts = self._rows["rollout"][places]
        self._rows = np.delete(self._rows, places)
        return Draw(rollouts, np.full(self.batch, -1), tuple(rollouts.tolist()))

    def record_gradient_norms(self, rollouts: Places, norms: Floats) -> None:
        pass  # a used rollout is not held any more

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> Rows:
        return self._rows.copy()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = _as_rows(state["rows"])


class Buffer:
    """Replay: drawing removes nothing, new rollouts push old ones out."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        size = config.buffer_size // config.trainers
        self.kept = positive_places(size, config.store.positive_share)
        """Places of a shard for correct rollouts past the newest."""
        self.newest = size - self.kept
        self.share = config.batch_size // config.trainers
        self.need = min(self.share, config.sure_size // config.trainers)
        self._shards = [np.zeros(0, dtype=ROW) for _ in range(config.trainers)]

    def admit(self, entries: Sequence[Entry], step: int) -> tuple[int, ...]:
        new = _new_rows(entries)
        left: list[int] = []
        for index, shard in enumerate(self._shards):
            arrived = new[new["rollout"] % len(self._shards) == index]
            both = np.concatenate([shard, arrived])
            stays = self._stays(both)
            left += both["rollout"][~stays].tolist()
            self._shards[index] = both[stays]
        return tuple(sorted(left))

    def _stays(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Places of the newest, of the newest correct among the rest and, if so set, of the newest others."""
        stays = np.zeros(len(rows), dtype=np.bool_)
        older = max(0, len(rows) - self.newest)
        stays[older:] = True
        if self.kept and older:
            correct = np.flatnonzero(rows["correct"][:older])[-self.kept :]
            stays[correct] = True
            free = self.kept - len(correct)
            if self.config.store.backfill and free:
                stays[np.flatnonzero(~rows["correct"][:older])[-free:]] = True
        return stays

    def room(self) -> None:
        return None

    def expire(self, step: int) -> tuple[int, ...]:
        left: list[int] = []
        for index, shard in enumerate(self._shards):
            self._shards[index], dropped = _expire(shard, step, self.config.store.max_lag)
            left += dropped
        return tuple(sorted(left))

    def ready(self) -> bool:
        return all(len(shard) >= self.need for shard in self._shards)

    def draw(self, step: int) -> Draw:
        if not self.ready():
            held = [len(shard) for shard in self._shards]
            raise RuntimeError(f"shards hold {held} rollouts, each trainer needs {self.need}")
        rollouts, previous = [], []
        for index, shard in enumerate(self._shards):
            stream = numpy_generator(self.config.seed, f"selection {index}", step)
            places = select(shard, self.share, step, self.config.store, stream)
            drawn = shard[places]
            repeat = np.ones(len(places), dtype=np.bool_)
            repeat[np.unique(places, return_index=True)[1]] = False
            previous.append(np.where(repeat, step, drawn["last_use"]))
            rollouts.append(drawn["rollout"])
            np.add.at(shard["uses"], places, 1)
            shard["last_use"][places] = step
        return Draw(np.concatenate(rollouts), np.concatenate(previous), ())

    def record_gradient_norms(self, rollouts: Places, norms: Floats) -> None:
        known = dict(zip(rollouts.tolist(), norms.tolist(), strict=True))
        for shard in self._shards:
            for place in np.flatnonzero(np.isin(shard["rollout"], rollouts)):
                shard["gradient_norm"][place] = known[int(shard["rollout"][place])]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def rows(self) -> Rows:
        return np.concatenate(self._shards)

    def state_dict(self) -> dict[str, Any]:
        return {"shards": [shard.tolist() for shard in self._shards]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shards = [_as_rows(rows) for rows in state["shards"]]


def make_store(config: RunConfig) -> RolloutStore:
    """The store that a configuration names: a queue when buffer_size is 0."""
    return Buffer(config) if config.buffer_size else Queue(config)


def _new_rows(entries: Sequence[Entry]) -> Rows:
    return np.array(
        [(e.rollout, e.created, e.version, e.reward, e.correct, 0, -1, -1.0) for e in entries], dtype=ROW
    )


def _as_rows(rows: Sequence[Sequence[Any]]) -> Rows:
    return np.array([tuple(row) for row in rows], dtype=ROW)


def _expire(rows: Rows, step: int, max_lag: int | None) -> tuple[Rows, tuple[int, ...]]:
    if max_lag is None:
        return rows, ()
    old = step - rows["version"] > max_lag
    if not old.any():
        return rows, ()
    return rows[~old], tuple(rows["rollout"][old].tolist())
