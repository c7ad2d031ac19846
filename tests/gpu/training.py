"""Tokens per second of an update against the matmul rate, its phases, and its peak memory.

Floor: 6 FLOP per weight and token, 8 where activations are recomputed; the output head counts for response
tokens only. Memory is 16 bytes per weight (weights, gradients, two moments) and what a pass holds.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from gpu.material import Batch, Material
from gpu.report import Section
from gpu.speed import Machine, measure, mode, seconds
from trainer.learner import Learner, Update
from trainer.policy import checkpoint_activations
from trainer.seeding import generator


def check(material: Material, section: Section) -> None:
    sizes = material.sizes
    torch.set_num_threads(1)  # as a job has it
    machine = measure(material.device, sizes.copied_bytes, sizes.matrix)
    section.numbers |= machine.numbers
    batch = _batch(material)
    usual = {"micro_batch_tokens": sizes.micro_batch_tokens[1]}
    settings = [
        *({"micro_batch_tokens": tokens} for tokens in sizes.micro_batch_tokens),
        usual | {"activation_checkpointing": True},
        usual | {"logit_chunk": sizes.logit_chunk},
        usual | {"activation_checkpointing": True, "logit_chunk": sizes.logit_chunk},
    ]
    rows = []
    for name, each in [*(("as jobs run", each) for each in settings), ("not deterministic", usual)]:
        with mode(name):
            rows.append({"mode": name} | _row(material, machine, batch, each))
    section.tables[f"updates on {sizes.training_rollouts} rollouts, {_tokens(material):,} tokens"] = rows
    done = [row for row in rows if row["tokens/s"] is not None]
    section.check("settings that fit into memory", bool(done), len(done))
    section.check("loss and gradient are finite", all(row["finite"] for row in done))
    losses = [row["loss"] for row in done]
    section.below("largest difference of the loss between settings", max(losses) - min(losses), 1e-2)


def _batch(material: Material) -> Batch:
    """Full-length rollouts as if they were drawn from near the uniform distribution."""
    sizes, stream = material.sizes, generator(0, "training", 0)
    n, vocabulary = sizes.training_rollouts, sizes.shape["vocab_size"]
    prompts, responses = (
        torch.randint(vocabulary, (n, width), generator=stream)
        for width in (sizes.training_prompt, sizes.training_response)
    )
    batch = Batch(
        prompts=prompts,
        prompt_lengths=torch.full((n,), sizes.training_prompt),
        responses=responses,
        mask=torch.ones(responses.shape, dtype=torch.bool),
        trained=torch.ones(n, dtype=torch.bool),
        log_probabilities=torch.zeros(responses.shape),
        advantages=torch.randn(n, generator=stream),
    )
    uniform = -torch.tensor(float(vocabulary)).log() + 0.1 * torch.randn(responses.shape, generator=stream)
    return replace(batch, log_probabilities=uniform)


def _tokens(material: Material) -> int:
    sizes = material.sizes
    return sizes.training_rollouts * (sizes.training_prompt + sizes.training_response)


def _row(material: Material, machine: Machine, batch: Batch, resources: dict[str, Any]) -> dict[str, Any]:
    sizes, device = material.sizes, material.device
    config = material.config(
        learning_rate=1e-6,
        task={"max_response_tokens": sizes.training_response},
        model={"compute_dtype": "bfloat16"},
        resources=resources | {"displacement": "memory"},
    )
    gc.collect()
    held = _allocated(device)
    policy = material.policy()
    if config.resources.activation_checkpointing:
        checkpoint_activations(policy)
    row: dict[str, Any] = {
        "micro_batch_tokens": config.resources.micro_batch_tokens,
        "checkpointing": config.resources.activation_checkpointing,
        "logit_chunk": config.resources.logit_chunk,
    }
    try:
        update, taken, peak = _updates(Learner(policy, config), batch, sizes.updates, device)
    except torch.OutOfMemoryError:
        columns = ("tokens/s", "measured/floor", "learn s", "optimizer s", "measure s", "peak GiB")
        return row | dict.fromkeys((*columns, "beyond 16 B/weight GiB", "loss", "finite"))
    head = sizes.shape["vocab_size"] * sizes.shape["hidden_size"]
    responses = sizes.training_rollouts * sizes.training_response
    work = (sizes.parameters - head) * _tokens(material) + head * responses
    if peak is not None:
        peak -= held
    floor = machine.seconds(0, (8 if config.resources.activation_checkpointing else 6) * work)
    phases = {f"{name} s": value for name, value in update.seconds.items()}
    return row | {
        "tokens/s": _tokens(material) / taken,
        "measured/floor": taken / floor,
        **phases,
        "peak GiB": None if peak is None else peak / 2**30,
        "beyond 16 B/weight GiB": None if peak is None else (peak - 16 * sizes.parameters) / 2**30,
        "loss": update.loss,
        "finite": update.finite,
    }


def _updates(
    learner: Learner, batch: Batch, count: int, device: torch.device
) -> tuple[Update, float, int | None]:
    """The first update, the phases of the last, its shortest time, and the peak of memory, if it is known."""
    first = learner.update(batch, 0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found: list[Update] = []
    taken = min(
        seconds(lambda: found.append(learner.update(batch, 1 + len(found))), device) for _ in range(count)
    )
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    # of the first update, whose weights are the same in every setting
    return replace(first, seconds=found[-1].seconds), taken, peak


def _allocated(device: torch.device) -> int:
    """Bytes that tensors of other sections hold."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
