"""Sweeps written to disk in the format of the run record, from a known truth.

A reward curve rises from the warm start's level to a plateau and, where the truth says so, falls at a given
update for good or for a while. Noise is that of a mean over prompt groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.budget import BudgetConfig, CellConfig, HorizonRule
from trainer.collapse import RULE_VERSION, CollapseRuleConfig, judge
from trainer.config import OptimizerConfig, RunConfig
from trainer.files import write_atomic, write_json
from trainer.record import (
    Cell,
    Outcome,
    RunState,
    Summary,
    SweepFile,
    SweepPaths,
    UpdateMetrics,
    write_budget,
    write_config,
    write_sweep,
)
from trainer.schema import flatten


@dataclass(frozen=True)
class Curve:
    """Expected reward per update."""

    collapse_at: int | None = None
    """First update whose rollouts come from a collapsed policy."""
    recover_at: int | None = None
    """Update at which it is back at the plateau."""
    start: float = 0.2
    plateau: float = 0.95
    bottom: float = 0.01
    rise: float = 8.0
    """Updates in which the distance to the plateau falls by e."""
    noise: float = 0.01
    """Standard error of the mean reward."""

    def rewards(self, updates: int, seed: int) -> np.ndarray:
        t = np.arange(updates)
        level = self.plateau - (self.plateau - self.start) * np.exp(-t / self.rise)
        if self.collapse_at is not None:
            end = math.inf if self.recover_at is None else self.recover_at
            level = np.where((t >= self.collapse_at) & (t < end), self.bottom, level)
        noise = np.random.default_rng(seed).normal(0.0, self.noise, updates)
        return np.clip(level + noise, 0.0, 1.0)


@dataclass(frozen=True)
class RunSpec:
    """One run to write: where it stands, how long it goes on, what happens in it."""

    sync_interval: int
    learning_rate: float
    seed: int = 0
    horizon: int = 300
    curve: Curve = field(default_factory=Curve)
    updates: int | None = None
    """Learner updates done; default: the horizon."""
    state: str = "finished"
    """finished | running | interrupted | failed | planned; only finished runs get a summary."""
    summary_changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of summary.json that lie."""
    science: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the run's configuration, by section."""

    @property
    def run_id(self) -> str:
        changed = "".join(f"-{name}-{value}" for name, value in self.science.items())
        changed = "".join(sign for sign in changed if sign.isalnum() or sign in "-_")
        return f"s{self.sync_interval}-lr{self.learning_rate:g}-seed{self.seed}{changed}".replace(".", "_")


def cell_config(spec: RunSpec, ramp_updates: int, rule: CollapseRuleConfig) -> CellConfig:
    run = RunConfig(
        sync_interval=spec.sync_interval,
        learning_rate=spec.learning_rate,
        seed=spec.seed,
        optimizer=OptimizerConfig(ramp_updates=ramp_updates),
    )
    values = run.model_dump() | dict(spec.science)
    budget = BudgetConfig(horizon=HorizonRule(updates=spec.horizon), collapse=rule)
    return CellConfig.model_validate({**values, "budget": budget})


def write_run_record(paths: SweepPaths, spec: RunSpec, config: CellConfig) -> None:
    run, budget = config.run(), config.budget.resolve(config.run())
    place = paths.run(spec.run_id)
    if spec.state == "planned":
        return
    write_config(place, run)
    write_budget(place, budget)
    updates = spec.horizon if spec.updates is None else spec.updates
    seed = hash((spec.sync_interval, round(1e12 * spec.learning_rate), spec.seed)) % 2**32
    rewards = spec.curve.rewards(updates, seed)
    write_metrics(place.metrics, run, rewards, spec.curve.noise)
    write_json(
        place.state,
        RunState(
            state=spec.state,  # type: ignore[arg-type]
            attempt=1,
            pid=1,
            host="test",
            heartbeat=0.0,
            step=updates,
            horizon=spec.horizon,
            error="Traceback …\nValueError: it broke" if spec.state == "failed" else None,
        ).model_dump(mode="json"),
    )
    if spec.state == "finished":
        write_summary(place, run, spec, rewards, budget.collapse)


