"""One contract for every rollout store, the paper's worked examples, and closed forms of use and age."""

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import ROOT
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.schema import parse
from trainer.stores import Entry, make_store

ORACLES = json.loads((ROOT / "tests" / "oracles" / "worked_examples.json").read_text())
BUFFER = {"buffer_size": 48}
SELECTIONS = ["uniform", "recency", "reward", "least_used", "gradient_norm"]
STORES = {
    "fifo": {},
    "lifo": {"store": {"order": "lifo", "capacity": 40}},
    "delay": {"store": {"delay": 2}},
    "late lifo": {"store": {"delay": 1, "order": "lifo", "max_lag": 5}},
    "buffer": BUFFER,
    "shards": BUFFER | {"trainers": 4},
    "small": {"buffer_size": 8, "trainers": 2},
    "positive": BUFFER | {"trainers": 2, "store": {"positive_share": 0.4}},
    "backfill": BUFFER | {"store": {"positive_share": 0.9, "backfill": True, "max_lag": 6}},
    **{f"{name} again": BUFFER | {"store": {"selection": name}} for name in SELECTIONS},
    **{
        f"{name} once": BUFFER
        | {"trainers": 2, "store": {"selection": name, "within_batch_replacement": False}}
        for name in SELECTIONS
    },
}


def config(**fields):
    return parse(RunConfig, {"batch_size": 16, "group_size": 4} | fields)


def entries(first, count, step, rewards=None):
    given = rewards if rewards is not None else [float((first + k) % 3 == 0) for k in range(count)]
    return [Entry(first + k, step, max(0, step - 1), given[k], given[k] == 1.0) for k in range(count)]


def content(store):
    return json.dumps(store.state_dict(), sort_keys=True)


def digest(items):
    return hashlib.sha256(repr(items).encode()).hexdigest()


@pytest.mark.parametrize("name", STORES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_contract(name, data):
    """Capacity, sharding, repeats, use counts, progress, immutability and restoring, in any sequence."""
    run = config(**STORES[name])
    store, twin = make_store(run), make_store(run)
    held: dict[int, Entry] = {}
    uses: dict[int, int] = {}
    last: dict[int, int] = {}
    arrived = 0
    capacity = run.buffer_size or run.store.capacity or (run.store.delay + 2) * run.batch_size
    for step in range(data.draw(st.integers(2, 12))):
        for rollout in store.expire(step):
            assert step - held.pop(rollout).version > run.store.max_lag
        for _ in range(data.draw(st.integers(0, 6))):
            if store.room() is not None and store.room() < run.group_size:
                break
            rewards = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4))
            new = entries(arrived, run.group_size, step, rewards)
            before = digest(new)
            arrived += run.group_size
            held |= {entry.rollout: entry for entry in new}
            for rollout in store.admit(new, step):
                held.pop(rollout)
            assert digest(new) == before
            assert len(store) == len(held) <= capacity
        assert sorted(store.rows()["rollout"]) == sorted(held)
        room = store.room()
        assert store.ready() or room is None or room >= run.group_size  # somebody can go on
        if not store.ready():
            with pytest.raises(RuntimeError):
                store.draw(step)
            continue
        twin.load_state_dict(json.loads(content(store)))
        drawn, again = store.draw(step), twin.draw(step)
        assert drawn.rollouts.tolist() == again.rollouts.tolist()
        assert drawn.previous_use.tolist() == again.previous_use.tolist() and drawn.left == again.left
        assert content(store) == content(twin)
        assert len(drawn.rollouts) == run.batch_size and set(drawn.rollouts.tolist()) <= set(held)
        seen: set[int] = set()
        for place, (rollout, previous) in enumerate(
            zip(drawn.rollouts.tolist(), drawn.previous_use.tolist(), strict=True)
        ):
            if run.buffer_size:
                assert rollout % run.trainers == place // (run.batch_size // run.trainers)
            assert previous == (step if rollout in seen else last.get(rollout, -1))
            seen.add(rollout)
        if not run.store.within_batch_replacement or run.store.selection == "least_used":
            assert len(seen) == run.batch_size
        for rollout in drawn.rollouts.tolist():
            uses[rollout] = uses.get(rollout, 0) + 1
            last[rollout] = step
        if run.buffer_size:
            assert drawn.left == ()
        else:
            assert sorted(drawn.left) == sorted(seen)
            for rollout in drawn.left:
                held.pop(rollout)
        for row in store.rows():
            assert row["uses"] == uses.get(int(row["rollout"]), 0)
            entry = held[int(row["rollout"])]
            assert (row["created"], row["version"], row["reward"]) == (
                entry.created,
                entry.version,
                entry.reward,
            )
        store.record_gradient_norms(drawn.rollouts, np.arange(16.0))


