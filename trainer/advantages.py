"""Advantages within prompt groups, computed once, when rollouts are generated (math.md A4)."""

from __future__ import annotations

from torch import Tensor

from trainer.config import AdvantageConfig, LossConfig


def group_advantages(rewards: Tensor, group_size: int, config: AdvantageConfig, loss: LossConfig) -> Tensor:
    """(r − group mean) / (group std + ε), or r − group mean where the configuration or the loss says so.

    `rewards` float32 [n], groups being consecutive runs of `group_size`; returns float32 [n]. The shift of
    `asymre` is the loss's, not part of what is stored. A group whose rewards are all equal gets exactly 0,
    whatever the rounding of its mean.
    """
    groups = rewards.view(-1, group_size)
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if config.normalize == "std" and loss.kind != "asymre":
        spread = groups.std(dim=1, correction=config.ddof, keepdim=True)
        advantages = advantages / (spread + config.epsilon)
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return advantages.masked_fill(equal, 0.0).view(-1)
