"""Sends runs to Slurm as arrays, and never a run twice.

    runs, in order ──► arrays of equal needs ──► ledger: sending ──► sbatch ──► ledger: accepted
                                                                       │
                              a smaller array, or "waiting for room" ◄─┴─► ledger: refused

A launcher that is killed, or that Slurm does not answer, leaves a `sending` without an answer. Its job's name
is unique, so Slurm can be asked whether it took the job: that comes before anything else is sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.ledger import SLURM, LedgerWriter, new_token, read_ledger
from launcher.slurm.commands import NoAnswer, Refused, Slurm
from launcher.slurm.job_files import write_job
from launcher.slurm.needs import Array, arrays, needs
from launcher.slurm.site import SiteProfile
from launcher.snapshot import Snapshot
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.record import SweepPaths

MOST_NAME = 40
"""Letters of the sweep's name in a job's name."""
TOKEN_LENGTH = len(new_token())
PAUSES = (1.0, 4.0, 15.0)
"""Seconds before Slurm is asked again whether it took a job whose submission it did not answer."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent, and how."""

    paths: SweepPaths
    runs: Sequence[str]
    """In the order in which they are to start."""
    configs: Mapping[str, RunConfig]
    site: SiteProfile
    site_name: str
    """As it was given: a name or a path."""
    snapshot: Snapshot
    again: Mapping[str, str]
    """Run id → class of the failure after which it is run again."""
    exclude: Sequence[str]
    """Nodes to keep away from."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of an order."""

    jobs: Mapping[str, int]
    """Array id → runs."""
    waiting: Sequence[str]
    """Runs that were not sent."""
    reason: str | None
    """Why not."""


def adopt(paths: SweepPaths, slurm: Slurm) -> list[str]:
    """Find out what became of jobs whose submission was cut off; returns notices.

    Raises `NoAnswer` when Slurm cannot say: then nothing may be sent.
    """
    notices = []
    for name, sent in read_ledger(paths).unanswered.items():
        ledger = LedgerWriter(paths, name.rpartition("-")[0][-TOKEN_LENGTH:])
        job = slurm.find(name, sent)
        if job is None:
            ledger.refused(name, "Slurm knows no job of this name")
        else:
            ledger.accepted(name, job)
            notices.append(f"job {job} of an earlier command that was cut off is in Slurm and counts")
    return notices


def send(order: Order, slurm: Slurm, say: Callable[[str], None]) -> Sent:
    """Submit the runs. The caller holds the runner lock and has adopted what was cut off.

    Raises `UserError` with Slurm's sentence where it refuses for another reason than room; what was sent
    before stays sent.
    """
    site = order.site
    submission = _Submission(order, slurm, say)
    limits = slurm.limits()
    wanted = [(run, needs(order.configs[run], site)) for run in order.runs]
    pending = arrays(wanted, site, limits.max_array_size)
    room = None if site.max_submit is None else max(0, site.max_submit - slurm.submitted_count())
    reason = None
    while pending and reason is None:
        array = pending.pop(0)
        count = len(array.tasks) if room is None else min(room, len(array.tasks))
        fitting, rest = split(array, count)
        left, reason = submission.send(fitting)
        if room is not None:
            room -= count - len(left)
        if len(rest.tasks) or left:
            pending.insert(0, Array(array.needs, [*left, *rest.tasks]))
            reason = reason or f"the site profile allows max_submit={site.max_submit} tasks at once"
    waiting = [run for array in pending for task in array.tasks for run in task]
    submission.close(waiting, reason)
    return Sent(submission.jobs, waiting, reason)


class _Submission:
    """The calls of sbatch of one order, under one token."""

    def __init__(self, order: Order, slurm: Slurm, say: Callable[[str], None]) -> None:
        self._order = order
        self._slurm = slurm
        self._say = say
        self._ledger = LedgerWriter(order.paths, new_token())
        self._ledger.submitted(
            SLURM,
            order.snapshot.code,
            order.runs,
            site=order.site_name,
            again=dict(order.again),
            exclude=list(order.exclude),
        )
        self._chunk = 0
        self.jobs: dict[str, int] = {}

    def send(self, array: Array) -> tuple[list[Sequence[str]], str | None]:
        """Submit an array, or as much of it as there is room for; the tasks left, and why they are.

        Slurm does not say how much room there is, so what it refuses is halved until it is taken.
        """
        size, reason = len(array.tasks), None
        while array.tasks and size:
            part, rest = split(array, min(size, len(array.tasks)))
            try:
                self._submit(part)
            except Refused as refused:
                if not refused.room or (len(part.tasks) == 1 and not self._may_wait(refused)):
                    raise UserError(self._refusal(refused.reason)) from None
                reason, size = refused.reason, len(part.tasks) // 2
            except NoAnswer as fault:
                return list(array.tasks), str(fault)
            else:
                array = rest
        return list(array.tasks), reason if array.tasks else None

    def _may_wait(self, refused: Refused) -> bool:
        """Whether a single task that was refused can be taken once others have left the queue."""
        if not refused.later:
            return False
        # Slurm's general sentence may also mean that the task asks for too much, which no waiting helps
        return refused.certain or self._slurm.submitted_count() > 0

    def close(self, waiting: Sequence[str], reason: str | None) -> None:
        if waiting:
            self._ledger.no_room(waiting, reason or "")

    def _submit(self, array: Array) -> None:
        """One call of sbatch; raises `Refused`, or `NoAnswer` when it stays open whether Slurm took it."""
        order, token = self._order, self._ledger.token
        name = f"{slug(order.paths.folder.name)}-{token}-{self._chunk}"
        folder = order.paths.jobs / token
        script, arguments = write_job(order, array, folder, self._chunk, name)
        self._chunk += 1
        self._ledger.sending(name, array.tasks)
        try:
            job = self._call(name, arguments, script)
        except Refused as refused:
            self._ledger.refused(name, refused.reason)
            raise
        self._ledger.accepted(name, job)
        runs = self.jobs[job] = sum(map(len, array.tasks))
        self._say(f"job {job}: {runs} runs in {len(array.tasks)} tasks")

    def _call(self, name: str, arguments: Sequence[str], script: Path) -> str:
        """Submit the job; called again only where the controller cannot have heard of it."""
        for pause in (*PAUSES, None):
            try:
                return self._slurm.submit(arguments, script)
            except NoAnswer as fault:
                if not fault.undelivered:
                    return self._ask(name, fault)
                if pause is None:
                    self._ledger.refused(name, str(fault))
                    raise
                time.sleep(pause)
        raise AssertionError("the last call returns or raises")

    def _ask(self, name: str, fault: NoAnswer) -> str:
        """The id of a job whose submission was not answered; raises `NoAnswer` when it does not show up.

        It is not sent again here: a busy controller may take it later.
        """
        for pause in PAUSES:
            time.sleep(pause)
            try:
                job = self._slurm.find(name, time.time())
            except NoAnswer:
                continue
            if job is not None:
                return job
        raise fault

    def _refusal(self, reason: str) -> str:
        return (
            f"Slurm refuses the job: {reason}; change the site profile {self._order.site_name} to what the "
            f"cluster has (the script is in {self._order.paths.jobs / self._ledger.token})"
        )


def split(array: Array, count: int) -> tuple[Array, Array]:
    """The first `count` tasks, and the others."""
    return Array(array.needs, array.tasks[:count]), Array(array.needs, array.tasks[count:])


def slug(text: str) -> str:
    """Letters of a sweep's name that can stand in a job's name.

    >>> slug("my sweep, 2")
    'my_sweep_2'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("_")[:MOST_NAME] or "sweep"
