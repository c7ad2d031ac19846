"""The sampling loop: cached generation that returns the behaviour policy's own log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache

from trainer.policy import autocast, cache_keyword, device_of

COMPACTED_FROM = 32
"""Responses may be longer than this before finished rows are taken out of the batch."""


@dataclass(frozen=True, slots=True)
class Responses:
    """Sampled responses to n prompts, l tokens at most."""

    tokens: Tensor
    """int64 [n, l]; padding after the end mark."""
    mask: Tensor
    """bool [n, l]; true up to and including the end mark."""
    log_probabilities: Tensor
    """float32 [n, l]; under the softmax at the sampling temperature, whatever top_p; 0 where the mask is
    false."""

    @property
    def lengths(self) -> Tensor:
        """int64 [n]."""
        return self.mask.sum(dim=1)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are drawn."""

    temperature: float
    eos_ids: tuple[int, ...]
    """Each of these ends a response."""
    pad_id: int
    top_p: float = 1.0
    compute_dtype: str = "float32"
    """Of matrix products: `bfloat16` is autocast."""


def sample(
    model: Module,
    prompts: Tensor,
    lengths: Tensor,
    uniforms: Tensor,
    decoding: Decoding,
    *,
    kept: Responses | None = None,
) -> Responses:
    """Draw one response per prompt by inverting the distribution function at the given uniforms.

    `prompts` int64 [n, p] padded on the left, `lengths` int64 [n] their tokens; `uniforms` float64 [n, l] in
    [0, 1): one per token, so what a rollout draws depends on its own numbers only, not on what else is in the
    batch. `kept` holds the first tokens of every response, [n, k] with k below the longest response, which
    stay as they are: the rest is drawn after them. All are on the CPU, and so is the result. Raises
    `FloatingPointError` when the model's probabilities are not finite.
    """
    device = device_of(model)
    with torch.inference_mode(), autocast(decoding.compute_dtype, device):
        drawn = _sample(model, prompts.to(device), lengths.to(device), uniforms.to(device), decoding, kept)
    # a clone made outside may take part in a loss, an inference tensor may not
    return Responses(*(tensor.cpu().clone() for tensor in drawn))


def _sample(
    model: Module,
    prompts: Tensor,
    lengths: Tensor,
    uniforms: Tensor,
    decoding: Decoding,
    kept: Responses | None,
) -> tuple[Tensor, Tensor, Tensor]:
    count, longest = uniforms.shape
    device, pad_id = prompts.device, decoding.pad_id
    ends = torch.tensor(decoding.eos_ids, device=device)
    tokens = torch.full((count, longest), pad_id, device=device)
    mask = torch.zeros(count, longest, dtype=torch.bool, device=device)
    log_probabilities = torch.zeros(count, longest, device=device)
    rows = torch.arange(count, device=device)
    """Rows of the result that the batch in work holds."""
    alive = torch.ones(count, dtype=torch.bool, device=device)
    cache, keyword = DynamicCache(config=model.config), cache_keyword(type(model))
    inputs = prompts[:, prompts.shape[1] - int(lengths.max()) :]
    padded = bool((lengths < inputs.shape[1]).any())
    attended = torch.arange(inputs.shape[1], device=device) >= inputs.shape[1] - lengths.unsqueeze(1)
    first = 0
    if kept is not None:
        first = kept.tokens.shape[1]
        tokens[:, :first], mask[:, :first] = kept.tokens.to(device), kept.mask.to(device)
        log_probabilities[:, :first] = kept.log_probabilities.to(device)
        alive = ~(mask & torch.isin(tokens, ends)).any(dim=1)
        inputs = torch.cat([inputs, tokens[:, :first]], dim=1)
        attended = torch.cat([attended, attended.new_ones(count, first)], dim=1)
    # a group's prompt is read once: `copies` says which row of the first pass each rollout goes on from
    known = torch.cat([lengths.unsqueeze(1), inputs], dim=1)
    _, copies = torch.unique_consecutive(known, dim=0, return_inverse=True)
    read = torch.ones_like(copies, dtype=torch.bool)
    read[1:] = copies[1:] != copies[:-1]
    for position in range(first, longest):
        extra = {}
        seen = attended[read] if position == first else attended
        if padded:
            places = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
            extra = {"attention_mask": seen.long(), "position_ids": places}
        given = inputs[read] if position == first else inputs
        output = model(input_ids=given, use_cache=True, logits_to_keep=1, **{keyword: cache}, **extra)
        logits = output.logits[:, -1]
        if position == first and len(logits) < count:
            cache.batch_select_indices(copies)
            logits = logits[copies]
        step = torch.log_softmax(logits.float() / decoding.temperature, dim=-1)
        drawn, total = _invert(step, uniforms[rows, position], decoding.top_p)
        tokens[rows, position] = torch.where(alive, drawn, pad_id)
        mask[rows, position] = alive
        chosen = step.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        log_probabilities[rows, position] = torch.where(alive, chosen, 0.0)
        alive = alive & ~torch.isin(drawn, ends)
        # one readback for both
        left, finite = torch.stack([alive.sum(), torch.isfinite(total).all()]).tolist()
        if not finite:
            raise FloatingPointError("the policy's next-token probabilities are not finite")
        if not left:
            break
        if longest > COMPACTED_FROM and 2 * left <= len(rows):
            stays = alive.nonzero().squeeze(1)
            cache.batch_select_indices(stays)
            rows, alive, attended = rows[stays], alive[stays], attended[stays]
        inputs = tokens[rows, position : position + 1]
        attended = torch.cat([attended, attended.new_ones(len(rows), 1)], dim=1)
    return tokens, mask, log_probabilities


def _invert(log_probabilities: Tensor, uniforms: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Tokens int64 [n] at these values of the distribution function, in the order of the vocabulary, and the
    probability that they were drawn from, float64 [n, 1]; where that is not finite they mean nothing."""
    probabilities = log_probabilities.double().exp()
    if top_p < 1:
        ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ranked.cumsum(dim=-1) - ranked
        outside = (before >= top_p).scatter(-1, order, before >= top_p)
        probabilities = probabilities.masked_fill(outside, 0.0)
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    drawn = (cumulative <= uniforms.unsqueeze(1) * total).sum(dim=-1)
    return drawn.clamp(max=log_probabilities.shape[-1] - 1), total
