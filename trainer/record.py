"""The run record: what its files say; where they lie is in `trainer.paths`. Torch-free.

Two axes are never mixed: `JobState` says what happened to the job, `Outcome` what the experiment showed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.attempts import Exit as Exit
from trainer.budget import Budget
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import is_locked, read_json, read_lines, read_yaml, write_json, write_yaml
from trainer.paths import RunPaths as RunPaths
from trainer.paths import SweepPaths as SweepPaths
from trainer.schema import parse


class JobState(StrEnum):
    """What happened to the job of a run."""

    PLANNED = "planned"
    WAITING = "waiting"
    """For room: Slurm, or a limit of the site profile, took no more."""
    QUEUED = "queued"
    RUNNING = "running"
    FINISHING = "finishing"
    """Its job has left the queue, and neither accounting nor the record says yet how it ended."""
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    LOST = "lost"
    """Its job is gone without a word."""
    UNKNOWN = "unknown"
    """Slurm did not answer, or said a word that this version does not know."""


class Outcome(StrEnum):
    """What the experiment showed."""

    STABLE = "stable"
    COLLAPSED = "collapsed"
    RECOVERED = "recovered"
    PENDING = "pending"
    UNDETECTABLE = "undetectable"
    INTERRUPTED = "interrupted"
    INVALID = "invalid"


CHECKPOINT_FORMAT = 3
"""Changes whenever older checkpoints cannot be continued."""
CHECKPOINT_MARKER = "complete.json"
"""Written last into a checkpoint's folder: `step`, updates done, and the checksum of every file."""


class Record(BaseModel):
    """Base of what is read back from a record: strict about types, tolerant of fields added later."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class RunState(Record):
    """`state.json`."""

    state: Literal["running", "finished", "failed", "interrupted"]
    attempt: int
    pid: int
    host: str
    heartbeat: float
    """Unix time of the last write."""
    step: int
    """Learner updates done."""
    horizon: int
    reward: float | None = None
    """Moving average of the reward of generated rollouts."""
    alarm: bool = False
    """The collapse rule has confirmed a collapse or has an open alarm."""
    collapsed: bool = False
    updates_per_second: float | None = None
    tokens_per_second: float | None = None
    """Response tokens generated for the store."""
    lag: float | None = None
    """Mean lag of the last update's batch, in learner updates."""
    error: str | None = None
    """Last lines of the traceback when the job failed."""


class Summary(Record):
    """`summary.json`, written when a run ends on its own (`finished`)."""

    run_id: str
    outcome: Outcome
    reason: str | None = None
    """Why, where the outcome alone does not say it (invalid runs)."""
    updates: int
    """Learner updates done: the horizon h of "stable to h"."""
    horizon: int
    """The budget's horizon when the run ended."""
    cumulative_rate: float
    """Λ over all updates."""
    collapse: dict[str, Any]
    """The collapse rule's verdict (`trainer.collapse.Verdict`)."""
    collapse_cumulative_rate: tuple[float, float] | None = None
    """Λ at both ends of the collapse interval."""
    rule_version: str
    peak_reward: float | None
    peak_step: int | None
    final_reward: float | None
    """Moving average of the reward of generated rollouts, at its highest and at the end."""
    warm_start: str
    """Content hash of the initial weights."""
    prompts: str | None = None
    """Hash of the rendered training prompts; null for built-in tasks."""
    best: dict[str, Any] | None = None
    """Of the kept best weights: step, set, metric and value; null where none were kept."""


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """One line of metrics.jsonl. Undefined numbers are null and named under `nonfinite`."""

    step: int
    """Learner update, from 0."""
    policy_version: int
    """Learner updates done by the behaviour policy at this update: S·⌊step/S⌋."""
    learning_rate: float
    """Rate of this update, ramp included."""
    cumulative_rate: float
    """Λ after this update: the sum of all rates so far."""
    reward: float | None
    """Mean reward of all rollouts that were generated for the store since the last update, before any filter
    or selection, unscored ones aside; null where there were none. The collapse rule reads the accuracy that
    it stands for."""
    reward_standard_error: float | None
    """Standard deviation of the prompt groups' mean rewards over the root of the number of prompts."""
    reward_trained: float | None
    """Mean reward of the rollouts in the trained batch, unscored ones aside."""
    informative_share: float
    """Share of trained rollouts whose group has differing rewards (the others have zero advantage)."""
    loss: float
    entropy: float
    """Mean entropy of the learner's next-token distribution over response tokens, in nats."""
    clip_fraction: float
    """Share of response tokens whose ratio is clipped: beyond the bound that their advantage pushes to."""
    kl: float
    """KL(behaviour || learner) per response token, in nats: mean of r − 1 − log r, r = learner/behaviour."""
    ratio_min: float
    ratio_max: float
    """Extremes of the unclipped token ratio."""
    lag_mean: float
    lag_max: int
    """Lag of the trained rollouts, in learner updates."""
    gradient_norm: float
    """Norm of the raw gradient, in float64."""
    gradient_cosine: float
    """Cosine with the previous raw gradient; null at update 0 and where a norm is zero (math.md B1)."""
    displacement: float | None
    """Root mean square distance of the weights after this update from the initial ones; null where it is
    not measured."""
    response_length: float | None
    """Mean response tokens of the generated rollouts, end mark included."""
    truncated_share: float | None
    """Share of generated rollouts that hit max_response_tokens without an end mark."""
    rollouts_generated: int
    """Rollouts generated for the store so far (K_inf), those filtered or never used included."""
    rollouts_trained: int
    """Uses so far (K_train), repeats counted."""
    rollouts_held: int
    """Rollouts in the store when this update's batch had been taken."""
    age_mean: float
    """Mean of step − step at which the rollout entered the store, over the trained batch."""
    distinct_share: float
    """Different rollouts in the trained batch, as a share of it."""
    accuracy: float | None = None
    """Share of right responses among those that `reward` is the mean of."""
    unscored_share: float | None = None
    """Share of generated rollouts that got no verdict, as the verifier crashed or took too long."""
    filtered_share: float | None = None
    """Share of generated rollouts whose group was left out for a truncated response."""
    reference_kl: float | None = None
    """KL(learner || initial policy) per response token, in nats; null where the loss has no such term."""
    virtual_time: float | None = None
    """Clock of schedule=free when this update ended, in learner updates' work on one trainer."""
    worker_idle_share: float | None = None
    trainer_idle_share: float | None = None
    """Shares of all workers' and trainers' time so far spent waiting; null in strict runs."""


