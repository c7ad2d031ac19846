"""Pretrained models: found or fetched once per sweep, then loaded by each run without a network.

    <sweep>/prepared/model-<key>.json    where the model's files are, their sizes, times and content hash
    <sweep>/prepared/model-<key>/        the model in transformers' format, where it had to be converted

A model from a hub lies in the hub library's own cache, at the commit that the configuration names.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from trainer.config import ModelConfig
from trainer.errors import UserError
from trainer.files import locked, read_json, sha256, write_json
from trainer.hub import short, unavailable
from trainer.task_config import canonical_json

logging.disable_progress_bar()  # logs are read later

WEIGHTS = ("*.safetensors", "*.bin")
FETCHED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Files taken from a hub; pickled weights can run code when they are read."""
TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model that is at hand."""

    folder: str
    """Where its files are."""
    content: str
    """Hash of its weights."""
    tokenizer: str
    """What identifies its tokenizer."""


def find_pretrained(config: ModelConfig, prepared: Path) -> Pretrained:
    """The model that a configuration names; located, fetched, converted and hashed if that was not done yet.

    Raises `UserError` when it cannot be had, or has changed since.
    """
    assert config.pretrained is not None
    key = hashlib.sha256(canonical_json([config.pretrained, config.revision]).encode()).hexdigest()[:12]
    note = prepared / f"model-{key}.json"
    if not note.is_file():
        with locked(prepared / f"model-{key}.lock", wait=7200):
            if not note.is_file():
                write_json(note, _description(_folder(config, prepared / f"model-{key}"), prepared))
    found = read_json(note)
    assert found is not None
    folder = Path(found["folder"])
    if not folder.is_absolute():  # inside the sweep, which may have moved
        folder = prepared / folder
    # hashing many gigabytes takes minutes: only files that look touched are read again
    if _stamps(folder, found["stamps"]) != found["stamps"]:
        sizes = {name: stamp[0] for name, stamp in _stamps(folder, found["stamps"]).items()}
        same = sizes == {name: stamp[0] for name, stamp in found["stamps"].items()}
        if not same or _description(folder, prepared)["content"] != found["content"]:
            raise UserError(
                f"model.pretrained={config.pretrained}: the weights in {folder} are not those that this "
                "sweep was prepared with: put them back, or start a new sweep with --name"
            )
    return Pretrained(str(folder), found["content"], found["tokenizer"])


def load_pretrained(config: ModelConfig, found: Pretrained, max_tokens: int) -> Module:
    """The model with float32 weights, on the CPU, its dropout off.

    Raises `UserError` when it cannot be read or `max_tokens` are too many for it.
    """
    try:
        return _loaded(config, found, max_tokens)
    except UserError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"model.pretrained={config.pretrained} in {found.folder} cannot be loaded "
            f"({short(error)}): choose another model"
        ) from None


def _loaded(config: ModelConfig, found: Pretrained, max_tokens: int) -> Module:
    settings = AutoConfig.from_pretrained(found.folder)
    check_length(settings, config, max_tokens)
    for name, value in settings.to_dict().items():
        if name.endswith(("dropout", "pdrop")) and isinstance(value, float):
            setattr(settings, name, 0.0)
    model: Module = AutoModelForCausalLM.from_pretrained(
        found.folder, config=settings, dtype=torch.float32, attn_implementation="sdpa"
    )
    if config.untie_embeddings:
        _untie(model)
    _check_head(model, config)
    return model.eval()


def check_length(settings: PretrainedConfig, config: ModelConfig, max_tokens: int) -> None:
    """Raise `UserError` when prompt and response can be longer than the model takes."""
    longest = getattr(settings, "max_position_embeddings", None)
    if longest is not None and max_tokens > longest:
        raise UserError(
            f"the longest prompt and task.max_response_tokens make {max_tokens} tokens, more than the "
            f"{longest} of {config.pretrained}: lower task.max_response_tokens or task.max_prompt_tokens"
        )


def _untie(model: Module) -> None:
    """Give the output head weights of its own, equal to the embedding's."""
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    if head.weight is not embedding:
        raise UserError("model.untie_embeddings=true has no effect: the model's head is its own already")
    head.weight = nn.Parameter(embedding.detach().clone())
    model.config.tie_word_embeddings = False


def _check_head(model: Module, config: ModelConfig) -> None:
    """Log-probabilities are computed from the output head alone; refuse models that do more after it."""
    tokens = torch.arange(8).unsqueeze(0)
    with torch.inference_mode():
        whole = model(input_ids=tokens, use_cache=False).logits
        states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        parts = model.get_output_embeddings()(states)
    if not torch.allclose(whole, parts, rtol=1e-4, atol=1e-4 * float(whole.abs().max())):
        raise UserError(
            f"model.pretrained={config.pretrained} changes its logits after the output head (soft-capping or "
            "scaling), which is not supported: choose another model"
        )


def _folder(config: ModelConfig, converted: Path) -> Path:
    """Folder of the model's files; made where they have to be fetched or converted."""
    name = config.pretrained
    assert name is not None
    if config.from_hub:
        return _fetched(name, config.revision)
    place = Path(name).expanduser()
    if place.suffix == ".gguf" and place.is_file():
        _convert(place, converted)
        return converted
    if (place / "config.json").is_file():
        return place.absolute()
    what = "holds no config.json" if place.is_dir() else "does not exist"
    raise UserError(
        f"model.pretrained={name} {what} (looked for {place.absolute()}): give a folder with a transformers "
        "model, a .gguf file, or OWNER/NAME on a hub with model.revision"
    )


def _fetched(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=FETCHED))
    except (OSError, ValueError) as error:
        raise unavailable("model", "pretrained", name, revision, error) from None
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"model.pretrained={name} at {revision} holds no *.safetensors, the only weights that are "
            "fetched: choose another model, or convert it and give its folder"
        )
    return folder


def _convert(file: Path, target: Path) -> None:
    """Write a .gguf model in transformers' format, float32; its quantised weights are taken as they are."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError(
            f"model.pretrained={file} needs the gguf library: pip install 'grposweep[gguf]'"
        ) from None
    building = target.with_name(f".{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    arguments = {"gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **arguments)
    settings = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    # a model that was read from gguf refuses to be saved, one with its weights does not
    plain = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(building)
    AutoTokenizer.from_pretrained(file.parent, **arguments).save_pretrained(building)
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)


def _description(folder: Path, prepared: Path) -> dict[str, Any]:
    """What is noted of a model's files; a folder inside the sweep is relative, as sweeps may move."""
    weights = sorted(file for kind in WEIGHTS for file in folder.glob(kind))
    if not weights:
        raise UserError(f"model.pretrained: {folder} holds no {' or '.join(WEIGHTS)}")
    inside = folder.is_relative_to(prepared)
    return {
        "folder": str(folder.relative_to(prepared) if inside else folder),
        "stamps": _stamps(folder, ["config.json", *(file.name for file in weights)]),
        "content": _hash([folder / "config.json", *weights]),
        "tokenizer": _hash(sorted(file for kind in TOKENIZER for file in folder.glob(kind))),
    }


def _stamps(folder: Path, names: Iterable[str]) -> dict[str, list[int]]:
    """Size and time of change of those files that are there."""
    files = [folder / name for name in names if (folder / name).is_file()]
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _hash(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name} {sha256(file)}\n".encode())
    return total.hexdigest()
