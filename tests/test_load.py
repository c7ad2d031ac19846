"""Reading sweeps: outcomes, re-judging, incomplete runs, and what may not be pooled."""

import json

import pytest

from analysis.load import METRICS, load_sweeps
from tests.synthetic import Curve, RunSpec, Truth, grid, write_synthetic_sweep
from trainer.config import LossConfig
from trainer.errors import UserError


def load(tmp_path, specs, **options):
    return load_sweeps([write_synthetic_sweep(tmp_path / "sweep", specs, **options)])


def test_a_collapse_is_found_where_it_was_put(tmp_path):
    run = load(tmp_path, [RunSpec(16, 1e-3, 0, 400, Curve(collapse_at=160))], ramp_updates=20).runs[0]
    assert (run.outcome, run.verdict.snapshot) == ("collapsed", 10)
    assert (run.verdict.t_low, run.verdict.t_high) == (144, 160)
    # a ramp of 20 loses 9.5 updates at full rate
    assert run.collapse_rate == pytest.approx((1e-3 * 134.5, 1e-3 * 150.5))
    assert run.cumulative_rate == pytest.approx(1e-3 * 390.5)


def test_every_outcome_has_its_name(tmp_path):
    specs = [
        RunSpec(4, 1e-3, 0),
        RunSpec(4, 1e-3, 1, 400, Curve(collapse_at=100)),
        RunSpec(4, 1e-3, 2, 400, Curve(collapse_at=100, recover_at=160)),
        RunSpec(4, 1e-3, 3, 400, Curve(collapse_at=390)),
        RunSpec(4, 1e-3, 4, 400, Curve(start=0.05, plateau=0.06)),
        RunSpec(4, 1e-3, 5, 400, summary_changes={"outcome": "invalid", "reason": "weights not finite"}),
    ]
    runs = load(tmp_path, specs).runs
    found = [run.outcome for run in runs]
    assert found == ["stable", "collapsed", "recovered", "pending", "undetectable", "invalid"]
    assert runs[5].reason == "weights not finite"


@pytest.mark.parametrize("state", ["planned", "running", "interrupted", "failed"])
def test_unfinished_runs_are_incomplete_even_if_collapsed(tmp_path, state):
    spec = RunSpec(4, 2e-3, 0, 400, Curve(collapse_at=100), updates=200, state=state)
    records = load(tmp_path, [spec, RunSpec(4, 1e-3, 0)])
    run = records.runs[0]
    assert run.outcome == "incomplete" and not run.complete and run.verdict is None
    assert run.config.learning_rate == 2e-3
    assert {"planned": "not started", "failed": "it broke"}.get(
        state, f"{state} at update 200 of 400"
    ) in run.reason
    assert list(records.run_frame["complete"]) == [False, True]


def test_frames_are_tidy_and_complete(tmp_path):
    records = load(tmp_path, grid(Truth(), (1, 4), (1e-3, 8e-3)))
    runs, steps = records.run_frame, records.step_frame
    assert list(runs["run_id"]) == [run.run_id for run in records.runs]
    assert runs.columns.is_unique
    assert {"sync_interval", "optimizer.beta2", "outcome", "snapshot", "collapse_rate_low"} <= set(
        runs.columns
    )
    assert list(steps.columns) == ["run_id", *METRICS]
    counts = steps.groupby("run_id").size()
    assert all(counts[run.run_id] == run.updates for run in records.runs)
    assert steps["reward"].dtype == float


def test_missing_rewards_are_nan_and_do_not_stop_reading(tmp_path):
    paths = write_synthetic_sweep(tmp_path / "sweep", [RunSpec(4, 1e-3)])
    file = paths.run("s4-lr0_001-seed0").metrics
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[50] |= {"reward": None, "gradient_cosine": None, "nonfinite": {"reward": "nan"}}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = load_sweeps([paths])
    assert records.runs[0].outcome == "stable" and records.runs[0].verdict.missing == 1
    assert records.step_frame["reward"].isna().sum() == 1
    assert any("missing 0 against 1" in note for note in records.notes)


