"""Overrides as typed on the command line, in Hydra's grammar: `sync_interval=1,4 model=qwen3_tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, Transformer
from hydra.errors import HydraException

from trainer.errors import UserError


@dataclass(frozen=True, slots=True)
class Assignment:
    """One override: a field (or group) and its values; several values make an axis."""

    typed: str
    key: str
    values: tuple[Any, ...]


def parse_overrides(typed: Sequence[str]) -> list[Assignment]:
    """The assignments in order; raises `UserError` with one message per override that is no assignment."""
    assignments: list[Assignment] = []
    problems: list[str] = []
    for text in typed:
        try:
            assignments.append(_assignment(text))
        except UserError as error:
            problems += error.problems
    seen: dict[str, str] = {}
    for item in assignments:
        if item.key in seen:
            problems.append(f"{item.key} is given twice, as {seen[item.key]} and {item.typed}: keep one")
        seen[item.key] = item.typed
    if problems:
        raise UserError(*problems)
    return assignments


def _assignment(text: str) -> Assignment:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{text}: not of the form field=value or field=value,value ({reason})") from None
    if override.is_delete() or override.is_add() or override.is_force_add():
        raise UserError(f"{text}: fields can be set, not added or deleted; write {text.lstrip('+~')}")
    key = str(override.key_or_group)
    if override.package is not None:
        raise UserError(f"{text}: packages (@) have no meaning here; write {key}=…")
    return Assignment(text, key, tuple(_plain(value) for value in _values(text, override)))


def _values(text: str, override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    if not (override.is_choice_sweep() or override.is_range_sweep()):
        raise UserError(f"{text}: a grid needs listed values; write field=a,b,c or field=range(a,b,step)")
    return list(override.sweep_iterator(transformer=Transformer.identity))


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value
