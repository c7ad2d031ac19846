"""Grid language: expansion, validation of every cell, axes, a user's own presets."""

import itertools
import subprocess
import sys

import pytest

import sweeps.presets
from sweeps.grid import expand
from sweeps.identity import run_id
from trainer.budget import CellConfig
from trainer.errors import UserError
from trainer.schema import flatten


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


def test_an_axis_of_the_preset_stays_one_when_narrowed():
    grid = expand(["sweep=smoke", "sync_interval=4", "batch_size=32", "seed=3"])
    assert grid.axes == {"sync_interval": [4], "learning_rate": [1e-3, 4e-3], "seed": [3]}
    assert grid.fixed["batch_size"] == 32
    assert all(set(cell.values) == set(grid.axes) for cell in grid.cells)


def test_cells_follow_the_axes_the_last_one_fastest():
    grid = expand(["sweep=smoke", "optimizer.beta2=0.9,0.8", "learning_rate=4e-3,1e-3"])
    assert list(grid.axes) == ["sync_interval", "learning_rate", "seed", "optimizer.beta2"]
    assert grid.axes["learning_rate"] == [4e-3, 1e-3]
    values = [tuple(cell.values.values()) for cell in grid.cells]
    assert values == list(itertools.product(*grid.axes.values()))
    assert all(cell.run_id == run_id(cell.config.run()) for cell in grid.cells)


def test_numbers_by_value_and_repeated_values():
    grid = expand(["sweep=smoke", "learning_rate=1e-6,0.000001"])
    assert grid.axes["learning_rate"] == [1e-6]
    assert grid.notices == ("learning_rate=1e-6,0.000001: 1 repeated value left out",)
    assert expand(["sweep=smoke", "learning_rate=range(0.1,0.4,0.1)"]).axes["learning_rate"] == [
        0.1,
        0.2,
        0.3,
    ]
    assert expand(["sweep=smoke", "sync_interval=sort(4,1,2)"]).axes["sync_interval"] == [1, 2, 4]
    assert refused("sweep=smoke", "seed=1,1") == "seed=1,1 repeats a seed: give each seed once"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learing_rate=3", "learing_rate=3: unknown field learing_rate; did you mean learning_rate?"),
        ("beta3=3", "did you mean optimizer.beta2?"),
        ("swep=smoke", "did you mean sweep?"),
        ("optimizer.decay=3", "did you mean optimizer.weight_decay?"),
        ("zzz=3", "unknown field zzz; known are advantage.…, batch_size, budget.…"),
        (
            "optimizer.zzz=3",
            "unknown field optimizer.zzz; known are optimizer.alignment_limit, optimizer.beta1",
        ),
        (
            "learning_rate=fast",
            "learning_rate='fast' must be a number (given as learning_rate=fast; every cell)",
        ),
        ("learning_rate='1e-3'", "learning_rate='1e-3' must be a number (text was given; write it without"),
        ("learning_rate=null", "learning_rate=null must be a number"),
        ("learning_rate=1e400", "must be finite"),
        ("learning_rate=[1e-3,2e-3]", "a list is no value; several values are written learning_rate=a,b,c"),
        ("learning_rate=", "learning_rate='' must be a number"),
        ("batch_size=60", "batch_size=60 is not divisible by group_size=8"),
        ("group_size=3", "batch_size=64 is not divisible by group_size=3"),
        ("group_size=1", "a group of one has no advantage to learn from; use group_size=2 or more"),
        (
            "sync_interval=0,4",
            "sync_interval=0 must be at least 1 (given as sync_interval=0,4; 2 of 4 cells)",
        ),
        ("sync_interval=2.5", "sync_interval=2.5 must be a whole number"),
        ("sync_interval=true", "sync_interval=true must be a whole number"),
        ("model.tie_embeddings=0", "model.tie_embeddings=0 must be true or false"),
        ("model.heads=3", "hidden_size=32 divided by heads=3 is not an even whole number"),
        ("optimizer.master_dtype=bfloat16", "keep optimizer.master_dtype=float32"),
        ("model=lama_tiny", "model has no 'lama_tiny'; did you mean llama_tiny?"),
        ("model=glob(z*)", "has no value"),
        ("sync_interval=glob(*)", "glob chooses among the options of a group"),
        ("optimizer=3", "optimizer is a section: set its fields one by one, as in optimizer.beta1=…"),
        ("optimizer={beta2: 0.9}", "set the fields of a section one by one"),
        ("report.clock_reason=x", "is set in the preset's file"),
        ("+new=1", "fields can be set, not added; write new=1"),
        ("~seed", "fields can be set, not deleted; write seed=VALUE"),
        ("model@x=llama_tiny", "packages (@) have no meaning here"),
        ("learning_rate=interval(0,1)", "a grid needs listed values"),
        ("sync_interval=shuffle(1,2)", "a grid has one order"),
        ("sync_interval=range(5,1)", "has no value: give at least one"),
        ("sync_interval=range(1,5,0)", "a step other than 0"),
        ("sync_interval=range(1,1000000000)", "more than 10000 values"),
        ("learning_rate=1,", "is not of the form field=value"),
        ("learning_rate", "is not of the form field=value"),
        ("budget.horizon.updates=many", "budget.horizon.updates='many' must be a whole number"),
        ("budget.horizon.updates=10,20", "how long runs go on is one setting of the sweep, not an axis"),
        ("resources.threads=1,2", "how runs are computed is one setting of the sweep, not an axis"),
    ],
)
def test_each_fault_has_one_message(override, said):
    message = refused("sweep=smoke", override)
    assert said in message and len(message.splitlines()) == 1


