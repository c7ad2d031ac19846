"""Small run records for the tests of the MLflow mirror, written as a job would write them."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.files import append_line, finite, write_atomic, write_json
from trainer.record import Cell, RunPaths, SweepFile, SweepPaths, UpdateMetrics, write_config, write_sweep

START = 1_700_000_000.0
METRICS = [field.name for field in fields(UpdateMetrics) if field.name != "step"]


def make_sweep(folder: Path, cells: dict[str, dict[str, Any]]) -> SweepPaths:
    """A sweep file and a configuration per cell; nothing has run."""
    paths = SweepPaths(folder)
    write_sweep(
        paths,
        SweepFile(
            name=folder.name,
            preset=None,
            axes={name: [values[name] for values in cells.values()] for name in next(iter(cells.values()))},
            fixed={},
            cells=[Cell(run_id=run_id, values=values) for run_id, values in cells.items()],
        ),
    )
    for run_id, values in cells.items():
        write_config(paths.run(run_id), RunConfig(**values))
    return paths


def update_line(step: int, **changes: Any) -> dict[str, Any]:
    """One line of metrics.jsonl; the same step always gives the same numbers."""
    draw = random.Random(step)
    values = {name: draw.random() for name in METRICS} | {"lag_max": 0, "policy_version": step}
    if step == 0:
        values["gradient_cosine"] = float("nan")
    return finite({"step": step, **values, **changes})


def write_updates(run: RunPaths, updates: int, changes: dict[int, dict[str, Any]] | None = None) -> None:
    """Replace metrics.jsonl by this many lines."""
    lines = [json.dumps(update_line(step, **(changes or {}).get(step, {}))) for step in range(updates)]
    write_atomic(run.metrics, "".join(f"{line}\n" for line in lines), durable=False)


def start(run: RunPaths, attempt: int = 1) -> None:
    append_line(run.attempts, {"attempt": attempt, "event": "started", "time": START + 100 * attempt})


def end(run: RunPaths, attempt: int = 1) -> None:
    append_line(run.attempts, {"attempt": attempt, "event": "ended", "time": START + 100 * attempt + 50})


def checkpoint(run: RunPaths, updates: int, *, complete: bool = True) -> None:
    folder = run.checkpoints / f"step-{updates:08d}"
    folder.mkdir(parents=True)
    if complete:
        write_json(folder / "complete.json", {"step": updates})


def write_state(run: RunPaths, state: str, attempt: int = 1, **changes: Any) -> None:
    values = {"attempt": attempt, "pid": 1, "host": "here", "heartbeat": START + 100 * attempt + 40}
    write_json(run.state, {"state": state, **values, "step": 0, "horizon": 100, **changes})


def finish(run: RunPaths, updates: int, attempt: int = 1) -> None:
    """The end of a run that collapsed."""
    write_json(
        run.summary,
        {
            "run_id": run.run_id,
            "outcome": "collapsed",
            "reason": None,
            "updates": updates,
            "horizon": updates,
            "cumulative_rate": 0.5,
            "collapse": {"status": "collapsed", "snapshot": 7, "snapshot_low": 6, "snapshot_high": 8},
            "collapse_cumulative_rate": [0.1, 0.2],
            "rule_version": "1",
            "peak_reward": 0.9,
            "peak_step": 3,
            "final_reward": 0.0,
            "warm_start": "abc",
        },
    )
    end(run, attempt)
    write_state(run, "finished", attempt)
