"""Run identity: a hash of the scientific fields only.

Fields equal to a frozen table of defaults are left out of the hash, so a field added later (with a default
that means "as before") keeps old ids. A default that changes bumps the version instead.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trainer.config import RunConfig
from trainer.schema import flatten

FROZEN_DEFAULTS_VERSION = 1
FROZEN_DEFAULTS: dict[str, Any] = {
    "sync_interval": 1,
    "learning_rate": 1e-3,
    "seed": 0,
    "batch_size": 64,
    "group_size": 8,
    "engine": "lockstep",
    "schedule": "strict",
    "task.name": "copy",
    "task.length": 8,
    "task.alphabet": 8,
    "task.max_response_tokens": 9,
    "model.family": "llama",
    "model.hidden_size": 32,
    "model.layers": 2,
    "model.heads": 1,
    "model.intermediate_size": 64,
    "model.tie_embeddings": False,
    "model.initializer_range": 0.15,
    "warm_start.target_reward": 0.1,
    "warm_start.learning_rate": 3e-3,
    "warm_start.beta2": 0.99,
    "warm_start.ramp_updates": 50,
    "warm_start.batch_size": 256,
    "warm_start.check_every": 5,
    "warm_start.max_updates": 2000,
    "warm_start.seed": 0,
    "sampling.temperature": 1.0,
    "buffer_size": 0,
    "replay_ratio": None,
    "inference_workers": 1,
    "trainers": 1,
    "generation_cost_ratio": None,
    "store.order": "fifo",
    "store.capacity": None,
    "store.delay": 0,
    "store.max_lag": None,
    "store.positive_share": 0.0,
    "store.backfill": False,
    "store.selection": "uniform",
    "store.within_batch_replacement": True,
    "store.recency_half_life": 8.0,
    "store.selection_floor": 0.1,
    "clock.reference_tokens": None,
    "clock.verifier_share": 0.0,
    "clock.verifier_variation": 0.0,
    "clock.sync_cost": 0.0,
    "clock.in_flight_updates": False,
    "advantage.normalize": "std",
    "advantage.ddof": 0,
    "advantage.epsilon": 1e-6,
    "loss.kind": "grpo",
    "loss.ratio_level": "token",
    "loss.aggregation": "sequence_mean",
    "loss.dual_clip": None,
    "loss.weight_cap": 2.0,
    "loss.asymre_shift": -0.1,
    "loss.kl_weight": 0.0,
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.2,
    "loss.log_ratio_clamp": 20.0,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": 0.01,
    "optimizer.ramp_updates": 20,
    "optimizer.clip_norm": None,
    "optimizer.alignment_limit": None,
    "optimizer.master_dtype": "float32",
    "task.max_prompt_tokens": 1024,
    "task.truncation": "wrong",
    "task.wrong_reward": 0.0,
    "task.source.generator": None,
    "task.source.settings": {},
    "task.source.seed": 0,
    "task.source.path": None,
    "task.source.dataset": None,
    "task.source.subset": None,
    "task.source.split": "train",
    "task.source.revision": None,
    "task.source.rows": None,
    "task.source.prompt_column": "prompt",
    "task.source.answer_column": "answer",
    "task.source.answer_extract": "whole",
    "task.held_out_share": 0.0,
    "task.system_prompt": None,
    "task.prompt_template": "{problem}",
    "task.chat_template_kwargs": {},
    "task.extract": "whole",
    "task.verifier.kind": None,
    "task.verifier.command": None,
    "task.verifier.time_limit": 10.0,
    "task.verifier.memory_limit_mb": 2048,
    "task.verifier.batch": 64,
    "model.pretrained": None,
    "model.revision": None,
    "model.untie_embeddings": False,
    "model.compute_dtype": "float32",
    "sampling.top_p": 1.0,
    "sampling.top_k": None,
}


def scientific_fields(config: RunConfig) -> dict[str, Any]:
    """Every field that decides what a run computes, flat and dotted; budget and resources are not there."""
    run_fields = set(RunConfig.model_fields) - {"resources"}
    return flatten(config.model_dump(mode="json", include=run_fields))


def run_id(config: RunConfig) -> str:
    """Twelve hex digits that name the run; floats count by value (1e-6 equals 0.000001)."""
    fields = scientific_fields(config)
    differing = {
        # the schema gives every field one type, so repr tells values apart exactly; -0.0 + 0 is 0.0
        key: repr(value + 0) if isinstance(value, float) else value
        for key, value in fields.items()
        if key not in FROZEN_DEFAULTS or not _same(FROZEN_DEFAULTS[key], value)
    }
    text = json.dumps({"version": FROZEN_DEFAULTS_VERSION, "fields": differing}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _same(default: object, value: object) -> bool:
    """Equal in type and value: false is not 0."""
    return type(default) is type(value) and default == value
