"""Pretrained models: found, checked, loaded; moved and changed folders."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM, Gemma2Config, GraniteConfig

from tests.tiny_models import VOCABULARY, tiny
from trainer.config import ModelConfig
from trainer.errors import UserError
from trainer.pretrained import find_pretrained, load_pretrained
from trainer.rendering import character_tokenizer
from trainer.schema import parse


def saved(folder: Path, model: Module | None = None) -> Path:
    (model or tiny("llama")).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def config(folder: Path, **fields: Any) -> ModelConfig:
    return parse(ModelConfig, {"pretrained": str(folder)} | fields)


def load(folder: Path, prepared: Path, max_tokens: int = 16, **fields: Any) -> Module:
    settings = config(folder, **fields)
    return load_pretrained(settings, find_pretrained(settings, prepared), max_tokens)


def refused(folder: Path, prepared: Path, **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, prepared, **fields)
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def same(first: Module, second: Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_folder_is_loaded_as_it_is(tmp_path: Path) -> None:
    model = tiny("llama")
    loaded = load(saved(tmp_path / "model", model), tmp_path / "prepared")
    assert same(model, loaded)
    assert not loaded.training
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    line = refused(tmp_path / "none", prepared)
    assert f"model.pretrained={tmp_path / 'none'} does not exist" in line
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in refused(tmp_path / "empty", prepared)
    bare = saved(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    line = refused(bare, prepared)
    assert "model.pretrained" in line and "safetensors" in line
    assert not list(prepared.glob("*.json"))  # so that a later start looks again


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    folder, prepared = saved(tmp_path / "model"), tmp_path / "prepared"
    load(folder, prepared)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for changed in (content + b"\0", content[:-1] + bytes([content[-1] ^ 1])):  # longer; of the same size
        file.write_bytes(changed)
        line = refused(folder, prepared)
        assert f"model.pretrained={folder}" in line and "--name" in line
    file.write_bytes(content)  # put back
    load(folder, prepared)
    settings = folder / "config.json"
    text = settings.read_text()
    settings.write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert f"model.pretrained={folder}" in refused(folder, prepared)
    settings.write_text(text)
    file.unlink()
    assert f"model.pretrained={folder}" in refused(folder, prepared)


def test_a_sweep_may_move(tmp_path: Path) -> None:
    folder, prepared = saved(tmp_path / "model"), tmp_path / "sweep" / "prepared"
    before = find_pretrained(config(folder), prepared)
    shutil.move(tmp_path / "sweep", tmp_path / "moved")
    assert find_pretrained(config(folder), tmp_path / "moved" / "prepared") == before


def test_a_gguf_file_is_converted_inside_the_sweep(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    width, heads, inner, vocabulary = 32, 2, 64, 40
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(
        ["<|end|>", *(chr(97 + n) for n in range(26)), *(str(n) for n in range(10)), "Ġ", "Ċ", "ab"]
    )
    writer.add_token_types([3] + [1] * (vocabulary - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    stream = torch.Generator().manual_seed(0)
    shapes = {
        "token_embd": (vocabulary, width),
        "output_norm": (width,),
        "output": (vocabulary, width),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        **{f"blk.0.attn_{part}": (width, width) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (inner, width),
        "blk.0.ffn_up": (inner, width),
        "blk.0.ffn_down": (width, inner),
    }
    weights = {name: torch.randn(shape, generator=stream).numpy() for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file, prepared = tmp_path / "tiny.gguf", tmp_path / "sweep" / "prepared"
    model = load(file, prepared)
    head = model.get_output_embeddings().weight
    assert torch.equal(head, torch.from_numpy(weights["output"]))
    found = find_pretrained(config(file), prepared)
    assert Path(found.folder).is_relative_to(prepared)
    file.unlink()  # the converted model is all that is needed, wherever the sweep lies
    shutil.move(tmp_path / "sweep", tmp_path / "moved")
    moved = load(file, tmp_path / "moved" / "prepared")
    assert same(model, moved)


def test_an_untied_head_starts_equal_and_learns_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny("llama", tie_word_embeddings=True))
    tied = load(folder, tmp_path / "prepared")
    model = load(folder, tmp_path / "prepared", untie_embeddings=True)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert head is not embedding and torch.equal(head, embedding)
    assert (
        sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in tied.parameters()) + head.numel()
    )
    tokens = torch.arange(6).unsqueeze(0)
    assert torch.equal(model(input_ids=tokens).logits, tied(input_ids=tokens).logits)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=tokens).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    assert not torch.equal(head, embedding)
    # saved and loaded again it stays untied
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again.get_output_embeddings().weight, head)
    assert torch.equal(again.get_input_embeddings().weight, embedding)


def test_there_is_nothing_to_untie_where_nothing_is_tied(tmp_path: Path) -> None:
    line = refused(saved(tmp_path / "model"), tmp_path / "prepared", untie_embeddings=True)
    assert "model.untie_embeddings" in line


def test_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    load(folder, tmp_path / "prepared", max_tokens=64)
    line = refused(folder, tmp_path / "prepared", max_tokens=65)
    for words in ("65", "64", "task.max_prompt_tokens", "task.max_response_tokens"):
        assert words in line


SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_logits_that_change_after_the_head_are_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(GraniteConfig(**SHAPE, logits_scaling=8.0))
    line = refused(saved(tmp_path / "model", model), tmp_path / "prepared")
    assert f"model.pretrained={tmp_path / 'model'}" in line and "soft-capping or scaling" in line


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    capped = AutoModelForCausalLM.from_config(Gemma2Config(**SHAPE, head_dim=8))
    torn, unknown = saved(tmp_path / "torn"), saved(tmp_path / "unknown")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:-100])
    (unknown / "config.json").write_text('{"model_type": "nobody_knows"}')
    for folder in (saved(tmp_path / "capped", capped), torn, unknown):
        line = refused(folder, tmp_path / "prepared")
        assert f"model.pretrained={folder}" in line and "cannot be loaded" in line


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"attention_dropout": 0.3}),
        ("gpt2", {"attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3}),
    ],
)
def test_dropout_is_off(tmp_path: Path, family: str, fields: dict[str, float]) -> None:
    folder = saved(tmp_path / "model", tiny(family, **fields))
    assert all(getattr(AutoConfig.from_pretrained(folder), name) == 0.3 for name in fields)
    model = load(folder, tmp_path / "prepared").train()
    tokens = torch.arange(8).unsqueeze(0)
    assert torch.equal(model(input_ids=tokens).logits, model(input_ids=tokens).logits)
