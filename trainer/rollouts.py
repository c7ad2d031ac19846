"""Rollouts: what a policy generated for a prompt, and the batches that training takes them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from trainer.advantages import group_advantages
from trainer.config import RunConfig
from trainer.sampling import Responses, sample
from trainer.seeding import generator
from trainer.tasks import Task

TENSORS = ("prompts", "responses", "mask", "log_probabilities", "rewards", "advantages")


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """n rollouts."""

    prompts: Tensor
    """int64 [n, p]."""
    responses: Tensor
    """int64 [n, l]; padding after the end mark."""
    mask: Tensor
    """bool [n, l]; true up to and including the end mark."""
    log_probabilities: Tensor
    """float32 [n, l], of the policies that drew the tokens, when they drew them."""
    rewards: Tensor
    """float32 [n]."""
    advantages: Tensor
    """float32 [n]."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in TENSORS}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> RolloutBatch:
        """From a mapping that has all of `TENSORS`, and maybe more."""
        return RolloutBatch(*(tensors[name] for name in TENSORS))


@dataclass(frozen=True, slots=True)
class Group:
    """The G rollouts of one prompt; never changed after they were made."""

    number: int
    """The prompt's place in issue order, from 0."""
    version: int
    """Policy version at the first tokens."""
    rollouts: RolloutBatch
    versions_last: Tensor
    """int64 [G]; policy version at each rollout's last token."""

    @property
    def tokens_by_position(self) -> list[int]:
        """Tokens generated at each position, all G rollouts together."""
        counts: list[int] = self.rollouts.mask.sum(dim=0).tolist()
        return [count for count in counts if count]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint."""
        return self.rollouts.tensors() | {"versions_last": self.versions_last}

    @staticmethod
    def from_tensors(number: int, version: int, tensors: Mapping[str, Tensor]) -> Group:
        """The inverse of `tensors`."""
        return Group(number, version, RolloutBatch.from_tensors(tensors), tensors["versions_last"])


class PromptStream:
    """A run's prompts and sampling numbers, in issue order; the same for every S, η and store.

    They are drawn in blocks of a batch's, each from (seed, purpose, block) alone.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.task, self.config = task, config
        self._block: tuple[int, Tensor, Tensor] | None = None

    def prompts(self, number: int) -> Tensor:
        """A group's prompt, G times, int64 [G, p]."""
        block, row = divmod(number, self.config.prompts_per_batch)
        return self._drawn(block)[1][row : row + 1].expand(self.config.group_size, -1)

    def uniforms(self, number: int) -> Tensor:
        """A group's random numbers for sampling, float64 [G, l]."""
        block, row = divmod(number, self.config.prompts_per_batch)
        size = self.config.group_size
        return self._drawn(block)[2][row * size : (row + 1) * size]

    def _drawn(self, block: int) -> tuple[int, Tensor, Tensor]:
        if self._block is None or self._block[0] != block:
            count, seed = self.config.prompts_per_batch, self.config.seed
            prompts = self.task.prompts(count, generator(seed, "prompts", block))
            stream = generator(seed, "sampling", block)
            uniforms = draw_uniforms(self.task, count * self.config.group_size, stream)
            self._block = (block, prompts, uniforms)
        return self._block


def generate_groups(
    policy: Module, stream: PromptStream, numbers: Sequence[int], version: int
) -> list[Group]:
    """The groups of some prompts, sampled together from one policy version.

    Raises `FloatingPointError` when the policy's probabilities are not finite.
    """
    config, size = stream.config, stream.config.group_size
    prompts = torch.cat([stream.prompts(number) for number in numbers])
    uniforms = torch.cat([stream.uniforms(number) for number in numbers])
    drawn = draw_responses(policy, stream.task, prompts, uniforms, config.sampling.temperature)
    # scored together, as a hundred small tensors cost more than the model's own work
    whole = _scored(stream, prompts, drawn)
    parts = zip(*(getattr(whole, name).split(size) for name in TENSORS), strict=True)
    last = torch.full((size,), version)
    return [
        Group(number, version, RolloutBatch(*part), last) for number, part in zip(numbers, parts, strict=True)
    ]


def renew_group(policy: Module, stream: PromptStream, group: Group, kept: int, version: int) -> Group:
    """The group with all after its first `kept` positions drawn anew, by a newer policy version."""
    old = group.rollouts
    first = Responses(old.responses[:, :kept], old.mask[:, :kept], old.log_probabilities[:, :kept])
    uniforms, temperature = stream.uniforms(group.number), stream.config.sampling.temperature
    drawn = draw_responses(policy, stream.task, old.prompts, uniforms, temperature, first)
    last = torch.where(drawn.lengths > kept, version, group.versions_last)
    rollouts = _scored(stream, old.prompts, drawn)
    return Group(group.number, version if kept == 0 else group.version, rollouts, last)


def draw_responses(
    policy: Module,
    task: Task,
    prompts: Tensor,
    uniforms: Tensor,
    temperature: float,
    kept: Responses | None = None,
) -> Responses:
    """One response of the policy to each of the task's prompts; see `trainer.sampling.sample`."""
    return sample(
        policy,
        prompts,
        uniforms,
        temperature=temperature,
        eos_id=task.eos_id,
        pad_id=task.pad_id,
        kept=kept,
    )


def draw_uniforms(task: Task, count: int, stream: torch.Generator) -> Tensor:
    """Random numbers for `count` responses, float64 [count, max_response_tokens]."""
    shape = (count, task.config.max_response_tokens)
    return torch.rand(shape, dtype=torch.float64, generator=stream)


def _scored(stream: PromptStream, prompts: Tensor, drawn: Responses) -> RolloutBatch:
    """Verified rollouts of whole groups, with their advantages."""
    rewards = stream.task.verify(prompts, drawn.tokens)
    advantages = group_advantages(
        rewards, stream.config.group_size, stream.config.advantage, stream.config.loss
    )
    return RolloutBatch(prompts, drawn.tokens, drawn.mask, drawn.log_probabilities, rewards, advantages)
