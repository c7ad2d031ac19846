"""Options of the configuration tree for real tasks and models, and settings by names of other libraries."""

import pytest

from sweeps.grid import expand
from sweeps.presets import CONF
from trainer.errors import UserError

REVISION = "0123456789abcdef0123456789abcdef01234567"
HUB_TASKS = ("math", "openr1_math", "dapo_math")
HUB_MODELS = sorted(
    path.stem
    for path in (CONF / "model").glob("*.yaml")
    if "pretrained" in path.read_text().split("\n\n")[-1]
)


def one(*overrides):
    grid = expand(["sweep=smoke", "sync_interval=1", "learning_rate=1e-6", *overrides])
    (cell,) = grid.cells
    return cell


@pytest.mark.parametrize("model", HUB_MODELS)
@pytest.mark.parametrize("task", HUB_TASKS)
def test_real_tasks_and_models_go_together(task, model):
    revisions = (f"task.source.revision={REVISION}", f"model.revision={REVISION}")
    config = one(f"task={task}", f"model={model}", *revisions).config
    assert config.model.from_hub and config.model.compute_dtype == "bfloat16"
    assert config.task.verifier_kind == "math" and config.task.source.kind == "dataset"


def test_there_are_models():
    assert len(HUB_MODELS) == 5


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task=math", "model=qwen3_8b", f"model.revision={REVISION}"], "task.source: revision=null"),
        (["task=math", "model=qwen3_8b", f"task.source.revision={REVISION}"], "model: revision=null"),
        (["model=qwen3_8b", f"model.revision={REVISION}"], "task.name=copy has tokens of its own"),
        (["task=gcd", "task.verifier.kind=command"], "needs command"),
        (["task.source.generator=gcd", "task.source.rows=9"], "has no effect when name=copy"),
        (["task=gcd", "task.source.path=a.jsonl"], "generator and path are both set"),
        (["task=gcd", "task.extract='('"], "neither whole nor boxed nor a regular expression"),
        (["task=gcd", "task.prompt_template='Solve it'"], "does not hold {problem}"),
        (["task=gcd", "budget.evaluation.every=5", "task.held_out_share=0"], "no prompts to evaluate on"),
        (["task=gcd", "budget.evaluation.every=5", "budget.evaluation.sets.a.source.path=x.jsonl"], None),
        (["sampling.top_p=0.9"], "top_p=0.9 is refused in training"),
        (["task.source.generatr=gcd"], "did you mean task.source.generator?"),
    ],
)
def test_a_fault_is_one_message_with_its_fix(overrides, words):
    if words is None:
        assert "a" in one(*overrides).config.budget.evaluation.sets
        return
    with pytest.raises(UserError) as caught:
        one(*overrides)
    assert any(words in problem for problem in caught.value.problems), caught.value.problems


def test_names_of_other_libraries_can_be_set_and_varied():
    grid = expand(
        [
            "sweep=laptop_words",
            "task.source.settings.max_value=9,12",
            "task.chat_template_kwargs.enable_thinking=false",
        ]
    )
    assert grid.axes["task.source.settings.max_value"] == [9, 12]
    assert len({cell.run_id for cell in grid.cells}) == len(grid.cells) == 8
    for cell in grid.cells:
        assert cell.config.task.chat_template_kwargs == {"enable_thinking": False}
        assert cell.config.task.source.settings["min_numbers"] == 2
