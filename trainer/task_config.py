"""The configuration of a task: built-in, or text with its prompts and verifier. Torch-free."""

from __future__ import annotations

import json
import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.fields import Count, Fraction, Positive
from trainer.schema import Section

Setting = bool | int | float | str | None
COMMIT = re.compile(r"[0-9a-f]{40}")
TEXT = "text"
BUILT_IN = ("copy", "reverse", "sort", "running_sum", "arithmetic")


def check_revision(name: str, revision: str | None, field: str) -> None:
    """Raise `ValueError` unless a hub name comes with a commit: a branch can move under a finished run."""
    if revision is None or not COMMIT.fullmatch(revision):
        raise ValueError(
            f"{field}={'null' if revision is None else repr(revision)}: {name} comes from a hub and needs "
            "the commit that is meant, 40 hex digits, as a branch or tag can move: take it from the page of "
            "the repository's files and versions"
        )


def check_extract(name: str, rule: str) -> None:
    """Raise `ValueError` unless the rule is `whole`, `boxed` or a regular expression."""
    if rule in ("whole", "boxed"):
        return
    try:
        re.compile(rule)
    except re.error as error:
        raise ValueError(
            f"{name}={rule!r} is neither whole nor boxed nor a regular expression ({error}): correct it"
        ) from None


