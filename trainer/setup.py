"""What a run starts from: its task, and its policy with the initial weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.nn import Module

from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.policy import build_policy
from trainer.pretrained import Pretrained, find_pretrained, load_pretrained
from trainer.tasks import Task, built_in_task
from trainer.warm_start import initial_weights, load_weights


def make_task(
    config: RunConfig, prepared: Path, evaluation: EvaluationConfig | None = None
) -> tuple[Task, Pretrained | None]:
    """The task of a run and the pretrained model whose tokenizer it has, if any.

    `prepared` is the sweep's folder of prompt sets and models: what is missing there is made. Raises
    `UserError` when a source or a model is wrong.
    """
    if not config.task.is_text:
        return built_in_task(config.task), None
    from trainer.text_task import make_text_task  # tokenizers take a while to import

    model = None if config.model.pretrained is None else find_pretrained(config.model, prepared)
    return make_text_task(config, model, prepared, evaluation), model


def fresh_policy(config: RunConfig, task: Task, pretrained: Pretrained | None) -> Module:
    """The run's model, on the CPU; the weights of one that is not pretrained mean nothing yet."""
    if pretrained is not None:
        return load_pretrained(config.model, pretrained, task.max_tokens)
    return build_policy(config.model, task, config.warm_start.seed)


def initial_policy(
    config: RunConfig,
    task: Task,
    pretrained: Pretrained | None,
    warm_starts: Path,
    check: Callable[[], None],
) -> tuple[Module, str]:
    """The run's model with its initial weights, on the CPU, and their content hash.

    `check` is called often and may raise to stop. Raises `UserError` when a warm start does not succeed.
    """
    if pretrained is not None:
        return fresh_policy(config, task, pretrained), pretrained.content
    file, content = initial_weights(config, task, warm_starts, check)
    policy = fresh_policy(config, task, None)
    load_weights(policy, file)
    return policy, content
