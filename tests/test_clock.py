"""The virtual clock: declared replay ratio and cost, blocking, idle shares, in-flight updates."""

import json
import math

import numpy as np
import pytest

from tests.helpers import ROOT
from trainer.clock import EventClock
from trainer.config import RunConfig
from trainer.schema import parse
from trainer.stores import Entry, make_store

TABLES = json.loads((ROOT / "tests" / "oracles" / "er_tables.json").read_text())
CELLS = [(t["mu"], c["W"], c["T"]) for t in (TABLES["table1"], TABLES["table3"]) for c in t["cells"]]


class Loop:
    """Engine without a model: every rollout has `tokens` tokens, or what `lengths` says for its group."""

    def __init__(self, config: RunConfig, tokens: int = 9) -> None:
        self.config, self.tokens = config, tokens
        self.store = make_store(config)
        self.step = self.version = self.generated = self.used = 0
        self.begun: dict[int, int] = {}
        self.delivered: list[tuple[int, int, float]] = []
        self.renewed: list[tuple[int, int]] = []
        self.clock = EventClock(config, self)

    def begin(self, group):
        self.begun[group] = self.version
        return [self.config.group_size] * self.tokens

    def renew(self, group, kept):
        self.renewed.append((group, kept))
        return [self.config.group_size] * (self.tokens - kept)

    def deliver(self, *groups):
        for group in groups:
            numbers = range(self.generated, self.generated + self.config.group_size)
            self.generated += len(numbers)
            self.delivered.append((group, self.step, self.clock.now))
            entries = [Entry(n, self.step, self.begun[group], 1.0, True) for n in numbers]
            self.store.admit(entries, self.step)

    def room(self):
        return self.store.room()

    def ready(self):
        return self.store.ready()

    def update(self):
        if not self.clock.started:
            self.clock.start()
        if self.step and self.step % self.config.sync_interval == 0:
            self.version = self.step
            self.clock.sync()
        self.store.expire(self.step)
        self.clock.wait_for_batch()
        self.used += len(self.store.draw(self.step).rollouts)
        self.clock.train()
        self.step += 1

    def run(self, updates):
        for _ in range(updates):
            self.update()
        return self


def config(**fields):
    return parse(RunConfig, {"schedule": "free", "generation_cost_ratio": 5.0} | fields)


@pytest.mark.parametrize(("mu", "workers", "trainers"), CELLS)
def test_buffer_runs_have_the_declared_replay_ratio_and_cost(mu, workers, trainers):
    """math.md A1: y = μT/W, and cost per update (1 + W/T)/(1 + μ) of the balanced baseline's."""
    batch = 63 if trainers == 7 else 60
    loop = Loop(
        config(
            batch_size=batch,
            group_size=6,
            generation_cost_ratio=mu,
            inference_workers=workers,
            trainers=trainers,
            buffer_size=batch * 3,
        )
    )
    loop.run(50)  # warm-up
    used, generated, now = loop.used, loop.generated, loop.clock.now
    loop.run(400)
    assert (loop.used - used) / (loop.generated - generated) == pytest.approx(
        mu * trainers / workers, rel=0.02
    )
    per_update = (workers + trainers) * (loop.clock.now - now) / 400
    assert per_update / (1 + mu) == pytest.approx((1 + workers / trainers) / (1 + mu), rel=1e-6)
    gamma = next(
        c["gamma"]
        for t in (TABLES["table1"], TABLES["table3"])
        for c in t["cells"]
        if (t["mu"], c["W"], c["T"]) == (mu, workers, trainers)
    )
    assert per_update / (1 + mu) == pytest.approx(gamma, abs=6e-5)


def test_a_balanced_queue_keeps_everyone_busy_and_an_unbalanced_one_does_not():
    """Constant times, W/T = μ: idle shares vanish. With W/T ≠ μ the faster side idles by the known share."""
    balanced = Loop(config(generation_cost_ratio=4.0, inference_workers=4, trainers=1)).run(500)
    workers, trainers = balanced.clock.idle_shares()
    assert abs(workers) < 0.01 and trainers < 0.02
    slow = Loop(config(generation_cost_ratio=8.0, inference_workers=4, trainers=1)).run(500)
    assert slow.clock.idle_shares()[1] == pytest.approx(0.5, abs=0.01)
    assert slow.clock.idle_shares()[0] < 0.01
    fast = Loop(config(generation_cost_ratio=2.0, inference_workers=4, trainers=1)).run(500)
    assert fast.clock.idle_shares()[0] == pytest.approx(0.5, abs=0.01)
    assert fast.clock.idle_shares()[1] < 0.01
    assert fast.generated - fast.used <= fast.store.capacity


