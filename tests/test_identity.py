"""Run identity: golden id, value equality, and what may and may not change it."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sweeps.identity import FROZEN_DEFAULTS, run_id, scientific_fields
from trainer.config import CellConfig, RunConfig
from trainer.schema import parse


def test_golden_ids():
    """If this fails, every sweep on disk loses its runs: bump the version of the table instead."""
    assert run_id(RunConfig()) == "5e37b2beae6c"
    assert run_id(parse(RunConfig, {"sync_interval": 16, "learning_rate": 2e-3, "seed": 1})) == "3226f5fc6735"


def test_the_frozen_table_is_the_schemas_defaults():
    assert scientific_fields(RunConfig()) == FROZEN_DEFAULTS, "a default changed: bump the table's version"


def test_a_field_added_later_keeps_old_ids(monkeypatch):
    before = run_id(RunConfig())
    monkeypatch.delitem(FROZEN_DEFAULTS, "task.name")
    without = run_id(RunConfig())
    monkeypatch.setitem(FROZEN_DEFAULTS, "task.name", "copy")
    assert without != before == run_id(RunConfig())


@pytest.mark.parametrize("same", [(1e-6, 0.000001), (1.0, 1), (0.0, -0.0), (0.1 + 0.2, 0.30000000000000004)])
def test_rates_count_by_value(same):
    ids = {run_id(parse(RunConfig, {"learning_rate": rate})) for rate in same}
    assert len(ids) == 1


def test_budget_and_resources_are_no_part_of_the_id():
    plain = parse(CellConfig, {})
    other = parse(
        CellConfig,
        {"budget": {"horizon": {"updates": 7}}, "resources": {"threads": 3, "generation_chunk": 64}},
    )
    assert run_id(plain.run()) == run_id(other.run())


@given(rate=st.floats(0, 10, allow_nan=False), interval=st.integers(1, 10**6), seed=st.integers(0, 2**31 - 1))
def test_ids_survive_yaml(rate, interval, seed):
    config = parse(RunConfig, {"learning_rate": rate, "sync_interval": interval, "seed": seed})
    text = yaml.safe_dump(config.model_dump(mode="json"))
    again = parse(RunConfig, yaml.safe_load(text))
    assert again == config and run_id(again) == run_id(config)


@given(st.sampled_from(["sync_interval", "seed", "learning_rate"]))
def test_scientific_changes_change_the_id(field):
    assert run_id(parse(RunConfig, {field: 7})) != run_id(RunConfig())
