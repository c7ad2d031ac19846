"""Verdicts of a user's program: batches, limits, and a second try alone. Torch-free.

items ─► batches ─► a process each ─► verdicts
                        └ crash, time-out, bad line ─► the items left over, each in a process of its own
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.bounded_process import Outcome, ProcessGroups, shielded
from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.verifiers import Item

SECRET_SUFFIXES = ("_TOKEN", "_PASSWORD", "_SECRET", "_API_KEY", "_ACCESS_KEY")


@dataclass(frozen=True, slots=True)
class _Batch:
    verdicts: list[bool | None]
    """Of the first responses of the batch, as far as the program came."""
    problem: str | None
    """Why some are missing."""


class CommandVerifier:
    """Verdicts of a program that reads a line of JSON per response and writes a line of JSON for each.

    Read: `{"problem", "answer", "response", "extracted"}`, the last null where the rule of task.extract found
    nothing. Written, in the same order: `{"correct": true}`, false, or null for unscored; other keys are
    passed over. A process gets up to `batch` responses; up to `processes` of them run at once, in `folder`,
    each within `time_limit` seconds per response it was given and `memory_limit_mb` MiB of address space,
    with TERM and INT ignored, as `shielded` says.
    When one ends early, or what it writes cannot be read, the responses without a verdict are tried once
    more, each in a process of its own, and are then unscored.

    Raises `UserError` when the program is not found.
    """

    def __init__(
        self,
        command: str,
        *,
        time_limit: float,
        memory_limit_mb: int,
        batch: int,
        processes: int,
        folder: Path,
    ) -> None:
        program, *arguments = shlex.split(command)
        self._arguments = shielded([_executable(program, command, folder), *arguments], memory_limit_mb)
        self._command = command
        self._time_limit = time_limit
        self._batch = batch
        self._processes = processes
        self._folder = folder
        self.last_problem: str | None = None
        """What went wrong with the newest process that did not give all its verdicts."""

    def verify(self, items: Sequence[Item]) -> list[bool | None]:
        lines = [_line(item) for item in items]
        verdicts: dict[int, bool | None] = {}
        places = range(len(items))
        self._try(lines, [places[i : i + self._batch] for i in places[:: self._batch]], verdicts)
        self._try(lines, [range(i, i + 1) for i in places if i not in verdicts], verdicts)
        return [verdicts.get(place) for place in places]

    def _try(self, lines: list[bytes], batches: list[range], verdicts: dict[int, bool | None]) -> None:
        """Add the verdicts of `batches` of places; leaves no process behind, whatever is raised meanwhile."""
        if not batches:
            return
        with (
            ThreadPoolExecutor(min(self._processes, len(batches))) as pool,
            ProcessGroups(self._folder, without_secrets(os.environ)) as groups,
        ):
            futures = [pool.submit(self._run, groups, [lines[i] for i in places]) for places in batches]
            for places, future in zip(batches, futures, strict=True):
                result = future.result()
                verdicts.update(zip(places, result.verdicts, strict=False))
                self.last_problem = result.problem or self.last_problem

    def _run(self, groups: ProcessGroups, lines: list[bytes]) -> _Batch:
        limit = self._time_limit * len(lines)
        outcome = groups.run(self._arguments, b"".join(lines), limit)
        verdicts, problem = read_verdicts(outcome.output, len(lines))
        problem = outcome.failure or problem
        if len(verdicts) == len(lines):
            return _Batch(verdicts, None)
        return _Batch(verdicts, self._describe(problem, len(verdicts), len(lines), outcome))

    def _describe(self, problem: str | None, given: int, wanted: int, outcome: Outcome) -> str:
        text = f"{self._command}: {problem or 'ended early'}; {given} of {wanted} verdicts"
        errors = outcome.errors.decode(errors="replace").strip()
        return f"{text}; its standard error ends with: {errors}" if errors else text


def read_verdicts(output: bytes, wanted: int) -> tuple[list[bool | None], str | None]:
    """The verdicts in a program's output, up to the first line that is none, and what is wrong with the rest.

    More lines than responses give no verdict at all: it cannot be told which line belongs to which.
    """
    verdicts: list[bool | None] = []
    for line in output.splitlines():
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            data = None
        correct = data.get("correct", 0) if isinstance(data, dict) else 0
        if correct is not None and not isinstance(correct, bool):
            return verdicts[
                :wanted
            ], f"wrote a line that is no verdict: {line[:200].decode(errors='replace')}"
        verdicts.append(correct)
    if len(verdicts) > wanted:
        return [], f"wrote {len(verdicts)} lines for {wanted} responses"
    return verdicts, None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less the variables named as credentials are: a checker may run what a model wrote."""
    return {name: value for name, value in environment.items() if not name.upper().endswith(SECRET_SUFFIXES)}


def _line(item: Item) -> bytes:
    data = {
        "problem": item.problem,
        "answer": item.answer,
        "response": item.response,
        "extracted": item.extracted,
    }
    # ASCII throughout: neither the program's locale nor a lone surrogate in a response can spoil it
    return json.dumps(data).encode("ascii") + b"\n"


def _executable(program: str, command: str, folder: Path) -> str:
    """Path of the program; a name with a slash in it is relative to `folder`, as it is run there."""
    found = shutil.which((folder / program).absolute() if "/" in program else program)
    if found is None:
        where = f"in {folder}" if "/" in program else "on PATH"
        raise UserError(
            f"task.verifier.command={command!r}: {program} is no executable file {where}: correct the path, "
            "or make it executable (chmod +x)"
        )
    return str(Path(found).absolute())
