"""Strict typed sections and the messages that explain what is wrong with a value. Torch-free."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from trainer.errors import UserError


class Section(BaseModel):
    """A strict, frozen group of fields: no unknown key, no text where a number is meant."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


SectionT = TypeVar("SectionT", bound=Section)


def parse(schema: type[SectionT], data: Mapping[str, Any], *, where: str = "") -> SectionT:
    """Validate plain data against a schema.

    `where` (a file, or the override as typed) opens each message. Raises `UserError` with one message per
    fault, each naming the field, its value, the rule and, where there is one, the nearest valid name.
    """
    try:
        return schema.model_validate(dict(data))
    except ValidationError as error:
        opening = f"{where}: " if where else ""
        raise UserError(*(opening + _explain(schema, detail) for detail in error.errors())) from None


def field_paths(schema: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf field as (dotted path, default); the default is `...` when a field has none."""
    for name, info in schema.model_fields.items():
        default = info.get_default(call_default_factory=True)
        if isinstance(default, BaseModel) and isinstance(info.annotation, type):
            yield from field_paths(info.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, (... if info.is_required() else default)


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; an empty mapping is a value.

    >>> flatten({"a": 1, "b": {"c": 2}})
    {'a': 1, 'b.c': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean x?` for the known name closest to `name`, else what is known.

    A dotted name is first looked for in its own section, then by its last part anywhere. The list shows the
    fields of that section, or else all names with sections shortened to `section.…`.
    """
    section, _, leaf = name.rpartition(".")
    within = [path for path in known if section and path.startswith(f"{section}.")]
    close = (
        _close(leaf, {path.removeprefix(f"{section}."): path for path in within}, cutoff=0.5)
        or (None if within else _close(name, {path: path for path in known}))
        or _close(leaf, {path.rsplit(".", 1)[-1]: path for path in known})
    )
    if close:
        return f"; did you mean {close}?"
    shown = within or {path if "." not in path else f"{path.split('.')[0]}.…" for path in known}
    return f"; known are {', '.join(sorted(shown))}"


def _close(name: str, known: Mapping[str, str], cutoff: float = 0.6) -> str | None:
    return next((known[match] for match in difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_RULES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "finite_number": "must be finite",
}


def _explain(schema: type[Section], detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown field {path}{nearest(path, [name for name, _ in field_paths(schema)])}"
    if kind == "value_error":
        return (f"{path}: " if path else "") + str(context["error"])
    if kind == "missing":
        return f"{path} is missing: give it a value"
    shown = f"{path}={_as_typed(value)}"
    if path == "optimizer.master_dtype":
        return (
            f"{shown} is refused: a bf16 weight keeps 8 bits and swallows small updates; "
            "keep optimizer.master_dtype=float32"
        )
    if path == "group_size" and kind == "greater_than_equal":
        return f"{shown}: a group of one has no advantage to learn from; use group_size=2 or more"
    if kind == "literal_error":
        return f"{shown} is not one of {context['expected']}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{shown} must be {words} {context[bound]}"
    if kind == "model_type":
        return f"{shown}: {path} is a section; set its fields one by one, as in {path}.FIELD"
    hint = " (text was given; write it without quotes)" if _RULES.get(kind) and _is_number(value) else ""
    return f"{shown} {_RULES.get(kind, detail['msg'])}{hint}"


def _as_typed(value: object) -> str:
    """A value as one types it: null and true rather than None and True, text in quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, str) else str(value)


def _is_number(value: object) -> bool:
    """Whether this is text that reads as a number."""
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False
