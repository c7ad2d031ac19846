"""The policy: a causal language model from a transformers config, and its token log-probabilities."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
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
        "eos_token_id": task.eos_id,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
    }
    settings = (LlamaConfig if config.family == "llama" else Qwen3Config)(**shared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights", 0))
        model: Module = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    return model.eval()


@cache
def cache_keyword(architecture: type[Module]) -> str:
    """What this transformers release calls the key-value cache argument (renamed in 5.24)."""
    return "cache" if "cache" in inspect.signature(architecture.forward).parameters else "past_key_values"


def response_log_probabilities(
    model: Callable[..., Any], prompts: Tensor, responses: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the responses under the model at a temperature, and the entropies.

    `prompts` int64 [n, p], `responses` int64 [n, l], both without left padding; gradients flow through the
    first result only. Returns float32 [n, l] twice; positions after the end mark mean nothing.
    """
    tokens = torch.cat([prompts, responses[:, :-1]], dim=1)
    logits = model(input_ids=tokens, use_cache=False).logits[:, prompts.shape[1] - 1 :]
    all_log_probabilities = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = all_log_probabilities.gather(-1, responses.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        detached = all_log_probabilities.detach()
        entropy = -(detached.exp() * detached).sum(dim=-1)
    return chosen, entropy


def weights_of(model: Module) -> dict[str, Tensor]:
    """The model's own weights by name; a tied head is not listed twice."""
    return dict(model.named_parameters())


def copy_weights(source: Module, target: Module) -> None:
    """Make `target`'s weights equal `source`'s, bit for bit."""
    with torch.no_grad():
        for new, old in zip(source.parameters(), target.parameters(), strict=True):
            old.copy_(new)
