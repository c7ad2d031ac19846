"""`submit`: bring the sweep folder up to a grid, run what is to run, say what came of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from launcher import sweep_folder
from launcher.board import board, in_words, tally
from launcher.executors import make_executor
from launcher.ledger import Ledger, LedgerWriter, new_token, read_ledger, sweep_lock
from launcher.locate import sweep_paths
from launcher.messages import change_lines, next_lines, quoted, say, shown, unfinished_lines
from launcher.pending import Plan, of_grid, on_disk
from launcher.prefetch import Cell, cells_on_disk, prefetch
from launcher.progress import Progress
from launcher.retry import Policy
from launcher.runner import Result, Runner, longest_first, runner_lock
from launcher.snapshot import Snapshot, take_snapshot
from launcher.state import RunStatus, ask_slurm, job_states
from trainer.budget import Budget
from trainer.errors import UserError
from trainer.record import JobState, SweepFile, SweepPaths, read_budget, read_config

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation
    from sweeps.grid import Grid

AT_SUBMIT_POLICY = Policy()
Write = Callable[[Mapping[str, object]], None]
"""Puts a change of the sweep folder on disk, given the provenance of the code that will run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a sweep is run; nothing of it is part of the sweep."""

    executor: Literal["local", "inline"] = "local"
    jobs: int | None = None
    """Most runs at once; None for as many as there are cores."""
    sync: bool = False
    """Copy the results to MLflow at the end."""
    site: str | None = None
    """Site profile, by name or path; with one, runs go to Slurm."""
    wait: bool = False
    """Slurm: watch until nothing runs or waits any more."""
    yes: bool = False
    """Slurm: ask nothing."""
    max_gpu_hours: float | None = None
    """Slurm: refuse what is estimated to take more."""


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do in a sweep folder."""

    statuses: Mapping[str, RunStatus]
    todo: Sequence[str]
    """Runs to start, longest first."""
    budgets: Mapping[str, Budget]
    """Of the runs that are on disk."""
    ledger: Ledger
    observation: Observation | None = None
    """What Slurm said, where it was asked."""
    spent: Sequence[str] = ()
    """Runs that failed as often as is allowed."""

    @property
    def running(self) -> bool:
        """Whether jobs of an earlier launcher here are still there."""
        return any(s.job == JobState.RUNNING and s.job_id is None for s in self.statuses.values())

    @property
    def in_slurm(self) -> list[str]:
        """Jobs of Slurm that have not ended, as far as is known."""
        open_states = (JobState.QUEUED, JobState.RUNNING, JobState.FINISHING, JobState.UNKNOWN)
        return [s.job_id for s in self.statuses.values() if s.job in open_states and s.job_id is not None]


def load_grid(overrides: Sequence[str], config_dir: Path | None) -> Grid:
    """The grid that the command line describes, every cell validated; raises `UserError`."""
    from sweeps.grid import expand

    return expand(overrides, config_dir)


def submit(grid: Grid, name: str | None, outputs: Path, settings: Settings, console: Console) -> int:
    """Run what never ran, was interrupted or was killed, or whose budget has grown. Returns the exit code."""
    paths = sweep_paths(outputs, name or grid.name)
    with runner_lock(paths):
        changes = sweep_folder.compare(paths, grid)
        changes.require_accepted()
        say(console, *grid.notices, *change_lines(paths, changes))
        if unsettled := adopt_jobs(paths, settings, console):
            return unsettled

        def write(provenance: Mapping[str, object]) -> None:
            entry = sweep_folder.history_entry("submit", grid.overrides, provenance)
            sweep_folder.apply(paths, changes, entry)

        cells = [(cell.config.run(), cell.config.budget.evaluation) for cell in grid.cells]
        return launch(
            paths,
            changes.sweep,
            settings,
            console,
            write,
            altered=changes.altered,
            cells=cells,
            plan=of_grid(grid, changes),
        )


def adopt_jobs(paths: SweepPaths, settings: Settings, console: Console) -> int:
    """Settle what an earlier command to Slurm left open; the exit code where that cannot be done, else 0."""
    if settings.site is None or not read_ledger(paths).unanswered:
        return 0
    from launcher.slurm.launch import settle

    return settle(paths, console)


def noted(paths: SweepPaths, command: str) -> Write:
    """A change that is no more than an entry in the history."""

    def write(provenance: Mapping[str, object]) -> None:
        with sweep_lock(paths):
            sweep_folder.append_history(paths, sweep_folder.history_entry(command, (), provenance))

    return write