NOT_ALWAYS_THERE = (
    "reward",
    "reward_standard_error",
    "response_length",
    "truncated_share",
    "reward_trained",
    "displacement",
    "accuracy",
    "unscored_share",
    "filtered_share",
    "reference_kl",
    "virtual_time",
    "worker_idle_share",
    "trainer_idle_share",
)
"""Metrics that are null where no rollout entered the store, or where the run has no such thing."""


class Cell(Record):
    """One cell of a sweep: a run and where it stands on the axes."""

    run_id: str
    values: dict[str, Any]
    """Axis field → value."""


class SweepFile(Record):
    """`sweep.yaml`."""

    version: Literal[1] = 1
    name: str
    preset: str | None
    """The preset it was made from."""
    description: str = ""
    axes: dict[str, list[Any]]
    """Axis field (dotted) → its values, in order."""
    fixed: dict[str, Any]
    """Every other field of the cell, flat and dotted, budget included."""
    cells: list[Cell]
    """The grid as last submitted."""
    kept: list[Cell] = []
    """Cells of earlier submissions that left the grid; their runs are kept."""
    history: list[dict[str, Any]] = []
    """One entry per submission: time, overrides as typed, provenance."""
    report: dict[str, Any] = {}
    """Settings of the report that the preset gives."""


def read_sweep(paths: SweepPaths) -> SweepFile:
    """The sweep file; raises `UserError` when there is none."""
    if not paths.sweep.is_file():
        known = sorted(item.parent.name for item in paths.folder.parent.glob("*/sweep.yaml"))
        raise UserError(
            f"no sweep at {paths.folder}: "
            + (f"known there are {', '.join(known)}" if known else "submit one first")
        )
    return SweepFile.model_validate(read_yaml(paths.sweep))


def write_sweep(paths: SweepPaths, sweep: SweepFile) -> None:
    write_yaml(paths.sweep, sweep.model_dump(mode="json"))


def read_config(paths: RunPaths) -> RunConfig:
    """The run's configuration; raises `UserError` naming file and field when it is not valid."""
    return parse(RunConfig, read_yaml(paths.config), where=str(paths.config))


def write_config(paths: RunPaths, config: RunConfig) -> None:
    write_yaml(paths.config, config.model_dump(mode="json"))


def read_budget(paths: RunPaths) -> Budget:
    """The run's budget; raises `UserError` when it is not valid or missing."""
    data = read_json(paths.budget)
    if data is None:
        raise UserError(f"{paths.budget} is missing: submit the sweep again to write it")
    try:
        return _budget(json.dumps(data))
    except ValidationError:
        return parse(Budget, data, where=str(paths.budget))  # the same fault, explained


@lru_cache(maxsize=256)
def _budget(text: str) -> Budget:
    """Most runs of a sweep have equal budgets, and checking one costs more than reading it."""
    return Budget.model_validate(json.loads(text))


def write_budget(paths: RunPaths, budget: Budget) -> None:
    write_json(paths.budget, budget.model_dump(mode="json"))


def read_state(paths: RunPaths) -> RunState | None:
    data = read_json(paths.state)
    return None if data is None else RunState.model_validate(data)


def read_summary(paths: RunPaths) -> Summary | None:
    data = read_json(paths.summary)
    return None if data is None else Summary.model_validate(data)


def newest_checkpoint_format(paths: RunPaths) -> int | None:
    """Format of the newest complete checkpoint; None where there is none."""
    for folder in sorted(paths.checkpoints.glob("step-*"), reverse=True):
        if (folder / CHECKPOINT_MARKER).is_file():
            meta = read_json(folder / "meta.json")
            return None if meta is None else int(meta.get("format", 1))
    return None


def is_slimmed(paths: RunPaths) -> bool:
    """Whether the newest complete checkpoint holds no more than weights, so that nothing continues it."""
    markers = sorted(paths.checkpoints.glob(f"step-*/{CHECKPOINT_MARKER}"))
    return bool(markers) and bool((read_json(markers[-1]) or {}).get("slimmed"))


def read_metrics(paths: RunPaths) -> list[dict[str, Any]]:
    """All complete lines of metrics.jsonl, one per learner update, in order."""
    return read_lines(paths.metrics)


def is_training(paths: RunPaths) -> bool:
    """Whether a live process on this machine trains the run."""
    return is_locked(paths.lock)
