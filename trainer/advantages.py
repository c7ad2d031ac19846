"""Group-normalised advantages, computed once, when rollouts are generated (math.md A4)."""

from __future__ import annotations

from torch import Tensor

from trainer.config import AdvantageConfig


def group_advantages(rewards: Tensor, group_size: int, config: AdvantageConfig) -> Tensor:
    """(r − group mean) / (group std + ε), float32 [n]; groups are consecutive runs of `group_size`.

    A group whose rewards are all equal gets exactly 0, whatever the rounding of its mean.
    """
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    spread = groups.std(dim=1, correction=config.ddof, keepdim=True)
    advantages = centred / (spread + config.epsilon)
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return advantages.masked_fill(equal, 0.0).view(-1)
