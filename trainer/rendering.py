"""From a problem to the tokens of a prompt: tokenizers, chat templates and end marks."""

from __future__ import annotations

import string
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from trainer.errors import UserError
from trainer.sources import Problem
from trainer.task_config import TaskConfig

PAD, START, ANSWER, END, UNKNOWN = "<|pad|>", "<|start|>", "<|answer|>", "<|end|>", "<|unknown|>"
CHARACTERS = [character for character in string.printable if character not in "\t\r\x0b\x0c"]
CHARACTER_TEMPLATE = (
    f"{START}{{% for message in messages %}}{{{{ message['content'] }}}}"
    "{% if not loop.last %}\n{% endif %}{% endfor %}" + ANSWER
)
REQUIRED = {
    "enable_thinking": (
        ("enable_thinking",),
        "the template thinks unless told not to, and thoughts rarely end within a short response: set it to "
        "false, or to true with a long task.max_response_tokens",
    ),
    "date_string": (
        ("date_string", "strftime_now"),
        "the template puts today's date into every prompt, so that runs of two days would differ: set it to "
        "'26 Jul 2024' say",
    ),
}
"""Template argument → words in a template that make it required, and why."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """A tokenizer with what the task says about chats."""

    tokenizer: PreTrainedTokenizerBase
    task: TaskConfig
    eos_ids: tuple[int, ...]
    """Each ends a response; the tokenizer's own first."""

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.eos_ids[0] if pad is None else int(pad)

    @property
    def marks(self) -> list[str]:
        """Texts of the tokenizer's special tokens."""
        added = self.tokenizer.added_tokens_decoder.values()
        return [token.content for token in added if token.special]

    def text(self, problem: Problem) -> str:
        """The prompt as the model gets it."""
        task = self.task
        if isinstance(problem, str):
            messages = [{"role": "user", "content": task.prompt_template.format(problem=problem)}]
        else:
            messages = problem
        if task.system_prompt is not None:
            if messages[0]["role"] == "system":
                raise UserError(
                    "task.system_prompt is set, but the problems are chats with a system turn of their own: "
                    "leave it out"
                )
            messages = [{"role": "system", "content": task.system_prompt}, *messages]
        if self.tokenizer.chat_template is None:
            return "\n\n".join(message["content"] for message in messages)
        return _templated(self.tokenizer, messages, task.chat_template_kwargs)

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Token ids of rendered prompts; a template writes its own special tokens."""
        if not texts:
            return []
        special = self.tokenizer.chat_template is None
        found: list[list[int]] = self.tokenizer(texts, add_special_tokens=special)["input_ids"]
        return found

    def answer_tokens(self, answer: str) -> list[int]:
        """Token ids of a response and its end mark."""
        found: list[int] = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        return [*found, self.eos_ids[0]]

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, special ones left out."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character or newline: for small models that are trained from scratch."""
    special = [PAD, START, ANSWER, END, UNKNOWN]
    vocabulary = {token: number for number, token in enumerate([*special, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, bos_token=START
    )
    tokenizer.chat_template = CHARACTER_TEMPLATE
    return tokenizer


def character_renderer(task: TaskConfig) -> Renderer:
    """Characters as tokens."""
    tokenizer = character_tokenizer()
    return Renderer(tokenizer, task, (int(tokenizer.eos_token_id),))


def pretrained_renderer(task: TaskConfig, place: str, name: str) -> Renderer:
    """The tokenizer of a pretrained model in the folder `place`; `name` is what messages call the model.

    End marks are those of the model's generation settings and tokenizer, and the one that its chat template
    writes after an answer. Raises `UserError` when the template needs an argument that is not given.
    """
    tokenizer = AutoTokenizer.from_pretrained(place)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default", "")
    for argument, (words, reason) in REQUIRED.items():
        if template and any(word in template for word in words) and argument not in task.chat_template_kwargs:
            raise UserError(f"task.chat_template_kwargs.{argument} has to be set for {name}: {reason}")
    if template is None and task.chat_template_kwargs:
        raise UserError(f"task.chat_template_kwargs has no effect: {name} has no chat template; leave it out")
    ends = [tokenizer.eos_token_id, *_configured_ends(place), _template_end(tokenizer, task)]
    distinct = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
    if not distinct:
        raise UserError(f"{name} has no end mark: its tokenizer needs an eos_token")
    return Renderer(tokenizer, task, distinct)


def _configured_ends(place: str) -> list[int]:
    found: list[int] = []
    loaded: list[Any] = [AutoConfig.from_pretrained(place)]
    with suppress(OSError):  # a model need not have generation settings
        loaded.append(GenerationConfig.from_pretrained(place))
    for settings in loaded:
        ends = getattr(settings, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return found


def _template_end(tokenizer: PreTrainedTokenizerBase, task: TaskConfig) -> int | None:
    """The special token that the chat template writes right after an answer."""
    if tokenizer.chat_template is None:
        return None
    said = "zqxanswer"
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": said}]
    text = _templated(tokenizer, messages, task.chat_template_kwargs, prompt=False)
    after = tokenizer(text.rpartition(said)[2], add_special_tokens=False)["input_ids"]
    return after[0] if after and after[0] in tokenizer.all_special_ids else None


def _templated(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    arguments: dict[str, Any],
    prompt: bool = True,
) -> str:
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, **arguments
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise UserError(f"the chat template refuses turns of {roles}: {error}") from None
    return str(text)
