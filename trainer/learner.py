"""The learner: turns a batch of rollouts into one AdamW update and its measurements."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from trainer.config import RunConfig
from trainer.losses import grpo_loss
from trainer.policy import response_log_probabilities, weights_of
from trainer.rollouts import RolloutBatch


@dataclass(frozen=True, slots=True)
class Update:
    """Measurements of one learner update; fields as in `trainer.record.UpdateMetrics`."""

    loss: float
    entropy: float
    clip_fraction: float
    kl: float
    ratio_min: float
    ratio_max: float
    gradient_norm: float
    gradient_cosine: float
    displacement: float
    seconds: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether loss and gradient were finite; if not, the weights were left alone."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Learner:
    """Policy, optimizer and what the measurements need: initial weights and the previous gradient."""

    def __init__(self, policy: Module, config: RunConfig) -> None:
        """`policy` holds the initial weights (θ₀); raises `TypeError` unless they are float32."""
        self.policy = policy
        self.config = config
        self.parameters = list(policy.parameters())
        wrong = {str(parameter.dtype) for parameter in self.parameters} - {"torch.float32"}
        if wrong:
            raise TypeError(f"master weights must be float32, not {', '.join(sorted(wrong))}")
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.initial = _flat(self.parameters).clone()
        self.previous_gradient: Tensor | None = None

    def rate(self, step: int) -> float:
        """Learning rate of update `step`: a linear ramp, then constant."""
        ramp = self.config.optimizer.ramp_updates
        return self.config.learning_rate * min(1.0, (step + 1) / ramp if ramp else 1.0)

    def update(self, batch: RolloutBatch, step: int) -> Update:
        """One optimizer step on `batch`; a non-finite loss or gradient leaves the weights alone."""
        started = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        log_probabilities, entropy = response_log_probabilities(
            self.policy, batch.prompts, batch.responses, self.config.sampling.temperature
        )
        loss, measured = grpo_loss(
            log_probabilities, batch.log_probabilities, batch.advantages, batch.mask, self.config.loss
        )
        loss.backward()
        differentiated = time.perf_counter()
        gradient = _flat([_gradient(parameter) for parameter in self.parameters])
        norm, cosine = self._compare(gradient)
        mean_entropy = (entropy * batch.mask).sum() / batch.mask.sum()
        compared = time.perf_counter()
        if math.isfinite(norm) and math.isfinite(loss.item()):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(step)
            self.optimizer.step()
        stepped = time.perf_counter()
        displacement = (_flat(self.parameters) - self.initial).square().mean().sqrt().item()
        return Update(
            loss=loss.item(),
            entropy=mean_entropy.item(),
            clip_fraction=measured.clip_fraction.item(),
            kl=measured.kl.item(),
            ratio_min=measured.ratio_min.item(),
            ratio_max=measured.ratio_max.item(),
            gradient_norm=norm,
            gradient_cosine=cosine,
            displacement=displacement,
            seconds={
                "learn": differentiated - started,
                "optimizer": stepped - compared,
                "measure": (compared - differentiated) + (time.perf_counter() - stepped),
            },
        )

    def _compare(self, gradient: Tensor) -> tuple[float, float]:
        """Norm of the raw gradient and its cosine with the previous one (math.md B1), in float64."""
        wide = gradient.double()
        norm = wide.norm().item()
        cosine = math.nan
        if self.previous_gradient is not None:
            previous = self.previous_gradient.double()
            product = norm * previous.norm().item()
            if product > 0 and math.isfinite(product):
                cosine = (wide @ previous).item() / product
        self.previous_gradient = gradient
        return norm, cosine

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Optimizer state as named tensors, for a checkpoint; empty before the first update."""
        names = list(weights_of(self.policy))
        state = self.optimizer.state_dict()["state"]
        return {
            f"{names[index]}/{key}": value for index, entry in state.items() for key, value in entry.items()
        }

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `optimizer_tensors` gave."""
        entries: dict[int, dict[str, Tensor]] = {}
        for index, name in enumerate(weights_of(self.policy)):
            entry = {key: tensors[f"{name}/{key}"] for key in _ADAMW_KEYS if f"{name}/{key}" in tensors}
            if entry:
                entries[index] = entry
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": entries, "param_groups": groups})


_ADAMW_KEYS = ("step", "exp_avg", "exp_avg_sq")


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