@pytest.mark.parametrize("name", STORES)
def test_a_thousand_rounds_never_exceed_the_capacity(name):
    run = config(**STORES[name])
    store = make_store(run)
    arrived = 0
    for step in range(1000):
        store.expire(step)
        while not store.ready():
            store.admit(entries(arrived, 4, step), step)
            arrived += 4
        store.draw(step)
        if store.room() is None:
            store.admit(entries(arrived, 4, step), step)
            arrived += 4
        assert len(store) <= (run.buffer_size or 64)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_scores_draw_uniformly(selection, reward):
    run = config(buffer_size=16, store={"selection": selection})
    store = make_store(run)
    store.admit(entries(0, 16, 0, [reward] * 16), 0)
    store.record_gradient_norms(np.arange(16), np.zeros(16))
    counts = np.zeros(16)
    for step in range(500):
        counts += np.bincount(store.draw(step).rollouts, minlength=16)
    assert np.abs(counts - 500).max() < 6 * math.sqrt(500)


def test_positive_bias_example():
    """math.md A5: the printed buffer is what δ = 0.5 gives; δ = 0.75 gives another."""
    correct = ORACLES["positive_bias"]["correct_oldest_first"]
    for share, key in ((0.5, "delta_05"), (0.75, "delta_075")):
        store = make_store(config(batch_size=4, buffer_size=8, store={"positive_share": share}))
        for number, reward in enumerate(correct):
            store.admit(entries(number, 1, number, [float(reward)]), number)
        kept = [ORACLES["positive_bias"]["labels"][k] for k in sorted(store.rows()["rollout"])]
        assert kept == [ORACLES["positive_bias"]["labels"][k] for k in ORACLES["positive_bias"][key]]


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=60), share=st.floats(0, 0.85))
def test_positive_bias_by_definition(rewards, share):
    store = make_store(config(batch_size=4, buffer_size=12, store={"positive_share": share}))
    for number, reward in enumerate(rewards):
        store.admit(entries(number, 1, number, [reward]), number)
    kept = math.floor(share * 12 + 0.5)
    newest = list(range(len(rewards)))[-(12 - kept) :]
    rest = [k for k in range(len(rewards)) if k not in newest and rewards[k] == 1.0]
    assert sorted(store.rows()["rollout"]) == rest[len(rest) - min(kept, len(rest)) :] + newest


def test_steps_since_last_use_example():
    """ER appendix: a rollout in batch 3 and three times in batch 5 has new, 2, 0, 0 (math.md A6)."""
    store = make_store(config(batch_size=1, group_size=2, buffer_size=1))
    store.admit(entries(7, 1, 0), 0)
    assert store.draw(3).previous_use.tolist() == [-1]
    triple = make_store(config(batch_size=3, group_size=2, buffer_size=1))
    triple.load_state_dict(store.state_dict())
    assert (5 - triple.draw(5).previous_use).tolist() == [2, 0, 0]


def test_closed_forms_of_a_fifo_buffer():
    """Steady state: mean age (N/R − 1)/2, mean uses B/R, never used (1 − 1/N)^{BN/R} ≈ e^{−y}."""
    size, fresh, batch = 96, 8, 16
    store = make_store(config(buffer_size=size))
    uses: dict[int, int] = {}
    ages: list[int] = []
    arrived = 0
    for step in range(4000):
        count = size if step == 0 else fresh
        store.admit(entries(arrived, count, step), step)
        arrived += count
        drawn = store.draw(step).rollouts
        created = dict(zip(store.rows()["rollout"].tolist(), store.rows()["created"].tolist(), strict=True))
        for rollout in drawn.tolist():
            uses[rollout] = uses.get(rollout, 0) + 1
            if step >= size // fresh:
                ages.append(step - created[rollout])
    gone = [uses.get(rollout, 0) for rollout in range(size, arrived - size)]
    y = batch / fresh
    error = 6 / math.sqrt(len(ages))
    assert np.mean(ages) == pytest.approx((size / fresh - 1) / 2, abs=error * np.std(ages))
    assert np.mean(gone) == pytest.approx(y, abs=6 * np.std(gone) / math.sqrt(len(gone)))
    never = (1 - 1 / size) ** (batch * size / fresh)
    spread = 6 * math.sqrt(never / len(gone))
    assert np.mean(np.array(gone) == 0) == pytest.approx(never, abs=spread)
    assert never == pytest.approx(math.exp(-y), rel=0.02)