def test_with_variable_latency_a_queue_stalls_and_a_buffer_does_not():
    """ER 5.3: W/T = μ and y = 1 in expectation; the buffer lets trainers and workers go on."""
    fields = {
        "generation_cost_ratio": 4.0,
        "inference_workers": 4,
        "clock": {"verifier_share": 0.8, "verifier_variation": 5.0},
    }
    queue = Loop(config(**fields, store={"capacity": 72})).run(800)
    buffer = Loop(config(**fields, buffer_size=512)).run(800)
    assert buffer.clock.now < queue.clock.now * 0.95
    assert buffer.clock.idle_shares()[1] < 0.02 < queue.clock.idle_shares()[1]
    assert buffer.used / buffer.generated == pytest.approx(1.0, abs=0.15)


def test_verification_has_its_declared_mean_and_variation():
    clock = Loop(config(clock={"verifier_share": 0.5, "verifier_variation": 1.5})).clock
    drawn = np.array([clock._verification(group) for group in range(20000)])
    mean = 5.0 / 64 * 8 * 0.5
    assert drawn.mean() == pytest.approx(mean, rel=5 * 1.5 / math.sqrt(20000))
    assert drawn.std() / drawn.mean() == pytest.approx(1.5, rel=0.15)


def test_time_is_proportional_to_tokens():
    long = Loop(config(inference_workers=1, generation_cost_ratio=8.0), tokens=9).run(50)
    short = Loop(config(inference_workers=1, generation_cost_ratio=8.0), tokens=3).run(50)
    assert long.clock.now / short.clock.now == pytest.approx(3.0, rel=0.05)
    half = Loop(config(inference_workers=1, generation_cost_ratio=8.0, clock={"reference_tokens": 18})).run(
        50
    )
    assert long.clock.now / half.clock.now == pytest.approx(2.0, rel=0.05)


def test_a_sync_costs_workers_and_trainers_the_same():
    free = Loop(config(generation_cost_ratio=4.0, inference_workers=4, buffer_size=256)).run(100)
    paid = Loop(
        config(generation_cost_ratio=4.0, inference_workers=4, buffer_size=256, clock={"sync_cost": 0.5})
    ).run(100)
    assert paid.clock.now - free.clock.now == pytest.approx(0.5 * 99, rel=0.02)
    assert paid.clock.idle_shares()[0] == pytest.approx(1 - free.clock.now / paid.clock.now, abs=0.02)


def test_in_flight_updates_renew_what_is_not_generated_yet():
    fields = {"generation_cost_ratio": 40.0, "inference_workers": 8, "buffer_size": 64}
    loop = Loop(config(**fields, clock={"in_flight_updates": True})).run(30)
    assert loop.renewed and all(0 <= kept < loop.tokens for _, kept in loop.renewed)
    assert {kept for _, kept in loop.renewed} >= {0, 4}
    plain = Loop(config(**fields)).run(30)
    assert not plain.renewed and plain.clock.now == pytest.approx(loop.clock.now, rel=0.05)


def test_state_survives_json_in_the_middle():
    fields = {
        "inference_workers": 3,
        "trainers": 2,
        "sync_interval": 2,
        "clock": {
            "verifier_share": 0.3,
            "verifier_variation": 1.0,
            "sync_cost": 0.1,
            "in_flight_updates": True,
        },
    }
    loop = Loop(config(**fields)).run(20)
    copy = Loop(config(**fields))
    copy.clock.load_state_dict(json.loads(json.dumps(loop.clock.state_dict())))
    copy.store.load_state_dict(json.loads(json.dumps(loop.store.state_dict())))
    copy.begun, copy.step, copy.version = dict(loop.begun), loop.step, loop.version
    copy.generated, copy.used = loop.generated, loop.used
    loop.run(20), copy.run(20)
    assert loop.clock.state_dict() == copy.clock.state_dict()
    assert loop.store.state_dict() == copy.store.state_dict()


def test_workers_wait_their_turn_when_the_queue_is_full():
    loop = Loop(config(generation_cost_ratio=1.0, inference_workers=8, trainers=1))
    for _ in range(50):
        loop.update()
        assert len(loop.store) <= loop.store.capacity
    order = [group for group, _, _ in loop.delivered]
    assert sorted(order) == list(range(len(order))) and loop.clock.next_group - len(order) <= 8
