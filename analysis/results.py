"""results.json: every number of the report under a stable key, each traceable to run ids.

Ranges are `{"low": …, "high": …}`; an end that the runs do not bound is null, and so is every number that is
not defined. Nothing here depends on when the report was made: equal records give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.boundary import ExponentSet, ProductBracket, RateBracket
from analysis.clock import FeasibleSet
from analysis.clock_posterior import ClockPosterior, Marginal
from analysis.interval_lp import Range
from analysis.joint import Joint
from analysis.joint_report import joint_results
from analysis.load import Records, Run
from analysis.stability import CellResult, Claim, Stability
from trainer.collapse import RULE_VERSION

RESULTS_VERSION = 1


def results(records: Records, found: list[Stability], answers: Sequence[Joint] = ()) -> dict[str, Any]:
    """The content of results.json.

    With one facet its estimates stand at the top level. With several they stand under `facets`, one entry
    each, and only `collapse_table` (whose rows then name their facet) stays at the top.
    """
    facets = [_facet(result) for result in found]
    estimates: dict[str, Any]
    if len(facets) == 1:
        estimates = facets[0]
    else:
        table = [{**row, "facet": facet["facet"]} for facet in facets for row in facet["collapse_table"]]
        estimates = {"collapse_table": table, "facets": facets}
    content = {
        "version": RESULTS_VERSION,
        "rule_version": RULE_VERSION,
        **estimates,
        "joint": joint_results(answers),
        "runs": [_run(run) for run in records.runs],
        "fixed": records.fixed,
        "record_notes": list(records.notes),
        "provenance": [
            {"sweep": sweep.name, "preset": sweep.preset, "axes": sweep.axes, "history": sweep.history}
            for sweep in records.sweeps
        ],
    }
    clean = jsonable(content)
    assert isinstance(clean, dict)
    return clean


def jsonable(value: Any) -> Any:
    """Plain JSON types; NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def _facet(result: Stability) -> dict[str, Any]:
    return {
        "facet": dict(result.facet),
        "collapse_table": [_cell(cell) for cell in result.cells],
        "bracket": _product(result, result.boundary.product, mean_lag=False),
        "bracket_mean_lag": _product(result, result.boundary.mean_lag_product, mean_lag=True),
        "bracket_per_sync_interval": [_rate_bracket(result, item) for item in result.boundary.rates],
        "clock": _clock(result),
        "boundary": _boundary(result),
        "claims": [_claim(claim) for claim in result.claims],
        "settings": result.settings.model_dump(mode="json"),
        "notes": list(result.notes),
    }