def test_a_summary_that_differs_is_named_with_both_stories(tmp_path):
    spec = RunSpec(16, 1e-3, 0, 400, Curve(collapse_at=160), summary_changes={"outcome": "stable"})
    records = load(tmp_path, [spec])
    assert records.runs[0].outcome == "collapsed"
    (note,) = records.notes
    assert spec.run_id in note and "says stable" in note and "metrics say collapsed" in note


def test_agreeing_summaries_say_nothing(tmp_path):
    assert load(tmp_path, grid(Truth(), seeds=(0, 1))).notes == ()


def test_another_rule_version_is_said(tmp_path):
    changes = {"outcome": "stable", "rule_version": "0"}
    records = load(tmp_path, [RunSpec(16, 1e-3, 0, 400, Curve(collapse_at=160), summary_changes=changes)])
    assert "rule version 0" in records.notes[0]


def test_damaged_metrics_are_invalid(tmp_path):
    paths = write_synthetic_sweep(tmp_path / "sweep", [RunSpec(4, 1e-3), RunSpec(4, 2e-3)])
    short, gap = (paths.run(f"s4-lr{rate}-seed0").metrics for rate in ("0_001", "0_002"))
    short.write_text("".join(short.read_text().splitlines(True)[:100]))
    lines = gap.read_text().splitlines(True)
    gap.write_text("".join(lines[:100] + lines[99:-1]))
    runs = load_sweeps([paths]).runs
    assert [run.outcome for run in runs] == ["invalid", "invalid"]
    assert "holds 100 updates where summary.json counts 300" in runs[0].reason
    assert "steps in metrics.jsonl are not 0 … 299" in runs[1].reason


def test_a_run_being_extended_is_read_at_its_finished_horizon(tmp_path):
    paths = write_synthetic_sweep(tmp_path / "sweep", [RunSpec(4, 1e-3)])
    file = paths.run("s4-lr0_001-seed0").metrics
    line = json.loads(file.read_text().splitlines()[-1])
    with file.open("a") as journal:
        journal.write(json.dumps(line | {"step": 300, "reward": 0.0}) + "\n")
    records = load_sweeps([paths])
    assert (records.runs[0].outcome, records.runs[0].updates) == ("stable", 300)
    assert "being extended" in records.notes[0]


def test_sweeps_that_differ_in_a_fixed_field_are_not_pooled(tmp_path):
    one = write_synthetic_sweep(tmp_path / "one", [RunSpec(4, 1e-3)])
    other = RunSpec(4, 2e-3, science={"loss": LossConfig(clip_low=0.1), "batch_size": 128})
    two = write_synthetic_sweep(tmp_path / "two", [other])
    with pytest.raises(UserError) as error:
        load_sweeps([one, two])
    assert len(error.value.problems) == 2
    assert "batch_size is 64 in one and 128 in two" in str(error.value)
    assert "loss.clip_low is 0.2 in one and 0.1 in two" in str(error.value)


def test_sweeps_that_agree_are_pooled_and_shared_runs_count_once(tmp_path):
    one = write_synthetic_sweep(tmp_path / "one", [RunSpec(4, 1e-3, 0), RunSpec(4, 1e-3, 1, state="planned")])
    two = write_synthetic_sweep(tmp_path / "two", [RunSpec(4, 1e-3, 1), RunSpec(16, 1e-3, 0)])
    records = load_sweeps([one, two])
    assert [(run.sweep, run.outcome) for run in records.runs] == [
        ("one", "stable"),
        ("two", "stable"),
        ("two", "stable"),
    ]


def test_a_further_axis_makes_facets(tmp_path):
    specs = [RunSpec(4, 1e-3), RunSpec(4, 1e-3, science={"group_size": 4}), RunSpec(16, 1e-3)]
    records = load(tmp_path, specs)
    assert records.facet_fields == ("group_size",)
    assert [(facet, len(runs)) for facet, runs in records.facets()] == [
        ({"group_size": 8}, 2),
        ({"group_size": 4}, 1),
    ]
    assert "group_size" not in records.fixed and records.fixed["batch_size"] == 64


def test_no_cells_at_all(tmp_path):
    records = load(tmp_path, [])
    assert records.runs == () and records.fixed == {} and records.facets() == [({}, ())]
    assert len(records.step_frame) == 0
