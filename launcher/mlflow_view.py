"""What MLflow is shown of one run record: name, parameters, tags, status and points. Imports no MLflow.

Everything here follows from the record alone, so two syncs of one record say the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.ledger import Ledger
from launcher.state import RunStatus, job_state
from sweeps.identity import scientific_fields
from trainer.files import read_json, read_lines
from trainer.record import (
    CHECKPOINT_MARKER,
    NOT_ALWAYS_THERE,
    Cell,
    JobState,
    RunPaths,
    UpdateMetrics,
    read_config,
    read_metrics,
)

if TYPE_CHECKING:
    from launcher.slurm.evidence import Observation

PREFIX = "grposweep."
"""Opens every tag of ours."""
Points = dict[str, float]
"""Metric → value at one update."""

_METRICS = tuple(field.name for field in fields(UpdateMetrics) if field.name != "step")
_OFTEN_UNDEFINED = "gradient_cosine"
"""Null at update 0 of every run (math.md B1), which is no sign of trouble."""
_VERDICT = ("snapshot", "snapshot_low", "snapshot_high", "onset", "onset_low", "onset_high", "recovered_step")
_STATUS = {
    JobState.PLANNED: "KILLED",  # it has started, or it would not be shown
    JobState.WAITING: "SCHEDULED",
    JobState.QUEUED: "SCHEDULED",
    JobState.RUNNING: "RUNNING",
    JobState.FINISHING: "RUNNING",
    JobState.FINISHED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.INTERRUPTED: "KILLED",
    JobState.KILLED: "KILLED",
    JobState.LOST: "KILLED",
    JobState.UNKNOWN: "RUNNING",  # until something says otherwise
}


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as MLflow shows it."""

    paths: RunPaths
    name: str
    """The cell's values on the axes."""
    started: int
    """Start of the first attempt, Unix milliseconds."""
    ended: int
    """End of the last attempt, or its last sign of life, Unix milliseconds."""
    status: str
    """SCHEDULED, RUNNING, FINISHED, FAILED or KILLED."""
    params: dict[str, str]
    """Scientific fields, dotted, as canonical text."""
    tags: dict[str, str]
    final_updates: int
    """Updates whose lines no resume can cut any more."""


def view(
    paths: RunPaths, cell: Cell, sweep: str, ledger: Ledger, observation: Observation | None = None
) -> RunView | None:
    """The view of a run's record, and of what Slurm says of its job; None when no attempt has started.

    Raises `UserError` or `ValueError` when a file of the record is not valid.
    """
    attempts = read_lines(paths.attempts)
    started = [line for line in attempts if line.get("event") == "started"]
    if not started:
        return None
    ended = [line for line in attempts if line.get("event") == "ended"]
    status = job_state(paths, ledger, observation)
    last = max(float(line["time"]) for line in (*started[-1:], *ended[-1:]))
    if status.state is not None and len(ended) < len(started):
        last = max(last, status.state.heartbeat)
    fields = scientific_fields(read_config(paths))
    return RunView(
        paths=paths,
        name=", ".join(f"{field}={canonical(value)}" for field, value in cell.values.items()) or paths.run_id,
        started=_milliseconds(started[0]["time"]),
        ended=_milliseconds(last),
        status=_STATUS[status.job],
        params={field: canonical(value) for field, value in fields.items()},
        tags=dict(_tags(cell, sweep, status)),
        final_updates=max(newest_checkpoint(paths), status.summary.updates if status.summary else 0),
    )


def canonical(value: Any) -> str:
    """One text per value: 1e-6 and 0.000001 are both `1e-06`.

    >>> canonical(1e-6), canonical(1), canonical(None), canonical("copy")
    ('1e-06', '1', 'null', 'copy')
    """
    return value if isinstance(value, str) else json.dumps(value)


def newest_checkpoint(paths: RunPaths) -> int:
    """Updates done at the newest complete checkpoint, 0 when there is none."""
    folders = sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else []
    return max((_checkpoint_step(folder) for folder in folders), default=0)


def points(paths: RunPaths, updates: int) -> Iterator[tuple[int, Points]]:
    """Step and finite metrics of updates 0 … `updates`-1, in order.

    Nulls and non-finite numbers are left out; `nonfinite_updates` counts the updates that have any they
    should not, and is given at update 0 and wherever it grows. Evaluations, `held_out_accuracy` or
    `<set>_pass_at_4` say, stand at the update after which they were measured.
    Raises `ValueError` when a line is missing.
    """
    measured: dict[int, Points] = {}
    for line in read_lines(paths.evaluations):
        if _is_finite(line.get("value")):
            name = f"{line['set']}_{line['metric'].replace('@', '_at_')}"
            measured.setdefault(line["step"] - 1, {})[name] = float(line["value"])
    lines = {line["step"]: line for line in read_metrics(paths) if isinstance(line.get("step"), int)}
    bad = 0
    for step in range(updates):
        if step not in lines:
            raise ValueError(f"{paths.metrics} has no line for update {step}, of {updates} that are final")
        line = lines[step]
        values = {key: float(line[key]) for key in _METRICS if _is_finite(line.get(key))}
        missing = len(values) < len(_METRICS) and any(
            key not in values and (key not in NOT_ALWAYS_THERE or key in line.get("nonfinite", {}))
            for key in _METRICS
            if key in line and key != _OFTEN_UNDEFINED
        )
        values |= measured.get(step, {})
        bad += missing
        if missing or step == 0:
            values["nonfinite_updates"] = float(bad)
        yield step, values


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _milliseconds(seconds: Any) -> int:
    return round(float(seconds) * 1000)


def _checkpoint_step(folder: Path) -> int:
    try:
        marker = read_json(folder / CHECKPOINT_MARKER)
    except (ValueError, OSError):  # torn, or removed while we look: as good as not there
        return 0
    step = (marker or {}).get("step")
    return step if isinstance(step, int) else 0


def _tags(cell: Cell, sweep: str, status: RunStatus) -> Iterator[tuple[str, str]]:
    values: dict[str, Any] = {
        "run_id": cell.run_id,
        "sweep": sweep,
        "cell": json.dumps(cell.values),
        "attempt": status.attempt,
        "job_state": status.job.value,
        "error": status.detail,
    }
    summary = status.summary
    if summary is not None:
        values |= {
            "outcome": summary.outcome.value,
            "reason": summary.reason,
            "rule_version": summary.rule_version,
            "horizon": summary.horizon,
            "warm_start": summary.warm_start,
            "collapse.cumulative_rate": summary.collapse_cumulative_rate,
        }
        values |= {f"collapse.{key}": summary.collapse.get(key) for key in _VERDICT}
    for key, value in values.items():
        if value is not None:
            yield PREFIX + key, canonical(value)
