"""Run identity: golden id, value equality, and what may and may not change it."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sweeps.identity import FROZEN_DEFAULTS, run_id, scientific_fields
from trainer.budget import BudgetConfig, CellConfig
from trainer.config import ResourceConfig, RunConfig
from trainer.record import RunPaths, read_config, write_config
from trainer.schema import field_paths, parse

FIXED = {"engine", "schedule", "optimizer.master_dtype", "sampling.top_p", "sampling.top_k"}
"""Fields with one legal value so far."""
OTHER = {
    "batch_size": 128,
    "group_size": 4,
    "task.name": "reverse",
    "task.length": 7,
    "model.family": "qwen3",
    "model.hidden_size": 64,
    "model.heads": 2,
    "advantage.ddof": 1,
}
"""A legal value besides the default, where the next number is none."""


def another(field):
    default = FROZEN_DEFAULTS[field]
    if field in OTHER:
        return OTHER[field]
    if isinstance(default, bool):
        return not default
    return default / 2 if isinstance(default, float) else default + 1


def config_with(values, schema=RunConfig):
    data = {}
    for path, value in values.items():
        *parents, leaf = path.split(".")
        section = data
        for name in parents:
            section = section.setdefault(name, {})
        section[leaf] = value
    return parse(schema, data)


BUFFER = {"buffer_size": 512}
GENERATOR = {"task.name": "text", "task.source.generator": "gcd", "task.source.rows": 10}
TEXT = GENERATOR | {"task.max_response_tokens": 20}
FILE = {"task.name": "text", "task.source.path": "a.jsonl", "task.max_response_tokens": 20}
HUB = {"task.name": "text", "task.source.dataset": "a/b", "task.source.revision": "0" * 40}
HUB |= {"task.max_response_tokens": 20}
COMMAND = FILE | {"task.verifier.kind": "command", "task.verifier.command": "check"}
PRETRAINED = FILE | {"model.pretrained": "a/b", "model.revision": "0" * 40}
FREE = {"schedule": "free", "generation_cost_ratio": 5.0}
CONDITIONAL = {
    "buffer_size": ({}, 512),
    "replay_ratio": (BUFFER, 4.0),
    "trainers": ({}, 2),
    "inference_workers": (FREE, 2),
    "generation_cost_ratio": ({"schedule": "free", "generation_cost_ratio": 2.0}, 5.0),
    "store.order": ({}, "lifo"),
    "store.capacity": ({}, 256),
    "store.delay": ({}, 1),
    "store.max_lag": ({}, 64),
    "store.positive_share": (BUFFER, 0.25),
    "store.backfill": (BUFFER | {"store.positive_share": 0.25}, True),
    "store.selection": (BUFFER, "recency"),
    "store.within_batch_replacement": (BUFFER, False),
    "store.recency_half_life": (BUFFER, 4.0),
    "store.selection_floor": (BUFFER, 0.2),
    "clock.reference_tokens": (FREE, 8),
    "clock.verifier_share": (FREE, 0.5),
    "clock.verifier_variation": (FREE, 1.0),
    "clock.sync_cost": (FREE, 0.5),
    "clock.in_flight_updates": (FREE, True),
    "advantage.normalize": ({}, "none"),
    "loss.kind": ({}, "asymre"),
    "loss.ratio_level": ({}, "sequence"),
    "loss.aggregation": ({}, "token_mean"),
    "loss.dual_clip": ({}, 3.0),
    "loss.weight_cap": ({"loss.kind": "truncated"}, 4.0),
    "loss.asymre_shift": ({"loss.kind": "asymre"}, 0.0),
    "loss.kl_weight": ({}, 0.01),
    "task.max_prompt_tokens": (TEXT, 64),
    "task.source.generator": (TEXT, "lcm"),
    "task.source.settings": (TEXT, {"min_numbers": 2}),
    "task.source.seed": (TEXT, 1),
    "task.source.rows": (TEXT, 20),
    "task.source.path": (FILE, "b.jsonl"),
    "task.source.dataset": (HUB, "a/c"),
    "task.source.subset": (HUB, "hard"),
    "task.source.split": (HUB, "test"),
    "task.source.revision": (HUB, "1" * 40),
    "task.source.prompt_column": (FILE, "problem"),
    "task.source.answer_column": (FILE, "solution"),
    "task.source.answer_extract": (FILE, "boxed"),
    "task.held_out_share": (FILE, 0.1),
    "task.system_prompt": (FILE, "Be brief."),
    "task.prompt_template": (FILE, "{problem}?"),
    "task.chat_template_kwargs": (FILE, {"enable_thinking": False}),
    "task.extract": (FILE, "boxed"),
    "task.verifier.kind": (FILE, "math"),
    "task.verifier.command": (COMMAND, "check --strictly"),
    "task.verifier.time_limit": (COMMAND, 5.0),
    "task.verifier.memory_limit_mb": (COMMAND, 1024),
    "task.verifier.batch": (COMMAND, 1),
    "task.truncation": ({}, "mask"),
    "task.wrong_reward": ({}, -1.0),
    "model.pretrained": (PRETRAINED, "a/c"),
    "model.revision": (PRETRAINED, "1" * 40),
    "model.untie_embeddings": (PRETRAINED, True),
    "model.compute_dtype": ({}, "bfloat16"),
    "optimizer.clip_norm": ({}, 1.0),
    "optimizer.alignment_limit": ({}, 0.5),
}
"""Fields that want other fields beside them: those, and a legal value besides the default."""
VARIED = sorted(set(FROZEN_DEFAULTS) - FIXED - set(CONDITIONAL))


def test_golden_ids():
    """If this fails, every sweep on disk loses its runs: bump the version of the table instead."""
    assert run_id(RunConfig()) == "5e37b2beae6c"
    assert run_id(parse(RunConfig, {"sync_interval": 16, "learning_rate": 2e-3, "seed": 1})) == "3226f5fc6735"
    assert run_id(config_with({field: another(field) for field in VARIED})) == "04526548a5ec"


def test_the_frozen_table_is_the_schemas_defaults():
    fields = scientific_fields(RunConfig())
    assert fields == FROZEN_DEFAULTS, "a default changed: bump the table's version"
    assert {key: type(value) for key, value in fields.items()} == {
        key: type(value) for key, value in FROZEN_DEFAULTS.items()
    }
    wanted = {path for path, _ in field_paths(RunConfig) if not path.startswith("resources.")}
    assert set(FROZEN_DEFAULTS) == wanted


def test_a_field_added_later_keeps_old_ids(monkeypatch):
    config = parse(RunConfig, {"sync_interval": 16, "learning_rate": 2e-3, "seed": 1})
    old = scientific_fields(config)
    monkeypatch.setitem(FROZEN_DEFAULTS, "replay.size", 0)
    for value, same in ((0, True), (False, False), (64, False)):
        monkeypatch.setattr("sweeps.identity.scientific_fields", lambda _, v=value: old | {"replay.size": v})
        assert (run_id(config) == "3226f5fc6735") is same


@pytest.mark.parametrize("same", [(1e-6, 0.000001), (1.0, 1), (0.0, -0.0), (0.1 + 0.2, 0.30000000000000004)])
def test_rates_count_by_value(same):
    ids = {run_id(parse(RunConfig, {"learning_rate": rate})) for rate in same}
    assert len(ids) == 1


def test_every_scientific_field_changes_the_id():
    ids = {field: run_id(config_with({field: another(field)})) for field in VARIED}
    assert len({run_id(RunConfig()), *ids.values()}) == len(VARIED) + 1


@pytest.mark.parametrize("field", sorted(CONDITIONAL))
def test_every_conditional_field_changes_the_id(field):
    context, value = CONDITIONAL[field]
    assert run_id(config_with(context | {field: value})) != run_id(config_with(context))


def test_the_schedule_changes_the_id():
    strict = config_with({"trainers": 2})
    assert run_id(strict) != run_id(config_with(FREE | {"trainers": 2}))


def test_a_value_does_not_move_from_one_field_to_another():
    assert run_id(config_with({"loss.clip_low": 0.3})) != run_id(config_with({"loss.clip_high": 0.3}))


@given(
    horizon=st.integers(1, 10**6),
    cadence=st.integers(1, 500),
    drop=st.floats(0.3, 0.9),
    threads=st.integers(1, 64),
    chunk=st.integers(1, 4096),
    micro=st.none() | st.integers(1, 64),
)
def test_budget_and_resources_are_no_part_of_the_id(horizon, cadence, drop, threads, chunk, micro):
    data = {
        "budget": {
            "horizon": {"updates": horizon},
            "checkpoint_every": cadence,
            "collapse": {"drop": drop},
        },
        "resources": {"threads": threads, "generation_chunk": chunk, "micro_batch": micro},
    }
    assert run_id(parse(CellConfig, data).run()) == run_id(RunConfig())
    assert not set(BudgetConfig.model_fields) & set(scientific_fields(parse(CellConfig, data)))


RESOURCES = {
    "threads": 2,
    "generation_chunk": 64,
    "micro_batch": 8,
    "micro_batch_tokens": 4096,
    "logit_chunk": 512,
    "activation_checkpointing": True,
    "device": "cuda",
    "previous_gradient": "bfloat16",
    "displacement": "off",
    "verifier_processes": 4,
}


@pytest.mark.parametrize("name", sorted(ResourceConfig.model_fields))
def test_no_resource_is_part_of_the_id(name):
    assert run_id(parse(CellConfig, {"resources": {name: RESOURCES[name]}}).run()) == run_id(RunConfig())


@given(
    rate=st.floats(0, 10, allow_nan=False),
    epsilon=st.floats(0, 1e-3),
    interval=st.integers(1, 10**6),
    seed=st.integers(0, 2**31 - 1),
    others=st.sets(st.sampled_from(VARIED)),
)
def test_ids_survive_yaml(rate, epsilon, interval, seed, others):
    values = {field: another(field) for field in others} | {
        "learning_rate": rate,
        "advantage.epsilon": epsilon,
        "sync_interval": interval,
        "seed": seed,
    }
    config = config_with(values)
    again = parse(RunConfig, yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config and run_id(again) == run_id(config)
    changed = config_with(values | {"seed": (seed + 1) % 2**31})
    assert run_id(changed) != run_id(config)


def test_ids_survive_the_run_folder(tmp_path):
    config = config_with({field: another(field) for field in VARIED})
    paths = RunPaths(tmp_path / 'it\'s "one"')
    write_config(paths, config)
    assert run_id(read_config(paths)) == run_id(config)
