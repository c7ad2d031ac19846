"""Decide which responses to text problems are right. Torch-free.

responses ─► extract ─► Item ─► Verifier.verify ─► True, False, or None: no verdict could be had
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.command_verifier import CommandVerifier
from trainer.generators import GeneratorVerifier, make_generator
from trainer.math_verifier import MathVerifier
from trainer.task_config import TaskConfig

__all__ = [
    "CommandVerifier",
    "ExactVerifier",
    "GeneratorVerifier",
    "Item",
    "MathVerifier",
    "Verifier",
    "make_generator",
    "make_verifier",
]


@dataclass(frozen=True, slots=True)
class Item:
    """One response with its problem."""

    problem: str
    answer: str
    """The right answer, as the source of the problems has it."""
    response: str
    extracted: str | None
    """The answer in the response; None: the rule of task.extract found none."""
    index: int
    """Place of the problem in its source, from 0."""


class Verifier(Protocol):
    def verify(self, items: Sequence[Item]) -> list[bool | None]:
        """For each item, in order, whether its response is right; None: unscored."""
        ...


class ExactVerifier:
    """Right is text equal to the answer, white space at the ends aside."""

    def verify(self, items: Sequence[Item]) -> list[bool | None]:
        return [
            item.extracted is not None and item.extracted.strip() == item.answer.strip() for item in items
        ]


def make_verifier(task: TaskConfig, processes: int, folder: Path) -> Verifier:
    """The verifier of a text task.

    A command runs in `folder`, at most `processes` of it at once. Raises `UserError` where a package is
    missing, the command is not found, or the generator does not take its settings.
    """
    config = task.verifier
    match task.verifier_kind:
        case "exact":
            return ExactVerifier()
        case "math":
            return MathVerifier(config.time_limit)
        case "generator":
            return GeneratorVerifier(task.source)
        case "command":
            assert config.command is not None
            return CommandVerifier(
                config.command,
                time_limit=config.time_limit,
                memory_limit_mb=config.memory_limit_mb,
                batch=config.batch,
                processes=processes,
                folder=folder,
            )
