"""The virtual clock of schedule=free: workers and trainers as a discrete-event simulation. Torch-free.

    worker   generates a prompt's group, waits for its verifier, delivers; blocked while the store has no room
    trainer  waits until the store can serve a batch, then works 1/T on it; every S updates a sync

Time is in units of one learner update's work on one trainer, so that a rollout of the reference length costs
a worker μ/B and an update takes T trainers 1/T. On an ideal cluster of W workers and T trainers a replay
buffer then gives y = μT/W uses per rollout (math.md A1). What is generated is real and comes from whoever
implements `Generation`; only its duration is simulated. At equal times workers go before trainers and lower
worker numbers before higher ones, so a run is a function of its configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from trainer.config import RunConfig
from trainer.seeding import numpy_generator


class Generation(Protocol):
    """What the clock asks of the engine. Groups are named by their prompt's place in issue order."""

    def begin(self, group: int) -> Sequence[int]:
        """Generate a group from the weights of now; returns the tokens generated at each position."""

    def renew(self, group: int, kept: int) -> Sequence[int]:
        """Generate a group again after its first `kept` positions, from the weights of now."""

    def deliver(self, *groups: int) -> int:
        """Put groups into the store; returns how many were not filtered."""

    def room(self) -> int | None:
        """Rollouts that the store takes now; None: any number."""

    def ready(self) -> bool:
        """Whether the store can serve a batch."""


@dataclass(slots=True)
class Worker:
    """One inference worker: what it works on, and until when."""

    group: int
    started: float
    """Begin of generation, moved on by every pause."""
    generated: float
    """End of generation."""
    ends: float
    """End of verification."""
    tokens: list[int] = field(default_factory=list)
    """Tokens generated at each position."""
    blocked: bool = False
    """Done, and waiting for room since `ends`."""


class EventClock:
    """Time, workers and trainers of one run."""

    def __init__(self, config: RunConfig, generation: Generation) -> None:
        """Nothing starts before `start` or `load_state_dict`."""
        assert config.generation_cost_ratio is not None
        self.config, self.generation = config, generation
        settings = config.clock
        reference = settings.reference_tokens or config.task.max_response_tokens
        share = settings.verifier_share
        group_cost = config.generation_cost_ratio / config.batch_size * config.group_size
        self.token_cost = group_cost / config.group_size / reference * (1 - share)
        self.verification = group_cost * share
        self.now = 0.0
        self.next_group = 0
        self.workers: list[Worker] = []
        self.worker_busy = 0.0
        self.trainer_busy = 0.0

    @property
    def started(self) -> bool:
        return bool(self.workers)

    def start(self) -> None:
        """All workers begin, at time 0."""
        for _ in range(self.config.inference_workers):
            self.workers.append(Worker(-1, 0.0, 0.0, 0.0))
            self._begin(self.workers[-1])

    def wait_for_batch(self) -> None:
        """Let workers go on until the store can serve a batch; trainers idle meanwhile.

        Raises `RuntimeError`, with the state of every worker, when nothing can happen any more.
        """
        self._unblock()
        while not self.generation.ready():
            worker = self._next()
            if worker is None:
                raise RuntimeError(f"no worker can go on and no batch is ready at {self.now}: {self.workers}")
            self.now = max(self.now, worker.ends)
            self._finish(worker)

    def train(self) -> None:
        """One learner update's time: T trainers work 1/T, workers go on."""
        self._unblock()  # the batch that was drawn may have left room
        duration = 1.0 / self.config.trainers
        end = self.now + duration
        while (worker := self._next()) is not None and worker.ends <= end:
            self.now = worker.ends
            self._finish(worker)
        self.now = end
        self.trainer_busy += 1.0

    def sync(self) -> None:
        """New weights have reached the workers; everyone stops for the cost of a sync."""
        pause = self.config.clock.sync_cost
        for worker in self.workers:
            if worker.blocked:
                continue
            if self.config.clock.in_flight_updates and self.now < worker.generated:
                self._renew(worker)
            worker.started += pause
            worker.generated += pause
            worker.ends += pause
        self.now += pause

    def idle_shares(self) -> tuple[float, float]:
        """Shares of all workers' and of all trainers' time so far that they waited or synced."""
        if self.now == 0:
            return 0.0, 0.0
        ahead = sum(max(0.0, worker.ends - max(worker.started, self.now)) for worker in self.workers)
        workers = (self.worker_busy - ahead) / (self.now * len(self.workers))
        return max(0.0, 1 - workers), 1 - self.trainer_busy / (self.now * self.config.trainers)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types; floats survive JSON exactly."""
        names = ("now", "next_group", "worker_busy", "trainer_busy")
        return {name: getattr(self, name) for name in names} | {"workers": [asdict(w) for w in self.workers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        for name, value in state.items():
            setattr(self, name, value if name != "workers" else [Worker(**worker) for worker in value])

    def _next(self) -> Worker | None:
        """The working worker that is done first."""
        working = [worker for worker in self.workers if not worker.blocked]
        return min(working, key=lambda worker: worker.ends, default=None)

    def _finish(self, worker: Worker) -> None:
        worker.blocked = True
        self._unblock()

    def _unblock(self) -> None:
        """Deliver in the order of waiting, as far as there is room."""
        waiting = [worker for worker in self.workers if worker.blocked]
        for worker in sorted(waiting, key=lambda worker: worker.ends):
            room = self.generation.room()
            if room is not None and room < self.config.group_size:
                return
            self.generation.deliver(worker.group)
            self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        worker.group = self.next_group
        self.next_group += 1
        worker.blocked = False
        worker.tokens = list(self.generation.begin(worker.group))
        worker.started = self.now
        worker.generated = self.now + self.token_cost * sum(worker.tokens)
        worker.ends = worker.generated + self._verification(worker.group)
        self.worker_busy += worker.ends - worker.started

    def _renew(self, worker: Worker) -> None:
        """Positions generated so far stay, a position in progress is lost."""
        done = (self.now - worker.started) / self.token_cost
        kept, tokens = 0, 0
        while kept < len(worker.tokens) and tokens + worker.tokens[kept] <= done * (1 + 1e-12):
            tokens += worker.tokens[kept]
            kept += 1
        verification = worker.ends - worker.generated
        before = worker.ends
        worker.tokens = worker.tokens[:kept] + list(self.generation.renew(worker.group, kept))
        worker.started = self.now - self.token_cost * tokens
        worker.generated = worker.started + self.token_cost * sum(worker.tokens)
        worker.ends = worker.generated + verification
        self.worker_busy += worker.ends - before

    def _verification(self, group: int) -> float:
        """Log-normal with the mean and coefficient of variation that the configuration gives."""
        variation = self.config.clock.verifier_variation
        if not self.verification or not variation:
            return self.verification
        spread = math.sqrt(math.log1p(variation**2))
        normal = numpy_generator(self.config.seed, "verifier", group).standard_normal()
        return self.verification * math.exp(spread * float(normal) - spread**2 / 2)
