"""A model of SmolLM2-135M's size is made offline and comes onto the device by the product's own path."""

from __future__ import annotations

import time

import torch
from torch import nn

from gpu.material import Material
from gpu.report import Section
from trainer.policy import autocast, behaviour_copy, device_of


def check(material: Material, section: Section) -> None:
    started = time.perf_counter()
    folder = material.model_folder
    made = time.perf_counter()
    policy = material.policy()
    section.numbers |= {
        "seconds to make and save": made - started,
        "seconds to hash and load": time.perf_counter() - made,
        "bytes on disk": sum(file.stat().st_size for file in folder.iterdir()),
    }
    parameters = list(policy.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    section.check(
        f"it has {material.sizes.parameters:,} parameters", count == material.sizes.parameters, count
    )
    kinds = {str(parameter.dtype) for parameter in parameters}
    section.check("master weights are float32", kinds == {"torch.float32"}, ", ".join(sorted(kinds)))
    tied = policy.get_output_embeddings().weight is policy.get_input_embeddings().weight
    section.check("output head and embedding are one matrix on the device", tied)
    places = {tensor.device.type for tensor in (*parameters, *policy.buffers())}
    section.check("weights and buffers are on the device", places == {material.device.type}, str(places))
    behaviour = behaviour_copy(policy, "bfloat16")
    matrices = [module.weight for module in behaviour.modules() if isinstance(module, nn.Linear)]
    halved = all(weight.dtype == torch.bfloat16 for weight in matrices)
    section.check("the behaviour policy's matrices are bfloat16", halved, len(matrices))
    batch = material.batch
    tokens = batch.prompts.to(device_of(policy))
    with torch.inference_mode(), autocast("bfloat16", material.device):
        one, other = (each(input_ids=tokens, use_cache=False).logits for each in (policy, behaviour))
    section.check("logits in bfloat16 are finite", bool(one.isfinite().all()), str(one.dtype))
    apart = (one.float() - other.float()).abs().max().item()
    section.below("largest difference of policy's and behaviour policy's logits", apart, 0.1)
