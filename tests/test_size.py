"""Sizes of models, against the models themselves and what is published."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sweeps.size import PUBLISHED, parameters, shape, vocabulary
from trainer.config import ModelConfig
from trainer.policy import build_policy
from trainer.rendering import character_tokenizer
from trainer.schema import parse
from trainer.task_config import TaskConfig
from trainer.tasks import built_in_task


@pytest.mark.parametrize("task", ["copy", "reverse", "sort", "running_sum", "arithmetic"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_fresh_models_are_as_large_as_torch_says(task, family, tied):
    settings = parse(TaskConfig, {"name": task, "length": 3, "max_response_tokens": 8})
    model = ModelConfig(
        family=family, tie_embeddings=tied, hidden_size=48, heads=3, layers=3, intermediate_size=40
    )
    real = build_policy(model, built_in_task(settings), seed=0)
    assert parameters(model, vocabulary(settings)) == sum(each.numel() for each in real.parameters())


def test_models_for_words_have_a_token_per_character():
    words = TaskConfig.model_construct(name="text")
    assert vocabulary(words) == len(character_tokenizer())


def test_the_toy_of_the_option_file():
    assert parameters(ModelConfig(), 12) == 21_408


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_published_models_have_their_published_sizes(name, count):
    assert PUBLISHED[name].parameters == count
    assert parameters(ModelConfig(pretrained=name, revision="a" * 40), None) == count


def test_an_untied_head_counts():
    model = ModelConfig(pretrained="Qwen/Qwen3-0.6B", revision="a" * 40, untie_embeddings=True)
    assert parameters(model, None) == 751_632_384


def test_models_in_a_folder_are_read(tmp_path):
    described = {
        "model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 151_936,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert parameters(ModelConfig(pretrained=str(tmp_path)), None) == 596_049_920
    assert shape(ModelConfig(pretrained=str(tmp_path)), None).cached_numbers * 2 == 114_688


def test_another_architecture_is_counted_by_its_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    model = ModelConfig(pretrained=str(tmp_path))
    assert parameters(model, None) is None
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    assert parameters(model, None) == 17


def test_what_is_not_there_is_not_guessed(tmp_path):
    assert parameters(ModelConfig(pretrained="some/model", revision="a" * 40), None, tmp_path) is None
    assert parameters(ModelConfig(), None) is None
