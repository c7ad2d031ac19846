"""Advantages within prompt groups, computed once, when rollouts are generated (math.md A4)."""

from __future__ import annotations

from torch import Tensor

from trainer.config import AdvantageConfig, LossConfig


def group_advantages(
    rewards: Tensor, counted: Tensor, group_size: int, config: AdvantageConfig, loss: LossConfig
) -> Tensor:
    """(r − group mean) / (group std + ε), or r − group mean where the configuration or the loss says so.

    `rewards` float32 [n], groups being consecutive runs of `group_size`; `counted` bool [n]: the others have
    no part in mean and std and get 0. Returns float32 [n]. The shift of `asymre` is the loss's, not part of
    what is stored. A group whose rewards are all equal gets exactly 0, whatever the rounding of its mean.
    """
    groups, inside = rewards.view(-1, group_size), counted.view(-1, group_size)
    scaled = config.normalize == "std" and loss.kind != "asymre"
    if bool(counted.all()):
        advantages = groups - groups.mean(dim=1, keepdim=True)
        if scaled:
            spread = groups.std(dim=1, correction=config.ddof, keepdim=True)
            advantages = advantages / (spread + config.epsilon)
        equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
        return advantages.masked_fill(equal, 0.0).view(-1)
    size = inside.sum(dim=1, keepdim=True)
    advantages = groups - groups.masked_fill(~inside, 0.0).sum(dim=1, keepdim=True) / size.clamp(min=1)
    if scaled:
        squares = advantages.square().masked_fill(~inside, 0.0).sum(dim=1, keepdim=True)
        spread = (squares / (size - config.ddof).clamp(min=1)).sqrt()
        advantages = advantages / (spread + config.epsilon)
    greatest = groups.masked_fill(~inside, float("-inf")).amax(dim=1, keepdim=True)
    least = groups.masked_fill(~inside, float("inf")).amin(dim=1, keepdim=True)
    return advantages.masked_fill(~inside | (greatest <= least), 0.0).view(-1)
