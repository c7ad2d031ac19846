"""Submitting the runs of a sweep to Slurm: asking first, sending, saying what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from rich.console import Console

from launcher.failures import Failure
from launcher.messages import quoted, say
from launcher.slurm.commands import NoAnswer, Slurm
from launcher.slurm.site import full_name, load_site
from launcher.slurm.submission import Order, adopt, send
from launcher.snapshot import Snapshot
from launcher.submit import Settings, Work, sync_in_own_process
from trainer.config import RunConfig
from trainer.record import SweepFile, SweepPaths, read_config

DAY = 86_400.0
NOT_ALL_SENT = 3
"""Exit code where runs wait for room in Slurm, or Slurm did not answer: repeat the command."""


def settle(paths: SweepPaths, console: Console) -> int:
    """Settle what an earlier command left open; the exit code where Slurm cannot be asked, else 0."""
    try:
        say(console, *adopt(paths, Slurm()))
    except NoAnswer as fault:
        say(
            console,
            f"Slurm does not answer ({fault}), and an earlier submission is not settled: nothing was sent, "
            "repeat the command later",
        )
        return NOT_ALL_SENT
    return 0


def send_to_slurm(
    paths: SweepPaths,
    sweep: SweepFile,
    work: Work,
    snapshot: Snapshot,
    settings: Settings,
    console: Console,
) -> int:
    """Send the runs of `work`, highest rate first. Returns the exit code."""
    assert settings.site is not None
    configs = {run: read_config(paths.run(run)) for run in work.todo}
    first = highest_rate_first(work.todo, configs)
    order = Order(
        paths=paths,
        runs=first,
        configs=configs,
        site=load_site(settings.site),
        site_name=full_name(settings.site),
        snapshot=snapshot,
        again={run: str(failure) for run in first if (failure := work.statuses[run].failure) is not None},
        exclude=failed_nodes(work, first),
    )
    if order.exclude:
        say(console, f"nodes that failed are left out: {', '.join(order.exclude)}")
    try:
        sent = send(order, Slurm(), lambda text: say(console, text))
    except NoAnswer as fault:
        say(console, f"Slurm does not answer ({fault}): nothing was sent, repeat the command later")
        return NOT_ALL_SENT
    if sent.waiting:
        say(
            console,
            f"{len(sent.waiting)} runs wait for room: {sent.reason}; submit or resume again to send them",
        )
    if settings.wait:
        return _follow(paths, settings, console) or (NOT_ALL_SENT if sent.waiting else 0)
    say(console, f"watch:      grposweep status {quoted(paths)} --watch")
    return NOT_ALL_SENT if sent.waiting else 0


def _follow(paths: SweepPaths, settings: Settings, console: Console) -> int:
    """Watch until nothing runs or waits in Slurm any more, then copy to MLflow; 130 after Ctrl-C."""
    from launcher.watch import watch

    if interrupted := watch(paths, console):
        say(console, f"the jobs go on; to watch again: grposweep status {quoted(paths)} --watch")
        return interrupted
    sync_in_own_process(paths, console)
    return 0


def highest_rate_first(runs: Iterable[str], configs: Mapping[str, RunConfig]) -> list[str]:
    """What collapses does so early at high rates: the most telling runs go first."""
    return sorted(runs, key=lambda run: configs[run].learning_rate, reverse=True)


def failed_nodes(work: Work, runs: Iterable[str]) -> list[str]:
    """Nodes on which runs that are started again were lost, and those left out in the last day."""
    now = [
        status.node
        for run in runs
        if (status := work.statuses[run]).failure == Failure.NODE_FAILURE and status.node is not None
    ]
    recent = [node for node, left_out in work.ledger.failed_nodes.items() if time.time() - left_out < DAY]
    return sorted({*now, *recent})
