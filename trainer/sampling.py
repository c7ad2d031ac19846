"""The sampling loop: cached generation that returns the behaviour policy's own log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache

from trainer.policy import cache_keyword


@dataclass(frozen=True, slots=True)
class Responses:
    """Sampled responses to n prompts, l tokens at most."""

    tokens: Tensor
    """int64 [n, l]; padding after the end mark."""
    mask: Tensor
    """bool [n, l]; true up to and including the end mark."""
    log_probabilities: Tensor
    """float32 [n, l]; under the sampling distribution, temperature included; 0 where the mask is false."""

    @property
    def lengths(self) -> Tensor:
        """int64 [n]."""
        return self.mask.sum(dim=1)


def sample(
    model: Module,
    prompts: Tensor,
    uniforms: Tensor,
    *,
    temperature: float,
    eos_id: int,
    pad_id: int,
    kept: Responses | None = None,
) -> Responses:
    """Draw one response per prompt by inverting the distribution function at the given uniforms.

    `kept` holds the first tokens of every response, [n, k] with k below the longest response, which stay as
    they are: the rest is drawn after them.

    `prompts` int64 [n, p] without padding; `uniforms` float64 [n, l] in [0, 1): one per token, so what a
    rollout draws depends on its own numbers only, not on what else is in the batch. Raises
    `FloatingPointError` when the model's probabilities are not finite.
    """
    with torch.inference_mode():
        drawn = _sample(model, prompts, uniforms, temperature, eos_id, pad_id, kept)
    # a clone made outside may take part in a loss, an inference tensor may not
    return Responses(*(tensor.clone() for tensor in drawn))


def _sample(
    model: Module,
    prompts: Tensor,
    uniforms: Tensor,
    temperature: float,
    eos_id: int,
    pad_id: int,
    kept: Responses | None,
) -> tuple[Tensor, Tensor, Tensor]:
    count, longest = uniforms.shape
    tokens = torch.full((count, longest), pad_id)
    mask = torch.zeros(count, longest, dtype=torch.bool)
    log_probabilities = torch.zeros(count, longest)
    alive = torch.ones(count, dtype=torch.bool)
    cache, keyword, inputs = DynamicCache(config=model.config), cache_keyword(type(model)), prompts
    first = 0
    if kept is not None:
        first = kept.tokens.shape[1]
        tokens[:, :first], mask[:, :first] = kept.tokens, kept.mask
        log_probabilities[:, :first] = kept.log_probabilities
        alive = ~(kept.mask & (kept.tokens == eos_id)).any(dim=1)
        inputs = torch.cat([prompts, kept.tokens], dim=1)
    for position in range(first, longest):
        output = model(input_ids=inputs, use_cache=True, logits_to_keep=1, **{keyword: cache})
        step = torch.log_softmax(output.logits[:, -1].float() / temperature, dim=-1)
        cumulative = step.double().exp().cumsum(dim=-1)
        total = cumulative[:, -1:]
        if not bool(torch.isfinite(total).all()):
            raise FloatingPointError("the policy's next-token probabilities are not finite")
        drawn = (cumulative <= uniforms[:, position : position + 1] * total).sum(dim=-1)
        drawn = drawn.clamp_(max=step.shape[-1] - 1)
        tokens[:, position] = torch.where(alive, drawn, pad_id)
        mask[:, position] = alive
        chosen = step.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        log_probabilities[:, position] = torch.where(alive, chosen, 0.0)
        alive = alive & (drawn != eos_id)
        if not bool(alive.any()):
            break
        inputs = tokens[:, position : position + 1]
    return tokens, mask, log_probabilities
