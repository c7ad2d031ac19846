"""Grids against the sweep folder: what is new, kept, grown and refused, and what is written."""

import os
from pathlib import Path

import pytest
from launcher_fakes import expand

from launcher import sweep_folder
from launcher.locate import check_name, find_sweep, sweep_paths
from launcher.sweep_folder import Changes, compare
from trainer.errors import UserError
from trainer.record import SweepPaths, read_budget, read_config, read_sweep


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    return sweep_paths(tmp_path, "tiny")


def put(paths: SweepPaths, *overrides: str) -> Changes:
    changes = compare(paths, expand(overrides))
    sweep_folder.apply(paths, changes, sweep_folder.history_entry("submit", overrides, {"commit": None}))
    return changes


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_first_submission_writes_complete_run_folders(paths: SweepPaths) -> None:
    changes = put(paths, "learning_rate=1e-3,2e-3", "seed=0,1")
    sweep = read_sweep(paths)
    assert len(changes.new) == len(sweep.cells) == 4
    assert sweep.axes == {"learning_rate": [0.001, 0.002], "seed": [0, 1]}
    assert sweep.history[0]["overrides"] == ["learning_rate=1e-3,2e-3", "seed=0,1"]
    for cell in sweep.cells:
        run = paths.run(cell.run_id)
        assert read_config(run).learning_rate == cell.values["learning_rate"]
        assert read_budget(run).horizon == 20
        assert {item.name for item in run.folder.iterdir()} == {"config.yaml", "budget.json"}


def test_the_same_grid_again_alters_nothing(paths: SweepPaths) -> None:
    put(paths, "learning_rate=1e-3,2e-3")
    before = files(paths.folder)
    changes = compare(paths, expand(["learning_rate=0.001,0.002"]))
    assert not changes.altered and not changes.new and not changes.refused and len(changes.kept) == 2
    assert files(paths.folder) == before


def test_a_new_value_on_an_axis_adds_only_its_cells(paths: SweepPaths) -> None:
    put(paths, "learning_rate=1e-3,2e-3")
    before = files(paths.runs)
    changes = put(paths, "learning_rate=1e-3,2e-3,4e-3")
    assert [cell.values["learning_rate"] for cell in changes.new] == [0.004]
    assert before.items() <= files(paths.runs).items()
    assert len(read_sweep(paths).history) == 2


def test_values_that_left_are_listed_kept_and_welcome_back(paths: SweepPaths) -> None:
    put(paths, "learning_rate=1e-3,2e-3,4e-3")
    before = files(paths.runs)
    changes = put(paths, "learning_rate=2e-3,4e-3")
    assert [cell.values["learning_rate"] for cell in changes.left] == [0.001]
    assert [cell.values["learning_rate"] for cell in read_sweep(paths).kept] == [0.001]
    assert files(paths.runs) == before
    assert not put(paths, "learning_rate=1e-3,2e-3,4e-3").new
    assert read_sweep(paths).kept == []


def test_an_axis_narrowed_to_one_value_stays_an_axis(paths: SweepPaths) -> None:
    put(paths, "learning_rate=1e-3,2e-3")
    changes = put(paths, "learning_rate=2e-3")
    assert not changes.new
    sweep = read_sweep(paths)
    assert sweep.axes == {"learning_rate": [0.002], "seed": [0]}
    assert sweep.cells[0].values == {"learning_rate": 0.002, "seed": 0}
    assert "learning_rate" not in sweep.fixed
    assert not put(paths, "learning_rate=1e-3,2e-3").new


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ("loss.clip_high=0.3", "loss.clip_high: 0.2 → 0.3"),
        ("loss.clip_high=0.2,0.3", "loss.clip_high: 0.2 → 0.2, 0.3 (a new axis)"),
        ("budget.collapse.drop=0.4", "budget.collapse.drop: 0.5 → 0.4"),
    ],
)
def test_changed_fixed_fields_and_new_axes_are_refused_with_a_diff(
    paths: SweepPaths, changed: str, line: str
) -> None:
    put(paths, "learning_rate=1e-3,2e-3")
    before = files(paths.folder)
    changes = compare(paths, expand(["learning_rate=1e-3,2e-3", changed]))
    with pytest.raises(UserError) as caught:
        sweep_folder.apply(paths, changes, {})
    (problem,) = caught.value.problems
    assert line in problem and "--name" in problem
    assert files(paths.folder) == before


def test_a_field_added_to_the_schema_counts_with_its_default(paths: SweepPaths) -> None:
    put(paths, "learning_rate=1e-3,2e-3")
    text = paths.sweep.read_text()
    assert "loss.clip_high: 0.2\n" in text
    paths.sweep.write_text(text.replace("  loss.clip_high: 0.2\n", ""))
    assert not compare(paths, expand(["learning_rate=1e-3,2e-3"])).refused
    (refused,) = compare(paths, expand(["learning_rate=1e-3,2e-3", "loss.clip_high=0.3"])).refused
    assert "loss.clip_high: 0.2 → 0.3" in refused


