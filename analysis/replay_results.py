"""`frontier` and `savings` of results.json: every number with the runs it rests on."""

from __future__ import annotations

from typing import Any

from analysis.frontier import SavingRange
from analysis.replay import MUS, Arm, Comparison, Replay
from analysis.results import jsonable


def replay_results(found: Replay) -> dict[str, Any]:
    """Keys `frontier` (arms, each rate, compute to accuracies) and `savings` (comparisons)."""
    content = {
        "frontier": {
            "generation_cost_ratio": found.settings.generation_cost_ratio,
            "measured_generation_cost_ratio": found.measured_mu,
            "accuracy": found.settings.accuracy,
            "arms": [_arm(found, arm) for arm in found.arms],
            "notes": list(found.notes),
        },
        "savings": [_comparison(found, item) for item in found.comparisons],
    }
    clean = jsonable(content)
    assert isinstance(clean, dict)
    return clean


def _arm(found: Replay, arm: Arm) -> dict[str, Any]:
    mu, level = found.settings.generation_cost_ratio, found.settings.accuracy
    best = found.best(arm)
    rates = []
    for trial in arm.trials:
        one = Arm(arm.label, arm.buffer_size, arm.loss, (trial,))
        to = {str(a): found.reached(one, a) for a in sorted({level, *found.settings.accuracies})}
        rates.append(
            {
                "learning_rate": trial.learning_rate,
                "compute_to_accuracy": {a: item.compute for a, item in to.items()},
                "horizon": to[str(level)].horizon,
                "collapsed": trial.collapsed,
                "final": [float(curve.accuracy[-1]) for curve in trial.curves],
                "peak": [float(curve.accuracy.max()) for curve in trial.curves],
                "run_ids": [run.run_id for run in trial.runs],
            }
        )
    return {
        "label": arm.label,
        "buffer_size": arm.buffer_size,
        "loss": arm.loss,
        "uses_per_rollout": arm.uses,
        "cost_per_update": (1 + mu / arm.uses) / (1 + mu),
        "best_learning_rate": best.learning_rate,
        "rates": rates,
    }


def _comparison(found: Replay, item: Comparison) -> dict[str, Any]:
    return {
        "arm": item.arm.label,
        "base": item.base.label,
        "saving": item.saving,
        "range": _range(item.range),
        "left_out": list(item.left_out),
        "break_even": item.break_even,
        "by_generation_cost_ratio": {
            f"{mu:.6g}": value for mu, value in zip(MUS.tolist(), item.by_mu, strict=True)
        },
        "run_ids": {
            "arm": [run.run_id for run in found.best(item.arm).runs],
            "base": [run.run_id for run in found.best(item.base).runs],
        },
    }


def _range(found: SavingRange | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = {"low": found.low, "high": found.high}
    return ends | {"undefined": found.undefined, "resamples": found.resamples}
