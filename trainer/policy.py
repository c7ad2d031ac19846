"""The policy as a module: a fresh causal language model, copies of it, and its token log-probabilities."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from trainer.config import ModelConfig
from trainer.seeding import derive_seed
from trainer.tasks import Task


def build_policy(config: ModelConfig, task: Task, seed: int) -> Module:
    """A model with fresh fp32 weights drawn from `seed`; the global random state is left alone."""
    head_dim = config.hidden_size // config.heads
    shared: dict[str, Any] = {
        "vocab_size": task.vocabulary_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": head_dim,
        "intermediate_size": config.intermediate_size,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": task.max_tokens,
        "pad_token_id": task.pad_id,
        "bos_token_id": None,
        "eos_token_id": task.eos_ids[0],
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
    }
    settings = (LlamaConfig if config.family == "llama" else Qwen3Config)(**shared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights", 0))
        model: Module = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    return model.eval()


def device_of(model: Module) -> torch.device:
    """Where the model's weights are."""
    return next(model.parameters()).device


def autocast(compute_dtype: str, device: torch.device) -> torch.autocast:
    """Context in which matrix products are computed in `compute_dtype`; for float32 it changes nothing."""
    enabled = compute_dtype != "float32"
    return torch.autocast(device.type, dtype=torch.bfloat16 if enabled else None, enabled=enabled)


@cache
def cache_keyword(architecture: type[Module]) -> str:
    """What this transformers release calls the key-value cache argument (renamed in 5.24)."""
    return "cache" if "cache" in inspect.signature(architecture.forward).parameters else "past_key_values"


def behaviour_copy(policy: Module, compute_dtype: str) -> Module:
    """A copy that only generates.

    With bfloat16 the matrices are held as autocast would cast them at each use, an output head that is tied
    to the embedding as a copy of its own, so tokens get the very log-probabilities of the policy for half
    the memory traffic.
    """
    # weights that require no gradient go through other kernels, which round differently
    copied = copy.deepcopy(policy).eval()
    if compute_dtype == "bfloat16":
        head = copied.get_output_embeddings()
        if head.weight is copied.get_input_embeddings().weight:
            head.weight = nn.Parameter(head.weight.detach().clone())
        for module in copied.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16)
    return copied


def checkpoint_activations(policy: Module) -> None:
    """Recompute activations in the backward pass; the layers do so in training mode only."""
    enable = getattr(policy, "activation_checkpointing_enable", None)
    if enable is not None:
        enable({"use_reentrant": False})
    else:  # its name before transformers 5.24
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    policy.train()


def response_log_probabilities(
    model: Callable[..., Any], prompts: Tensor, responses: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the responses under the model at a temperature, and the entropies.

    `prompts` int64 [n, p], `responses` int64 [n, l], both without left padding; gradients flow through the
    first result only. Returns float32 [n, l] twice; positions after the end mark mean nothing.
    """
    tokens = torch.cat([prompts, responses[:, :-1]], dim=1)
    logits = model(input_ids=tokens, use_cache=False).logits[:, prompts.shape[1] - 1 :]
    return _chosen(logits, responses, temperature)


def ragged_log_probabilities(
    model: Module,
    prompts: Tensor,
    lengths: Tensor,
    responses: Tensor,
    mask: Tensor,
    temperature: float,
    logit_chunk: int | None,
) -> tuple[Tensor, Tensor]:
    """The same for prompts int64 [n, p] of different lengths [n], padded on the left.

    Sequences are moved to the left, where padding behind them changes nothing for a causal model, and cut
    to the longest. The output head sees the tokens under `mask` bool [n, l] only, `logit_chunk` at a time,
    and again in the backward pass. Results are 0 where the mask is false.
    """
    count, width = prompts.shape
    longest = int(mask.sum(dim=1).max()) if mask.any() else 1
    both = torch.cat([prompts, responses[:, : longest - 1]], dim=1)
    reach = torch.arange(int((lengths + mask.sum(dim=1).clamp(min=1)).max()) - 1, device=prompts.device)
    source = (reach + (width - lengths).unsqueeze(1)).clamp(max=both.shape[1] - 1)
    hidden = model.base_model(input_ids=both.gather(1, source), use_cache=False).last_hidden_state
    rows, places = mask[:, :longest].nonzero(as_tuple=True)
    states = hidden[rows, lengths[rows] - 1 + places]
    targets = responses[rows, places]
    head = model.get_output_embeddings()

    def part(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _chosen(head(states), targets, temperature)

    step = logit_chunk or max(1, len(states))
    found = [
        checkpoint(part, states[at : at + step], targets[at : at + step], use_reentrant=False)
        if logit_chunk
        else part(states[at : at + step], targets[at : at + step])
        for at in range(0, len(states), step)
    ]
    results = []
    for index in (0, 1):
        # where no token counts, zeros that a gradient can still go through
        values = torch.cat([each[index] for each in found]) if found else states.flatten().float()
        results.append(values.new_zeros(count, mask.shape[1]).index_put((rows, places), values))
    return results[0], results[1]


def _chosen(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of targets [...] under logits [..., vocabulary], and the entropies, detached."""
    all_log_probabilities = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = all_log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        detached = all_log_probabilities.detach()
        entropy = -(detached.exp() * detached).sum(dim=-1)
    return chosen, entropy


def weights_of(model: Module) -> dict[str, Tensor]:
    """The model's own weights by name; a tied head is not listed twice."""
    return dict(model.named_parameters())


def copy_weights(source: Module, target: Module) -> None:
    """Make `target`'s weights equal `source`'s, bit for bit where they have the same type."""
    with torch.no_grad():
        for name, weight in target.named_parameters():
            weight.copy_(source.get_parameter(name))
