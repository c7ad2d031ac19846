"""Supervised warm start: made once per sweep and shared by all runs with the same settings.

The folder `warm_starts/<key>` is named by a hash of everything that decides the weights; what it holds is
identified by the content hash that each run writes into its summary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Module, functional

from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import locked, sha256, write_json
from trainer.policy import build_policy, ragged_log_probabilities, weights_of
from trainer.prompts import Prompts
from trainer.rollouts import draw_responses, draw_uniforms, judge, training_decoding
from trainer.seeding import generator
from trainer.tasks import Task

RECIPE = 1
"""Changes whenever the same settings would give other weights."""


def warm_start_key(config: RunConfig) -> str:
    """Hash of all settings that decide the initial weights, 12 hex digits."""
    settings = {
        "recipe": RECIPE,
        "model": config.model.model_dump(mode="json"),
        "task": config.task.model_dump(mode="json"),
        "warm_start": config.warm_start.model_dump(mode="json"),
        "temperature": config.sampling.temperature,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def initial_weights(
    config: RunConfig, task: Task, folder: Path, check: Callable[[], None]
) -> tuple[Path, str]:
    """File of the initial weights and its content hash; made if it is not there.

    Whoever comes first makes it under a lock, the others wait. `check` is called often and may raise to
    stop. Raises `UserError` when the target reward is not reached.
    """
    home = folder / warm_start_key(config)
    file = home / "weights.safetensors"
    if not file.exists():
        with locked(home / "lock", wait=3600):
            if not file.exists():
                policy, report = _train(config, task, check)
                temporary = home / "weights.safetensors.tmp"
                save_file(dict(weights_of(policy)), temporary)
                write_json(home / "report.json", report)
                temporary.replace(file)
    return file, sha256(file)


def load_weights(policy: Module, file: Path) -> None:
    """Copy the weights in `file` into the policy."""
    tensors = load_file(file)
    with torch.no_grad():
        for name, parameter in weights_of(policy).items():
            parameter.copy_(tensors[name])


def _train(config: RunConfig, task: Task, check: Callable[[], None]) -> tuple[Module, dict[str, float | int]]:
    settings = config.warm_start
    policy = build_policy(config.model, task, settings.seed)
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        weight_decay=0.0,
        fused=True,
    )
    step, reward = 0, 0.0
    while settings.target_reward > 0:
        if step % settings.check_every == 0:
            check()
            reward = _sampled_reward(policy, config, task, step)
            if reward >= settings.target_reward:
                break
        if step >= settings.max_updates:
            raise UserError(
                f"warm start: sampled reward {reward:.3f} after warm_start.max_updates={step} is below "
                f"warm_start.target_reward={settings.target_reward}: raise the first or lower the second"
            )
        for group in optimizer.param_groups:
            ramp = settings.ramp_updates
            group["lr"] = settings.learning_rate * min(1.0, (step + 1) / ramp if ramp else 1.0)
        stream = generator(settings.seed, "warm start prompts", step)
        loss = _lesson_loss(policy, *task.lesson(settings.batch_size, stream), ragged=config.task.is_text)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
    return policy, {"updates": step, "sampled_reward": reward}


def _lesson_loss(policy: Module, prompts: Prompts, answers: Tensor, mask: Tensor, ragged: bool) -> Tensor:
    """Mean cross-entropy of the answers' tokens."""
    if ragged:
        found, _ = ragged_log_probabilities(policy, prompts.tokens, prompts.lengths, answers, mask, 1.0, None)
        return -found.sum() / mask.sum()
    tokens = torch.cat([prompts.tokens, answers[:, :-1]], dim=1)
    logits = policy(input_ids=tokens, use_cache=False).logits
    predicted = logits[:, prompts.tokens.shape[1] - 1 :].flatten(0, 1)
    return functional.cross_entropy(predicted, answers.flatten())


def _sampled_reward(policy: Module, config: RunConfig, task: Task, step: int) -> float:
    """Share of right responses to training prompts."""
    seed = config.warm_start.seed
    prompts, _, _ = task.lesson(256, generator(seed, "warm start check prompts", step))
    uniforms = draw_uniforms(task, len(prompts), generator(seed, "warm start check", step))
    drawn = draw_responses(policy, task, prompts, uniforms, training_decoding(config, task))
    return judge(task, prompts, drawn).correct.float().mean().item()
