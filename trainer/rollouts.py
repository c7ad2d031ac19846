"""Rollouts: what a policy generated for a prompt, and the batches that training takes them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from trainer.advantages import group_advantages
from trainer.config import RunConfig
from trainer.prompts import Prompts, Verdicts
from trainer.sampling import Decoding, Responses, sample
from trainer.seeding import generator
from trainer.tasks import Task

TENSORS = (
    *("prompts", "prompt_lengths", "responses", "mask", "log_probabilities"),
    *("rewards", "scored", "trained", "advantages"),
)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """n rollouts."""

    prompts: Tensor
    """int64 [n, p]; padded on the left."""
    prompt_lengths: Tensor
    """int64 [n]."""
    responses: Tensor
    """int64 [n, l]; padding after the end mark."""
    mask: Tensor
    """bool [n, l]; true up to and including the end mark."""
    log_probabilities: Tensor
    """float32 [n, l], of the policies that drew the tokens, when they drew them."""
    rewards: Tensor
    """float32 [n]; 0 where unscored."""
    scored: Tensor
    """bool [n]; whether the verifier gave a verdict."""
    trained: Tensor
    """bool [n]; whether the loss counts it: scored, and not truncated where task.truncation=mask."""
    advantages: Tensor
    """float32 [n]; 0 where it is not trained on."""

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
    dropped: bool = False
    """It has a truncated response and task.truncation=filter: it never enters the store."""

    @property
    def tokens_by_position(self) -> list[int]:
        """Tokens generated at each position, all G rollouts together."""
        counts: list[int] = self.rollouts.mask.sum(dim=0).tolist()
        return [count for count in counts if count]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint."""
        extra = {"versions_last": self.versions_last, "dropped": torch.tensor([self.dropped])}
        return self.rollouts.tensors() | extra

    @staticmethod
    def from_tensors(number: int, version: int, tensors: Mapping[str, Tensor]) -> Group:
        """The inverse of `tensors`."""
        return Group(
            number,
            version,
            RolloutBatch.from_tensors(tensors),
            tensors["versions_last"],
            bool(tensors["dropped"]),
        )


class PromptStream:
    """A run's prompts and sampling numbers, in issue order; the same for every S, η and store.

    They are drawn in blocks of a batch's, each from (seed, purpose, block) alone.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.task, self.config = task, config
        self._block: tuple[int, Prompts, Tensor] | None = None

    def prompts(self, number: int) -> Prompts:
        """A group's prompt, G times."""
        block, row = divmod(number, self.config.prompts_per_batch)
        return self._drawn(block)[1][row : row + 1].repeated(self.config.group_size)

    def uniforms(self, number: int) -> Tensor:
        """A group's random numbers for sampling, float64 [G, l]."""
        block, row = divmod(number, self.config.prompts_per_batch)
        size = self.config.group_size
        return self._drawn(block)[2][row * size : (row + 1) * size]

    def _drawn(self, block: int) -> tuple[int, Prompts, Tensor]:
        if self._block is None or self._block[0] != block:
            count, seed = self.config.prompts_per_batch, self.config.seed
            prompts = self.task.training_prompts(seed, block, count)
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
    prompts = Prompts.concatenated([stream.prompts(number) for number in numbers])
    uniforms = torch.cat([stream.uniforms(number) for number in numbers])
    drawn = draw_responses(policy, stream.task, prompts, uniforms, training_decoding(config, stream.task))
    # scored together, as a hundred small tensors cost more than the model's own work
    whole = _scored(stream, prompts, drawn)
    endings = has_ended(stream.task, drawn).view(-1, size).all(dim=1).tolist()
    parts = zip(*(getattr(whole, name).split(size) for name in TENSORS), strict=True)
    last = torch.full((size,), version)
    filtered = config.task.truncation == "filter"
    return [
        Group(number, version, RolloutBatch(*part), last, filtered and not all_ended)
        for number, part, all_ended in zip(numbers, parts, endings, strict=True)
    ]


