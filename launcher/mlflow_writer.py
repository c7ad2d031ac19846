"""Writes run views into MLflow. The only module that imports MLflow; `launcher.mlflow_sync` loads it.

No point is ever doubled: a point's time follows from its run and update alone, each batch of points carries
the tag that says how far it reaches, and MLflow drops a point that equals a stored one in metric, update,
time and value. So whatever a kill left behind, the repeated batch changes nothing.
"""

from __future__ import annotations

import gc
import glob
import hashlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient

from launcher.mlflow_store import sqlite_path, use_write_ahead_log
from launcher.mlflow_view import PREFIX, RunView, points
from trainer.errors import UserError

LONGEST = 500
"""Longest parameter or tag written in place; MLflow servers cut at 500 to 8000 characters, silently."""
BATCH = 999
"""Metrics in one call: MLflow takes 1000 entities, one of them is the tag."""
_RUN_ID, _POINTS_TO, _SWEEP = f"{PREFIX}run_id", f"{PREFIX}points_to", f"{PREFIX}sweep"
_NOTE = (
    "A view of the run records in the sweep's folder, which stay the truth. Steps are learner updates from "
    "0; the times of points are one millisecond per update, counted from the run's start."
)
_KIND = "custom_model_development"
"""Makes the UI open the experiment on its runs; without it, it asks what kind of experiment this is."""


def connect(uri: str, *, write_ahead_log: bool) -> MlflowClient:
    """A client of the tracking store; creates a sqlite database that does not exist yet.

    The caller holds the store's lock: MLflow itself lets two processes that create one database crash.
    """
    # creating a database announces each step
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    database = sqlite_path(uri)
    if database is not None:
        if not database.exists() or database.stat().st_size == 0:
            _create(database)
        if write_ahead_log:
            use_write_ahead_log(database)
    return MlflowClient(uri)


def open_experiment(client: MlflowClient, sweep: str, artifacts: Path | None) -> Experiment:
    """The experiment of a sweep, created when there is none; found by name, or by tag when it was renamed.

    `artifacts` is the folder for artifacts of a local store. Raises `UserError` when it was deleted.
    """
    experiment = client.get_experiment_by_name(sweep) or _tagged(client, sweep)
    if experiment is None:
        location = (artifacts / sweep).absolute().as_uri() if artifacts else None
        tags = {_SWEEP: sweep, "mlflow.note.content": _NOTE, "mlflow.experimentKind": _KIND}
        try:
            number = client.create_experiment(sweep, artifact_location=location, tags=tags)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return open_experiment(client, sweep, artifacts)  # another machine was faster
        experiment = client.get_experiment(number)
    if experiment.lifecycle_stage == "deleted":
        raise UserError(
            f"MLflow experiment {experiment.name!r} was deleted, so nothing was written to it; the run "
            "records are complete on disk. Bring it back with "
            f"`{_restore(client, 'experiments', 'experiment-id', experiment.experiment_id)}` and sync again"
        )
    if _SWEEP not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, _SWEEP, sweep)
    return experiment


def known_runs(client: MlflowClient, experiment: Experiment) -> dict[str, list[Run]]:
    """MLflow's runs of the experiment, deleted ones too, by the run id that they mirror."""
    runs: dict[str, list[Run]] = {}
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id], run_view_type=ViewType.ALL, max_results=1000, page_token=token
        )
        for run in page:
            runs.setdefault(run.data.tags.get(_RUN_ID, ""), []).append(run)
        token = page.token
        if not token:
            return runs


def write_run(
    client: MlflowClient, experiment: Experiment, view: RunView, known: Sequence[Run]
) -> tuple[int, list[str]]:
    """Bring one MLflow run up to its record: points written and problems met.

    `known` are MLflow's runs of this run id; the one that started with the record is continued.
    """
    problems: list[str] = []
    own = [run for run in known if run.info.start_time == view.started]
    run = next((run for run in own if run.info.lifecycle_stage == "active"), None)
    if run is None and own:
        return 0, [
            f"{view.paths.run_id}: its MLflow run was deleted and is left alone; its record is complete. "
            f"Bring it back with `{_restore(client, 'runs', 'run-id', own[0].info.run_id)}` and sync again"
        ]
    if run is None:
        tags = {_RUN_ID: view.paths.run_id, _POINTS_TO: "0"}
        run = client.create_run(experiment.experiment_id, view.started, tags, run_name=view.name[:LONGEST])
        problems += [
            f"{view.paths.run_id}: its record was started anew, so it has a new MLflow run; the earlier one, "
            f"{other.info.run_id}, is kept"
            for other in known
            if other.info.lifecycle_stage == "active"
        ]
    changed = _changed_params(run, view)
    if changed:
        return 0, [*problems, *changed]
    _log_texts(client, run, view)
    written = _log_points(client, run, view)
    _set_status(client, run, view)
    return written, problems


