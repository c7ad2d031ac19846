"""Closed forms of the trainer's parts: task, sampling, journals, checkpoints."""

import json
import math

import pytest
import torch

from tests.helpers import SMALL
from trainer.checkpoint import MARKER, Checkpoint, load_newest, save_checkpoint
from trainer.config import RunConfig
from trainer.journal import Journals, cut_journals
from trainer.policy import build_policy, response_log_probabilities
from trainer.prompts import Prompts
from trainer.rollouts import PromptStream, generate_groups
from trainer.sampling import Decoding, sample
from trainer.schema import parse
from trainer.seeding import generator
from trainer.tasks import built_in_task

CONFIG = parse(RunConfig, SMALL)
TASK = built_in_task(CONFIG.task)


def correct(prompts, responses):
    mask = torch.ones_like(responses, dtype=torch.bool)
    return TASK.verify(Prompts.unpadded(prompts), responses, mask).correct.tolist()


def draw(model, prompts, uniforms, temperature=1.0, top_p=1.0):
    lengths = torch.full((len(prompts),), prompts.shape[1])
    return sample(model, prompts, lengths, uniforms, Decoding(temperature, TASK.eos_ids, TASK.pad_id, top_p))


def test_task_rewards_the_exact_copy_only():
    prompts = TASK.prompts(5, generator(0, "p", 0))
    answers = TASK.answers(prompts)
    assert correct(prompts, answers) == [True] * 5
    wrong = answers.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % 4
    assert correct(prompts, wrong) == [False] * 5
    unfinished = answers.clone()
    unfinished[:, -1] = 0
    assert correct(prompts, unfinished) == [False] * 5
    assert TASK.render(answers[0]).endswith(".")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_behaviour_log_probabilities_equal_the_learners_at_lag_zero(family, temperature):
    model = build_policy(CONFIG.model.model_copy(update={"family": family}), TASK, 0)
    prompts = TASK.prompts(32, generator(0, "p", 0))
    uniforms = torch.rand(32, 4, dtype=torch.float64, generator=generator(0, "u", 0))
    drawn = draw(model, prompts, uniforms, temperature)
    again, entropy = response_log_probabilities(model, prompts, drawn.tokens, temperature)
    ratio = (again - drawn.log_probabilities).exp()[drawn.mask]
    assert (ratio - 1).abs().max() < 1e-4
    assert (entropy >= 0).all() and (entropy <= math.log(TASK.vocabulary_size) + 1e-5).all()
    assert (drawn.tokens[~drawn.mask] == TASK.pad_id).all()


def test_samples_follow_the_models_distribution():
    model = build_policy(CONFIG.model, TASK, 0)
    prompts = TASK.prompts(1, generator(0, "p", 0)).expand(20000, -1)
    uniforms = torch.rand(20000, 1, dtype=torch.float64, generator=generator(0, "u", 0))
    drawn = draw(model, prompts, uniforms)
    logits = model(input_ids=prompts[:1], use_cache=False).logits[0, -1]
    expected = torch.softmax(logits, -1)
    seen = torch.bincount(drawn.tokens[:, 0], minlength=TASK.vocabulary_size) / 20000
    assert (seen - expected).abs().max() < 4 * 0.5 / math.sqrt(20000)


def test_what_a_group_draws_does_not_depend_on_the_chunk():
    policy, stream = build_policy(CONFIG.model, TASK, 0), PromptStream(TASK, CONFIG)
    alone = generate_groups(policy, stream, [9], 0)[0].rollouts
    together = generate_groups(policy, stream, range(16), 0)[9].rollouts
    assert torch.equal(alone.prompts, together.prompts)
    assert torch.equal(alone.responses, together.responses)
    assert torch.allclose(alone.log_probabilities, together.log_probabilities, atol=1e-5)


def test_cut_journals_keeps_the_tail_elsewhere(tmp_path):
    with Journals(tmp_path, ("metrics",)) as journals:
        journals.append("metrics", {"step": 0})
        lengths = journals.sync()
        journals.append("metrics", {"step": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "torn')
    assert cut_journals(tmp_path, lengths, tmp_path / "attempts" / "1.tail.jsonl") == 2
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n'
    tail = [json.loads(line) for line in (tmp_path / "attempts" / "1.tail.jsonl").read_text().splitlines()]
    assert [line["line"] for line in tail] == ['{"step": 1}', '{"step": 2, "torn']
    with pytest.raises(ValueError, match="the checkpoint was written at"):
        cut_journals(tmp_path, {"metrics": 999}, tmp_path / "t")


def test_damaged_checkpoints_are_skipped_with_a_notice(tmp_path):
    for step in (5, 10, 15):
        groups = {"weights": {"w": torch.full((2,), float(step))}}
        save_checkpoint(tmp_path, Checkpoint(step, groups, {"n": step}), keep=3)
    (tmp_path / "step-00000015" / MARKER).unlink()
    (tmp_path / "step-00000010" / "weights.safetensors").write_bytes(b"x")
    notices: list[str] = []
    found = load_newest(tmp_path, notices.append)
    assert found is not None and found.step == 5 and found.groups["weights"]["w"].tolist() == [5.0, 5.0]
    assert len(notices) == 2 and "cut off" in notices[0] and "checksum" in notices[1]
