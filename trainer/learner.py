"""The learner: turns a batch of rollouts into one AdamW update and its measurements."""

from __future__ import annotations

import copy
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from trainer.batch_loss import BatchLoss, Share, TrainingBatch
from trainer.config import RunConfig
from trainer.gradients import cosine, distance, flatten, gather, limit_alignment, norm_of, put_back, scale
from trainer.policy import device_of, weights_of


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
    displacement: float | None
    reference_kl: float | None
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
        self.device = device_of(policy)
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
        self.initial = _kept_initial(self.parameters, config.resources.displacement)
        """θ₀, float32, one value per weight, on the CPU; None where displacement is off."""
        self.reference = _frozen(policy) if config.loss.kl_weight else None
        self.previous_gradient: Tensor | None = None
        """Raw gradient of the update before, one value per weight, on the CPU; part of a checkpoint."""
        self._previous_norm: float | None = None
        self.rollout_gradient_norms: Tensor | None = None
        """Of the last batch's rollouts, float64 [n]; None unless store.selection=gradient_norm."""

    def rate(self, step: int) -> float:
        """Learning rate of update `step`: a linear ramp, then constant."""
        ramp = self.config.optimizer.ramp_updates
        return self.config.learning_rate * min(1.0, (step + 1) / ramp if ramp else 1.0)

    def update(self, batch: TrainingBatch, step: int) -> Update:
        """One optimizer step on `batch`; a non-finite loss or gradient leaves the weights alone.

        Order: the raw gradient is measured, then aligned, then clipped, then given to AdamW.
        """
        started = self._now()
        self.optimizer.zero_grad(set_to_none=True)
        whole = BatchLoss(batch, self.reference, self.config)
        total = self._differentiate(whole)
        differentiated = self._now()
        loss, measured = total.loss.item(), total.metrics
        gradient, previous = gather(self.parameters), self.previous_gradient
        norm = norm_of(gradient)
        alignment = cosine(gradient, previous, (norm, self._norm_of_previous()))
        kept = self.config.resources.previous_gradient
        if kept != "off":
            self.previous_gradient = gradient.to("cpu", getattr(torch, kept))
            self._previous_norm = norm if kept == "float32" else None
        if self.config.store.selection == "gradient_norm":
            self.rollout_gradient_norms = whole.rollout_gradient_norms(self.policy)
        compared = self._now()
        if math.isfinite(norm) and math.isfinite(loss):
            self._step(gradient, norm, previous, self.rate(step))
        stepped = self._now()
        displacement = None if self.initial is None else distance(self.parameters, self.initial)
        reference_kl = measured.reference_kl
        return Update(
            loss=loss,
            entropy=total.entropy.item(),
            clip_fraction=measured.clip_fraction.item(),
            kl=measured.kl.item(),
            ratio_min=measured.ratio_min.item(),
            ratio_max=measured.ratio_max.item(),
            gradient_norm=norm,
            gradient_cosine=alignment,
            displacement=displacement,
            reference_kl=None if reference_kl is None else reference_kl.item(),
            seconds={
                "learn": differentiated - started,
                "optimizer": stepped - compared,
                "measure": (compared - differentiated) + (time.perf_counter() - stepped),
            },
        )

    def _now(self) -> float:
        """Seconds on a clock, read when a GPU has done its work so far, which otherwise counts later."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _norm_of_previous(self) -> float:
        """Norm of the previous gradient as it is kept; NaN without one."""
        if self.previous_gradient is None:
            return math.nan
        if self._previous_norm is None:
            self._previous_norm = norm_of(self.previous_gradient, self.device)
        return self._previous_norm

    def _differentiate(self, whole: BatchLoss) -> Share:
        """Add up the gradient of the batch, a part at a time; returns its loss and measurements."""
        shares = []
        for rows in whole.parts():
            share = whole.share(self.policy, rows, self.device)
            share.loss.backward()
            shares.append(share)
        return Share.total(shares)

    def _step(self, gradient: Tensor, norm: float, previous: Tensor | None, rate: float) -> None:
        """One AdamW step at `rate` with the gradient after alignment and clipping."""
        settings = self.config.optimizer
        if settings.alignment_limit is not None:
            used = limit_alignment(gradient, previous, settings.alignment_limit)
            put_back(used, self.parameters)
            norm = used.norm().item()
        if settings.clip_norm is not None and norm > settings.clip_norm:
            scale(self.parameters, settings.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

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


def _kept_initial(parameters: list[Tensor], where: str) -> Tensor | None:
    if where == "off":
        return None
    initial = flatten(parameters).to("cpu", copy=True)
    if where == "memory":
        return initial
    with tempfile.TemporaryDirectory() as folder:  # the mapping outlives the name
        file = Path(folder) / "initial"
        initial.numpy().tofile(file)
        return torch.from_file(str(file), size=len(initial), dtype=torch.float32)


def _frozen(policy: Module) -> Module:
    """A copy of the policy that stays as it is."""
    return copy.deepcopy(policy).requires_grad_(False)
