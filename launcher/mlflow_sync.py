"""Mirrors the run records of a sweep into MLflow: an experiment per sweep, a run per cell that has started.

    run records ──► mlflow_view (what is shown) ──► mlflow_writer (MLflow calls) ──► sqlite file or server

Records stay the truth: a sync that fails, is killed or finds no server loses nothing, and the next one goes
on where it stopped. MLflow is imported by `sync` alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from launcher.ledger import read_ledger
from launcher.mlflow_store import (
    checked_uri,
    default_uri,
    mlflow_environment,
    network_filesystem,
    only_writer,
    sqlite_path,
    ui_command,
)
from launcher.mlflow_view import view
from launcher.state import ask_slurm
from trainer.errors import UserError
from trainer.record import SweepFile, SweepPaths, read_sweep

__all__ = ["SyncResult", "default_uri", "sync", "ui_command"]

Progress = Callable[[int, int], None]
"""Called with the runs done and the runs to do."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync did."""

    experiment: str
    """Name of the MLflow experiment."""
    uri: str
    runs: int
    """Runs of the sweep that MLflow now shows."""
    points: int
    """Points written by this call."""
    problems: tuple[str, ...]
    """One sentence for each run that could not be mirrored, and for anything else the user should know."""


def sync(
    sweep: SweepPaths, tracking_uri: str | None = None, on_progress: Progress | None = None
) -> SyncResult:
    """Bring MLflow up to the records of a sweep; repeated calls write only what is new.

    Without `tracking_uri`, `default_uri` decides. Points of an unfinished run are shown up to its newest
    complete checkpoint, so that none is taken back by a resume. Raises `UserError` when nothing could be
    mirrored: no sweep, a store that cannot be used or does not answer, a deleted experiment.
    """
    grid = read_sweep(sweep)
    uri = checked_uri(tracking_uri or default_uri(sweep))
    try:
        with mlflow_environment(), only_writer(sweep, uri):
            return _write(sweep, grid, uri, on_progress)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"cannot write to {uri}: {error}; {_NOTHING_LOST}") from None


_NOTHING_LOST = "the run records are complete on disk: sync again once it can be reached"


_STORE_FAILS = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
"""MLflow's codes for a database or server that fails; others are about the one run."""


def _write(sweep: SweepPaths, grid: SweepFile, uri: str, on_progress: Progress | None) -> SyncResult:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from launcher.mlflow_writer import connect, known_runs, open_experiment, write_run

    problems: list[str] = []
    shown = written = 0
    database = sqlite_path(uri)
    remote = network_filesystem(database) if database else None
    if remote:
        problems.append(
            f"{database} is on a network file system ({remote}), where sqlite is slow and can break when two "
            "machines write: set MLFLOW_TRACKING_URI to a sqlite file on a local disk or to a tracking server"
        )
    try:
        client = connect(uri, write_ahead_log=not remote)
        experiment = open_experiment(
            client, grid.name, sweep.folder.absolute().parent / "mlartifacts" if database else None
        )
        known = known_runs(client, experiment)
        ledger = read_ledger(sweep)
        cells = [*grid.cells, *grid.kept]
        observation = ask_slurm(ledger, [sweep.run(cell.run_id) for cell in cells])
        for done, cell in enumerate(cells, start=1):
            try:
                run = view(sweep.run(cell.run_id), cell, grid.name, ledger, observation)
                if run is not None:
                    points, found = write_run(client, experiment, run, known.get(cell.run_id, []))
                    written += points
                    shown += not found
                    problems += found
            except (ValueError, KeyError, OSError, yaml.YAMLError, MlflowException) as error:
                if isinstance(error, MlflowException) and error.error_code in _STORE_FAILS:
                    raise
                problems.append(f"{cell.run_id}: {error}")
            if on_progress:
                on_progress(done, len(cells))
    except (MlflowException, SQLAlchemyError, ImportError) as error:  # a database's driver may be missing
        first = str(error).strip().splitlines()[0]
        raise UserError(f"MLflow at {uri} failed: {first}; {_NOTHING_LOST}") from None
    return SyncResult(experiment.name, uri, shown, written, tuple(problems))
