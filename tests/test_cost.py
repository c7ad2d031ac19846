"""Cost estimate: schedule, where the speed comes from, and how much is read for it."""

import json

import pytest

import sweeps.cost
from sweeps.cost import MOST_READ, CostFigures, PilotSpeed, estimate, over_budget, seconds_per_update
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.record import RunPaths
from trainer.schema import parse

RUN = RunConfig()
PRESET = CostFigures(seconds_per_update=0.5, startup_seconds=1.0)


def ran(folder, seconds):
    """A run whose updates took these seconds, in two phases."""
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"step": step, "generate": value / 4, "update": value * 3 / 4})
        for step, value in enumerate(seconds)
    ]
    paths.timings.write_text("\n".join(lines) + "\n")
    return paths


def test_cost_follows_the_longest_first_schedule():
    cost = estimate([(RUN, count) for count in (10, 30, 20)], [], PRESET, slots=2)
    assert (cost.runs, cost.updates, cost.core_seconds, cost.wall_seconds) == (3, 60, 33.0, 17.0)
    assert cost.basis == "500 ms per update, from the preset"
    quick = CostFigures(seconds_per_update=0.1)
    assert estimate([(RUN, 100), (RUN, 1)], [], quick, slots=8).wall_seconds == pytest.approx(10)
    assert estimate([], [], PRESET, slots=2).wall_seconds == 0


def test_measured_speed_goes_before_the_presets(tmp_path):
    done = [(RUN, ran(tmp_path / "a", [0.1, 0.3])), (RUN, ran(tmp_path / "b", [0.2] * 4))]
    cost = estimate([(RUN, 100)], done, PRESET, slots=1)
    assert (
        cost.core_seconds == pytest.approx(1 + 100 * 0.2) and cost.basis == "200 ms per update, measured here"
    )


def test_only_runs_of_the_same_kind_tell_the_speed(tmp_path):
    wide = parse(RunConfig, {"model": {"hidden_size": 64}})
    faster = parse(RunConfig, {"learning_rate": 0.5, "sync_interval": 16, "seed": 3})
    done = [(RUN, ran(tmp_path / "a", [0.2]))]
    assert estimate([(faster, 10)], done, PRESET, slots=1).basis.endswith("measured here")
    cost = estimate([(RUN, 10), (wide, 10)], done, PRESET, slots=1)
    assert cost.core_seconds == pytest.approx(1 + 2 + 1 + 5)
    assert cost.basis == "350 ms per update, measured here for 1, from the preset for 1"
    assert estimate([(wide, 10)], done, CostFigures(), slots=1).core_seconds is None


def test_unknown_speed_is_said(tmp_path):
    empty = RunPaths(tmp_path / "empty")
    for done in ([], [(RUN, empty)], [(RUN, ran(tmp_path / "none", []))]):
        cost = estimate([(RUN, 7)], done, CostFigures(), slots=1)
        assert (cost.runs, cost.updates, cost.core_seconds, cost.wall_seconds) == (1, 7, None, None)
        assert "not known" in cost.basis


def test_few_runs_are_read_and_they_are_spread(tmp_path, monkeypatch):
    runs = [ran(tmp_path / str(number), [float(number)]) for number in range(10)]
    read = []
    real = sweeps.cost.read_lines
    monkeypatch.setattr(sweeps.cost, "read_lines", lambda path: read.append(path) or real(path))
    assert seconds_per_update(runs) == pytest.approx((0 + 3 + 6 + 9) / 4)
    assert len(read) == MOST_READ == 4


def test_a_torn_last_line_is_passed_over(tmp_path):
    paths = ran(tmp_path / "a", [0.5, 0.5])
    with paths.timings.open("a") as file:
        file.write('{"step": 2, "gene')
    assert seconds_per_update([paths]) == 0.5


@pytest.mark.parametrize("figures", [{"seconds_per_update": 0}, {"seconds": 1}, {"startup_seconds": -1}])
def test_figures_of_a_preset_are_checked(figures):
    with pytest.raises(UserError):
        parse(CostFigures, figures)


def test_hours_count_what_a_run_holds():
    held = parse(RunConfig, {"resources": {"device": "cuda", "threads": 4}})
    cost = estimate([(held, 7198), (RUN, 7198)], [], PRESET, slots=2)
    assert cost.gpu_hours == pytest.approx(1.0) and cost.core_hours == pytest.approx(5.0)
    assert estimate([(held, 1)], [], CostFigures(), slots=1).gpu_hours is None


def test_a_pilot_goes_before_the_preset_and_after_the_runs(tmp_path):
    pilot = PilotSpeed(seconds_per_update=2.0, startup_seconds=10.0)
    wide = parse(RunConfig, {"model": {"hidden_size": 64}})
    done = [(RUN, ran(tmp_path / "a", [0.2]))]
    cost = estimate([(RUN, 10), (wide, 10)], done, PRESET, slots=1, pilot=pilot)
    assert cost.core_seconds == pytest.approx(10 + 2 + 10 + 20)
    assert cost.basis.endswith("measured here for 1, from the pilot for 1")
    assert estimate([(RUN, 1)], [], PRESET, slots=1, pilot=pilot).basis.endswith("from the pilot")


def test_a_limit_on_gpu_hours():
    held = parse(RunConfig, {"resources": {"device": "cuda"}})
    cost = estimate([(held, 7198)], [], PRESET, slots=1)
    assert over_budget(cost, 1.0) is None
    words = over_budget(cost, 0.5)
    assert (
        "up to 1 GPU hours (500 ms per update, from the preset)" in words and "--max-gpu-hours=0.5" in words
    )
    unknown = estimate([(held, 1)], [], CostFigures(), slots=1)
    assert "grposweep pilot" in over_budget(unknown, 100.0)
    assert over_budget(estimate([(RUN, 10**6)], [], PRESET, slots=1), 0.0) is None