def test_presets_are_named():
    assert "laptop_stability, laptop_words, smoke" in refused()
    assert "did you mean laptop_stability?" in refused("sweep=laptop_stabilty")


def test_all_faults_at_once():
    assert len(refused("sweep=smoke", "group_size=1", "sync_interval=0").splitlines()) == 2
    assert len(refused("sweep=smoke", "x=1", "+y=1", "model=zzz", "seed=interval(0,1)").splitlines()) == 4
    assert "given twice" in refused("sweep=smoke", "seed=0,1", "seed=2")


def test_a_grid_that_slipped_is_refused():
    assert "200000 cells" in refused(
        "sweep=smoke", "seed=range(0,500)", "sync_interval=range(1,201)", "learning_rate=1,2"
    )


def test_equal_cells_are_one(tmp_path):
    twin = own(tmp_path, {"model/twin.yaml": "family: llama\n"})
    grid = expand(["sweep=smoke", "model=llama_tiny,twin"], config_dir=twin)
    assert len(grid.cells) == 4 and grid.axes["model"] == ["llama_tiny"]
    assert grid.notices == ("4 cells equal another cell in every scientific field and were left out",)


def own(folder, files):
    """A configuration folder with a nasty name."""
    conf = folder / "my 'conf\" #1, é {x} \\"
    for name, text in files.items():
        path = conf / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return conf


def test_own_presets(tmp_path):
    conf = own(tmp_path, {"sweep/mine.yaml": "axes: {sync_interval: [1, 2]}\nlearning_rate: 1e-6\n"})
    grid = expand(["sweep=mine", "learning_rate=2e-6,3e-6"], config_dir=conf)
    assert len(grid.cells) == 4 and grid.axes["learning_rate"] == [2e-6, 3e-6]
    assert expand(["sweep=mine"], config_dir=conf).fixed["learning_rate"] == 1e-6
    assert len(expand(["sweep=smoke"], config_dir=conf).cells) == 4
    assert "is not a folder" in refused("sweep=mine", config_dir=tmp_path / "none")
    (conf / "sweep" / "smoke.yaml").write_text("seed: 1\n")
    assert "has the name of one of the product's own" in refused("sweep=smoke", config_dir=conf)


def test_a_preset_can_start_from_another_and_write_fields_dotted(tmp_path):
    text = """
        defaults: [smoke, _self_, {override /model: qwen3_tiny}]
        axes: {sync_interval: [2], optimizer.beta2: [0.9, 0.99]}
        optimizer.beta1: 0.8
        warm_start: {target_reward: 0.5}
    """
    grid = expand(["sweep=mine"], config_dir=own(tmp_path, {"sweep/mine.yaml": text}))
    assert grid.axes["sync_interval"] == [2] and grid.axes["learning_rate"] == [1e-3, 4e-3]
    assert grid.axes["optimizer.beta2"] == [0.9, 0.99] and grid.fixed["optimizer.beta1"] == 0.8
    assert grid.fixed["model.family"] == "qwen3" and grid.fixed["budget.horizon.updates"] == 20


