"""What the sections work on: a model folder, problems in a file, configurations, batches."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import LlamaConfig, LlamaForCausalLM

from gpu.sizes import Sizes
from trainer.config import RunConfig
from trainer.learner import Learner
from trainer.policy import (
    autocast,
    checkpoint_activations,
    copy_weights,
    device_of,
    ragged_log_probabilities,
)
from trainer.rendering import character_tokenizer
from trainer.schema import parse
from trainer.seeding import generator
from trainer.setup import fresh_policy, make_task


@dataclass(frozen=True, slots=True)
class Batch:
    """A `trainer.batch_loss.TrainingBatch`."""

    prompts: Tensor
    prompt_lengths: Tensor
    responses: Tensor
    mask: Tensor
    trained: Tensor
    log_probabilities: Tensor
    advantages: Tensor


class Material:
    """Everything is a function of the sizes: two machines compare equal work."""

    def __init__(self, work: Path, device: torch.device, sizes: Sizes) -> None:
        self.work, self.device, self.sizes = work, device, sizes

    @cached_property
    def model_folder(self) -> Path:
        """A Llama of random weights with a tokenizer, as transformers saves them."""
        folder = self.work / "model"
        tokenizer = character_tokenizer()
        settings = LlamaConfig(
            **self.sizes.shape,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            LlamaForCausalLM(settings).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    @cached_property
    def problems(self) -> Path:
        """Sums of two digits, as a task's source."""
        path = self.work / "sums.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = [(a, b) for a in range(10) for b in range(10)]
        lines = [json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in pairs]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def config(self, **fields: Any) -> RunConfig:
        """A run of the model on the sums; sections given in `fields` are laid over those set here."""
        base: dict[str, Any] = {
            "learning_rate": 0.0,
            "optimizer": {"ramp_updates": 0},
            "model": {"pretrained": str(self.model_folder)},
            "task": {
                "name": "text",
                "source": {"path": str(self.problems)},
                "max_response_tokens": self.sizes.response,
            },
            "resources": {"device": self.device.type, "displacement": "off"},
        }
        return parse(RunConfig, _laid_over(base, fields))

    @cached_property
    def _policy(self) -> Module:
        config = self.config()
        task, found = make_task(config, self.work / "prepared")
        return fresh_policy(config, task, found)

    def policy(self, device: torch.device | None = None) -> Module:
        """A copy of the model of its own, loaded as a run loads it."""
        return copy.deepcopy(self._policy).to(device or self.device)

    @cached_property
    def moved(self) -> Module:
        """The model with every weight moved by a tenth of its size; only to be read."""
        moved, stream = self.policy(), generator(0, "moved weights", 0)
        with torch.no_grad():
            for weight in moved.parameters():
                step = torch.randn(weight.shape, generator=stream).to(weight.device)
                weight.add_(0.1 * weight.std(correction=0).clamp(min=1e-3) * step)
        return moved

    def moved_learner(self, config: RunConfig, device: torch.device) -> Learner:
        """A learner of the moved weights whose reference, if it has one, is the model."""
        policy = self.policy(device)
        if config.resources.activation_checkpointing:
            checkpoint_activations(policy)
        learner = Learner(policy, config)
        copy_weights(self.moved, policy)
        return learner

    @cached_property
    def batch(self) -> Batch:
        """Prompts and responses of different lengths, advantages of both signs, a behaviour policy that is
        neither the model nor a moved one."""
        sizes, stream = self.sizes, generator(0, "batch", 0)
        n, p, l, vocabulary = sizes.rollouts, sizes.prompt, sizes.response, sizes.shape["vocab_size"]  # noqa: E741
        places = torch.arange(n)
        lengths = 1 + (places * 7 + 3) % p
        prompts = torch.randint(vocabulary, (n, p), generator=stream)
        prompts.masked_fill_(torch.arange(p) < (p - lengths).unsqueeze(1), 0)
        responses = torch.randint(vocabulary, (n, l), generator=stream)
        mask = torch.arange(l) < (1 + (places * 5 + 2) % l).unsqueeze(1)
        trained = torch.ones(n, dtype=torch.bool)
        advantages = torch.randn(n, generator=stream) + 1.0  # a loss near 0 has no relative error
        empty = Batch(prompts, lengths, responses, mask, trained, torch.zeros(n, l), advantages)
        near, _ = log_probabilities(self.moved, empty, self.config())
        stale = near.cpu() + 0.15 * torch.randn(n, l, generator=stream)
        return replace(empty, log_probabilities=stale.masked_fill(~mask, 0.0))


def log_probabilities(policy: Module, batch: Batch, config: RunConfig) -> tuple[Tensor, Tensor]:
    """Of a batch's responses as the learner computes them, and the entropies; on the policy's device."""
    device = device_of(policy)
    tensors = (batch.prompts, batch.prompt_lengths, batch.responses, batch.mask)
    with torch.no_grad(), autocast(config.model.compute_dtype, device):
        return ragged_log_probabilities(
            policy,
            *(tensor.to(device) for tensor in tensors),
            config.sampling.temperature,
            config.resources.logit_chunk,
        )


def _laid_over(base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for name, value in fields.items():
        old = both.get(name)
        both[name] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both
