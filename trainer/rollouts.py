"""Rollouts: what one policy version generated for one learner update, ready to be trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from trainer.advantages import group_advantages
from trainer.config import RunConfig
from trainer.sampling import Responses, sample
from trainer.seeding import generator
from trainer.tasks import CopyTask


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The n = B rollouts of one update; never changed after it was made."""

    step: int
    """The learner update that these prompts belong to."""
    policy_version: int
    """Learner updates done by the policy that generated them."""
    prompts: Tensor
    """int64 [n, p]; groups of G equal prompts stand together."""
    responses: Tensor
    """int64 [n, l]."""
    mask: Tensor
    """bool [n, l]."""
    log_probabilities: Tensor
    """float32 [n, l], of the behaviour policy."""
    rewards: Tensor
    """float32 [n]."""
    advantages: Tensor
    """float32 [n]."""

    TENSORS = ("prompts", "responses", "mask", "log_probabilities", "rewards", "advantages")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, for a checkpoint."""
        return {name: getattr(self, name) for name in self.TENSORS}


def generate_batches(
    policy: Module, task: CopyTask, config: RunConfig, steps: range, policy_version: int
) -> list[RolloutBatch]:
    """The rollouts of the updates in `steps`, sampled together from one policy version.

    Update t's prompts and random numbers depend on (seed, t) alone, so every S and η sees the same prompts
    in the same order. Raises `FloatingPointError` when the policy's probabilities are not finite.
    """
    prompts = torch.cat([batch_prompts(task, config, step) for step in steps])
    uniforms = torch.cat([batch_uniforms(task, config, step) for step in steps])
    drawn = draw_responses(policy, task, prompts, uniforms, config.sampling.temperature)
    size = config.batch_size
    return [
        _batch(task, config, step, policy_version, prompts[rows], drawn, rows)
        for step, rows in ((step, slice(i * size, (i + 1) * size)) for i, step in enumerate(steps))
    ]


def draw_responses(
    policy: Module, task: CopyTask, prompts: Tensor, uniforms: Tensor, temperature: float
) -> Responses:
    """One response of the policy to each of the task's prompts; see `trainer.sampling.sample`."""
    return sample(policy, prompts, uniforms, temperature=temperature, eos_id=task.eos_id, pad_id=task.pad_id)


def draw_uniforms(task: CopyTask, count: int, stream: torch.Generator) -> Tensor:
    """Random numbers for `count` responses, float64 [count, max_response_tokens]."""
    shape = (count, task.config.max_response_tokens)
    return torch.rand(shape, dtype=torch.float64, generator=stream)


def batch_prompts(task: CopyTask, config: RunConfig, step: int) -> Tensor:
    """Update `step`'s prompts, each G times, int64 [B, p]."""
    fresh = task.prompts(config.prompts_per_batch, generator(config.seed, "prompts", step))
    return fresh.repeat_interleave(config.group_size, dim=0)


def batch_uniforms(task: CopyTask, config: RunConfig, step: int) -> Tensor:
    """Update `step`'s random numbers for sampling, float64 [B, l]."""
    return draw_uniforms(task, config.batch_size, generator(config.seed, "sampling", step))


def _batch(
    task: CopyTask,
    config: RunConfig,
    step: int,
    policy_version: int,
    prompts: Tensor,
    drawn: Responses,
    rows: slice,
) -> RolloutBatch:
    responses = drawn.tokens[rows].clone()
    rewards = task.verify(prompts, responses)
    return RolloutBatch(
        step=step,
        policy_version=policy_version,
        prompts=prompts.clone(),
        responses=responses,
        mask=drawn.mask[rows].clone(),
        log_probabilities=drawn.log_probabilities[rows].clone(),
        rewards=rewards,
        advantages=group_advantages(rewards, config.group_size, config.advantage, config.loss),
    )
