"""At lag 0 the learner's probability of each token is the one it was drawn with."""

from __future__ import annotations

import torch

from gpu.material import Batch, Material, log_probabilities
from gpu.report import Section
from trainer.batch_loss import BatchLoss
from trainer.policy import behaviour_copy, checkpoint_activations
from trainer.sampling import Decoding, Responses, sample
from trainer.seeding import generator


def check(material: Material, section: Section) -> None:
    policy, rows = material.policy(), []
    for dtype in ("float32", "bfloat16"):
        for temperature in (1.0, 0.6):
            config = material.config(model={"compute_dtype": dtype}, sampling={"temperature": temperature})
            drawn = _drawn(material, behaviour_copy(policy, dtype), dtype, temperature)
            batch = _batch(material, drawn)
            found, _ = log_probabilities(policy, batch, config)
            apart = (found.cpu() - drawn.log_probabilities)[drawn.mask].abs()
            metrics = BatchLoss(batch, None, config).share(policy, slice(None), material.device).metrics
            off = max(abs(1 - metrics.ratio_min.item()), abs(1 - metrics.ratio_max.item()))
            rows.append(
                {
                    "type": dtype,
                    "temperature": temperature,
                    "tokens": int(drawn.mask.sum()),
                    "shortest": int(drawn.lengths.min()),
                    "longest": int(drawn.lengths.max()),
                    "largest |ratio - 1|": off,
                    "largest |log ratio|": apart.max().item(),
                    "mean |log ratio|": apart.mean().item(),
                }
            )
            if dtype == "float32":
                section.below(f"largest |ratio - 1| at temperature {temperature}", off, 1e-4)
            else:
                section.below(
                    f"bfloat16 mean |log ratio| at temperature {temperature}", apart.mean().item(), 0.02
                )
    section.tables["learner over behaviour policy"] = rows
    lengths = {row["shortest"] for row in rows} | {row["longest"] for row in rows}
    section.check("responses have different lengths", len(lengths) > 1, str(sorted(lengths)))
    plain = _drawn(material, policy, "float32", 1.0)
    checkpoint_activations(policy)
    again = _drawn(material, policy, "float32", 1.0)
    same = torch.equal(plain.tokens, again.tokens)
    section.check("a policy with activation checkpointing, as is evaluated, draws the same tokens", same)


def _drawn(material: Material, policy: torch.nn.Module, dtype: str, temperature: float) -> Responses:
    """Responses to the batch's prompts. One token in 40 ends a response, so some end early, and finished rows
    are taken out of the batch on the way."""
    sizes, batch = material.sizes, material.batch
    ends = tuple(range(3, sizes.shape["vocab_size"], 40))
    decoding = Decoding(temperature, ends, 0, compute_dtype=dtype)
    uniforms = torch.rand(
        (sizes.rollouts, sizes.response), dtype=torch.float64, generator=generator(0, "ratio", 0)
    )
    return sample(policy, batch.prompts, batch.prompt_lengths, uniforms, decoding)


def _batch(material: Material, drawn: Responses) -> Batch:
    old = material.batch
    tensors = (drawn.tokens, drawn.mask, old.trained, drawn.log_probabilities, old.advantages)
    return Batch(old.prompts, old.prompt_lengths, *tensors)
