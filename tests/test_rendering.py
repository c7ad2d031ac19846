"""From a problem to tokens: the character tokenizer, chat templates, and the marks that end a response."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from trainer.errors import UserError
from trainer.rendering import (
    CHARACTERS,
    Renderer,
    character_renderer,
    character_tokenizer,
    pretrained_renderer,
)
from trainer.schema import parse
from trainer.task_config import TaskConfig

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
DATED = (
    "{% if not date_string is defined %}{% set date_string = '1 Jan' %}{% endif %}Today {{ date_string }}\n"
    + CHATML
)
CLOCKED = (
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}{{ date_string }}" + CHATML
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + CHATML


def text_task(**fields: Any) -> TaskConfig:
    source = {"generator": "chain_sum", "rows": 1}
    return parse(TaskConfig, {"name": "text", "max_response_tokens": 8, "source": source} | fields)


def chat_model(folder: Path, template: str | None, *, ends: Any = None, generation: Any = None) -> str:
    """A folder with a tokenizer of bytes, its own end mark `<|endoftext|>`, and a model's settings."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=special[0], additional_special_tokens=special[1:]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=len(vocabulary), eos_token_id=ends, bos_token_id=None).save_pretrained(folder)
    if generation is not None:
        GenerationConfig(eos_token_id=generation).save_pretrained(folder)
    return str(folder)


def renderer(place: str, **fields: Any) -> Renderer:
    return pretrained_renderer(text_task(**fields), place, "owner/model")


def refused(place: str, **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        renderer(place, **fields).text("p")
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


@settings(deadline=None)
@given(st.text(st.sampled_from(CHARACTERS)))
def test_characters_survive(text: str) -> None:
    tokenizer = character_tokenizer()
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(tokens) == len(text)
    assert tokenizer.decode(tokens) == text


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=CHARACTERS), min_size=1))
def test_other_characters_are_unknown(text: str) -> None:
    made = character_renderer(text_task())
    tokens = made.tokens([made.text(f"a{text}b")])[0]
    assert tokens[2:-2] == [made.tokenizer.unk_token_id] * len(text)
    assert made.decode(tokens) == "ab"


def test_a_saved_character_tokenizer_is_the_same(tmp_path: Path) -> None:
    own = character_tokenizer()
    own.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "".join(CHARACTERS) + "é  double\n\n"
    assert again.get_vocab() == own.get_vocab()
    assert again(text)["input_ids"] == own(text)["input_ids"]
    assert again.chat_template == own.chat_template
    assert (again.eos_token_id, again.pad_token_id) == (own.eos_token_id, own.pad_token_id)


@pytest.mark.parametrize(
    ("template", "argument", "values"),
    [
        (THINKING, "enable_thinking", (True, False)),
        (DATED, "date_string", ("26 Jul 2024", "27 Jul 2024")),
        (CLOCKED, "date_string", ("26 Jul 2024", "27 Jul 2024")),
    ],
)
def test_what_changes_a_prompt_unseen_has_to_be_set(
    tmp_path: Path, template: str, argument: str, values: tuple[Any, Any]
) -> None:
    place = chat_model(tmp_path, template)
    line = refused(place)
    assert f"task.chat_template_kwargs.{argument}" in line and "owner/model" in line
    texts = [renderer(place, chat_template_kwargs={argument: value}).text("p") for value in values]
    assert texts[0] != texts[1]


def test_turns_are_those_of_the_task(tmp_path: Path) -> None:
    place = chat_model(tmp_path, CHATML)
    asked = renderer(place, prompt_template="Solve: {problem}").text("1 + 1")
    assert asked == "<|im_start|>user\nSolve: 1 + 1<|im_end|>\n<|im_start|>assistant\n"
    led = renderer(place, system_prompt="Be brief.").text("1 + 1")
    assert led.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1<|im_end|>")
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert renderer(place).text(chat).count("<|im_start|>") == 3


def test_a_template_that_refuses_a_turn_says_so(tmp_path: Path) -> None:
    place = chat_model(tmp_path, NO_SYSTEM)
    assert renderer(place).text("p").startswith("<|im_start|>user")
    line = refused(place, system_prompt="Be brief.")
    assert "system, user" in line and "no system turn" in line


def test_a_model_without_a_template_gets_plain_text(tmp_path: Path) -> None:
    place = chat_model(tmp_path, None)
    assert renderer(place, system_prompt="Be brief.").text("p") == "Be brief.\n\np"
    assert "task.chat_template_kwargs" in refused(place, chat_template_kwargs={"enable_thinking": False})


def test_every_end_mark_counts_once(tmp_path: Path) -> None:
    # ids: 0 <|endoftext|>, 2 <|im_end|>, 3 <|eot|>
    assert renderer(chat_model(tmp_path / "base", CHATML, ends=0)).eos_ids == (0, 2)
    assert renderer(chat_model(tmp_path / "plain", None)).eos_ids == (0,)
    several = chat_model(tmp_path / "several", CHATML, ends=[3, 0], generation=[2, 3])
    assert renderer(several).eos_ids == (0, 3, 2)
    assert renderer(several).answer_tokens("x")[-1] == 0


@pytest.mark.parametrize("problem", ["{", "}", "{problem}", "{{problem}}", "\\frac{1}{2}", "{0} %s $x"])
def test_braces_in_a_problem_are_text(tmp_path: Path, problem: str) -> None:
    made = renderer(chat_model(tmp_path, CHATML), prompt_template="In \\boxed{{}}: {problem}")
    assert f"user\nIn \\boxed{{}}: {problem}<|im_end|>" in made.text(problem)


def test_special_tokens_in_a_problem_are_read_as_such(tmp_path: Path) -> None:
    """Which is why `trainer.prompt_sets` leaves such problems out."""
    made = renderer(chat_model(tmp_path, CHATML))
    assert made.tokens([made.text("a<|im_end|>b")])[0].count(2) == 2


def test_tokens_are_not_given_a_second_start(tmp_path: Path) -> None:
    made = renderer(chat_model(tmp_path, CHATML))
    texts = [made.text("a"), made.text("longer")]
    assert [made.tokenizer.decode(tokens) for tokens in made.tokens(texts)] == texts
    assert made.tokens([]) == []
    assert made.pad_id == 0  # the tokenizer has no padding of its own
