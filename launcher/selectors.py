"""Which runs a command means: words like `eta=1e-6`, `state=failed`, `3-7`, `!seed=0`.

    AXIS=V[,V…]       runs at one of these values; the axis by its full name, the last part of it, or its
                      symbol; numbers compare as numbers: 1e-6 is 0.000001
    state=, outcome=, class=   job state, outcome and class of failure; `none` where there is no such thing
    3   3-7   0,4-6   by index in the grid, from 0, as `status` and `plan` show it
    1f0c              by the beginning of the id, 4 characters or more; all runs that begin so
    !WORD             every run that WORD does not mean

Words narrow each other down; values in one word widen it. A number below the count of cells is an index, even
where an id begins with it: more of the id's characters tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launcher.board import SYMBOLS, in_words, value_text
from launcher.failures import Failure
from launcher.retry import ALIASES as FAILURES
from launcher.state import RunStatus
from trainer.errors import UserError
from trainer.record import Cell, JobState, Outcome
from trainer.schema import nearest

NONE = "none"
LEAST_OF_AN_ID = 4
MOST_SHOWN = 8

AXES = {symbol: field for field, symbol in SYMBOLS.items()} | {
    "eta": "learning_rate",
    "B": "batch_size",
    "G": "group_size",
    "N": "buffer_size",
    "y": "replay_ratio",
    "W": "inference_workers",
    "T": "trainers",
    "μ": "generation_cost_ratio",
    "mu": "generation_cost_ratio",
}
"""Symbol → field."""

INDEX = re.compile(r"(0|[1-9]\d*)(?:-(0|[1-9]\d*))?")

Found = frozenset[str]


def select(
    words: Sequence[str],
    cells: Sequence[Cell],
    statuses: Mapping[str, RunStatus],
    axes: Mapping[str, Sequence[Any]],
) -> list[str]:
    """Ids of the runs that all words mean, in the order of the grid; every run where there is no word.

    Raises `UserError` for a word that cannot be read, and where no run is left.
    """
    found = [_meant(word, cells, statuses, axes) for word in words]
    chosen = [cell.run_id for cell in cells if all(cell.run_id in runs for runs in found)]
    if words and not chosen:
        raise UserError(_nothing(words, found, cells, statuses, axes))
    return chosen


def _meant(
    word: str, cells: Sequence[Cell], statuses: Mapping[str, RunStatus], axes: Mapping[str, Sequence[Any]]
) -> Found:
    """Runs that one word means."""
    if word.startswith("!"):
        return frozenset(cell.run_id for cell in cells) - _meant(word[1:], cells, statuses, axes)
    name, sign, text = word.partition("=")
    if sign and name.endswith("!"):
        raise UserError(f"selector {word}: write not like this: '!{name[:-1]}={text}'")
    if not sign:
        return _by_place(word, cells)
    if not text:
        raise UserError(f"selector {word} has no value: write {name}=VALUE, or {name}=VALUE,VALUE")
    if name in PROPERTIES:
        return _by_property(word, name, text, statuses)
    return _on_axis(word, name, text, cells, axes)


def _by_place(word: str, cells: Sequence[Cell]) -> Found:
    """Runs by index or by the beginning of their ids."""
    ids = [cell.run_id for cell in cells]
    found: set[str] = set()
    for piece in word.split(","):
        place = INDEX.fullmatch(piece)
        low, high = (int(place[1]), int(place[2] or place[1])) if place else (0, -1)
        least = LEAST_OF_AN_ID
        begun = {run for run in ids if run == piece or (len(piece) >= least and run.startswith(piece))}
        if place and low <= high < len(ids):
            found |= set(ids[low : high + 1])
        elif begun:
            found |= begun
        elif place:
            raise UserError(
                f"selector {word}: "
                + (f"{piece} ends before it begins" if high < low else f"{piece} is no index of this sweep")
                + f": its {len(ids)} runs have the indices 0 to {len(ids) - 1}"
            )
        else:
            raise UserError(f"selector {word}: {_no_id(piece)}")
    return frozenset(found)


def _no_id(piece: str) -> str:
    if len(piece) < LEAST_OF_AN_ID and re.fullmatch(r"[0-9a-f]+", piece):
        return f"{piece!r} is too short for an id's beginning: give {LEAST_OF_AN_ID} characters or more"
    names = [*PROPERTIES, *AXES]
    meant = next((name for name, (_, known) in PROPERTIES.items() if _plain(piece) in known), None)
    hint = f"; did you mean {meant}={piece}?" if meant else ""
    hint = hint or (f"; did you mean {piece}=VALUE?" if piece in names else "")
    return (
        f"no run's id begins with {piece!r}, and it is neither an index, a range like 3-7, nor "
        f"NAME=VALUE{hint}"
    )


def _state(status: RunStatus) -> str:
    return status.job


def _outcome(status: RunStatus) -> str:
    return status.outcome or NONE


def _class(status: RunStatus) -> str:
    return status.failure or NONE


def _plain(text: str) -> str:
    return text.replace("_", " ").replace("-", " ")


PROPERTIES: Mapping[str, tuple[Callable[[RunStatus], str], Mapping[str, str]]] = {
    "state": (_state, {_plain(state): state for state in JobState} | {"waiting for room": JobState.WAITING}),
    "outcome": (_outcome, {_plain(item): item for item in [*Outcome, NONE]}),
    "class": (_class, {_plain(item): item for item in [*Failure, NONE]} | {**FAILURES}),
}
"""What is selected by besides axes: how it is read from a status, and the words for its values."""


def _by_property(word: str, name: str, text: str, statuses: Mapping[str, RunStatus]) -> Found:
    read, known = PROPERTIES[name]
    wanted = set()
    for piece in text.split(","):
        if _plain(piece) not in known:
            raise UserError(f"selector {word}: {name} has no {piece!r}{nearest(piece, sorted(known))}")
        wanted.add(known[_plain(piece)])
    return frozenset(run for run, status in statuses.items() if read(status) in wanted)


def _on_axis(
    word: str, name: str, text: str, cells: Sequence[Cell], axes: Mapping[str, Sequence[Any]]
) -> Found:
    axis = _axis(word, name, axes)
    values = {_key(cell.values.get(axis)) for cell in cells}
    # a value may hold commas itself
    pieces = [text] if _key_of_text(text) in values else text.split(",")
    for piece in pieces:
        if _key_of_text(piece) not in values:
            shown = list(dict.fromkeys(_text(cell.values.get(axis)) for cell in cells))
            more = f", … ({len(shown)} values)" if len(shown) > MOST_SHOWN else ""
            raise UserError(
                f"selector {word}: no run has {name}={piece}: {axis} is {', '.join(shown[:MOST_SHOWN])}{more}"
            )
    wanted = {_key_of_text(piece) for piece in pieces}
    return frozenset(cell.run_id for cell in cells if _key(cell.values.get(axis)) in wanted)


def _axis(word: str, name: str, axes: Mapping[str, Sequence[Any]]) -> str:
    """The axis of this name; raises `UserError` where there is none, or more than one."""
    if name in axes:
        return name
    if AXES.get(name) in axes:
        return AXES[name]
    ends = [axis for axis in axes if axis.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UserError(f"selector {word}: {name} is the end of {' and '.join(ends)}: give the full name")
    symbols = {axis: symbol for symbol, axis in AXES.items() if symbol != "eta"}
    names = [f"{axis} ({symbols[axis]})" if axis in symbols else axis for axis in axes]
    close = nearest(name, [*axes, *PROPERTIES])
    raise UserError(
        f"selector {word}: {name} is no axis of this sweep{close if 'did you mean' in close else ''}; "
        f"there are {', '.join(names)}, and {', '.join(PROPERTIES)}"
    )


def _key(value: object) -> object:
    """A value as it is compared: numbers by value, others as they are written."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return _key_of_text(_text(value))


def _key_of_text(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _text(value: object) -> str:
    """A value as it is typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value_text(value)


def _nothing(
    words: Sequence[str],
    found: Iterable[Found],
    cells: Sequence[Cell],
    statuses: Mapping[str, RunStatus],
    axes: Mapping[str, Sequence[Any]],
) -> str:
    """Why no run is left, and what there is."""
    counts = [f"{word} {len(runs)}" for word, runs in zip(words, found, strict=True)]
    each = f" (each alone: {', '.join(counts)})" if len(words) > 1 else ""
    kinds = {}
    for name, (read, _) in PROPERTIES.items():
        tally: dict[str, int] = {}
        for status in statuses.values():
            tally[str(read(status))] = tally.get(str(read(status)), 0) + 1
        kinds[name] = tally
    shown = "; ".join(f"{name}: {in_words(tally)}" for name, tally in kinds.items() if set(tally) - {NONE})
    return f"no run is selected by {' '.join(words)}{each}: of {len(cells)} runs there are {shown}"