def _create(database: Path) -> None:
    # MLflow cannot go on with a database whose creation was killed: build it aside, then rename
    unfinished = database.with_name(f".{database.name}.unfinished")
    for leftover in database.parent.glob(f"{glob.escape(unfinished.name)}*"):
        leftover.unlink()
    # a client would put the folder ./mlruns into a statement unescaped, and fail where its name has a quote
    root = (database.parent / "mlartifacts").as_uri()
    created = SqlAlchemyStore(f"sqlite:///{unfinished.as_posix()}", root)  # type: ignore[no-untyped-call]
    created.engine.dispose()
    unfinished.replace(database)


def _tagged(client: MlflowClient, sweep: str) -> Experiment | None:
    token: str | None = None
    while True:
        page = client.search_experiments(view_type=ViewType.ALL, max_results=1000, page_token=token)
        for experiment in page:
            if experiment.tags.get(_SWEEP) == sweep:
                return experiment
        token = page.token
        if not token:
            return None


def _restore(client: MlflowClient, kind: str, option: str, number: str) -> str:
    command = ["env", f"MLFLOW_TRACKING_URI={client.tracking_uri}", "mlflow", kind, "restore"]
    return shlex.join([*command, f"--{option}", number])


def _changed_params(run: Run, view: RunView) -> list[str]:
    stored = run.data.params
    return [
        f"{view.paths.run_id}: {field} is {text} in {view.paths.config} but {stored[field]} in MLflow run "
        f"{run.info.run_id}, and a parameter is written once: put the file back as it was, or delete that "
        "MLflow run for good (`mlflow gc`)"
        for field, value in view.params.items()
        if field in stored and stored[field] != (text := _in_place(field, value)[0])
    ]


def _in_place(key: str, value: str) -> tuple[str, str | None]:
    """The text to store under `key`, and the artifact to store the value in when it is too long for that."""
    if len(value) <= LONGEST:
        return value, None
    artifact = f"long_values/{key}.txt"
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"see artifact {artifact}: {len(value)} characters, sha256 {digest}", artifact


def _log_texts(client: MlflowClient, run: Run, view: RunView) -> None:
    """Write parameters that are not there yet and tags that changed; remove tags that no longer hold."""
    new: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for is_param, values, stored in ((True, view.params, run.data.params), (False, view.tags, run.data.tags)):
        for key, value in values.items():
            text, artifact = _in_place(key, value)
            if stored.get(key) == text:
                continue
            if artifact:
                client.log_text(run.info.run_id, value, artifact)
            new[is_param][key] = text
    client.log_batch(
        run.info.run_id,
        params=[Param(key, text) for key, text in new[True].items()],
        tags=[RunTag(key, text) for key, text in new[False].items()],
    )
    for key in run.data.tags:
        if key.startswith(PREFIX) and key != _POINTS_TO and key not in view.tags:
            client.delete_tag(run.info.run_id, key)


def _log_points(client: MlflowClient, run: Run, view: RunView) -> int:
    """Log the final points that MLflow lacks; returns how many."""
    reached = int(run.data.tags.get(_POINTS_TO, "0"))
    if reached >= view.final_updates:
        return 0
    written = 0
    batch: list[Metric] = []
    with _no_collection():
        for step, values in points(view.paths, view.final_updates):
            if step < reached:
                continue
            if len(batch) + len(values) > BATCH:
                client.log_batch(run.info.run_id, batch, tags=[RunTag(_POINTS_TO, str(step))])
                written += len(batch)
                batch = []
            batch += [Metric(key, value, view.started + step, step) for key, value in values.items()]
        client.log_batch(run.info.run_id, batch, tags=[RunTag(_POINTS_TO, str(view.final_updates))])
    return written + len(batch)


def _set_status(client: MlflowClient, run: Run, view: RunView) -> None:
    info = run.info
    # a run that has never ended gets no end; one that was resumed cannot lose its own, so it moves on
    if view.status == "RUNNING" and info.end_time is None:
        return
    if (info.status, info.end_time) != (view.status, view.ended):
        client.set_terminated(info.run_id, status=view.status, end_time=view.ended)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: it walks the many short-lived rows again and again, 40% of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