class PromptSource(Section):
    """Pairs of a problem and its answer: a reasoning-gym generator, a file, or a data set from a hub."""

    generator: str | None = None
    """Name of a reasoning-gym generator, `chain_sum` say; `rows` problems are made."""
    settings: dict[str, Any] = {}
    """Settings of the generator, by its own names."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the generator."""
    path: str | None = None
    """A .jsonl or .parquet file, or a folder of those of one kind."""
    dataset: str | None = None
    """Name of a data set on a hub, read through the `datasets` library."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    split: str = "train"
    """Split of the data set."""
    revision: str | None = None
    """Commit of the data set, 40 hex digits; required with `dataset`."""
    rows: Count | None = None
    """Rows read, from the first; null: all. A generator needs it."""
    prompt_column: str = "prompt"
    """Column of the problem: text, or a list of chat messages with role and content. Dots lead into a
    nested value."""
    answer_column: str = "answer"
    """Column of the right answer; `reward_model.ground_truth` leads into a nested value."""
    answer_extract: str = "whole"
    """What of that column is the answer; rules as in task.extract."""

    @property
    def kind(self) -> Literal["generator", "path", "dataset"] | None:
        """Which of the three it is; None: nothing is named."""
        if self.generator is not None:
            return "generator"
        if self.path is not None:
            return "path"
        return None if self.dataset is None else "dataset"

    @model_validator(mode="after")
    def _one_kind(self) -> PromptSource:
        named = [name for name in ("generator", "path", "dataset") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} are both set: problems come from one place; keep one")
        own = {
            "generator": ("settings", "seed"),
            "path": ("prompt_column", "answer_column", "answer_extract"),
            "dataset": ("subset", "split", "revision", "prompt_column", "answer_column", "answer_extract"),
        }
        allowed = {"rows", *own.get(self.kind or "", ())} if self.kind else set()
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in own and name not in allowed and value != field.default:
                what = f"a source that is a {self.kind}" if self.kind else "no source"
                raise ValueError(f"{name}={value} has no effect with {what}: leave it out")
        if self.generator is not None and self.rows is None:
            raise ValueError(
                f"generator={self.generator} needs rows, how many problems to make: rows=10000 say"
            )
        if self.dataset is not None:
            check_revision(self.dataset, self.revision, "revision")
        check_extract("answer_extract", self.answer_extract)
        return self


class VerifierConfig(Section):
    """Decides whether a response is right."""

    kind: Literal["exact", "math", "generator", "command"] | None = None
    """`exact`: equal text, white space at the ends aside; `math`: equal in value, by math-verify;
    `generator`: the reasoning-gym generator's own; `command`: a program of yours. Null: `generator` where
    there is one, else `exact`."""
    command: str | None = None
    """The program and its arguments: reads a line of JSON per response, writes a line of JSON for each."""
    time_limit: Positive = 10.0
    """Seconds per response; a response that takes longer is unscored (`command`) or wrong (`math`)."""
    memory_limit_mb: Count = 2048
    """Address space of a process of `command`, in MiB."""
    batch: Count = 64
    """Responses given to one process of `command`."""

    @model_validator(mode="after")
    def _settings_of_its_kind(self) -> VerifierConfig:
        if self.kind == "command" and self.command is None:
            raise ValueError("kind=command needs command, the program to run: command='python3 check.py' say")
        if self.command is not None:
            if self.kind != "command":
                raise ValueError(f"command={self.command!r} has no effect without kind=command: set it too")
            try:
                words = shlex.split(self.command)
            except ValueError as error:
                raise ValueError(f"command={self.command!r} is no shell command: {error}") from None
            if not words:
                raise ValueError("command='' names no program: give one")
        fields = type(self).model_fields
        for name, kinds in (
            ("memory_limit_mb", ("command",)),
            ("batch", ("command",)),
            ("time_limit", ("command", "math")),
        ):
            if getattr(self, name) != fields[name].default and self.kind not in kinds:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect when kind={self.kind or 'null'}: leave it "
                    f"out, or set kind={kinds[0]}"
                )
        return self


class TaskConfig(Section):
    """Prompts and their verifier."""

    name: Literal["copy", "reverse", "sort", "running_sum", "arithmetic", "text"] = "copy"
    """What the right response to a prompt's letters is, before the end mark; reward 1 iff exact.

    `copy`: the same; `reverse`: from last to first; `sort`: in ascending order; `running_sum`: the sums of
    the first 1, 2, … letters as numbers, modulo the alphabet. `arithmetic`: the prompt is a sum or a
    difference of two numbers in base `alphabet`, the response its value, never negative, with length + 1
    digits. `text`: problems in words, from `source`, with a verifier.
    """
    length: Annotated[int, Field(ge=1, le=256)] = 8
    """Letters in a prompt; `arithmetic`: digits of each number."""
    alphabet: Annotated[int, Field(ge=2, le=1000)] = 8
    """Different letters; `arithmetic`: the base."""
    max_response_tokens: Count = 9
    """Longest response, end mark included; a response without an end mark is wrong."""
    max_prompt_tokens: Count = 1024
    """`text`: longer prompts are left out and counted."""
    truncation: Literal["wrong", "mask", "filter"] = "wrong"
    """A response without an end mark is `wrong`, or wrong and left out of training (`mask`), or takes its
    whole group with it (`filter`). The recorded reward counts it as wrong each time."""
    wrong_reward: Annotated[float, Field(ge=-1, le=0)] = 0.0
    """Reward of a wrong response; a right one has 1."""
    source: PromptSource = PromptSource()
    """`text`: where the training problems come from."""
    held_out_share: Fraction = 0.0
    """`text`: share of the problems, by a hash of the prompt, that is evaluated on and never trained on."""
    system_prompt: str | None = None
    """`text`: system turn of the chat."""
    prompt_template: str = "{problem}"
    """`text`: user turn; `{problem}` stands for the problem."""
    chat_template_kwargs: dict[str, Setting] = {}
    """`text`: arguments of the tokenizer's chat template, as `enable_thinking` or `date_string`."""
    extract: str = "whole"
    """`text`: which part of a response is its answer. `whole`; `boxed`: inside the last \\boxed; otherwise a
    regular expression, of whose last match group 1 counts, or all of it where there is no group."""
    verifier: VerifierConfig = VerifierConfig()

    @property
    def is_text(self) -> bool:
        return self.name == TEXT

    @property
    def answer_tokens(self) -> int:
        """Length of the right response of a built-in task, end mark included."""
        return self.length + (2 if self.name == "arithmetic" else 1)

    @property
    def verifier_kind(self) -> Literal["exact", "math", "generator", "command"]:
        """The text task's verifier, with its default resolved."""
        return self.verifier.kind or ("generator" if self.source.generator is not None else "exact")

    def accuracy(self, reward: float) -> float:
        """Share of right responses, from a mean reward."""
        return (reward - self.wrong_reward) / (1 - self.wrong_reward)

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> TaskConfig:
        built_in = ("length", "alphabet")
        text = (
            *("max_prompt_tokens", "source", "held_out_share", "system_prompt", "prompt_template"),
            *("chat_template_kwargs", "extract", "verifier"),
        )
        for name in built_in if self.is_text else text:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                shown = f"{name}={value}" if not isinstance(value, Section) else name
                raise ValueError(
                    f"{shown} has no effect when name={self.name}: leave it out"
                    + ("" if self.is_text else ", or set name=text")
                )
        return self

    @model_validator(mode="after")
    def _answer_fits(self) -> TaskConfig:
        if not self.is_text and self.max_response_tokens < self.answer_tokens:
            raise ValueError(
                f"max_response_tokens={self.max_response_tokens} cannot hold the answer of name={self.name}, "
                f"length={self.length} and its end mark: use {self.answer_tokens} or more"
            )
        return self

    @model_validator(mode="after")
    def _text_is_complete(self) -> TaskConfig:
        if not self.is_text:
            return self
        if "max_response_tokens" not in self.model_fields_set:
            raise ValueError("name=text needs max_response_tokens, the longest response: set it to 512 say")
        if self.source.kind is None:
            raise ValueError(
                "name=text needs a source: set source.generator (reasoning-gym), source.path (a .jsonl or "
                ".parquet file) or source.dataset (a hub)"
            )
        if self.verifier.kind == "generator" and self.source.generator is None:
            raise ValueError("verifier.kind=generator needs source.generator: set it, or another kind")
        try:
            rendered = self.prompt_template.format(problem="\0")
        except (KeyError, IndexError, ValueError):
            rendered = ""
        if "\0" not in rendered:
            raise ValueError(
                f"prompt_template={self.prompt_template!r} does not hold {{problem}}, or other braces that "
                "are not doubled: write {problem} where the problem goes and {{ for a brace"
            )
        check_extract("extract", self.extract)
        return self


def canonical_json(data: Any) -> str:
    """One text for equal plain data."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False)
