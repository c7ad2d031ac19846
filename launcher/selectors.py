"""Words that select runs: `eta=1e-6`, `S=4,16`, `state=failed`, `3-7`, an id's beginning, `!seed=0`.

Words are all to hold; of the values in one word, separated by commas, one has to. `!` in front turns a word
into its opposite. A word without `=` is a place in the grid as `status` and `plan` number it, a range of
places, or the beginning of run ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.board import SYMBOLS
from launcher.failures import Failure
from launcher.mlflow_view import canonical
from launcher.retry import ALIASES
from launcher.state import RunStatus
from trainer.errors import UserError
from trainer.record import Cell, JobState, Outcome
from trainer.schema import nearest

FEWEST_LETTERS = 4
"""Of a run id: shorter beginnings are places in the grid, or slips."""
NAMES = {
    **{symbol: field for field, symbol in SYMBOLS.items()},
    "eta": "learning_rate",
    "W": "inference_workers",
    "T": "trainers",
    "N": "buffer_size",
    "B": "batch_size",
    "G": "group_size",
    "y": "replay_ratio",
}
"""Symbol → field."""
STATES = ("state", "outcome", "class")
Test = Callable[[int, Cell, RunStatus], bool]


def select(
    words: Sequence[str],
    cells: Sequence[Cell],
    statuses: Mapping[str, RunStatus],
    axes: Mapping[str, Sequence[Any]],
) -> list[str]:
    """Ids of the runs for which every word holds, in the order of the grid.

    Raises `UserError` for a word that means nothing here, and where no run is left.
    """
    tests = [_test(word, cells, axes) for word in words]
    found = [
        cell.run_id
        for index, cell in enumerate(cells)
        if all(test(index, cell, statuses[cell.run_id]) for test in tests)
    ]
    if not found:
        raise UserError(f"no run is {' and '.join(words)}: {_what_exists(cells, statuses, axes)}")
    return found


def _test(word: str, cells: Sequence[Cell], axes: Mapping[str, Sequence[Any]]) -> Test:
    if word.startswith("!"):
        inner = _test(word[1:], cells, axes)
        return lambda index, cell, status: not inner(index, cell, status)
    name, sign, text = word.partition("=")
    if not sign:
        return _place(word, cells)
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UserError(f"{word}: a value is missing; write {name}=VALUE, or {name}=VALUE,VALUE")
    if name in STATES:
        return _state(word, name, values)
    field = _axis(word, name, axes)
    wanted = [_on_axis(word, field, value, axes[field]) for value in values]
    return lambda index, cell, status: any(_equal(cell.values.get(field), value) for value in wanted)


def _place(word: str, cells: Sequence[Cell]) -> Test:
    """A place, a range of places, or the beginning of ids."""
    ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
    if ends and int(ends[1]) < len(cells):
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if low > high:
            raise UserError(f"{word}: the range is empty; write {high}-{low}")
        return lambda index, cell, status: low <= index <= high
    if len(word) >= FEWEST_LETTERS and any(cell.run_id.startswith(word) for cell in cells):
        return lambda index, cell, status: cell.run_id.startswith(word)
    raise UserError(
        f"{word}: neither FIELD=VALUE, nor a place in the grid (0 to {len(cells) - 1}), nor the beginning of "
        f"a run id of {FEWEST_LETTERS} letters or more"
    )


def _state(word: str, name: str, values: Sequence[str]) -> Test:
    kinds: Mapping[str, Sequence[str]] = {
        "state": [*map(str, JobState)],
        "outcome": [*map(str, Outcome)],
        "class": [*map(str, Failure), *ALIASES],
    }
    for value in values:
        if value not in kinds[name]:
            raise UserError(f"{word}: no {name} {value!r}{nearest(value, list(kinds[name]))}")
    wanted = {str(ALIASES.get(value, value)) if name == "class" else value for value in values}

    def test(index: int, cell: Cell, status: RunStatus) -> bool:
        found = {"state": status.job, "outcome": status.outcome, "class": status.failure}[name]
        return found is not None and str(found) in wanted

    return test


def _axis(word: str, name: str, axes: Mapping[str, Sequence[Any]]) -> str:
    """The axis that a name, the last part of a name, or a symbol means."""
    for meant in (name, NAMES.get(name, name)):
        if meant in axes:
            return meant
    fitting = [axis for axis in axes if axis.rpartition(".")[2] == name]
    if len(fitting) == 1:
        return fitting[0]
    known = [*axes, *(symbol for symbol, field in NAMES.items() if field in axes), *STATES]
    raise UserError(f"{word}: {name} is no axis of this sweep{nearest(name, known)}")


def _on_axis(word: str, field: str, text: str, values: Sequence[Any]) -> Any:
    """The value of an axis that a text means."""
    for value in values:
        if _equal(value, _number(text)) or text in (str(value), canonical(value)):
            return value
    raise UserError(f"{word}: {field} has no {text}; it has {', '.join(map(str, values))}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _what_exists(
    cells: Sequence[Cell], statuses: Mapping[str, RunStatus], axes: Mapping[str, Sequence[Any]]
) -> str:
    wide = [f"{axis} {', '.join(map(str, values))}" for axis, values in axes.items() if len(values) > 1]
    states = sorted({str(status.job) for status in statuses.values()})
    return "; ".join([f"there are {len(cells)} runs", *wide, f"state {', '.join(states)}"])
