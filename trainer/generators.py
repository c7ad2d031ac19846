"""Problems made by reasoning-gym, and its own scoring of their answers. Torch-free."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainer.errors import UserError
from trainer.evaluated_answers import is_harmless
from trainer.task_config import PromptSource
from trainer.time_limit import within

if TYPE_CHECKING:
    from trainer.verifiers import Item

CLOSENESS = 1e-9
SCORE_SECONDS = 10.0
"""Longest time for one answer, on the main thread; it is wrong then."""
OWN_FIELDS = {"seed": "task.source.seed", "size": "task.source.rows"}


class Generator(Protocol):
    """A reasoning-gym data set: problem i depends on the settings, the seed, the rows and i alone."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        """`question`, `answer` (text, or None where many answers are right) and `metadata`."""
        ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for a right answer, less for others; may raise for odd ones."""
        ...


class GeneratorVerifier:
    """Right is an answer with the full score of the generator's own scorer.

    Some scorers evaluate the answer as Python code; what is no plain value or expression is wrong and does
    not reach them.
    """

    def __init__(self, source: PromptSource) -> None:
        self._generator = make_generator(source)
        self._name = source.generator or ""

    def verify(self, items: Sequence[Item]) -> list[bool | None]:
        entries: dict[int, dict[str, Any]] = {}
        verdicts: list[bool | None] = []
        for item in items:
            if item.extracted is None:
                verdicts.append(False)
                continue
            if item.index not in entries:
                entries[item.index] = self._generator[item.index]
            verdicts.append(self._right(item.extracted, entries[item.index]))
        return verdicts

    def _right(self, extracted: str, entry: dict[str, Any]) -> bool:
        if not is_harmless(extracted, self._name):
            return False
        try:
            score = within(SCORE_SECONDS, lambda: self._generator.score_answer(extracted, entry), late=0.0)
        except Exception:
            # scorers raise on answers of a form they do not expect: those are wrong
            return False
        return bool(score >= 1 - CLOSENESS)


def make_generator(source: PromptSource) -> Generator:
    """The generator that `source` names, of `source.rows` problems.

    Raises `UserError` where reasoning-gym is missing, the name or a setting is not one of its own, or it
    refuses a value.
    """
    assert source.generator is not None and source.rows is not None
    try:
        gym = importlib.import_module("reasoning_gym")
        known: dict[str, tuple[Any, Any]] = importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError:
        raise UserError(
            "task.source.generator needs the package reasoning-gym: pip install 'grposweep[text]'"
        ) from None
    if source.generator not in known:
        raise UserError(
            f"task.source.generator={source.generator} is no generator of reasoning-gym: "
            + _nearest(source.generator, known)
        )
    settings = {field.name for field in dataclasses.fields(known[source.generator][1])} - set(OWN_FIELDS)
    problems = []
    for name, value in source.settings.items():
        if name in OWN_FIELDS:
            problems.append(f"task.source.settings.{name}={value} is set elsewhere: use {OWN_FIELDS[name]}")
        elif name not in settings:
            problems.append(
                f"task.source.settings.{name}={value} is no setting of {source.generator}: "
                + _nearest(name, settings)
            )
    if problems:
        raise UserError(*problems)
    try:
        generator: Generator = gym.create_dataset(
            source.generator, seed=source.seed, size=source.rows, **source.settings
        )
        # some values are refused only when a problem is made
        generator[0]
    except Exception as error:
        raise UserError(_refused(source, error)) from error
    return generator


def _refused(source: PromptSource, error: Exception) -> str:
    reason = str(error) or type(error).__name__
    named = [name for name in source.settings if name in reason] or list(source.settings)
    settings = [f"task.source.settings.{name}={source.settings[name]}" for name in named]
    shown = ", ".join(settings or [f"task.source.generator={source.generator}"])
    return f"{shown}: {source.generator} of reasoning-gym refuses this ({reason}): correct the settings"


def _nearest(name: str, valid: Iterable[str]) -> str:
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(valid)}"
