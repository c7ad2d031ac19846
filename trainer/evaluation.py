"""What a policy does on prompts that training never draws from: accuracy, and a few completions to read.

Random numbers have purposes of their own, so evaluating more or less changes nothing in training.
"""

from __future__ import annotations

from typing import Any

from torch.nn import Module

from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.rollouts import draw_responses, draw_uniforms
from trainer.seeding import generator
from trainer.tasks import Task


def held_out_accuracy(
    policy: Module, task: Task, config: RunConfig, settings: EvaluationConfig, step: int
) -> float:
    """Share of correct responses to fixed prompts, the same for every run of the task; one response each.

    Raises `FloatingPointError` when the policy's probabilities are not finite.
    """
    prompts = task.prompts(settings.prompts, generator(0, "held-out prompts", 0))
    uniforms = draw_uniforms(task, len(prompts), generator(config.seed, "evaluation", step))
    drawn = draw_responses(policy, task, prompts, uniforms, settings.temperature)
    return (task.verify(prompts, drawn.tokens) == 1).double().mean().item()


def completions(policy: Module, task: Task, config: RunConfig, count: int, step: int) -> list[dict[str, Any]]:
    """Lines of samples.jsonl: one response to each of `count` fixed prompts."""
    prompts = task.prompts(count, generator(0, "sample prompts", 0))
    uniforms = draw_uniforms(task, count, generator(config.seed, "sample completions", step))
    drawn = draw_responses(policy, task, prompts, uniforms, config.sampling.temperature)
    rewards = task.verify(prompts, drawn.tokens).tolist()
    return [
        {
            "policy_version": step,
            "prompt": task.render(prompt),
            "response": task.render(response),
            "reward": reward,
        }
        for prompt, response, reward in zip(prompts, drawn.tokens, rewards, strict=True)
    ]
