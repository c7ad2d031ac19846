"""Answers of Slurm's commands, read. Pure functions; tests/test_slurm_answers.py has what real ones print."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.slurm.evidence import Evidence

SEPARATOR = "\x1f"
"""Between the fields of an answer: no name holds it."""
QUEUE_FORMAT = SEPARATOR.join(("%i", "%T", "%r", "%N", "%L"))
ACCOUNTING_FORMAT = "JobID,Submit,State,ExitCode,NodeList"


class Unreadable(ValueError):  # noqa: N818 - says what it is
    """An answer in another form than was asked for."""


def queue_answer(text: str) -> dict[str, Evidence]:
    """What squeue says, by job: `17_3`. Raises `Unreadable`.

    Waiting tasks share a line, `17_[0-9:3]`, and are told apart here: `squeue --array` of Slurm 22.05 forgets
    the last one where they are in steps (17_9).
    """
    jobs = {}
    for line in text.splitlines():
        name, word, reason, nodes, left = _fields(line, 5)
        because = None if reason in ("None", "") else reason
        evidence = Evidence(word, True, because, nodes=nodes or None, time_left=seconds(left))
        jobs.update(dict.fromkeys(task_names(name), evidence))
    return jobs


def accounting_answer(text: str) -> dict[str, Evidence]:
    """What sacct says, by job. Raises `Unreadable`.

    A job has a line for each time that it was started, and the one submitted last counts: requeueing submits
    again. Tasks that never started share a line: `17_[0-2,5]`.
    """
    latest: dict[str, int] = {}
    jobs = {}
    for line in text.splitlines():
        name, submitted, state, code, nodes = _fields(line, 5)
        since = int(submitted) if submitted.isdecimal() else 0
        evidence = _ended(state, code, nodes)
        for job in task_names(name):
            if since >= latest.get(job, 0):
                latest[job], jobs[job] = since, evidence
    return jobs


def _ended(state: str, code: str, nodes: str) -> Evidence:
    word, _, by = state.partition(" ")  # CANCELLED by 1000
    exit_code, _, number = code.partition(":")
    return Evidence(
        word.rstrip("+"),
        False,
        by or None,
        int(exit_code) if exit_code.isdecimal() else None,
        int(number) if number.isdecimal() and int(number) else None,
        None if nodes in ("None assigned", "") else nodes,
    )


def task_names(name: str) -> Iterator[str]:
    """Every job in the name that squeue or sacct gives one or several tasks of an array.

    Raises `Unreadable` for a name that is cut off.

    >>> list(task_names("17_[0-2,5,6-10:2%4]")), list(task_names("17_3")), list(task_names("17"))
    (['17_0', '17_1', '17_2', '17_5', '17_6', '17_8', '17_10'], ['17_3'], ['17'])
    """
    found = re.fullmatch(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]", name)
    if found is None:
        if "[" in name:
            raise Unreadable(f"the tasks in {name!r} cannot be told")
        yield name
        return
    for part in found[2].split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        for task in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{found[1]}_{task}"


def config_answer(text: str) -> dict[str, str]:
    """Settings in the answer of `scontrol show config`."""
    values = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign:
            values[name.strip()] = value.strip()
    return values


def release(text: str) -> tuple[int, int]:
    """Slurm's release in a text that names its version. Raises `Unreadable`.

    >>> release("slurm-wlm 22.05.8"), release("23.11.0-0rc1")
    ((22, 5), (23, 11))
    """
    found = re.search(r"\b(\d+)\.(\d+)", text)
    if found is None:
        raise Unreadable(f"no version in {text!r}")
    return int(found[1]), int(found[2])


def first_number(text: str, otherwise: int = 0) -> int:
    """Number at the start of a setting's value: `30 sec`, `120`."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else otherwise


def submitted_job(text: str) -> str | None:
    """Id in the answer of `sbatch --parsable`; a site's wrapper may print lines of its own around it.

    >>> submitted_job("welcome\\n17;cluster\\n"), submitted_job("")
    ('17', None)
    """
    found = re.findall(r"^(\d+)(?:;\S*)?\s*$", text, re.MULTILINE)
    return found[-1] if found else None


def seconds(left: str) -> float | None:
    """Seconds in squeue's `1-02:03:04` or `3:04`; None for UNLIMITED, INVALID or NOT_SET.

    >>> seconds("1-00:00:10"), seconds("3:04"), seconds("UNLIMITED")
    (86410.0, 184.0, None)
    """
    days, sign, clock = left.rpartition("-")
    pieces = clock.split(":")
    if not all(piece.isdecimal() for piece in (*pieces, *([days] if sign else []))):
        return None
    total = 0
    for piece in pieces:
        total = 60 * total + int(piece)
    return float(total + (86_400 * int(days) if sign else 0))


def _fields(line: str, count: int) -> list[str]:
    fields = [field.strip() for field in line.split(SEPARATOR)]
    if len(fields) != count:
        raise Unreadable(f"{line!r} has not {count} fields")
    return fields
