"""Replay economics of a sweep: its arms, each at its best rate, and what they save against the baseline.

An *arm* is everything scientific but learning rate and seed. Baselines are arms without a buffer: GRPO's
for all, and for an arm with another loss also its own. All arms are to be tried at the same rates (decision
19); the cost ratio μ is declared, and one run answers every μ (decision 18).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from analysis.frontier import (
    Curve,
    Floats,
    Reached,
    SavingRange,
    break_even,
    compute_to,
    curve_of,
    saving,
    saving_range,
)
from analysis.load import Records, Run
from trainer.fields import Positive
from trainer.files import read_lines
from trainer.schema import Section

MUS: Floats = np.geomspace(0.25, 32, 57)


class ReplaySettings(Section):
    """`report.replay` of a preset."""

    generation_cost_ratio: Positive = 5.0
    """μ at which tables are made and rates chosen."""
    accuracy: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Accuracy at which rates are chosen and savings headlined."""
    accuracies: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=lambda: [round(0.5 + 0.025 * k, 3) for k in range(19)]
    )
    """Accuracies of the compute-to-accuracy table and figure."""


@dataclass(frozen=True)
class Trial:
    """One arm at one rate: its seeds."""

    learning_rate: float
    runs: tuple[Run, ...]
    curves: tuple[Curve, ...]

    @property
    def collapsed(self) -> int:
        return sum(run.outcome in ("collapsed", "recovered") for run in self.runs)


@dataclass(frozen=True)
class Arm:
    """One arm at all its rates."""

    label: str
    buffer_size: int
    loss: str
    trials: tuple[Trial, ...]
    """By rate, increasing."""

    def best(self, level: float, mu: float) -> Trial:
        """The rate with the least compute to an accuracy; the highest peak where none reaches it."""

        def rank(trial: Trial) -> tuple[float, float]:
            found = compute_to(trial.curves, level, mu).compute
            peak = np.median([curve.accuracy.max() for curve in trial.curves])
            return (math.inf if found is None else found, -float(peak))

        return min(self.trials, key=rank)

    @cached_property
    def uses(self) -> float:
        """y as measured: uses per rollout generated, over all runs."""
        trained = sum(curve.trained[-1] for trial in self.trials for curve in trial.curves)
        generated = sum(curve.generated[-1] for trial in self.trials for curve in trial.curves)
        return float(trained / generated) if generated else math.nan


@dataclass(frozen=True)
class Comparison:
    """An arm against a baseline, each at its best rate for the headline accuracy and μ."""

    arm: Arm
    base: Arm
    saving: float | None
    range: SavingRange | None
    """Least and most over resampled seeds, rates as chosen on all of them."""
    left_out: tuple[float | None, ...]
    """Rates chosen without one seed, saving on that seed; one entry per seed."""
    by_mu: tuple[float | None, ...]
    """Saving at each of `MUS`, rates chosen anew for each."""
    break_even: float | None


@dataclass(frozen=True)
class Replay:
    """What a sweep says about replay."""

    settings: ReplaySettings
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    measured_mu: float | None
    """Seconds to generate a rollout over seconds to train on it, on the machine that ran the baseline."""
    notes: tuple[str, ...] = field(default=())

    def best(self, arm: Arm) -> Trial:
        return arm.best(self.settings.accuracy, self.settings.generation_cost_ratio)

    def reached(self, arm: Arm, level: float) -> Reached:
        """Compute of the arm, at its headline rate, to an accuracy."""
        return compute_to(self.best(arm).curves, level, self.settings.generation_cost_ratio)


def replay(records: Records, settings: ReplaySettings) -> Replay | None:
    """None where the sweep has fewer than two arms with evaluations, or none of them is a baseline."""
    arms = _arms(records)
    plain = next((arm for arm in arms if not arm.buffer_size and arm.loss == "grpo"), None)
    if plain is None or len(arms) < 2:
        return None
    comparisons = [_compare(arm, plain, settings) for arm in arms if arm is not plain]
    for arm in arms:
        own = next((other for other in arms if not other.buffer_size and other.loss == arm.loss), None)
        if arm.buffer_size and own is not None and own is not plain:
            comparisons.append(_compare(arm, own, settings))
    return Replay(settings, tuple(arms), tuple(comparisons), _measured_mu(plain), _notes(arms))


def _arms(records: Records) -> list[Arm]:
    groups: dict[str, list[tuple[Run, Curve]]] = {}
    for run in records.runs:
        curve = curve_of(run.evaluations(), run.metrics, run.config.batch_size) if run.complete else None
        if curve is not None and len(curve.steps) > 1:
            science = {k: v for k, v in run.science.items() if k not in ("learning_rate", "seed")}
            groups.setdefault(repr(science), []).append((run, curve))
    names = _varying([found[0][0] for found in groups.values()])
    arms = []
    for found in groups.values():
        rates = sorted({run.config.learning_rate for run, _ in found})
        trials = []
        for rate in rates:
            own = [(run, curve) for run, curve in found if run.config.learning_rate == rate]
            own.sort(key=lambda pair: pair[0].config.seed)
            trials.append(Trial(rate, tuple(run for run, _ in own), tuple(curve for _, curve in own)))
        first = found[0][0]
        config = first.config
        arms.append(Arm(_label(first, names), config.buffer_size, config.loss.kind, tuple(trials)))
    return arms


