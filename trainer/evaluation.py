"""What a policy does on prompts that training never draws from: accuracy, pass@k, completions to read.

Random numbers have purposes of their own, so evaluating more or less changes nothing in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from trainer.budget import EvaluationConfig, EvaluationSampling
from trainer.config import RunConfig
from trainer.prompts import HELD_OUT, Prompts
from trainer.rollouts import draw_responses, draw_uniforms, judge, training_decoding
from trainer.sampling import Decoding
from trainer.seeding import generator
from trainer.tasks import Task


def due_sets(
    config: RunConfig, settings: EvaluationConfig, step: int
) -> list[tuple[str, EvaluationSampling]]:
    """Names and sampling of the sets that are measured after `step` updates, `held_out` first."""
    if not settings.every or step % settings.every:
        return []
    turn = step // settings.every
    own = [(HELD_OUT, settings)] if not config.task.is_text or config.task.held_out_share else []
    return [*own, *((name, each) for name, each in settings.sets.items() if turn % each.every == 0)]


def evaluate(
    policy: Module, task: Task, config: RunConfig, name: str, settings: EvaluationSampling, step: int
) -> list[dict[str, Any]]:
    """Lines of evaluations.jsonl for one set, `accuracy` first, measured on the policy after `step` updates.

    Unscored responses count as wrong and their number is told. Values are null when the policy's
    probabilities are not finite.
    """
    prompts = task.evaluation_prompts(name, settings.max_prompts)
    decoding = Decoding(
        settings.temperature,
        task.eos_ids,
        task.pad_id,
        settings.top_p,
        config.model.compute_dtype,
    )
    purpose = "evaluation" if name == HELD_OUT else f"evaluation {name}"
    stream = generator(config.seed, purpose, step)
    try:
        correct, unscored = _correct(policy, task, config, prompts, settings.samples, decoding, stream)
    except FloatingPointError:
        correct, unscored = None, 0
    line: dict[str, Any] = {"step": step, "policy_version": step, "set": name}
    end: dict[str, Any] = {"n": len(prompts)}
    if config.task.is_text or settings.samples > 1:
        end |= {"samples": settings.samples, "unscored": unscored}
    end |= {"temperature": settings.temperature}
    if settings.top_p < 1:
        end |= {"top_p": settings.top_p}
    value = None if correct is None else correct.double().mean().item()
    lines = [line | {"metric": "accuracy", "value": value} | end]
    for k in settings.pass_at:
        value = None if correct is None else pass_at(k, correct)
        lines.append(line | {"metric": f"pass@{k}", "value": value} | end)
    return lines


def pass_at(k: int, correct: Tensor) -> float:
    """Unbiased pass@k over prompts: the mean of 1 − C(n − c, k)/C(n, k), c of a prompt's n responses right.

    `correct` bool [prompts, n] with n ≥ k; exact integers, so nothing overflows.
    """
    n = correct.shape[1]
    missed = [comb(n - c, k) / comb(n, k) for c in correct.sum(dim=1).tolist()]
    return 1 - sum(missed) / len(missed)


def _correct(
    policy: Module,
    task: Task,
    config: RunConfig,
    prompts: Prompts,
    samples: int,
    decoding: Decoding,
    stream: torch.Generator,
) -> tuple[Tensor, int]:
    """Which responses were right, bool [prompts, samples], and how many were unscored."""
    # all random numbers of a set at once, so they do not depend on how it is cut
    uniforms = draw_uniforms(task, len(prompts) * samples, stream)
    repeated = prompts.repeated(samples)
    found, unscored = [], 0
    for rows in torch.arange(len(repeated)).split(config.resources.generation_chunk):
        drawn = draw_responses(policy, task, repeated[rows], uniforms[rows], decoding)
        verdicts = judge(task, repeated[rows], drawn)
        found.append(verdicts.correct)
        unscored += int((~verdicts.scored).sum())
    return torch.cat(found).view(-1, samples), unscored


def completions(
    policy: Module, task: Task, config: RunConfig, count: int, step: int
) -> Iterator[dict[str, Any]]:
    """Lines of samples.jsonl: one response to each of `count` fixed prompts."""
    prompts = task.sample_prompts(count)
    uniforms = draw_uniforms(task, len(prompts), generator(config.seed, "sample completions", step))
    drawn = draw_responses(policy, task, prompts, uniforms, training_decoding(config, task))
    verdicts = judge(task, prompts, drawn)
    rows = zip(prompts.tokens, drawn.tokens, verdicts.correct.tolist(), verdicts.scored.tolist(), strict=True)
    for prompt, response, correct, scored in rows:
        yield {
            "policy_version": step,
            "prompt": task.render(prompt),
            "response": task.render(response),
            "reward": (1.0 if correct else config.task.wrong_reward) if scored else None,
        }