def test_a_larger_horizon_grows_budgets_and_leaves_configurations_alone(paths: SweepPaths) -> None:
    put(paths, "seed=0,1")
    configs = {cell.run_id: paths.run(cell.run_id).config.read_bytes() for cell in read_sweep(paths).cells}
    changes = put(paths, "seed=0,1", "budget.horizon.updates=50")
    assert [growth.new.horizon for growth in changes.grown] == [50, 50] and not changes.new
    for run_id, config in configs.items():
        assert read_budget(paths.run(run_id)).horizon == 50
        assert paths.run(run_id).config.read_bytes() == config


def test_a_smaller_horizon_is_refused_with_the_fix(paths: SweepPaths) -> None:
    put(paths, "seed=0,1", "budget.horizon.updates=50")
    (refused,) = compare(paths, expand(["seed=0,1", "budget.horizon.updates=30"])).refused
    assert "horizon=30" in refused and "50" in refused and "use 50 or more" in refused


def test_a_sweep_that_was_extended_can_be_submitted_again(paths: SweepPaths) -> None:
    put(paths, "seed=0")
    run_id = read_sweep(paths).cells[0].run_id
    budget = read_budget(paths.run(run_id))
    larger = budget.model_copy(update={"horizon": 80})
    sweep_folder.grow(paths, [sweep_folder.Growth(run_id, budget, larger)], {"command": "extend"})
    changes = compare(paths, expand(["seed=0"]))
    assert not changes.refused and not changes.grown and "keep the larger budget" in changes.notices[0]
    assert read_sweep(paths).history[-1] == {"command": "extend"}


def test_resources_and_cadences_of_existing_runs_stay_with_a_notice(paths: SweepPaths) -> None:
    put(paths, "seed=0")
    before = files(paths.runs)
    changes = put(paths, "seed=0,1", "resources.threads=2", "budget.checkpoint_every=7")
    assert any("keeps its resources.threads" in notice for notice in changes.notices)
    assert any("cadences" in notice for notice in changes.notices)
    assert before.items() <= files(paths.runs).items()
    (new,) = changes.new
    assert read_config(paths.run(new.run_id)).resources.threads == 2
    assert read_budget(paths.run(new.run_id)).checkpoint_every == 7


def test_an_edited_configuration_is_refused(paths: SweepPaths) -> None:
    put(paths, "seed=0")
    config = paths.run(read_sweep(paths).cells[0].run_id).config
    config.write_text(config.read_text().replace("group_size: 8", "group_size: 16"))
    (refused,) = compare(paths, expand(["seed=0"])).refused
    assert "group_size: 16 → 8" in refused and str(config) in refused


def test_a_first_submission_killed_halfway_is_completed(paths: SweepPaths) -> None:
    put(paths, "seed=0,1", "budget.horizon.updates=90")
    paths.sweep.unlink()
    leftover = paths.runs / ".abc.1.partial"
    leftover.mkdir()
    changes = put(paths, "seed=0,1")
    assert len(changes.new) == 2 and not leftover.exists()
    assert read_budget(paths.run(changes.new[0].run_id)).horizon == 20


def test_a_missing_budget_is_written_again(paths: SweepPaths) -> None:
    put(paths, "seed=0")
    run = paths.run(read_sweep(paths).cells[0].run_id)
    run.budget.unlink()
    put(paths, "seed=0")
    assert read_budget(run).horizon == 20


@pytest.mark.parametrize("name", ["laptop_stability", 'it\'s a "test" run', "η sweep", "a.b"])
def test_names_that_are_folder_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", " a", "a ", ".", "..", "-rf", "a/b", "a\\b", "a:b", "a\nb", "a\0b", "x" * 101]
)
def test_names_that_are_not_are_explained_once(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_name(name)
    (problem,) = caught.value.problems
    assert problem.startswith(f"--name {name!r}") and "must be" in problem
    if "use --name " in problem:
        check_name(eval(problem.rsplit("use --name ", 1)[1]))


def test_an_outputs_folder_that_pythonpath_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PYTHONPATH"):
        sweep_paths(tmp_path / "a:b", "tiny")


def test_sweeps_are_found_by_name_and_by_path(paths: SweepPaths, tmp_path: Path) -> None:
    put(paths, "seed=0")
    assert find_sweep("tiny", tmp_path) == paths
    assert find_sweep(str(paths.folder), Path("elsewhere")) == paths
    assert find_sweep(os.path.relpath(paths.folder), Path("elsewhere")).folder.samefile(paths.folder)
    with pytest.raises(UserError, match="did you mean tiny"):
        find_sweep("tinny", tmp_path)
    with pytest.raises(UserError, match="submit one first"):
        find_sweep("tiny", tmp_path / "empty")


def test_two_sweeps_with_equal_names_in_different_outputs_stay_apart(tmp_path: Path) -> None:
    first, second = sweep_paths(tmp_path / "a", "tiny"), sweep_paths(tmp_path / "b", "tiny")
    put(first, "seed=0")
    put(second, "seed=1", "loss.clip_high=0.3")
    assert read_sweep(first).cells != read_sweep(second).cells
