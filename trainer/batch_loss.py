"""The loss of a batch of rollouts under a policy, whole, in parts, or one rollout at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import Module
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config import RunConfig
from trainer.losses import Extent, LossInputs, LossMetrics, policy_loss
from trainer.policy import response_log_probabilities, weights_of


class TrainingBatch(Protocol):
    """What the learner reads of n rollouts."""

    @property
    def prompts(self) -> Tensor:
        """int64 [n, p]."""

    @property
    def responses(self) -> Tensor:
        """int64 [n, l]."""

    @property
    def mask(self) -> Tensor:
        """bool [n, l]; true up to and including the end mark."""

    @property
    def log_probabilities(self) -> Tensor:
        """float32 [n, l], of the behaviour policies."""

    @property
    def advantages(self) -> Tensor:
        """float32 [n]."""


@dataclass(frozen=True, slots=True)
class Share:
    """What some rows add to the batch's loss and measurements."""

    loss: Tensor
    """Scalar, differentiable."""
    entropy: Tensor
    """Share of the mean entropy per response token, in nats."""
    metrics: LossMetrics

    @staticmethod
    def total(shares: list[Share]) -> Share:
        """The whole batch's, detached; one share is returned as it is, bit for bit."""
        return Share(
            loss=torch.stack([share.loss.detach() for share in shares]).sum(),
            entropy=torch.stack([share.entropy for share in shares]).sum(),
            metrics=LossMetrics.total([share.metrics for share in shares]),
        )


class BatchLoss:
    """One batch, with the extent that its means are over and the reference policy of its loss, if any."""

    def __init__(self, batch: TrainingBatch, reference: Module | None, config: RunConfig) -> None:
        self.batch, self.reference, self.config = batch, reference, config
        self.extent = Extent.of(batch.mask, config.task.max_response_tokens)

    def share(self, policy: Callable[..., Any], rows: slice | Tensor) -> Share:
        """The share of `rows`: a slice or int64 indices of rollouts; `policy` is called like the model."""
        batch, temperature = self.batch, self.config.sampling.temperature
        prompts, responses, mask = batch.prompts[rows], batch.responses[rows], batch.mask[rows]
        log_probabilities, entropy = response_log_probabilities(policy, prompts, responses, temperature)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = response_log_probabilities(self.reference, prompts, responses, temperature)
        inputs = LossInputs(
            log_probabilities=log_probabilities,
            behaviour_log_probabilities=batch.log_probabilities[rows],
            advantages=batch.advantages[rows],
            mask=mask,
            reference_log_probabilities=reference,
        )
        loss, metrics = policy_loss(inputs, self.extent, self.config.loss)
        return Share(loss, (entropy * mask).sum() / self.extent.tokens, metrics)

    def parts(self) -> list[slice]:
        """Rows per forward and backward pass (resources.micro_batch); the last part may be shorter."""
        size = self.extent.responses
        step = self.config.resources.micro_batch or size
        return [slice(start, min(start + step, size)) for start in range(0, size, step)]

    def rollout_gradient_norms(self, policy: Module) -> Tensor:
        """Norm of every rollout's own gradient, float64 [n]: n times what it adds to the batch gradient.

        The mean of those n vectors is the batch gradient. They are made by a vectorised map over single
        rollouts, a part at a time, so memory is micro_batch times the weights.
        """
        weights = {name: weight.detach() for name, weight in weights_of(policy).items()}

        def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
            def call(**inputs: Any) -> Any:
                return functional_call(policy, weights, (), inputs)

            return self.share(call, row.unsqueeze(0)).loss

        gradients = vmap(grad(loss), in_dims=(None, 0))
        norms = []
        # the plain attention kernel is the one that can be mapped
        with sdpa_kernel(SDPBackend.MATH):
            for rows in self.parts():
                found = gradients(weights, torch.arange(rows.start, rows.stop, device=self.batch.mask.device))
                squares = [each.double().square().flatten(1).sum(1) for each in found.values()]
                norms.append(torch.stack(squares).sum(0).sqrt())
        return torch.cat(norms) * self.extent.responses
