"""How large each section is: on a GPU, and as a toy on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths are in tokens."""

    shape: dict[str, Any]
    """Of the model: arguments of a transformers LlamaConfig."""
    parameters: int
    """Of that model."""
    rollouts: int
    """In the batch that losses are compared on."""
    prompt: int
    """Longest prompt of that batch."""
    response: int
    """Its longest response; above 32, so that sampling takes finished rows out."""
    generation_batches: tuple[int, ...]
    generation_prompt: int
    generation_response: int
    profiled_batch: int
    profiled_steps: int
    training_rollouts: int
    training_prompt: int
    training_response: int
    micro_batch_tokens: tuple[int, ...]
    """Tried without checkpointing; the middle one is used for the rest."""
    logit_chunk: int
    updates: int
    """Timed updates; one more comes before."""
    copied_bytes: int
    matrix: int
    """Rows and columns of the matrices whose product gives the matmul rate."""
    interrupted_updates: int
    """Horizon of the job that is stopped on the way and continued."""


FULL = Sizes(
    shape={
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "initializer_range": 0.02,
    },
    parameters=134_515_008,
    rollouts=16,
    prompt=32,
    response=48,
    generation_batches=(64, 256, 1024),
    generation_prompt=64,
    generation_response=128,
    profiled_batch=256,
    profiled_steps=8,
    training_rollouts=256,
    training_prompt=64,
    training_response=128,
    micro_batch_tokens=(8192, 16384, 32768),
    logit_chunk=2048,
    updates=2,
    copied_bytes=2**31,
    matrix=8192,
    interrupted_updates=150,
)
SMALL = Sizes(
    shape={
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.125,
    },
    parameters=106_816,
    rollouts=16,
    prompt=12,
    response=36,
    generation_batches=(4, 16),
    generation_prompt=8,
    generation_response=40,
    profiled_batch=4,
    profiled_steps=4,
    training_rollouts=16,
    training_prompt=8,
    training_response=16,
    micro_batch_tokens=(96, 192, 384),
    logit_chunk=64,
    updates=1,
    copied_bytes=2**24,
    matrix=256,
    interrupted_updates=30,
)
