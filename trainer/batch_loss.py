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
from trainer.policy import (
    autocast,
    device_of,
    ragged_log_probabilities,
    response_log_probabilities,
    weights_of,
)

CPU = torch.device("cpu")


class TrainingBatch(Protocol):
    """What the learner reads of n rollouts."""

    @property
    def prompts(self) -> Tensor:
        """int64 [n, p]; padded on the left."""

    @property
    def prompt_lengths(self) -> Tensor:
        """int64 [n]."""

    @property
    def responses(self) -> Tensor:
        """int64 [n, l]."""

    @property
    def mask(self) -> Tensor:
        """bool [n, l]; true up to and including the end mark."""

    @property
    def trained(self) -> Tensor:
        """bool [n]; whether the loss counts a rollout."""

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
        self.mask = batch.mask if bool(batch.trained.all()) else batch.mask & batch.trained.unsqueeze(1)
        self.extent = Extent.of(self.mask, config.task.max_response_tokens)

    def share(self, policy: Callable[..., Any], rows: slice | Tensor, device: torch.device = CPU) -> Share:
        """The share of `rows`: a slice or int64 indices of rollouts; `policy` is called like the model."""
        batch = self.batch
        mask = self.mask[rows].to(device)
        log_probabilities, entropy = self._log_probabilities(policy, rows, device)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = self._log_probabilities(self.reference, rows, device)
        inputs = LossInputs(
            log_probabilities=log_probabilities,
            behaviour_log_probabilities=batch.log_probabilities[rows].to(device),
            advantages=batch.advantages[rows].to(device),
            mask=mask,
            reference_log_probabilities=reference,
        )
        loss, metrics = policy_loss(inputs, self.extent, self.config.loss)
        return Share(loss, (entropy * mask).sum() / self.extent.tokens, metrics)

    def _log_probabilities(
        self, policy: Callable[..., Any], rows: slice | Tensor, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        batch, config = self.batch, self.config
        temperature, chunk = config.sampling.temperature, config.resources.logit_chunk
        prompts, responses = batch.prompts[rows].to(device), batch.responses[rows].to(device)
        lengths = batch.prompt_lengths[rows].to(device)
        with autocast(config.model.compute_dtype, device):
            # prompts of one length, as the built-in tasks have, need no rearrangement
            if isinstance(policy, Module) and (config.task.is_text or chunk is not None):
                mask = self.mask[rows].to(device)
                return ragged_log_probabilities(policy, prompts, lengths, responses, mask, temperature, chunk)
            return response_log_probabilities(policy, prompts, responses, temperature)

    def _gradient_norm(self, policy: Module, row: int) -> Tensor:
        loss = self.share(policy, slice(row, row + 1), device_of(policy)).loss
        found = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        squares = [each.double().square().sum() for each in found if each is not None]
        return torch.stack(squares).sum().sqrt().cpu() * self.extent.responses

    def parts(self) -> list[slice] | list[Tensor]:
        """Rows per forward and backward pass (resources.micro_batch, micro_batch_tokens)."""
        size, resources = len(self.mask), self.config.resources
        if resources.micro_batch_tokens is None:
            step = resources.micro_batch or size
            return [slice(start, min(start + step, size)) for start in range(0, size, step)]
        tokens = (self.batch.prompt_lengths + self.batch.mask.sum(dim=1)).tolist()
        parts: list[list[int]] = []
        for row in sorted(range(size), key=lambda row: tokens[row]):
            # sorted, so the newest row is the longest, and all are padded to it
            if not parts or (len(parts[-1]) + 1) * tokens[row] > resources.micro_batch_tokens:
                parts.append([])
            parts[-1].append(row)
        return [torch.tensor(part) for part in parts]

    def rollout_gradient_norms(self, policy: Module) -> Tensor:
        """Norm of every rollout's own gradient, float64 [n]: n times what it adds to the batch gradient.

        The mean of those n vectors is the batch gradient. They are made by a vectorised map over single
        rollouts, a part at a time, so memory is micro_batch times the weights; where prompts differ in
        length one after the other.
        """
        if self.config.task.is_text:
            return torch.stack([self._gradient_norm(policy, row) for row in range(len(self.mask))])
        weights = {name: weight.detach() for name, weight in weights_of(policy).items()}
        device = device_of(policy)

        def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
            def call(**inputs: Any) -> Any:
                return functional_call(policy, weights, (), inputs)

            return self.share(call, row.unsqueeze(0), device).loss

        gradients = vmap(grad(loss), in_dims=(None, 0))
        norms = []
        # the plain attention kernel is the one that can be mapped
        with sdpa_kernel(SDPBackend.MATH):
            for rows in torch.arange(len(self.mask)).split(
                self.config.resources.micro_batch or len(self.mask)
            ):
                found = gradients(weights, rows)
                squares = [each.double().square().flatten(1).sum(1) for each in found.values()]
                norms.append(torch.stack(squares).sum(0).sqrt())
        return torch.cat(norms).cpu() * self.extent.responses
