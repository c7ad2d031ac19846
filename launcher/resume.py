"""`resume`: run what a sweep has left, from checkpoints, by class of failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from launcher.board import in_words, tally
from launcher.failures import Failure
from launcher.messages import say
from launcher.retry import Policy, resume_policy
from launcher.runner import runner_lock
from launcher.slurm.task_state import SETTLING
from launcher.state import RunStatus
from launcher.submit import Settings, Work, adopt_jobs, find_work, launch, noted
from trainer.files import locked
from trainer.record import JobState, RunPaths, SweepFile, SweepPaths, read_sweep

RECORD = (
    "metrics",
    "timings",
    "samples",
    "evaluations",
    "rollouts",
    "summary",
    "checkpoints",
    "prompts",
    "state",
)
"""Files of a run that --restart puts aside, by their names in `RunPaths`."""


def resume(
    paths: SweepPaths,
    settings: Settings,
    console: Console,
    *,
    retry: str | None = None,
    restart: bool = False,
    words: Sequence[str] = (),
) -> int:
    """Run what is missing, was stopped, or failed in a way that is worth another try. Returns the exit code.

    `retry` names further classes of failure, `words` select runs (`launcher.selectors`), `restart` begins the
    selected unfinished runs anew: their records are put aside in the run's folder `discarded`.
    """
    with runner_lock(paths):
        sweep = read_sweep(paths)
        budgets: Mapping[str, int] = {}
        if settings.site is not None:
            from launcher.slurm.site import load_site

            budgets = load_site(settings.site).retries
        if unsettled := adopt_jobs(paths, settings, console):
            return unsettled
        found = settled(paths, sweep, console)
        only: Collection[str] | None = None
        if words:
            from launcher.selectors import select

            only = select(words, sweep.cells, found.statuses, sweep.axes)
        policy = resume_policy(retry, budgets, only)
        work = find_work(paths, sweep, policy)
        say(console, f"sweep {paths.folder.name!r}: {in_words(tally(work.statuses.values()))}")
        say(console, *plan_lines(work, policy))
        if restart:
            put_aside(paths, work.todo)
        return launch(paths, sweep, settings, console, noted(paths, "resume"), policy=policy)


def settled(paths: SweepPaths, sweep: SweepFile, console: Console) -> Work:
    """The work, once jobs that are just ending have ended; waits for as long as accounting may lag."""
    work = find_work(paths, sweep)
    deadline = time.monotonic() + SETTLING + 10
    ending = _ending(work)
    if ending:
        say(console, f"{ending} jobs are just ending: waiting for Slurm's last word on them")
    while _ending(work) and time.monotonic() < deadline:
        time.sleep(1)
        work = find_work(paths, sweep)
    return work


def _ending(work: Work) -> int:
    return sum(status.job == JobState.FINISHING for status in work.statuses.values())


def plan_lines(work: Work, policy: Policy) -> list[str]:
    """What is retried and what is not, by class of failure."""
    todo = set(work.todo)
    again = _classes(work.statuses[run] for run in work.todo)
    left = _classes(
        status
        for run, status in work.statuses.items()
        if run not in todo and (policy.only is None or run in policy.only)
    )
    lines = [f"to run: {len(work.todo)}" + (f", of these after {_in_words(again)}" if again else "")]
    for failure, count in left.items():
        spent = sum(work.statuses[run].failure == failure for run in work.spent)
        why = f" ({spent} have used up the profile's retries.{failure})" if spent else ""
        lines.append(f"not run again: {count} {failure}{why}; once the cause is gone: --retry {failure}")
    return lines


def put_aside(paths: SweepPaths, runs: Iterable[str]) -> None:
    """Move the record of each run into its folder `discarded`; its attempts and logs stay."""
    for run_id in runs:
        run = paths.run(run_id)
        with locked(run.lock):
            number = len(list((run.folder / "discarded").glob("*"))) + 1
            target = run.folder / "discarded" / str(number)
            target.mkdir(parents=True)
            for path in _record(run):
                path.rename(target / path.name)


def _record(run: RunPaths) -> list[Path]:
    # the state last: a kill in between leaves a run that is put aside again
    return [path for path in (getattr(run, name) for name in RECORD) if path.exists()]


def _classes(statuses: Iterable[RunStatus]) -> Counter[Failure]:
    return Counter(status.failure for status in statuses if status.failure is not None)


def _in_words(counts: Counter[Failure]) -> str:
    return ", ".join(f"{count} {failure}" for failure, count in counts.items())
