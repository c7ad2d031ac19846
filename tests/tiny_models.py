"""Tiny models of several architectures, with random weights large enough to tell tokens apart."""

from typing import Any

import torch
from torch.nn import Module
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 110
CONFIGS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gpt2": GPT2Config,
}
FAMILIES = list(CONFIGS)


def tiny(family: str, **fields: Any) -> Module:
    """A model of 110 tokens and 64 positions in float32."""
    if family == "gpt2":
        shape: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        shape |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    else:
        shape = {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
        }
    if family == "qwen2":
        del shape["head_dim"]
    if family == "mistral":
        shape["sliding_window"] = 5  # shorter than the sequences of the tests
    ids = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": 0}
    settings = CONFIGS[family](vocab_size=VOCABULARY, initializer_range=0.3, **ids, **shape | fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: Module = AutoModelForCausalLM.from_config(
            settings, dtype=torch.float32, attn_implementation="sdpa"
        )
    return model.eval()
