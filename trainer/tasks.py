"""Tasks: prompts and what decides whether a response is right. Here the built-in ones, on token ids."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.prompts import HELD_OUT, Prompts, Verdicts
from trainer.seeding import generator
from trainer.task_config import TaskConfig


class Task(Protocol):
    """What the engine asks of a task."""

    @property
    def config(self) -> TaskConfig: ...

    @property
    def reports(self) -> Mapping[str, Any]:
        """Name of each prompt set → report of its preparation; empty for built-in tasks."""

    @property
    def pad_id(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a response; the first is the one that answers are taught with."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """Longest sequence: prompt and response."""

    def training_prompts(self, seed: int, block: int, count: int) -> Prompts:
        """Prompts block·count … (block + 1)·count − 1 of a run's issue order."""

    def evaluation_prompts(self, name: str, most: int) -> Prompts:
        """At most `most` prompts of an evaluation set, always the same ones."""

    def sample_prompts(self, count: int) -> Prompts:
        """Fixed prompts whose completions people read."""

    def lesson(self, count: int, stream: torch.Generator) -> tuple[Prompts, Tensor, Tensor]:
        """Training prompts for a warm start with right responses, int64 [n, a], and their mask."""

    def verify(self, prompts: Prompts, responses: Tensor, mask: Tensor) -> Verdicts:
        """Judge responses that ended: `responses` int64 [n, l], `mask` bool [n, l], end marks included."""

    def render(self, tokens: Tensor) -> str:
        """Readable text of token ids [any]; padding is left out."""

    def try_verifiers(self) -> None:
        """Raise `UserError` when a verifier gives no verdict at all."""

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer in transformers' format, where the task has one."""


@dataclass(frozen=True, slots=True)
class BuiltInTask(ABC):
    """Prompts of one length with one right response each.

    Token ids: letters 0..K−1, then padding, start, separator and end mark (K to K+3), then what a task adds.
    A prompt is `start body separator`; the only right response is the answer and an end mark.
    """

    config: TaskConfig

    @property
    def reports(self) -> Mapping[str, Any]:
        return {}

    @property
    def pad_id(self) -> int:
        return self.config.alphabet

    @property
    def eos_id(self) -> int:
        return self.config.alphabet + 3

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return (self.eos_id,)

    @property
    def vocabulary_size(self) -> int:
        return self.config.alphabet + 4 + len(self.marks)

    @property
    def marks(self) -> str:
        """Characters of the tokens from K+4 on."""
        return ""

    @property
    def body_tokens(self) -> int:
        """Tokens of a prompt between start and separator."""
        return self.config.length

    @property
    def max_tokens(self) -> int:
        """Longest sequence: prompt and response."""
        return self.body_tokens + 2 + self.config.max_response_tokens

    @abstractmethod
    def bodies(self, count: int, stream: torch.Generator) -> Tensor:
        """Random insides of prompts, int64 [count, body_tokens]."""

    @abstractmethod
    def solve(self, bodies: Tensor) -> Tensor:
        """Their answers without end marks, int64 [count, answer_tokens − 1]."""

    def prompts(self, count: int, stream: torch.Generator) -> Tensor:
        """Random prompts, int64 [count, body_tokens + 2]."""
        start = torch.full((count, 1), self.config.alphabet + 1)
        return torch.cat([start, self.bodies(count, stream), start + 1], dim=1)

    def training_prompts(self, seed: int, block: int, count: int) -> Prompts:
        return Prompts.unpadded(self.prompts(count, generator(seed, "prompts", block)))

    def evaluation_prompts(self, name: str, most: int) -> Prompts:
        return Prompts.unpadded(self.prompts(most, generator(0, "held-out prompts", 0)), HELD_OUT)

    def sample_prompts(self, count: int) -> Prompts:
        return Prompts.unpadded(self.prompts(count, generator(0, "sample prompts", 0)), HELD_OUT)

    def lesson(self, count: int, stream: torch.Generator) -> tuple[Prompts, Tensor, Tensor]:
        prompts = self.prompts(count, stream)
        answers = self.answers(prompts)
        return Prompts.unpadded(prompts), answers, torch.ones_like(answers, dtype=torch.bool)

    def answers(self, prompts: Tensor) -> Tensor:
        """The right response to each prompt, int64 [count, answer_tokens]."""
        end = torch.full((len(prompts), 1), self.eos_id)
        return torch.cat([self.solve(prompts[:, 1:-1]), end], dim=1)

    def verify(self, prompts: Prompts, responses: Tensor, mask: Tensor) -> Verdicts:
        """Right is what equals the answer, end mark included, and is followed by padding only."""
        answers = self.answers(prompts.tokens)
        length = answers.shape[1]
        right = (responses[:, :length] == answers).all(dim=1)
        return Verdicts.certain(right & (responses[:, length:] == self.pad_id).all(dim=1))

    def render(self, tokens: Tensor) -> str:
        """Readable text of token ids [any]; the end mark is `.`, padding is left out."""
        first_mark = self.config.alphabet + 4
        names: list[str] = []
        for token in tokens.tolist():
            if token < self.config.alphabet:
                names.append(self._letter(token))
            elif token >= first_mark:
                names.append(self.marks[token - first_mark])
            elif token == self.eos_id:
                names.append(".")
            elif token != self.pad_id:
                names.append("^" if token == self.config.alphabet + 1 else ">")
        return "".join(names)

    def try_verifiers(self) -> None:
        """Built-in tasks judge by themselves."""
        return

    def save_tokenizer(self, folder: Path) -> None:
        """A built-in task has token ids and no tokenizer: nothing is written."""
        return

    def _letter(self, token: int) -> str:
        letters = string.ascii_lowercase
        return letters[token] if self.config.alphabet <= len(letters) else f"{token} "