def lags_of_batch(run: RunConfig, step: int) -> list[int]:
    """Lags in a uniform batch under schedule=strict: a FIFO buffer holds the rollouts of N·y/B updates."""
    held = max(1, round(run.buffer_size * (run.replay_ratio or 1) / run.batch_size))
    created = {max(0, step - age) for age in range(run.store.delay, run.store.delay + held)}
    return [step - update // run.sync_interval * run.sync_interval for update in created]


def write_metrics(path: Path, run: RunConfig, rewards: np.ndarray, noise: float) -> None:
    import json

    ramp, total, lines = run.optimizer.ramp_updates, 0.0, []
    for step, reward in enumerate(rewards.tolist()):
        rate = run.learning_rate * (min(1.0, (step + 1) / ramp) if ramp else 1.0)
        total += rate
        lag, lags = step % run.sync_interval, lags_of_batch(run, step)
        metrics = UpdateMetrics(
            step=step,
            policy_version=step - lag,
            learning_rate=rate,
            cumulative_rate=total,
            reward=reward,
            reward_standard_error=noise,
            reward_trained=reward,
            informative_share=0.5,
            loss=0.0,
            entropy=1.0,
            clip_fraction=0.0,
            kl=0.0,
            ratio_min=1.0,
            ratio_max=1.0,
            lag_mean=float(np.mean(lags)),
            lag_max=max(lags),
            gradient_norm=1.0,
            gradient_cosine=0.1,
            displacement=total,
            response_length=9.0,
            truncated_share=0.0,
            rollouts_generated=int(run.batch_size / (run.replay_ratio or 1) * (step + 1)),
            rollouts_trained=run.batch_size * (step + 1),
            rollouts_held=0,
            age_mean=float(lag),
            distinct_share=1.0,
        )
        lines.append(json.dumps(asdict(metrics)))
    write_atomic(path, "\n".join(lines) + "\n", durable=False)


def write_summary(
    place: Any, run: RunConfig, spec: RunSpec, rewards: np.ndarray, rule: CollapseRuleConfig
) -> None:
    verdict = judge(rewards.tolist(), [spec.curve.noise] * len(rewards), run.sync_interval, rule)
    summary = Summary(
        run_id=spec.run_id,
        outcome=Outcome(verdict.status),
        updates=len(rewards),
        horizon=spec.horizon,
        cumulative_rate=run.learning_rate * len(rewards),
        collapse=verdict.to_dict(),
        rule_version=RULE_VERSION,
        peak_reward=verdict.peak,
        peak_step=verdict.peak_step,
        final_reward=verdict.final,
        warm_start="0" * 64,
    )
    write_json(place.summary, summary.model_dump(mode="json") | dict(spec.summary_changes))


def write_synthetic_sweep(
    folder: Path,
    specs: Sequence[RunSpec],
    *,
    name: str | None = None,
    description: str = "",
    report: Mapping[str, Any] | None = None,
    ramp_updates: int = 0,
    rule: CollapseRuleConfig | None = None,
    samples: Iterable[Mapping[str, Any]] = (),
) -> SweepPaths:
    """A sweep folder with one run per spec; `samples` are written to every run."""
    paths = SweepPaths(folder)
    configs = [cell_config(spec, ramp_updates, rule or CollapseRuleConfig()) for spec in specs]
    flat = [flatten(config.model_dump(mode="json")) for config in configs]
    varies = [key for key in (flat[0] if flat else {}) if len({repr(one[key]) for one in flat}) > 1]
    axes = [key for key in varies if not key.startswith(("budget.", "resources."))]
    write_sweep(
        paths,
        SweepFile(
            name=name or folder.name,
            preset="synthetic",
            description=description,
            axes={key: list(dict.fromkeys(one[key] for one in flat)) for key in axes},
            fixed={key: value for key, value in (flat[0] if flat else {}).items() if key not in axes},
            cells=[
                Cell(run_id=spec.run_id, values={key: one[key] for key in axes})
                for spec, one in zip(specs, flat, strict=True)
            ],
            history=[{"time": "2026-01-01T00:00:00Z", "overrides": ["sweep=synthetic"], "commit": "abc"}],
            report=dict(report or {}),
        ),
    )
    for spec, config in zip(specs, configs, strict=True):
        write_run_record(paths, spec, config)
        if spec.state != "planned":
            import json

            text = "".join(json.dumps(dict(sample)) + "\n" for sample in samples)
            write_atomic(paths.run(spec.run_id).samples, text, durable=False)
    return paths


@dataclass(frozen=True)
class Truth:
    """Clock t = c2/η^a (in effective updates at rate 1) and boundary η_max = min(cap, q·S^−p)."""

    c2: float = 0.5
    a: float = 1.0
    q: float = 8e-3
    p: float = 0.5
    cap: float = 6e-3
    spread: float = 0.2
    ramp_updates: int = 20

    def spec(
        self, sync_interval: int, learning_rate: float, seed: int = 0, horizon_rate: float = 1.6
    ) -> RunSpec:
        """A run under this truth; horizon = horizon_rate/η, at least 300."""
        horizon = max(300, math.ceil(horizon_rate / learning_rate))
        draw = np.random.default_rng([sync_interval, int(learning_rate * 1e9), seed]).normal()
        time = self.c2 / learning_rate**self.a * math.exp(self.spread * draw)
        collapses = learning_rate >= min(self.cap, self.q * sync_interval**-self.p)
        if not collapses or time > horizon - 60:
            return RunSpec(sync_interval, learning_rate, seed, horizon, Curve(noise=0.03))
        snapshot = max(1, math.ceil((time + (self.ramp_updates - 1) / 2) / sync_interval))
        at = snapshot * sync_interval
        done = min(horizon, at + 25 + max(40, 2 * sync_interval))
        return RunSpec(sync_interval, learning_rate, seed, horizon, Curve(at, noise=0.03), done)


def grid(
    truth: Truth,
    sync_intervals: Sequence[int] = (1, 4, 16, 64),
    learning_rates: Sequence[float] = (1e-3, 2e-3, 4e-3, 8e-3),
    seeds: Sequence[int] = (0,),
) -> list[RunSpec]:
    return [
        truth.spec(interval, rate, seed)
        for interval in sync_intervals
        for rate in learning_rates
        for seed in seeds
    ]
