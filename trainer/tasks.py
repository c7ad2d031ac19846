"""Built-in tasks: prompts and their verifier, on token ids."""

from __future__ import annotations

import string
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import TaskConfig


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Repeat the prompt's letters, then say that it is done.

    Token ids: letters 0..K−1, then padding, start, separator and end mark (K to K+3).
    A prompt is `start letters separator`; the only right response is `letters end`.
    """

    config: TaskConfig

    @property
    def pad_id(self) -> int:
        return self.config.alphabet

    @property
    def eos_id(self) -> int:
        return self.config.alphabet + 3

    @property
    def vocabulary_size(self) -> int:
        return self.config.alphabet + 4

    @property
    def max_tokens(self) -> int:
        """Longest sequence: prompt and response."""
        return self.config.length + 2 + self.config.max_response_tokens

    def prompts(self, count: int, generator: torch.Generator) -> Tensor:
        """Random prompts, int64 [count, length + 2]."""
        letters = torch.randint(self.config.alphabet, (count, self.config.length), generator=generator)
        start = torch.full((count, 1), self.config.alphabet + 1)
        return torch.cat([start, letters, start + 1], dim=1)

    def answers(self, prompts: Tensor) -> Tensor:
        """The right response to each prompt, int64 [count, length + 1]."""
        end = torch.full((len(prompts), 1), self.eos_id)
        return torch.cat([prompts[:, 1:-1], end], dim=1)

    def verify(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Rewards, float32 [count]: 1 where a response equals the answer and then only pads, else 0.

        `responses` is int64 [count, max_response_tokens], padded after its end mark.
        """
        answers = self.answers(prompts)
        length = answers.shape[1]
        right = (responses[:, :length] == answers).all(dim=1)
        return (right & (responses[:, length:] == self.pad_id).all(dim=1)).float()

    def render(self, tokens: Tensor) -> str:
        """Readable text of token ids [any]; the end mark is `.`, padding is left out."""
        letters = string.ascii_lowercase
        names: list[str] = []
        for token in tokens.tolist():
            if token < self.config.alphabet:
                names.append(letters[token] if self.config.alphabet <= len(letters) else f"{token} ")
            elif token == self.eos_id:
                names.append(".")
            elif token != self.pad_id:
                names.append("^" if token == self.config.alphabet + 1 else ">")
        return "".join(names)


def make_task(config: TaskConfig) -> CopyTask:
    """The task that a configuration names."""
    return CopyTask(config)
