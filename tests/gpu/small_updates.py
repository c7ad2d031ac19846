"""Rates as small as the experiment needs reach the float32 weights; a rate of 0 changes nothing."""

from __future__ import annotations

import torch

from gpu.material import Material, log_probabilities
from gpu.report import Section
from trainer.gradients import flatten
from trainer.learner import Learner

RATE = 6e-8
"""About the distance of float32 numbers just below 1, of which the norms' weights are."""


def check(material: Material, section: Section) -> None:
    for rate in (RATE, 0.0):
        config = material.config(learning_rate=rate, model={"compute_dtype": "bfloat16"})
        policy = material.policy()
        learner = Learner(policy, config)
        before, was = flatten(learner.parameters), log_probabilities(policy, material.batch, config)[0]
        update = learner.update(material.batch, 0)
        after, now = flatten(learner.parameters), log_probabilities(policy, material.batch, config)[0]
        moved = (after != before).double().mean().item()
        changed = (now - was).abs().max().item()
        if rate:
            section.above(f"share of weights that one update at rate {rate:g} moves", moved, 0.99)
            section.numbers["largest step over the rate"] = (after - before).abs().max().item() / rate
            section.numbers["largest change of a log-probability"] = changed
        else:
            section.check("at rate 0 no weight moves", moved == 0, moved)
            section.check("at rate 0 log-probabilities stay as they are", torch.equal(now, was), changed)
        section.check(f"the update at rate {rate:g} is finite", update.finite, update.gradient_norm)