def test_recency_halves_with_age_and_order_is_lifo_or_fifo():
    store = make_store(config(buffer_size=32, store={"selection": "recency", "recency_half_life": 2.0}))
    for step in range(8):
        store.admit(entries(4 * step, 4, step), step)
    counts = np.zeros(8)
    for step in range(7, 3007):
        recency = {"selection": "recency", "recency_half_life": 2.0}
        fresh = make_store(config(buffer_size=32, seed=step, store=recency))
        fresh.load_state_dict(store.state_dict())
        counts += np.bincount(fresh.draw(7).rollouts // 4, minlength=8)
    expected = 2.0 ** (-(7 - np.arange(8)) / 2)
    expected *= counts.sum() / expected.sum()
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()
    for order, first in (("fifo", [0, 1]), ("lifo", [31, 30])):
        queue = make_store(config(store={"order": order}))
        queue.admit(entries(0, 32, 0), 0)
        assert queue.draw(0).rollouts[:2].tolist() == first


def test_recency_draws_without_replacement_by_age_however_small_the_weights():
    """With a half-life of 0.01 updates weights of age 12 and more are below the least float64."""
    recency = {"selection": "recency", "recency_half_life": 0.01, "within_batch_replacement": False}
    store = make_store(config(buffer_size=64, store=recency))
    for step in range(64):
        store.admit(entries(step, 1, step), step)
    for step in range(63, 93):
        assert sorted(store.draw(step).rollouts.tolist()) == list(range(48, 64))


@pytest.mark.parametrize("replacement", [True, False])
def test_a_gradient_norm_that_is_not_finite_counts_as_not_measured(replacement):
    chosen = {"selection": "gradient_norm", "within_batch_replacement": replacement, "selection_floor": 1e-9}
    store = make_store(config(buffer_size=32, store=chosen))
    store.admit(entries(0, 32, 0), 0)
    norms = np.array([math.nan, math.inf, 2.0, 1.0] * 4 + [0.0] * 16)
    store.record_gradient_norms(np.arange(32), norms)
    drawn = np.concatenate([store.draw(step).rollouts for step in range(50)])
    assert set(drawn.tolist()) == set(range(16))
    if replacement:  # weights 1, 1, 1 and 1/2
        counts = np.bincount(drawn % 4, minlength=4)
        expected = len(drawn) * np.array([2, 2, 2, 1]) / 7
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_a_delay_makes_every_batch_late_by_as_many_updates(order):
    store = make_store(config(store={"delay": 3, "order": order}))
    for step in range(20):
        store.admit(entries(0 if step == 0 else 48 + 16 * step, 64 if step == 0 else 16, step), step)
        drawn = store.draw(step).rollouts
        assert set(drawn // 16) == {step}  # arrived with batch `step` of the stream, three batches ago
        assert len(store) == 48


def test_impossible_stores_are_refused_with_the_fix():
    cases = [
        ({"buffer_size": 8, "store": {"within_batch_replacement": False}}, "raise buffer_size"),
        ({"store": {"max_lag": 2}, "sync_interval": 8}, "use 7 or more"),
        ({"store": {"capacity": 16}}, "use 20 or more"),
        ({"replay_ratio": 4.0}, "set buffer_size"),
        ({"trainers": 3}, "use 15 or 18"),
        ({"schedule": "free"}, "needs generation_cost_ratio"),
        ({"store": {"positive_share": 0.5}}, "no effect on a queue"),
        ({"buffer_size": 64, "store": {"order": "lifo"}}, "no effect on a replay buffer"),
    ]
    for fields, said in cases:
        with pytest.raises(UserError, match=said):
            config(**fields)
