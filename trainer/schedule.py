"""When rollouts enter the store: locked to the updates (strict) or on the virtual clock (free)."""

from __future__ import annotations

import math
from typing import Any, Protocol

from trainer.clock import EventClock
from trainer.config import RunConfig
from trainer.supply import Supply


class Schedule(Protocol):
    """Drives a supply through one update after another."""

    def fill(self, step: int) -> None:
        """Let rollouts in until update `step` can draw its batch."""

    def trained(self) -> None:
        """The update's work is done."""

    def synced(self) -> None:
        """The behaviour policy got new weights."""

    def measurements(self) -> dict[str, float]:
        """Metrics of the clock, by name; empty when there is none."""

    def ahead(self, group: int) -> int:
        """Groups, from `group` on, that will be begun before the next sync, as far as can be told."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StrictSchedule:
    """Before update t, R = B/y rollouts of the weights of update S·⌊t/S⌋ enter the store.

    Before update 0 as many enter as a batch and a delay need. R need not be a whole number of groups: after
    update t, ⌊t·R/G⌋ groups have entered since.
    """

    def __init__(self, config: RunConfig, supply: Supply) -> None:
        self.config, self.supply = config, supply
        self.per_update = config.batch_size / ((config.replay_ratio or 1.0) * config.group_size)
        need = (config.store.delay + 1) * config.batch_size
        if config.buffer_size:
            need = min(config.batch_size, config.sure_size)
        self.first = max(math.ceil(need / config.group_size), math.ceil(self.per_update))
        self.admitted = 0
        """Groups that entered the store."""
        self.begun = 0
        """Groups generated, filtered ones included: the number of the next one."""
        self.step = 0

    def fill(self, step: int) -> None:
        self.step = step
        self._admit(self._due(step) - self.admitted)
        while not self.supply.ready():  # a limit on lag took more than was due
            self._admit(1)

    def _admit(self, count: int) -> None:
        while count > 0:  # filtered groups are replaced by the next ones
            groups = range(self.begun, self.begun + count)
            for group in groups:
                self.supply.begin(group)
            self.begun = groups.stop
            kept = self.supply.deliver(*groups)
            self.admitted += kept
            count -= kept

    def trained(self) -> None:
        pass

    def synced(self) -> None:
        pass

    def measurements(self) -> dict[str, float]:
        return {}

    def ahead(self, group: int) -> int:
        interval = self.config.sync_interval
        missing = self._due(self.step // interval * interval + interval - 1) - self.admitted
        return missing - (group - self.begun)

    def _due(self, step: int) -> int:
        # 1e-9: 3 · (64 / (3 · 8)) is 7.999999999999999
        return self.first + math.floor(step * self.per_update + 1e-9)

    def state_dict(self) -> dict[str, Any]:
        return {"admitted": self.admitted, "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.admitted, self.begun = state["admitted"], state["begun"]


class FreeSchedule:
    """Workers and trainers run on the virtual clock of `trainer.clock`."""

    def __init__(self, config: RunConfig, supply: Supply) -> None:
        self.config = config
        self.clock = EventClock(config, supply)
        self.step = 0

    def fill(self, step: int) -> None:
        self.step = step
        if not self.clock.started:
            self.clock.start()
        self.clock.wait_for_batch()

    def trained(self) -> None:
        self.clock.train()

    def synced(self) -> None:
        self.clock.sync()

    def measurements(self) -> dict[str, float]:
        workers, trainers = self.clock.idle_shares()
        return {
            "virtual_time": self.clock.now,
            "worker_idle_share": workers,
            "trainer_idle_share": trainers,
        }

    def ahead(self, group: int) -> int:
        """At most what W busy workers begin in the updates left; in-flight rest is not counted on."""
        config = self.config
        assert config.generation_cost_ratio is not None
        left = config.sync_interval - self.step % config.sync_interval
        fastest = config.inference_workers * config.batch_size
        per_update = fastest / (config.generation_cost_ratio * config.trainers * config.group_size)
        return max(1, math.floor(left * per_update))

    def state_dict(self) -> dict[str, Any]:
        return self.clock.state_dict() | {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.clock.load_state_dict({key: value for key, value in state.items() if key != "step"})


def make_schedule(config: RunConfig, supply: Supply) -> Schedule:
    """The schedule that a configuration names."""
    return FreeSchedule(config, supply) if config.schedule == "free" else StrictSchedule(config, supply)