class LetterTask(BuiltInTask):
    """Repeat, reverse, sort or add up the prompt's letters."""

    __slots__ = ()

    def bodies(self, count: int, stream: torch.Generator) -> Tensor:
        return torch.randint(self.config.alphabet, (count, self.config.length), generator=stream)

    def solve(self, bodies: Tensor) -> Tensor:
        match self.config.name:
            case "reverse":
                return bodies.flip(1)
            case "sort":
                return bodies.sort(dim=1).values
            case "running_sum":
                return bodies.cumsum(dim=1) % self.config.alphabet
            case _:
                return bodies


class ArithmeticTask(BuiltInTask):
    """Add or subtract two numbers, digit by digit: any size is exact."""

    __slots__ = ()

    @property
    def marks(self) -> str:
        return "+-"

    @property
    def body_tokens(self) -> int:
        return 2 * self.config.length + 1

    def bodies(self, count: int, stream: torch.Generator) -> Tensor:
        length, base = self.config.length, self.config.alphabet
        numbers = torch.randint(base, (count, 2, length), generator=stream)
        minus = torch.randint(2, (count, 1), generator=stream)
        different = numbers[:, 0] != numbers[:, 1]
        place = different.int().argmax(dim=1, keepdim=True)  # the first digit that differs decides
        first, second = (numbers[:, k].gather(1, place) for k in (0, 1))
        swapped = ((minus == 1) & (first < second)).unsqueeze(-1)
        numbers = torch.where(swapped, numbers.flip(1), numbers)
        return torch.cat([numbers[:, 0], base + 4 + minus, numbers[:, 1]], dim=1)

    def solve(self, bodies: Tensor) -> Tensor:
        length, base = self.config.length, self.config.alphabet
        sign = 1 - 2 * (bodies[:, length] - base - 4)
        answer = torch.zeros(len(bodies), length + 1, dtype=torch.int64)
        carry = torch.zeros(len(bodies), dtype=torch.int64)
        for place in range(length - 1, -1, -1):
            total = bodies[:, place] + sign * bodies[:, length + 1 + place] + carry
            answer[:, place + 1] = total % base
            carry = total.div(base, rounding_mode="floor")
        answer[:, 0] = carry
        return answer

    def _letter(self, token: int) -> str:
        return str(token) if self.config.alphabet <= 10 else f"{token} "


def built_in_task(config: TaskConfig) -> BuiltInTask:
    """The built-in task that a configuration names."""
    return ArithmeticTask(config) if config.name == "arithmetic" else LetterTask(config)