def _cell(cell: CellResult) -> dict[str, Any]:
    times, snapshots = cell.time_range() or (None, None), cell.snapshots
    return {
        "sync_interval": cell.sync_interval,
        "learning_rate": cell.learning_rate,
        "seeds": cell.seeds,
        "collapsed": len(cell.collapsed),
        "outcome": cell.outcome,
        "qualified": cell.qualified,
        "snapshot": snapshots[(len(snapshots) - 1) // 2] if snapshots else None,
        "snapshots": snapshots,
        "snapshot_range": _ends(cell.snapshot_range()),
        "t_low": times[0],
        "t_high": times[1],
        "horizon": cell.horizon,
        "needed_cumulative_rate": cell.needed_rate,
        "collapse_probability": _ends(cell.bound),
        "bound": None if cell.bound is None else cell.bound[1],
        "recovered": sum(run.outcome == "recovered" for run in cell.runs),
        "run_ids": [run.run_id for run in cell.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "sweep": run.sweep,
        "sync_interval": run.config.sync_interval,
        "learning_rate": run.config.learning_rate,
        "seed": run.config.seed,
        "outcome": run.outcome,
        "reason": run.reason,
        "updates": run.updates,
        "horizon": None if run.budget is None else run.budget.horizon,
        "cumulative_rate": run.cumulative_rate,
        "collapse_cumulative_rate": _ends(run.collapse_rate),
        "verdict": None if run.verdict is None else run.verdict.to_dict(),
        "warm_start": run.warm_start,
        "kept": run.kept,
    }


def _product(result: Stability, bracket: ProductBracket, *, mean_lag: bool) -> dict[str, Any]:
    """`low` and `high` only where the product separates; the cells at both ends name their runs."""

    def run_ids(outcome: str, product: float | None) -> list[str]:
        return [
            run.run_id
            for cell in result.cells
            if cell.cell is not None
            and cell.sync_interval > 1
            and cell.outcome == outcome
            and (cell.cell.mean_lag_product if mean_lag else cell.cell.product) == product
            for run in cell.runs
        ]

    low, high = bracket.stable_max, bracket.collapsed_min
    separates = bracket.overlap is None
    return {
        "low": low if separates else None,
        "high": high if separates else None,
        "overlap": _ends(bracket.overlap),
        "largest_stable": low,
        "smallest_collapsed": high,
        "run_ids": {
            "largest_stable": run_ids("stable", low),
            "smallest_collapsed": run_ids("collapsed", high),
        },
    }


def _rate_bracket(result: Stability, bracket: RateBracket) -> dict[str, Any]:
    def run_ids(learning_rate: float | None) -> list[str]:
        if learning_rate is None:
            return []
        return [run.run_id for run in result.table[bracket.sync_interval, learning_rate].runs]

    return {
        "sync_interval": bracket.sync_interval,
        "low": bracket.stable_rate,
        "high": bracket.collapsed_rate,
        "mixed": [cell.learning_rate for cell in bracket.mixed],
        "non_monotone": [cell.learning_rate for cell in bracket.non_monotone],
        "run_ids": {"low": run_ids(bracket.stable_rate), "high": run_ids(bracket.collapsed_rate)},
    }


def _clock(result: Stability) -> dict[str, Any]:
    """`exponent` is a with b = 0; `c2` is read at a = 1; both are null where their set is empty."""
    clock = result.clock
    known = bool(clock.rows)
    return {
        "exponent": _ends(clock.feasible.a if known else None),
        "c2": _ends(clock.paper.c2 if known else None),
        "sync_exponent": _ends(clock.feasible_sync.b if known else None),
        "least_slack": clock.feasible.least_slack if known else None,
        "sets": {
            "a_1_b_0": _feasible(clock.paper),
            "b_0": _feasible(clock.feasible),
            "free": _feasible(clock.feasible_sync),
        }
        if known
        else None,
        "posterior": _posterior(clock.posterior),
        "posterior_free": _posterior(clock.posterior_sync),
        "run_ids": clock.run_ids,
        "excluded_run_ids": clock.excluded,
    }


def _feasible(found: FeasibleSet) -> dict[str, Any]:
    return {
        "empty": found.empty,
        "least_slack": found.least_slack,
        "c2": _ends(found.c2),
        "exponent": _ends(found.a),
        "sync_exponent": _ends(found.b),
    }


def _posterior(posterior: ClockPosterior | None) -> dict[str, Any] | None:
    if posterior is None:
        return None
    return {
        "level": posterior.level,
        "exponent": _marginal(posterior.a),
        "sync_exponent": _marginal(posterior.b),
        "c2": _marginal(posterior.c2),
        "spread": _marginal(posterior.spread),
        "reference_learning_rate": posterior.reference.learning_rate,
        "reference_sync_interval": posterior.reference.sync_interval,
    }


def _marginal(marginal: Marginal) -> dict[str, float]:
    return {"median": marginal.median, "low": marginal.low, "high": marginal.high}


def _boundary(result: Stability) -> dict[str, Any]:
    edge, estimate, curve = result.boundary, result.exponent, result.product
    return {
        "exponent": _exponent_set(edge.exponent),
        "mean_lag_exponent": _exponent_set(edge.mean_lag_exponent),
        "capped_exponent": _exponent_set(edge.capped_exponent),
        "constant_product": _ends(edge.constant_product),
        "estimate": None
        if estimate is None
        else {"exponent": estimate.p, **_known_ends(estimate.range), "level": estimate.level},
        "half_product": None
        if curve is None
        else {"product": curve.half_product, **_known_ends(curve.half_product_range), "slope": curve.slope},
    }


def _exponent_set(found: ExponentSet) -> dict[str, Any]:
    return {
        **_known_ends(found.hull or (math.nan, math.nan)),
        "empty": not found.ranges,
        "ranges": [_ends(ends) for ends in found.ranges],
        "least_slack": found.least_slack,
    }


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "law": claim.law.law,
        "verdict": claim.law.verdict,
        "reason": claim.law.reason,
        "intervals": {name: _ends(ends) for name, ends in claim.law.intervals.items()},
        "caveat": claim.caveat,
    }


def _known_ends(ends: Range) -> dict[str, float]:
    return {"low": ends[0], "high": ends[1]}


def _ends(ends: Range | tuple[int, int] | None) -> dict[str, float | None]:
    return {"low": None, "high": None} if ends is None else {"low": ends[0], "high": ends[1]}