def renew_group(policy: Module, stream: PromptStream, group: Group, kept: int, version: int) -> Group:
    """The group with all after its first `kept` positions drawn anew, by a newer policy version."""
    old, config = group.rollouts, stream.config
    first = Responses(old.responses[:, :kept], old.mask[:, :kept], old.log_probabilities[:, :kept])
    prompts, uniforms = stream.prompts(group.number), stream.uniforms(group.number)
    decoding = training_decoding(config, stream.task)
    drawn = draw_responses(policy, stream.task, prompts, uniforms, decoding, first)
    last = torch.where(drawn.lengths > kept, version, group.versions_last)
    rollouts = _scored(stream, prompts, drawn)
    dropped = config.task.truncation == "filter" and not bool(has_ended(stream.task, drawn).all())
    return Group(group.number, version if kept == 0 else group.version, rollouts, last, dropped)


def training_decoding(config: RunConfig, task: Task) -> Decoding:
    """How rollouts to train on are drawn: from the whole distribution."""
    return Decoding(
        config.sampling.temperature, task.eos_ids, task.pad_id, compute_dtype=config.model.compute_dtype
    )


def draw_responses(
    policy: Module,
    task: Task,
    prompts: Prompts,
    uniforms: Tensor,
    decoding: Decoding,
    kept: Responses | None = None,
) -> Responses:
    """One response of the policy to each of the task's prompts; see `trainer.sampling.sample`."""
    return sample(policy, prompts.tokens, prompts.lengths, uniforms, decoding, kept=kept)


def draw_uniforms(task: Task, count: int, stream: torch.Generator) -> Tensor:
    """Random numbers for `count` responses, float64 [count, max_response_tokens]."""
    shape = (count, task.config.max_response_tokens)
    return torch.rand(shape, dtype=torch.float64, generator=stream)


def mean_reward(batch: RolloutBatch, group_size: int) -> tuple[float | None, float | None]:
    """Mean reward of whole groups, unscored rollouts aside, and its standard error.

    The error is the standard deviation of the groups' means over the root of their number. None where
    nothing was scored.
    """
    groups, scored = batch.rewards.view(-1, group_size), batch.scored.view(-1, group_size)
    if bool(scored.all()):
        return batch.rewards.mean().item(), groups.mean(1).std(correction=0).item() / len(groups) ** 0.5
    kept = scored.any(dim=1)
    if not bool(kept.any()):
        return None, None
    means = groups[kept].sum(dim=1) / scored[kept].sum(dim=1)  # an unscored reward is 0
    reward = groups.sum() / scored.sum()
    return reward.item(), means.std(correction=0).item() / len(means) ** 0.5


def ended(task: Task, responses: Tensor, mask: Tensor) -> Tensor:
    """Whether responses int64 [n, l] have an end mark, bool [n]; the others are truncated."""
    return (torch.isin(responses, torch.tensor(task.eos_ids)) & mask).any(dim=1)


def has_ended(task: Task, drawn: Responses) -> Tensor:
    """The same for what was just drawn."""
    return ended(task, drawn.tokens, drawn.mask)


def judge(task: Task, prompts: Prompts, drawn: Responses) -> Verdicts:
    """Verdicts on responses; truncated ones are wrong, unseen by the verifier."""
    whole = has_ended(task, drawn)
    if bool(whole.all()):
        return task.verify(prompts, drawn.tokens, drawn.mask)
    correct, scored = torch.zeros_like(whole), torch.ones_like(whole)
    rows = whole.nonzero().squeeze(1)
    if len(rows):
        found = task.verify(prompts[rows], drawn.tokens[rows], drawn.mask[rows])
        correct[rows], scored[rows] = found.correct, found.scored
    return Verdicts(correct, scored)


def _scored(stream: PromptStream, prompts: Prompts, drawn: Responses) -> RolloutBatch:
    """Verified rollouts of whole groups, with their advantages."""
    config, task = stream.config, stream.task
    verdicts = judge(task, prompts, drawn)
    rewards = torch.where(verdicts.correct, 1.0, task.config.wrong_reward)
    rewards = rewards.masked_fill(~verdicts.scored, 0.0)
    trained = verdicts.scored
    if task.config.truncation == "mask":
        trained = trained & has_ended(task, drawn)
    advantages = group_advantages(rewards, trained, config.group_size, config.advantage, config.loss)
    return RolloutBatch(
        prompts.tokens,
        prompts.lengths,
        drawn.tokens,
        drawn.mask,
        drawn.log_probabilities,
        rewards,
        verdicts.scored,
        trained,
        advantages,
    )
