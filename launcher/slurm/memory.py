"""Memory and checkpoint bytes of a run, from its configuration. What it surely takes, and what it may take.

With N weights, in bytes per weight, as the learner holds them (trainer/learner.py):

    16   float32 weights, their gradient, AdamW's two moments
     4   the gradient as one vector, while it is measured and used
     4   the behaviour policy; of its matrices 2 where it computes in bfloat16
     4   a reference policy, where the loss has one
     4   the initial weights, in CPU memory (resources.displacement=memory)
     4   the gradient of the update before, in CPU memory; 2 in bfloat16 (resources.previous_gradient)

One process does the work of all trainers of a run in lockstep, so nothing of it is divided by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeps.size import parameters, shape, vocabulary
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.task_config import TaskConfig

GIB = 2**30
PROCESS = 0.45 * GIB
"""Of a process with a toy model, measured; what else libraries take is in PROCESS_MOST."""
PROCESS_MOST = 1.0 * GIB
DECODING = 28
"""Bytes per rollout and token of the vocabulary while a token is drawn: logits, probabilities in float64 and
their sums."""
LOSS = 12
"""Bytes per token and token of the vocabulary in the loss: logits, log-probabilities, their gradient."""
FILES = 11
"""Of a checkpoint, its folder included."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a model; what is not known of it is 0."""

    parameters: int
    embedding: int = 0
    """Elements of the input embedding."""
    tied: bool = False
    """Whether the output head is the input embedding."""
    cache: int = 0
    """Keys and values per token."""
    vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one run, in bytes."""

    device: float
    """What it surely takes of its GPU; 0 on a CPU."""
    device_most: float
    """What it may take, rollouts of full length included; activations are not counted."""
    host: float
    host_most: float
    """The same of the node's own memory."""
    generating: float
    """Part of either that resources.generation_chunk decides."""


def model_size(config: RunConfig, prepared: Path | None = None) -> Size | None:
    """Size of a run's model, None where it is not known yet; `prepared` is the sweep's folder of models."""
    vocab = vocabulary(config.task)
    found = shape(config.model, vocab, prepared)
    if found is None:
        count = parameters(config.model, vocab, prepared)
        return None if count is None else Size(count)
    embedding = found.vocabulary * found.hidden
    return Size(found.parameters, embedding, found.tied, found.cached_numbers, found.vocabulary)


def prompt_tokens(task: TaskConfig) -> int:
    """Tokens of the longest prompt: of a built-in task exactly, of one in words at most."""
    if task.is_text:
        return task.max_prompt_tokens
    inside = 2 * task.length + 1 if task.name == "arithmetic" else task.length
    return inside + 2


def memory(config: RunConfig, size: Size) -> Memory:
    """Of a run with a model of this size."""
    behaviour = behaviour_bytes(config, size)
    model = 16.0 * size.parameters + behaviour
    model += 4 * size.parameters if config.loss.kl_weight else 0
    flat = 4 * size.parameters
    generating = generation_bytes(config, size)
    most = model + max(flat + loss_bytes(config, size), generating)
    kept = kept_bytes(config, size)
    if config.resources.device == "cpu":
        return Memory(0, 0, PROCESS + model + flat + kept, PROCESS_MOST + most + kept, generating)
    # the new previous gradient is there before the old one goes; a checkpoint is written from CPU memory
    kept += previous_bytes(config, size)
    host = kept + 8 * size.parameters
    return Memory(model + flat, most, PROCESS + host, PROCESS_MOST + host, generating)


def behaviour_bytes(config: RunConfig, size: Size) -> float:
    """The behaviour policy: as `trainer.policy.behaviour_copy` makes it."""
    if config.model.compute_dtype == "float32":
        return 4.0 * size.parameters
    head = 2.0 * size.embedding if size.tied else 0.0
    return 2.0 * (size.parameters - size.embedding) + 4.0 * size.embedding + head


def previous_bytes(config: RunConfig, size: Size) -> float:
    """The gradient of the update before."""
    return {"float32": 4.0, "bfloat16": 2.0, "off": 0.0}[config.resources.previous_gradient] * size.parameters


def kept_bytes(config: RunConfig, size: Size) -> float:
    """What lies in CPU memory from update to update."""
    initial = 4.0 * size.parameters if config.resources.displacement == "memory" else 0.0
    return initial + previous_bytes(config, size)


def sampled_together(config: RunConfig) -> int:
    """Most rollouts in one forward pass of generation, as `trainer.supply` cuts them."""
    batch = config.prompts_per_batch * config.group_size
    chunk = max(1, config.resources.generation_chunk // config.batch_size)
    ahead = min(config.sync_interval, chunk) if config.schedule == "strict" else chunk
    return ahead * batch


def generation_bytes(config: RunConfig, size: Size) -> float:
    """Keys and values of rollouts of full length, and the drawing of one token of each."""
    tokens = prompt_tokens(config.task) + config.task.max_response_tokens
    # in bfloat16 the rotation gives float32 keys, values stay as they are
    element = 4.0 if config.model.compute_dtype == "float32" else 3.0
    return sampled_together(config) * (tokens * size.cache * element + DECODING * size.vocabulary)


def loss_bytes(config: RunConfig, size: Size) -> float:
    """Logits of the tokens of one pass, and what becomes of them."""
    resources, longest = config.resources, config.task.max_response_tokens
    tokens = (resources.micro_batch or config.batch_size) * longest
    if resources.micro_batch_tokens is not None:
        tokens = min(tokens, max(resources.micro_batch_tokens, longest))
    if resources.logit_chunk is not None:
        tokens = min(tokens, resources.logit_chunk)
    return float(LOSS * tokens * size.vocabulary)


def checkpoint_bytes(config: RunConfig, size: Size) -> float:
    """Size of one checkpoint: weights, behaviour policy, optimizer, previous gradient, rollouts held."""
    held = max(config.buffer_size, config.store.capacity or (config.store.delay + 2) * config.batch_size)
    # per rollout: prompt and response as int64, log-probabilities and mask
    rollout = 8 * prompt_tokens(config.task) + 13 * config.task.max_response_tokens + 64
    weights = 4.0 * size.parameters + behaviour_bytes(config, size)
    return weights + 8.0 * size.parameters + previous_bytes(config, size) + held * rollout


def disk_bytes(config: RunConfig, budget: Budget, size: Size) -> float:
    """All that a run has on disk at its fullest, journals aside: checkpoints and the best weights."""
    best = 4.0 * size.parameters if budget.evaluation.every and budget.evaluation.keep_best else 0.0
    return budget.keep_checkpoints * checkpoint_bytes(config, size) + best


def disk_files(budget: Budget) -> int:
    """Files and folders of a run at its fullest: checkpoints, journals, parts of its rollouts."""
    best = 3 if budget.evaluation.every and budget.evaluation.keep_best else 0
    return budget.keep_checkpoints * FILES + best + 20 + -(-budget.horizon // budget.usage_window)
