"""Policy-gradient losses: a pure function (inputs, extent, config) -> (loss, metrics). math.md A4.

    log-ratio learner/behaviour -> mask -> level (token | sequence) -> clamp -> ratio
    ratio, advantage, log-probability -> objective of the kind -> mean over the batch, negated
                                                     (+ kl_weight · the same mean of the reference term)

Inputs may be a part of a batch: its loss and its shares are then what it adds to the batch's, because every
mean is over the `Extent` of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import LossConfig


@dataclass(frozen=True, slots=True)
class LossInputs:
    """n responses of at most l tokens. Only `log_probabilities` is differentiated."""

    log_probabilities: Tensor
    """float32 [n, l], of the learner."""
    behaviour_log_probabilities: Tensor
    """float32 [n, l], stored when the rollouts were generated."""
    advantages: Tensor
    """float32 [n]."""
    mask: Tensor
    """bool [n, l]; rows without a true token add nothing."""
    reference_log_probabilities: Tensor | None = None
    """float32 [n, l], of the initial policy; needed when kl_weight is above 0, otherwise unused."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The batch that means are taken over."""

    responses: int
    tokens: int
    """Response tokens, end marks included."""
    longest: int
    """Longest response the task allows: task.max_response_tokens."""

    @staticmethod
    def of(mask: Tensor, longest: int) -> Extent:
        """The extent of a whole batch with this bool [n, l] mask; rows without a true token do not count."""
        return Extent(max(1, int(mask.any(dim=1).sum())), max(1, int(mask.sum())), longest)


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Detached measurements over response tokens, the ratios being per token whatever the loss uses."""

    ratio_min: Tensor
    ratio_max: Tensor
    clip_fraction: Tensor
    """Share of the batch's tokens whose ratio the loss cuts: clipped (`grpo`, dual clip included), or above
    the cap (`truncated`); 0 for `asymre`."""
    kl: Tensor
    """Share of the batch's mean of r − 1 − log r, an estimate of KL(behaviour || learner) per token."""
    reference_kl: Tensor | None
    """Share of the batch's mean of the reference term per token; None when kl_weight is 0."""

    @staticmethod
    def total(parts: Sequence[LossMetrics]) -> LossMetrics:
        """The metrics of a batch from those of its parts."""
        reference = [part.reference_kl for part in parts if part.reference_kl is not None]
        return LossMetrics(
            ratio_min=torch.stack([part.ratio_min for part in parts]).min(),
            ratio_max=torch.stack([part.ratio_max for part in parts]).max(),
            clip_fraction=torch.stack([part.clip_fraction for part in parts]).sum(),
            kl=torch.stack([part.kl for part in parts]).sum(),
            reference_kl=torch.stack(reference).sum() if reference else None,
        )


def policy_loss(inputs: LossInputs, extent: Extent, config: LossConfig) -> tuple[Tensor, LossMetrics]:
    """Loss of these responses as their share of a batch of this extent, a scalar, and its metrics.

    A sequence-level ratio and log-probability are those of the whole response, and count once for each of its
    tokens, so that `sequence_mean` is the paper's mean over responses. Order matters for staleness: mask
    first, clamp the log-ratio, then exponentiate, so that neither the loss nor its gradient can overflow.
    Raises `ValueError` when the reference term lacks its log-probabilities.
    """
    mask, bound = inputs.mask, config.log_ratio_clamp
    difference = torch.where(mask, inputs.log_probabilities - inputs.behaviour_log_probabilities, 0.0)
    token_log_ratio = difference.clamp(-bound, bound)
    token_ratio = token_log_ratio.exp()
    ratio = token_ratio
    if config.ratio_level == "sequence":
        ratio = difference.sum(dim=1, keepdim=True).clamp(-bound, bound).exp()
    objective, cut = _objective(inputs, ratio, config)
    loss = -_mean(objective, mask, extent, config)
    reference_kl = None
    if config.kl_weight:
        distance = _reference_distance(inputs, config)
        loss = loss + config.kl_weight * _mean(distance, mask, extent, config)
        reference_kl = torch.where(mask, distance.detach(), 0.0).sum() / extent.tokens
    with torch.no_grad():
        metrics = LossMetrics(
            ratio_min=token_ratio.masked_fill(~mask, torch.inf).min(),
            ratio_max=token_ratio.masked_fill(~mask, -torch.inf).max(),
            clip_fraction=(cut & mask).sum() / extent.tokens,
            kl=torch.where(mask, token_ratio - 1 - token_log_ratio, 0.0).sum() / extent.tokens,
            reference_kl=reference_kl,
        )
    return loss, metrics


def _objective(inputs: LossInputs, ratio: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """What is maximised, and which ratios were cut: both [n, l], or [n, 1] for one action per response."""
    advantages = inputs.advantages.unsqueeze(1)
    if config.kind == "grpo":
        return _clipped(ratio, advantages, config)
    chosen = torch.where(inputs.mask, inputs.log_probabilities, 0.0)
    if config.kind == "asymre":
        return (advantages - config.asymre_shift) * chosen, torch.zeros_like(inputs.mask)
    if config.ratio_level == "sequence":
        chosen = chosen.sum(dim=1, keepdim=True)
    weight = ratio.detach().clamp(max=config.weight_cap)
    return weight * advantages * chosen, ratio.detach() > config.weight_cap


def _clipped(ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """min(r·A, clip(r)·A), for negative A at least dual_clip·A; a ratio is cut where r has no gradient."""
    low, high = 1 - config.clip_low, 1 + config.clip_high
    objective = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    negative = advantages < 0
    cut = ((ratio > high) & (advantages > 0)) | ((ratio < low) & negative)
    if config.dual_clip is not None:
        floor = config.dual_clip * advantages
        objective = torch.where(negative, torch.maximum(objective, floor), objective)
        cut = cut | ((ratio > config.dual_clip) & negative)
    return objective, cut


def _reference_distance(inputs: LossInputs, config: LossConfig) -> Tensor:
    """exp(q) − 1 − q with q = log reference − log policy, [n, l]: at least 0, and unbiased for
    KL(policy || reference) where the tokens are the policy's own."""
    if inputs.reference_log_probabilities is None:
        raise ValueError(
            f"kl_weight={config.kl_weight} needs reference_log_probabilities: pass the initial policy's, or "
            "set kl_weight=0"
        )
    difference = inputs.reference_log_probabilities.detach() - inputs.log_probabilities
    bound = config.log_ratio_clamp
    difference = torch.where(inputs.mask, difference, 0.0).clamp(-bound, bound)
    return difference.exp() - 1 - difference


def _mean(values: Tensor, mask: Tensor, extent: Extent, config: LossConfig) -> Tensor:
    """The configured mean over the extent; `values` [n, l], or [n, 1] to count for every token of a row."""
    sums = torch.where(mask, values, 0.0).sum(dim=1)
    if config.aggregation == "sequence_mean":
        return (sums / mask.sum(dim=1).clamp(min=1)).sum() / extent.responses
    if config.aggregation == "token_mean":
        return sums.sum() / extent.tokens
    return sums.sum() / (extent.responses * extent.longest)
