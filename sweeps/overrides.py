"""Overrides as typed on the command line, in Hydra's grammar: `sync_interval=1,4 model=qwen3_tiny`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString, RangeSweep
from hydra.errors import HydraException

from trainer.errors import UserError

MOST_VALUES = 10_000
"""Values of one axis; more is a slip in a range."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One override: a field (or group) and its values; several values make an axis."""

    typed: str
    key: str
    values: tuple[Any, ...]


def parse_overrides(
    typed: Sequence[str], options: Mapping[str, Sequence[str]]
) -> tuple[list[Assignment], list[str]]:
    """The assignments in order, and one message per override that is none.

    `options` are the groups with the names that each can take, for `glob(…)`.
    """
    assignments: list[Assignment] = []
    problems: list[str] = []
    parser = OverridesParser.create()
    for text in typed:
        try:
            assignments.append(_assignment(text, parser, options))
        except UserError as error:
            problems += error.problems
    seen: dict[str, str] = {}
    for item in assignments:
        if item.key in seen:
            problems.append(f"{item.key} is given twice, as {seen[item.key]} and {item.typed}: keep one")
        seen[item.key] = item.typed
    return assignments, problems


def _assignment(text: str, parser: OverridesParser, options: Mapping[str, Sequence[str]]) -> Assignment:
    try:
        override = parser.parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{text!r} is not of the form field=value or field=value,value ({reason}): "
            "put text with special characters in quotes of its own, as in field='a b'"
        ) from None
    key = str(override.key_or_group)
    if override.is_delete():
        raise UserError(f"{text}: fields can be set, not deleted; write {key}=VALUE")
    if override.is_add() or override.is_force_add():
        raise UserError(f"{text}: fields can be set, not added; write {text.lstrip('+')}")
    if override.package is not None:
        raise UserError(f"{text}: packages (@) have no meaning here; write {key}=…")
    values = tuple(_single(text, key, value) for value in _values(text, override, options))
    if not values:
        raise UserError(f"{text} has no value: give at least one")
    return Assignment(text, key, tuple(map(str, values)) if key in options else values)


def _values(text: str, override: Override, options: Mapping[str, Sequence[str]]) -> list[Any]:
    key, value = str(override.key_or_group), override.value()
    if isinstance(value, Glob):
        if key not in options:
            raise UserError(f"{text}: glob chooses among the options of a group, and {key} is none")
        return list(value.filter(list(options[key])))
    if isinstance(value, ChoiceSweep | RangeSweep) and value.shuffle:
        raise UserError(f"{text}: a grid has one order; leave shuffle out")
    if isinstance(value, ChoiceSweep):
        return list(value.list)
    if isinstance(value, RangeSweep):
        values = list(itertools.islice(_range(text, value), MOST_VALUES + 1))
        if len(values) > MOST_VALUES:
            raise UserError(f"{text} has more than {MOST_VALUES} values: use a larger step")
        return values
    if override.is_sweep_override():
        raise UserError(f"{text}: a grid needs listed values; write {key}=a,b,c or {key}=range(a,b,step)")
    return [value]


def _range(text: str, sweep: RangeSweep) -> Iterator[int | float]:
    """start, start + step, … before stop, in decimals, so that range(0.1,0.4,0.1) holds 0.3 itself."""
    start, stop, step = (Decimal(repr(end)) for end in (sweep.start, sweep.stop, sweep.step))
    if not all(end.is_finite() for end in (start, stop, step)) or step == 0:
        raise UserError(f"{text}: a range needs finite ends and a step other than 0")
    number = int if all(isinstance(end, int) for end in (sweep.start, sweep.stop, sweep.step)) else float
    value = start
    while value < stop if step > 0 else value > stop:
        yield number(value)
        value += step


def _single(text: str, key: str, value: object) -> Any:
    if isinstance(value, list):
        raise UserError(
            f"{text}: a list is no value; several values are written {key}=a,b,c, without brackets"
        )
    if isinstance(value, dict):
        raise UserError(f"{text}: set the fields of a section one by one, as in {key}.FIELD=VALUE")
    return value.text if isinstance(value, QuotedString) else value
