"""Grid language: expansion, validation of every cell, axes, a user's own presets."""

import pytest

import sweeps.grid
from sweeps.grid import expand
from trainer.errors import UserError


def refused(*overrides, **kwargs):
    with pytest.raises(UserError) as caught:
        expand(overrides, **kwargs)
    return str(caught.value)


def test_the_demo_grid():
    grid = expand(["sweep=laptop_stability"])
    assert grid.axes == {
        "sync_interval": [1, 4, 16, 64],
        "learning_rate": [1e-3, 2e-3, 4e-3, 8e-3],
        "seed": [0],
    }
    assert len(grid.cells) == 16 == len({cell.run_id for cell in grid.cells})
    assert grid.cells[1].values == {"sync_interval": 1, "learning_rate": 2e-3, "seed": 0}
    assert grid.fixed["optimizer.beta2"] == 0.95 and "sync_interval" not in grid.fixed


def test_seeds_added_later_keep_the_first_runs():
    first = {cell.run_id for cell in expand(["sweep=smoke"]).cells}
    more = expand(["sweep=smoke", "seed=0,1,2"])
    assert set(more.axes) == set(expand(["sweep=smoke"]).axes)
    assert first < {cell.run_id for cell in more.cells} and len(more.cells) == 12


def test_a_single_value_is_no_axis_any_more():
    grid = expand(["sweep=smoke", "sync_interval=4"])
    assert list(grid.axes) == ["learning_rate", "seed"] and grid.fixed["sync_interval"] == 4


def test_numbers_by_value_and_repeated_values():
    grid = expand(["sweep=smoke", "learning_rate=1e-6,0.000001"])
    assert grid.axes["learning_rate"] == [1e-6] and "1 repeated value" in grid.notices[0]
    assert refused("sweep=smoke", "seed=1,1") == "seed=1,1 repeats a seed: give each seed once"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learing_rate=3", "unknown field learing_rate; did you mean learning_rate?"),
        ("learning_rate=fast", "learning_rate='fast' must be a number"),
        ("batch_size=60", "batch_size=60 is not divisible by group_size=8"),
        ("group_size=1", "a group of one has no advantage to learn from; use group_size=2 or more"),
        ("sync_interval=0,4", "sync_interval=0 must be at least 1 (preset smoke, 2 cells)"),
        ("sync_interval=2.5", "sync_interval=2.5 must be a whole number"),
        ("model=lama_tiny", "model has no 'lama_tiny'; did you mean llama_tiny?"),
        ("+new=1", "fields can be set, not added or deleted"),
        ("~seed", "fields can be set, not added or deleted"),
        ("learning_rate=interval(0,1)", "a grid needs listed values"),
        ("learning_rate=1,", "not of the form field=value"),
        ("budget.horizon.updates=many", "budget.horizon.updates='many' must be a whole number"),
    ],
)
def test_each_fault_has_one_message(override, said):
    message = refused("sweep=smoke", override)
    assert said in message and len(message.splitlines()) == 1


def test_presets_are_named():
    assert "laptop_stability, smoke" in refused()
    assert "did you mean laptop_stability?" in refused("sweep=laptop_stabilty")


def test_all_faults_at_once():
    assert len(refused("sweep=smoke", "group_size=1", "sync_interval=0").splitlines()) == 2


def test_own_presets_in_a_folder_with_a_nasty_name(tmp_path):
    folder = tmp_path / "my 'conf\" #1"
    (folder / "sweep").mkdir(parents=True)
    (folder / "sweep" / "mine.yaml").write_text(
        "# @package _global_\naxes: {sync_interval: [1, 2]}\nlearning_rate: 1e-6\n"
    )
    grid = expand(["sweep=mine", "learning_rate=2e-6,3e-6"], config_dir=folder)
    assert len(grid.cells) == 4 and grid.axes["learning_rate"] == [2e-6, 3e-6]
    assert expand(["sweep=mine"], config_dir=folder).fixed["learning_rate"] == 1e-6
    assert "is not a folder" in refused("sweep=mine", config_dir=tmp_path / "none")


def test_composition_is_per_group_choice_not_per_cell(monkeypatch):
    calls = []
    real = sweeps.grid._compose
    monkeypatch.setattr(sweeps.grid, "_compose", lambda *args: calls.append(args) or real(*args))
    grid = expand(["sweep=smoke", "sync_interval=range(1,101)", "model=llama_tiny,qwen3_tiny"])
    assert len(grid.cells) == 400 and len(calls) == 2
    assert grid.axes["model"] == ["llama_tiny", "qwen3_tiny"]