def _varying(runs: Sequence[Run]) -> list[str]:
    names = runs[0].science if runs else {}
    return [
        name
        for name in names
        if name not in ("learning_rate", "seed") and len({str(run.science[name]) for run in runs}) > 1
    ]


_SYMBOLS = {"buffer_size": "N", "replay_ratio": "y", "store.positive_share": "δ", "sync_interval": "S"}
_LOSSES = {"grpo": "GRPO", "asymre": "AsymRE", "truncated": "truncated weights"}


def _label(run: Run, names: Sequence[str]) -> str:
    """What tells an arm from the others of its sweep, short."""
    parts = [] if run.config.buffer_size else ["no buffer"]
    for name in names:
        value = run.science[name]
        if name == "loss.kind":
            if value != "grpo":
                parts.insert(0, _LOSSES[value])
        elif name in ("buffer_size", "replay_ratio", "store.positive_share"):
            if value:
                parts.append(f"{_SYMBOLS[name]}={value:g}")
        else:
            shown = f"{value:g}" if isinstance(value, float) else value
            parts.append(f"{_SYMBOLS.get(name, name.rsplit('.', 1)[-1])}={shown}")
    return ", ".join(parts)


def _compare(arm: Arm, base: Arm, settings: ReplaySettings) -> Comparison:
    level, mu = settings.accuracy, settings.generation_cost_ratio
    one, other = base.best(level, mu), arm.best(level, mu)
    by_mu = tuple(
        saving(
            compute_to(base.best(level, each).curves, level, each),
            compute_to(arm.best(level, each).curves, level, each),
        )
        for each in MUS.tolist()
    )
    return Comparison(
        arm=arm,
        base=base,
        saving=saving(compute_to(one.curves, level, mu), compute_to(other.curves, level, mu)),
        range=saving_range(one.curves, other.curves, level, mu, quantiles=(0.0, 1.0)),
        left_out=_left_out(arm, base, level, mu),
        by_mu=by_mu,
        break_even=break_even(MUS, by_mu),
    )


def _left_out(arm: Arm, base: Arm, level: float, mu: float) -> tuple[float | None, ...]:
    """Choose both rates without a seed, score on it: what choosing the best of several costs."""
    seeds = sorted({run.config.seed for trial in (*arm.trials, *base.trials) for run in trial.runs})
    found: list[float | None] = []
    for seed in seeds if len(seeds) > 1 else ():
        scored: list[Reached] = []
        for side in (base, arm):
            others = _with(side, lambda run, out=seed: run.config.seed != out)
            alone = _with(side, lambda run, out=seed: run.config.seed == out)
            if others is None or alone is None:
                break
            chosen = others.best(level, mu).learning_rate
            trial = next((trial for trial in alone.trials if trial.learning_rate == chosen), None)
            if trial is None:
                break
            scored.append(compute_to(trial.curves, level, mu))
        found.append(saving(*scored) if len(scored) == 2 else None)
    return tuple(found)


def _with(arm: Arm, keep: Any) -> Arm | None:
    trials = []
    for trial in arm.trials:
        pairs = [pair for pair in zip(trial.runs, trial.curves, strict=True) if keep(pair[0])]
        if pairs:
            runs, curves = zip(*pairs, strict=True)
            trials.append(Trial(trial.learning_rate, runs, curves))
    return Arm(arm.label, arm.buffer_size, arm.loss, tuple(trials)) if trials else None


def _measured_mu(base: Arm) -> float | None:
    """From the phase times of a baseline, in which as many rollouts are generated as trained on."""
    ratios = []
    for trial in base.trials:
        for run in trial.runs:
            lines = read_lines(run.paths.timings)
            generate = sum(line.get("generate", 0.0) for line in lines)
            train = sum(line.get("learn", 0.0) + line.get("optimizer", 0.0) for line in lines)
            if train > 0:
                ratios.append(generate / train)
    return float(np.median(ratios)) if ratios else None


def _notes(arms: Sequence[Arm]) -> tuple[str, ...]:
    notes = []
    tried = {len(arm.trials) for arm in arms}
    if len(tried) > 1:
        counts = ", ".join(f"{arm.label}: {len(arm.trials)}" for arm in arms)
        notes.append(
            f"The arms were not tried at equally many rates ({counts}): the larger family wins by selection."
        )
    for arm in arms:
        seeds = {len(trial.runs) for trial in arm.trials}
        if len(seeds) > 1:
            notes.append(f"{arm.label}: not every rate has the same number of finished seeds.")
    return tuple(notes)
