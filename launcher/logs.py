"""`logs`: what the attempts at a run printed, as bytes, since a log may hold anything.

attempt's log ──► the next attempt's, when one starts ──► … ──► the run has ended
     ▲
     └── before the first attempt: what the script of its job in Slurm printed
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.ledger import read_ledger
from launcher.state import RunStatus, ask_slurm, job_state
from launcher.sweep_view import SLURM_SECONDS, is_active
from trainer.attempts import AttemptRecord, read_attempts
from trainer.errors import UserError
from trainer.record import RunPaths, SweepPaths

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation

LOOK_SECONDS = 0.5
"""Between two looks at a log that is followed."""
STATE_SECONDS = 2.0
"""Between two looks at whether the run goes on."""
BLOCK = 1 << 16

Write = Callable[[bytes], None]


def logs(
    run: RunPaths,
    *,
    follow: bool = False,
    attempt: int | None = None,
    lines: int | None = None,
    output: Path | None = None,
    write: Write | None = None,
) -> int:
    """Print the log of an attempt, the newest if none is named; returns the exit code.

    `output` is shown where no attempt has a log: what the script of its job in Slurm printed. `follow` goes
    on with what comes, over later attempts, until the run has ended. Raises `UserError` without a log.
    """
    if follow and attempt is not None:
        raise UserError(
            f"--attempt {attempt} and --follow exclude each other: what is followed is the newest attempt"
        )
    if lines is not None and lines < 1:
        raise UserError(f"--lines {lines} must be 1 or more")
    shown = _Shown(run, output, write or _to_stdout)
    known = attempt_logs(run)
    if attempt is not None and attempt not in known:
        there = f"there are {', '.join(map(str, known))}" if known else "no attempt has one"
        raise UserError(f"--attempt {attempt}: run {run.run_id} has no log of it; {there}")
    number = attempt if attempt is not None else max(known, default=0)
    if not number and not follow and (output is None or not output.is_file()):
        raise UserError(f"run {run.run_id} has no log yet: nothing of it has started; --follow waits for it")
    shown.open(number, lines)
    if follow:
        shown.follow()
    return 0


def attempt_logs(run: RunPaths) -> list[int]:
    """Numbers of the attempts that have a log, in order."""
    names = [path.stem.removeprefix("attempt-") for path in run.log(1).parent.glob("attempt-*.out")]
    return sorted(int(name) for name in names if name.isdecimal())


def batch_output(run: RunPaths) -> Path | None:
    """What is known to have been printed before the first attempt began; None where there is nothing."""
    if attempt_logs(run):
        return None
    return job_state(run, read_ledger(_sweep(run))).log


class _Shown:
    """The log that is being shown."""

    def __init__(self, run: RunPaths, output: Path | None, write: Write) -> None:
        self._run = run
        self._output = output
        self._write = write
        self._number = 0
        self._at = 0
        self._open_line = False
        self._observation: Observation | None = None

    def open(self, number: int, lines: int | None) -> None:
        """Show the log of attempt `number`, or what the job's script printed for 0; the last lines of it."""
        self._number, self._at = number, 0
        path = self._path
        if path is None or not path.is_file():
            return
        self._say(header(self._run, number) if number else f"no attempt yet; its job's script: {path}")
        self._at = 0 if lines is None else _start_of_last(path, lines)
        self._more()

    def follow(self) -> None:
        """Go on until the run has ended."""
        next_state = 0.0
        question = 0.0
        while True:
            newer = [number for number in attempt_logs(self._run) if number > self._number]
            if self._more():
                continue
            if newer:
                self.open(newer[0], None)
                continue
            if time.monotonic() >= next_state:
                status, question = self._status(question)
                next_state = time.monotonic() + STATE_SECONDS
                if not is_active(status) and not self._more() and self._newest <= self._number:
                    self._say(f"run {self._run.run_id}: {_word(status)}")
                    return
            time.sleep(LOOK_SECONDS)

    @property
    def _newest(self) -> int:
        return max(attempt_logs(self._run), default=0)

    @property
    def _path(self) -> Path | None:
        if self._number:
            return self._run.log(self._number)
        self._output = self._output or batch_output(self._run)
        return self._output

    def _status(self, question: float) -> tuple[RunStatus, float]:
        """State of the run, and when Slurm may be asked again."""
        ledger = read_ledger(_sweep(self._run))
        if time.monotonic() >= question:
            self._observation = ask_slurm(ledger, [self._run])
            question = time.monotonic() + SLURM_SECONDS
        return job_state(self._run, ledger, self._observation), question

    def _more(self) -> bool:
        """Write what the log holds beyond what was shown; whether there was any."""
        path = self._path
        if path is None or not path.is_file():
            return False
        found = False
        with path.open("rb") as file:
            file.seek(self._at)
            while block := file.read(BLOCK):
                self._write(block)
                self._at += len(block)
                self._open_line = not block.endswith(b"\n")
                found = True
        return found

    def _say(self, line: str) -> None:
        """A line of ours, apart from the log."""
        start = b"\n" if self._open_line else b""
        self._open_line = False
        self._write(start + f"==> {line} <==\n".encode(errors="replace"))


def header(run: RunPaths, number: int) -> str:
    """`attempt 2, job 17_3, on n1, from 2026-11-30 20:00:00: interrupted at update 120 (preempted)`."""
    found = next((item for item in read_attempts(run) if item.number == number), None)
    if found is None:
        return f"attempt {number}, before its first line"
    parts = [f"attempt {number}"]
    parts += [f"job {found.job}"] if found.job else []
    started = found.started or {}
    node = started.get("node") or started.get("host")
    parts += [f"on {node}"] if node else []
    if isinstance(started.get("time"), int | float):
        parts += [time.strftime("from %Y-%m-%d %H:%M:%S", time.localtime(started["time"]))]
    return f"{', '.join(parts)}: {_end(found)}"


def _end(attempt: AttemptRecord) -> str:
    """How an attempt ended, by the trainer and by the supervisor of its task."""
    ended, left = attempt.ended, attempt.left
    if ended is None and left is None:
        return "no word of an end"
    words = str(ended["how"]) if ended and ended.get("how") else "ended"
    if ended is None and left is not None:
        by_signal = left.get("signal") is not None
        words = f"signal {left['signal']}" if by_signal else f"exit code {left.get('exit_code')}"
    step = ended.get("step") if ended else None
    words += f" at update {step}" if step is not None else ""
    why = (left.get("asked") if left else None) or (ended.get("reason") if ended else None)
    return f"{words} ({why})" if why else words


def _word(status: RunStatus) -> str:
    """`finished, collapsed`, `killed, node_failure`."""
    more = status.outcome or status.failure
    return f"{status.job}, {more}" if more else str(status.job)


def _start_of_last(path: Path, lines: int) -> int:
    """Where the last lines of a file begin."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        if not at:
            return 0
        file.seek(at - 1)
        left = lines + (file.read(1) == b"\n")
        while at > 0:
            size = min(BLOCK, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            if block.count(b"\n") < left:
                left -= block.count(b"\n")
                continue
            place = len(block)
            for _ in range(left):
                place = block.rindex(b"\n", 0, place)
            return at + place + 1
    return 0


def _sweep(run: RunPaths) -> SweepPaths:
    return SweepPaths(run.folder.parent.parent)


def _to_stdout(block: bytes) -> None:
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
