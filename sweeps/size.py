"""How large a model is, without torch: from the configuration, the model's files, or what is published."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import ModelConfig
from trainer.files import read_json
from trainer.task_config import TaskConfig, canonical_json


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a decoder in the manner of Llama."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    normalised_heads: bool = False
    """Queries and keys have norms (Qwen3)."""
    biased: bool = False
    """Queries, keys and values have biases (Qwen2)."""

    @property
    def parameters(self) -> int:
        """Weights; a head that is tied to the embedding counts once."""
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys
        attention += (queries + 2 * keys) * self.biased + 2 * self.head_dim * self.normalised_heads
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embedding = self.vocabulary * self.hidden
        return self.layers * layer + self.hidden + embedding * (1 if self.tied else 2)

    @property
    def cached_numbers(self) -> int:
        """Keys and values that are held per token."""
        return 2 * self.layers * self.key_value_heads * self.head_dim


PUBLISHED = {
    "meta-llama/Llama-3.2-1B-Instruct": Shape(16, 2048, 32, 8, 64, 8192, 128_256, True),
    "meta-llama/Llama-3.2-3B-Instruct": Shape(28, 3072, 24, 8, 128, 8192, 128_256, True),
    "Qwen/Qwen3-0.6B": Shape(28, 1024, 16, 8, 128, 3072, 151_936, True, normalised_heads=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12_288, 151_936, False, normalised_heads=True),
    "Qwen/Qwen2.5-7B": Shape(28, 3584, 28, 4, 128, 18_944, 152_064, False, biased=True),
}
"""The models that come as options, for plans before anything was fetched."""
KNOWN_TYPES = ("llama", "mistral", "qwen2", "qwen3")


CHARACTERS = 101
"""Tokens of a model with fresh weights for tasks in words: printable characters and marks."""


def vocabulary(task: TaskConfig) -> int:
    """Tokens of a model with fresh weights."""
    if task.is_text:
        return CHARACTERS
    return task.alphabet + 4 + (2 if task.name == "arithmetic" else 0)


def shape(model: ModelConfig, vocab: int | None, prepared: Path | None = None) -> Shape | None:
    """Shape of the model; None where its files are not at hand and it is not among `PUBLISHED`."""
    if model.pretrained is None:
        if vocab is None:
            return None
        return Shape(
            layers=model.layers,
            hidden=model.hidden_size,
            heads=model.heads,
            key_value_heads=model.heads,
            head_dim=model.hidden_size // model.heads,
            intermediate=model.intermediate_size,
            vocabulary=vocab,
            tied=model.tie_embeddings,
            normalised_heads=model.family == "qwen3",
        )
    folder = _folder(model, prepared)
    found = None if folder is None else _described(read_json(folder / "config.json") or {})
    found = found or PUBLISHED.get(model.pretrained)
    if found is None or not model.untie_embeddings:
        return found
    return Shape(**{name: getattr(found, name) for name in Shape.__slots__} | {"tied": False})


def parameters(model: ModelConfig, vocab: int | None, prepared: Path | None = None) -> int | None:
    """Weights of the model; None where that cannot be known yet.

    `vocab` are the tokens of a model with fresh weights, `prepared` the sweep's folder of fetched models.
    """
    found = shape(model, vocab, prepared)
    if found is not None:
        return found.parameters
    folder = _folder(model, prepared)
    return None if folder is None or model.untie_embeddings else _stored(folder)


def _folder(model: ModelConfig, prepared: Path | None) -> Path | None:
    """Where the files of a pretrained model are, as `trainer.pretrained` noted it; None if nowhere."""
    if model.pretrained is None:
        return None
    key = hashlib.sha256(canonical_json([model.pretrained, model.revision]).encode()).hexdigest()[:12]
    note = read_json(prepared / f"model-{key}.json") if prepared is not None else None
    place = Path(model.pretrained).expanduser()
    if note is not None and prepared is not None:
        place = prepared / str(note["folder"])
    return place if (place / "config.json").is_file() else None


def _described(settings: Mapping[str, Any]) -> Shape | None:
    """The shape in a transformers configuration."""
    if settings.get("model_type") not in KNOWN_TYPES:
        return None
    heads = settings["num_attention_heads"]
    return Shape(
        layers=settings["num_hidden_layers"],
        hidden=settings["hidden_size"],
        heads=heads,
        key_value_heads=settings.get("num_key_value_heads") or heads,
        head_dim=settings.get("head_dim") or settings["hidden_size"] // heads,
        intermediate=settings["intermediate_size"],
        vocabulary=settings["vocab_size"],
        tied=bool(settings.get("tie_word_embeddings", False)),
        normalised_heads=settings["model_type"] == "qwen3",
        biased=settings["model_type"] == "qwen2",
    )


def _stored(folder: Path) -> int | None:
    """Numbers in the safetensors files of a folder, by their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        total += sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    return total or None
