"""Tokens per second of sampling against what memory and matrix units allow, and where the time goes.

Floor of a decoding step: the matrices once, in bfloat16, and the keys and values so far, over the bandwidth;
or its FLOP over the matmul rate, where that is longer. Floor of the prompts: their FLOP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.profiler import ProfilerActivity, profile

from gpu.material import Material
from gpu.report import Section
from gpu.speed import MODES, Machine, best_seconds, measure, mode, seconds
from trainer.policy import behaviour_copy
from trainer.sampling import Decoding, Responses, sample
from trainer.seeding import generator


def check(material: Material, section: Section) -> None:
    sizes, device = material.sizes, material.device
    torch.set_num_threads(1)  # as a job has it
    machine = measure(device, sizes.copied_bytes, sizes.matrix)
    section.numbers |= machine.numbers
    policy = behaviour_copy(material.policy(), "bfloat16")
    rows = []
    for count in sizes.generation_batches:
        sampling = _sampling(material, policy, count, sizes.generation_response)
        with mode("as jobs run"):
            drawn = sampling()
            taken = best_seconds(sampling, device, 1)
        whole = bool(drawn.mask.all()) and bool(drawn.log_probabilities.isfinite().all())
        section.check(f"batch of {count}: every token has a finite log-probability", whole)
        floor = _floor(material, machine, count)
        rows.append(
            {
                "batch": count,
                "tokens/s": count * sizes.generation_response / taken,
                "ms/step": 1e3 * taken / sizes.generation_response,
                "floor ms/step": 1e3 * floor / sizes.generation_response,
                "measured/floor": taken / floor,
            }
        )
    section.tables["sampling as jobs run it"] = rows
    profiles = []
    for name in MODES:
        with mode(name):
            profiles.append({"mode": name} | _per_step(material, policy))
    section.tables[f"one decoding step of {sizes.profiled_batch} rollouts"] = profiles
    operations = [each["operations"] for each in profiles]
    section.check("operations per step were counted", min(operations) > 0, operations[0])


def _sampling(material: Material, policy: Module, count: int, steps: int) -> Callable[[], Responses]:
    """Draw `steps` tokens for each of `count` prompts of one length; nothing ends early."""
    sizes, stream = material.sizes, generator(0, "generation", count)
    vocabulary = sizes.shape["vocab_size"]
    prompts = torch.randint(vocabulary, (count, sizes.generation_prompt), generator=stream)
    lengths = torch.full((count,), sizes.generation_prompt)
    uniforms = torch.rand((count, steps), dtype=torch.float64, generator=stream)
    decoding = Decoding(1.0, (vocabulary,), 0, compute_dtype="bfloat16")
    return partial(sample, policy, prompts, lengths, uniforms, decoding)


def _floor(material: Material, machine: Machine, count: int) -> float:
    """Least seconds for a batch, from its prompts to its last tokens."""
    sizes, shape = material.sizes, material.sizes.shape
    steps, prompt = sizes.generation_response, sizes.generation_prompt
    layers, width = shape["num_hidden_layers"], shape["head_dim"]
    weights = sizes.parameters  # a tied embedding is the head's matrix; norms are next to nothing
    held = prompt + steps / 2
    cached = 2 * 2 * layers * shape["num_key_value_heads"] * width * held
    attention = 4 * layers * shape["num_attention_heads"] * width * held
    step = machine.seconds(2 * weights + count * cached, count * (2 * weights + attention))
    body = weights - shape["vocab_size"] * shape["hidden_size"]
    return steps * step + machine.seconds(2 * body, 2 * body * count * (prompt - 1))


def _per_step(material: Material, policy: Module) -> dict[str, Any]:
    """Kernels, copies and time of one step: a longer generation less a shorter one, so prompts cancel."""
    sizes, device = material.sizes, material.device
    short, long = 2, 2 + sizes.profiled_steps
    actions = [_sampling(material, policy, sizes.profiled_batch, steps) for steps in (short, long)]
    taken = [best_seconds(action, device, 2) for action in actions]
    counts = [_profiled(action, device) for action in actions]
    step = {name: (counts[1][name] - counts[0][name]) / sizes.profiled_steps for name in counts[0]}
    wall = 1e3 * (taken[1] - taken[0]) / sizes.profiled_steps
    found: dict[str, Any] = {"operations": step["operations"], "ms": wall}
    if device.type == "cuda" and counts[1]["kernels"]:  # no counts where the profiler may not see the GPU
        busy = step["kernel_ms"]
        found |= {"kernels": step["kernels"], "copies to host": step["reads"], "kernel ms": busy}
        return found | {"device idle share": max(0.0, 1 - busy / wall)}
    return found | dict.fromkeys(("kernels", "copies to host", "kernel ms", "device idle share"))


def _profiled(action: Callable[[], Any], device: torch.device) -> dict[str, float]:
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as found:
        seconds(action, device)
    events = found.events() or []
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [event for event in on_device if not event.name.startswith(("Memcpy", "Memset"))]
    return {
        "operations": sum(event.name.startswith("aten::") for event in events),
        "kernels": len(kernels),
        "reads": sum(event.name.startswith("Memcpy DtoH") for event in on_device),
        "kernel_ms": sum(event.time_range.elapsed_us() for event in kernels) / 1e3,
    }
