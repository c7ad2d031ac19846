"""Policy-gradient losses: pure functions (inputs, config) -> (loss, metrics)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import LossConfig


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Detached measurements of one loss, all scalars over response tokens."""

    ratio_min: Tensor
    ratio_max: Tensor
    clip_fraction: Tensor
    kl: Tensor


def grpo_loss(
    log_probabilities: Tensor,
    behaviour_log_probabilities: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
) -> tuple[Tensor, LossMetrics]:
    """Clipped GRPO objective, negated; mean over tokens of a sequence, then over sequences (math.md A4).

    `log_probabilities` and `behaviour_log_probabilities` float32 [n, l], `advantages` float32 [n], `mask`
    bool [n, l] with at least one true token per row. The ratio is per token, against the log-probabilities
    stored when the rollout was generated. Order matters for staleness: mask first, clamp the log-ratio wide,
    then exponentiate, so that neither the loss nor its gradient can overflow.
    """
    log_ratio = torch.where(mask, log_probabilities - behaviour_log_probabilities, 0.0)
    log_ratio = log_ratio.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)
    ratio = log_ratio.exp()
    weight = advantages.unsqueeze(1)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.where(mask, torch.minimum(ratio * weight, clipped * weight), 0.0)
    tokens = mask.sum(dim=1)
    loss = -(objective.sum(dim=1) / tokens).mean()
    with torch.no_grad():
        cut = ((ratio > 1 + config.clip_high) & (weight > 0)) | ((ratio < 1 - config.clip_low) & (weight < 0))
        total = tokens.sum()
        metrics = LossMetrics(
            ratio_min=ratio.masked_fill(~mask, torch.inf).min(),
            ratio_max=ratio.masked_fill(~mask, -torch.inf).max(),
            clip_fraction=(cut & mask).sum() / total,
            kl=torch.where(mask, ratio - 1 - log_ratio, 0.0).sum() / total,
        )
    return loss, metrics