def test_groups_of_fields_that_belong_together(tmp_path):
    conf = own(
        tmp_path,
        {
            "batch/small.yaml": "batch_size: 32\ngroup_size: 4\n",
            "batch/large.yaml": "batch_size: 128\n",
            "optimizer/slow.yaml": "beta2: 0.999\n",
            "sweep/mine.yaml": "defaults: [/batch@_global_: small, _self_]\naxes: {model: [qwen3_tiny]}\n",
        },
    )
    grid = expand(["sweep=smoke", "batch=small,large", "optimizer=slow"], config_dir=conf)
    assert grid.axes["batch"] == ["small", "large"] and len(grid.cells) == 8
    sizes = {(cell.values["batch"], cell.config.batch_size, cell.config.group_size) for cell in grid.cells}
    assert sizes == {("small", 32, 4), ("large", 128, 8)}
    assert "batch_size" not in grid.fixed and grid.fixed["optimizer.beta2"] == 0.999
    chosen = expand(["sweep=mine"], config_dir=conf)
    assert chosen.fixed["batch_size"] == 32 and chosen.axes["model"] == ["qwen3_tiny"]
    assert expand(["sweep=mine", "batch=large"], config_dir=conf).fixed["batch_size"] == 128


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learing_rate: 3\n", "unknown field learing_rate; did you mean learning_rate? (preset"),
        ("learning_rate: 1e-3\nlearning_rate: 2e-3\n", "found duplicate key learning_rate"),
        ("axes: {learning_rate: [1e-3\n", "expected ',' or ']'"),
        ("learning_rate: ???\n", "Missing mandatory value: learning_rate"),
        ("learning_rate: '1e-3'\n", "learning_rate='1e-3' must be a number"),
        ("axes: {learning_rate: ['1e-3']}\n", "learning_rate='1e-3' must be a number"),
        ("axes: {learning_rate: []}\n", "axis learning_rate has no value"),
        ("axes: [learning_rate]\n", "axes has to be a mapping"),
        ("axes: {learning_rate: [[1, 2]]}\n", "write learning_rate: [a, b, c]"),
        ("axes: {optimizer: [1]}\n", "optimizer is a section"),
        ("axes: {lerning_rate: [1]}\n", "did you mean learning_rate?"),
        ("axes: {seed: [1, 1]}\n", "repeats a seed"),
        ("axes: {model: [llama]}\n", "axis model has no 'llama'; did you mean llama_tiny?"),
        ("axes: {sweep: [smoke]}\n", "a preset is no axis"),
        ("axes: {budget.horizon.updates: [1, 2]}\n", "not an axis"),
        ("axes: {learning_rate: [1]}\nlearning_rate: 2\n", "sets learning_rate and lists it under axes"),
        ("optimizer: 3\n", "optimizer is a section"),
        ("3: 4\n", "unknown field 3"),
        ("cost: {seconds_per_update: fast}\n", "cost: seconds_per_update='fast' must be a number"),
        ("report: short\n", "report has to be a mapping"),
    ],
)
def test_a_faulty_preset_is_one_message_with_its_file(tmp_path, text, said):
    message = refused("sweep=mine", config_dir=own(tmp_path, {"sweep/mine.yaml": text}))
    assert said in message and "mine.yaml" in message and len(message.splitlines()) == 1


def test_what_is_fixed_is_every_field_that_does_not_vary():
    plain = expand(["sweep=smoke"])
    everything = set(flatten(CellConfig().model_dump(mode="json")))
    assert set(plain.fixed) | set(plain.axes) == everything
    varied = expand(["sweep=smoke", "model=llama_tiny,qwen3_tiny", "model.heads=2"])
    assert varied.fixed["model.heads"] == 2 and "model.family" not in varied.fixed
    assert not set(varied.fixed) & set(varied.axes)


def test_composition_is_per_group_choice_not_per_cell(monkeypatch):
    calls = []
    real = sweeps.presets.compose
    monkeypatch.setattr(sweeps.presets, "compose", lambda *a, **k: calls.append(a) or real(*a, **k))
    grid = expand(["sweep=smoke", "sync_interval=range(1,251)"])
    assert len(grid.cells) == 500 and len(calls) == 1
    calls.clear()
    grid = expand(["sweep=smoke", "sync_interval=range(1,101)", "model=llama_tiny,qwen3_tiny"])
    assert len(grid.cells) == 400 and len(calls) == 3
    assert grid.axes["model"] == ["llama_tiny", "qwen3_tiny"]


def test_grids_need_no_training_packages():
    script = (
        "import sys; from sweeps.grid import expand; import sweeps.cost, sweeps.identity; "
        "expand(['sweep=smoke']); "
        "print(sorted({'torch', 'transformers', 'ray', 'vllm', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