def launch(
    paths: SweepPaths,
    sweep: SweepFile,
    settings: Settings,
    console: Console,
    write: Write,
    *,
    altered: bool = False,
    policy: Policy = AT_SUBMIT_POLICY,
    cells: Sequence[Cell] | None = None,
    plan: Plan | None = None,
) -> int:
    """Write the change, run what is to run and report. The caller holds the runner lock.

    `cells` are the runs that prompts and models are prepared for, `plan` those that are to be started; None:
    those on disk that are to run.

    Writes nothing where nothing is `altered` and nothing is to run.
    """
    work = find_work(paths, sweep, policy)
    if altered or work.todo or work.running:
        if settings.site is None:
            _refuse_beside_slurm(paths, work)
        else:
            _ask_first(paths, work, plan or on_disk(paths), settings, console)
        wanted = cells_on_disk(paths, work.todo) if cells is None else cells
        prefetch(paths, wanted, console, cache=_cache(settings))
        snapshot = take_snapshot(paths)
        write(snapshot.provenance)
        work = find_work(paths, sweep, policy)
        if settings.site is not None:
            from launcher.slurm.launch import send_to_slurm

            return send_to_slurm(paths, sweep, work, snapshot, settings, console)
        if work.todo or work.running:
            result = _run(paths, sweep, work, snapshot, settings, console)
            return _report(paths, sweep, result, settings, console)
    result = Result(work.statuses, interrupted=False)
    say(console, f"nothing to do: {in_words(tally(work.statuses.values()))}")
    say(console, *unfinished_lines(paths, sweep, result.unfinished, interrupted=False))
    say(console, *next_lines(paths, work.statuses, synced=False))
    return result.exit_code


def _ask_first(paths: SweepPaths, work: Work, plan: Plan, settings: Settings, console: Console) -> None:
    from launcher.slurm.ask import ask_first
    from launcher.slurm.site import load_site

    assert settings.site is not None
    runs = plan.runs(work)
    if runs:
        ask_first(paths, runs, work, plan.figures, load_site(settings.site), settings, console)


def _cache(settings: Settings) -> str | None:
    """The folder that the site's nodes read models from."""
    if settings.site is None:
        return None
    from launcher.slurm.site import load_site

    return load_site(settings.site).cache


def _refuse_beside_slurm(paths: SweepPaths, work: Work) -> None:
    """One sweep runs in one place at a time."""
    if work.in_slurm:
        raise UserError(
            f"{len(work.in_slurm)} runs of sweep {paths.folder.name!r} are jobs of Slurm that have not ended "
            f"({', '.join(work.in_slurm[:3])}, …): give --site, wait for them, or `grposweep cancel` them"
        )


def find_work(paths: SweepPaths, sweep: SweepFile, policy: Policy = AT_SUBMIT_POLICY) -> Work:
    """State of every run of the grid, and which of them are to be started."""
    ledger = read_ledger(paths)
    runs = [paths.run(cell.run_id) for cell in sweep.cells]
    observation = ask_slurm(ledger, runs)
    statuses = job_states(runs, ledger, observation)
    # a cell that is about to be written has no budget yet
    budgets = {
        run_id: read_budget(paths.run(run_id)) for run_id in statuses if paths.run(run_id).budget.is_file()
    }
    todo = [run for run, budget in budgets.items() if policy.to_run(statuses[run], budget, ledger)]
    spent = [run for run in budgets if policy.spent(statuses[run], ledger)]
    return Work(statuses, longest_first(statuses, budgets, todo), budgets, ledger, observation, spent)


def _run(
    paths: SweepPaths, sweep: SweepFile, work: Work, snapshot: Snapshot, settings: Settings, console: Console
) -> Result:
    threads = max((read_config(paths.run(run_id)).resources.threads for run_id in work.todo), default=1)
    executor = make_executor(settings.executor, snapshot.folder, threads=threads, jobs=settings.jobs)
    say(console, f"{len(work.todo)} to run, {executor.slots} at a time; logs in {shown(paths.runs)}/*/logs")
    ledger = LedgerWriter(paths, new_token())
    ledger.submitted(executor.name, snapshot.code, work.todo)
    horizons = {run_id: budget.horizon for run_id, budget in work.budgets.items()}
    progress = Progress(console, sweep, horizons, executor.slots)
    runner = Runner(paths, sweep, executor, ledger, progress, observation=work.observation)
    return runner.run(work.todo)


def _report(paths: SweepPaths, sweep: SweepFile, result: Result, settings: Settings, console: Console) -> int:
    if not console.is_terminal:
        table = board(sweep, result.statuses)
        if table is not None:
            console.print(table)
    say(console, *unfinished_lines(paths, sweep, result.unfinished, interrupted=result.interrupted))
    if result.interrupted:
        left = len(result.unfinished)
        say(console, "", f"interrupted, {left} unfinished: the same command again continues where it stopped")
        return result.exit_code
    if settings.sync:
        sync_in_own_process(paths, console)
    say(console, *next_lines(paths, result.statuses, synced=settings.sync))
    return result.exit_code


def sync_in_own_process(paths: SweepPaths, console: Console) -> None:
    """Copy the results to MLflow, which takes seconds to load, and whose failure is none of the sweep's."""
    command = [sys.executable, "-m", "launcher.cli", "sync", str(paths.folder)]
    if subprocess.run(command, check=False).returncode:
        say(console, f"not copied to MLflow; to repeat it: grposweep sync {quoted(paths)}")
