"""Where training is stable and when it collapses: judged runs → cells → clock → brackets → laws.

The order matters. Whether a stable run went on long enough depends on the clock (decision 13), and the clock
rests on collapsed runs alone, so there is no circle: collapsed runs give the clock, the clock qualifies the
stable cells, cells and brackets come last.

S = 1 stays out of the clock: it has no lag, so what kills it is not staleness.

A run that *recovered* did collapse: its reward fell and stayed down as long as confirmation takes, and on a
larger model it would have been given up there. By default it therefore counts as collapsed and its onset
enters the clock; it keeps its own mark everywhere, and `recovered: stable` in the sweep's report settings
counts it the other way (math.md E).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field

from analysis.boundary import Boundary, Cell, boundary
from analysis.claims import LawVerdict, boundary_law, clock_law
from analysis.clock import CollapseInterval, FeasibleSet, feasible_set
from analysis.clock_posterior import ClockPosterior, clock_posterior, qualifying_cumulative_rate
from analysis.collapse_probability import (
    ExponentEstimate,
    ProductCurve,
    clopper_pearson,
    exponent_estimate,
    product_curve,
)
from analysis.interval_lp import Range
from analysis.load import Run
from analysis.replay import ReplaySettings
from trainer.schema import Section

CellState = Literal[
    "stable", "collapsed", "mixed", "unqualified", "pending", "undetectable", "incomplete", "invalid"
]


class ReportSettings(Section):
    """`report` in a sweep's preset."""

    clock_max_learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Collapses at higher rates stay out of the clock."""
    clock_reason: str = ""
    """Why, printed beside it."""
    recovered: Literal["collapsed", "stable"] = "collapsed"
    """How runs that recovered from a collapse are counted."""
    spread_scale: Annotated[float, Field(gt=0)] = 0.5
    """Scale of the half-normal prior on the spread of log collapse times."""
    kappa: Annotated[float, Field(ge=1)] = 2.0
    """Where only a set of clocks is known, stable means uncollapsed at κ·c2."""
    replay: ReplaySettings = ReplaySettings()
    """Settings of the replay section."""


@dataclass(frozen=True)
class CellResult:
    """All seeds of one (S, η)."""

    sync_interval: int
    learning_rate: float
    runs: tuple[Run, ...]
    """Every seed, whatever came of it."""
    collapsed: tuple[Run, ...]
    uncollapsed: tuple[Run, ...]
    """Stable to their horizon; with `collapsed` the runs that count."""
    needed_rate: float | None
    """Λ that an uncollapsed run must pass to qualify; None where no clock says."""

    @property
    def seeds(self) -> int:
        """n: runs that count."""
        return len(self.collapsed) + len(self.uncollapsed)

    @property
    def undecided(self) -> tuple[Run, ...]:
        """Runs that ended without showing stability or collapse; they keep a cell from being stable."""
        return tuple(run for run in self.runs if run.outcome in ("pending", "undetectable"))

    @property
    def qualified(self) -> bool:
        """Every uncollapsed run passed the needed Λ and no run was left undecided (decision 13)."""
        return (
            self.needed_rate is not None
            and all(run.cumulative_rate > self.needed_rate for run in self.uncollapsed)
            and not self.undecided
        )

    @property
    def cell(self) -> Cell | None:
        """The cell as the estimators see it; None where no run counts or nothing is learned (η = 0)."""
        if not self.seeds or self.learning_rate <= 0:
            return None
        return Cell(self.sync_interval, self.learning_rate, len(self.collapsed), self.seeds, self.qualified)

    @property
    def outcome(self) -> CellState:
        if self.seeds and not self.uncollapsed:
            return "collapsed"
        if self.seeds and self.collapsed:
            return "mixed"
        if self.seeds:
            return "stable" if self.qualified else "unqualified"
        others = {run.outcome for run in self.runs}
        order: tuple[CellState, ...] = ("pending", "undetectable", "invalid", "incomplete")
        return next((state for state in order if state in others), "incomplete")

    @property
    def bound(self) -> Range | None:
        """95% Clopper–Pearson interval for the probability of collapse."""
        return clopper_pearson(len(self.collapsed), self.seeds) if self.seeds else None

    @property
    def horizon(self) -> int | None:
        """h of "stable to h": fewest updates of an uncollapsed run; None where all collapsed."""
        return min((run.updates for run in self.uncollapsed), default=None)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """M of each collapsed run, ascending."""
        return tuple(
            sorted(
                run.verdict.snapshot
                for run in self.collapsed
                if run.verdict is not None and run.verdict.snapshot is not None
            )
        )

    def snapshot_range(self) -> tuple[int, int] | None:
        """Least and greatest M that the collapsed runs' intervals allow."""
        lows = [r.verdict.snapshot_low for r in self.collapsed if r.verdict and r.verdict.snapshot_low]
        highs = [r.verdict.snapshot_high for r in self.collapsed if r.verdict and r.verdict.snapshot_high]
        return (min(lows), max(highs)) if lows and highs else None

    def time_range(self) -> tuple[int, int] | None:
        """(t_low, t_high] in updates, over all collapsed runs."""
        verdicts = [run.verdict for run in self.collapsed if run.verdict is not None]
        lows = [verdict.t_low for verdict in verdicts if verdict.t_low is not None]
        highs = [verdict.t_high for verdict in verdicts if verdict.t_high is not None]
        return (min(lows), max(highs)) if lows and highs else None


@dataclass(frozen=True)
class Clock:
    """What the collapsed runs with S ≥ 2 say about the time to collapse."""

    rows: tuple[CollapseInterval, ...]
    run_ids: tuple[str, ...]
    """The run behind each row."""
    excluded: tuple[str, ...]
    """Collapsed runs with S ≥ 2 above `clock_max_learning_rate`."""
    feasible: FeasibleSet
    """a free, b = 0."""
    feasible_sync: FeasibleSet
    """a and b free."""
    paper: FeasibleSet
    """a = 1, b = 0: the paper's clock, t = c2/η."""
    posterior: ClockPosterior | None
    """a free, b = 0; it qualifies the stable runs."""
    posterior_sync: ClockPosterior | None
    """a and b free; None where all rows have one S."""

    def needed_rate(self, learning_rate: float, kappa: float) -> float | None:
        """Λ that a stable run at this rate must pass; None where the rows give no clock."""
        if learning_rate <= 0:
            return None
        return qualifying_cumulative_rate(self.posterior, self.paper, learning_rate, kappa=kappa)


@dataclass(frozen=True)
class Claim:
    """Verdict on a law, with what stands between it and a confirmation."""

    law: LawVerdict
    caveat: str


@dataclass(frozen=True)
class Stability:
    """The answer to the stability question for one set of runs that may be pooled."""

    facet: Mapping[str, Any]
    """Values of further axes that these runs share."""
    settings: ReportSettings
    runs: tuple[Run, ...]
    cells: tuple[CellResult, ...]
    """Ascending in learning rate, then sync interval."""
    clock: Clock
    boundary: Boundary
    exponent: ExponentEstimate | None
    product: ProductCurve | None
    claims: tuple[Claim, Claim]
    """On the boundary law and on the clock law."""
    notes: tuple[str, ...]

    @property
    def sync_intervals(self) -> tuple[int, ...]:
        return tuple(sorted({cell.sync_interval for cell in self.cells}))

    @property
    def learning_rates(self) -> tuple[float, ...]:
        return tuple(sorted({cell.learning_rate for cell in self.cells}))

    @cached_property
    def table(self) -> dict[tuple[int, float], CellResult]:
        """Cell by (S, η); settings outside the grid are absent."""
        return {(cell.sync_interval, cell.learning_rate): cell for cell in self.cells}


def stability(
    runs: Sequence[Run], settings: ReportSettings | None = None, facet: Mapping[str, Any] | None = None
) -> Stability:
    """Everything the runs show; any number of runs with any outcome, none included."""
    settings = settings or ReportSettings()
    clock = fit_clock(runs, settings)
    cells = _cells(runs, clock, settings)
    counted = [cell.cell for cell in cells if cell.cell is not None]
    edge = boundary(counted)
    return Stability(
        facet=dict(facet or {}),
        settings=settings,
        runs=tuple(runs),
        cells=cells,
        clock=clock,
        boundary=edge,
        exponent=exponent_estimate(counted),
        product=product_curve(counted),
        claims=(
            Claim(boundary_law(edge), _boundary_caveat(cells)),
            Claim(clock_law(clock.rows, spread_scale=settings.spread_scale), _clock_caveat(runs, clock)),
        ),
        notes=tuple(_notes(runs, cells, clock, settings)),
    )


def fit_clock(runs: Sequence[Run], settings: ReportSettings) -> Clock:
    """Clock from the collapsed runs with S ≥ 2 and no rate above `clock_max_learning_rate`."""
    stale = [
        run
        for run in runs
        if counts_as_collapsed(run, settings) and run.config.sync_interval > 1 and run.collapse_rate
    ]
    highest = settings.clock_max_learning_rate or math.inf
    used = [run for run in stale if run.config.learning_rate <= highest * (1 + 1e-9)]
    rows = tuple(_interval(run) for run in used)
    several_intervals = len({row.sync_interval for row in rows}) > 1
    scale = settings.spread_scale
    return Clock(
        rows=rows,
        run_ids=tuple(run.run_id for run in used),
        excluded=tuple(run.run_id for run in stale if run not in used),
        feasible=feasible_set(rows),
        feasible_sync=feasible_set(rows, b=None),
        paper=feasible_set(rows, a=1.0),
        posterior=clock_posterior(rows, spread_scale=scale),
        posterior_sync=clock_posterior(rows, spread_scale=scale, b=None) if several_intervals else None,
    )


def counts_as_collapsed(run: Run, settings: ReportSettings) -> bool:
    return run.outcome == "collapsed" or (run.outcome == "recovered" and settings.recovered == "collapsed")


def counts_as_uncollapsed(run: Run, settings: ReportSettings) -> bool:
    return run.outcome == "stable" or (run.outcome == "recovered" and settings.recovered == "stable")


def _interval(run: Run) -> CollapseInterval:
    """Collapse interval in effective updates Λ/η, so that a ramp does not bend the slope (decision 12)."""
    assert run.collapse_rate is not None
    rate = run.config.learning_rate
    low, high = (end / rate for end in run.collapse_rate)
    return CollapseInterval(run.config.sync_interval, rate, low, high, run.config.seed)


def _cells(runs: Sequence[Run], clock: Clock, settings: ReportSettings) -> tuple[CellResult, ...]:
    groups: dict[tuple[float, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.config.learning_rate, run.config.sync_interval), []).append(run)
    needed = {rate: clock.needed_rate(rate, settings.kappa) for rate, _ in groups}
    return tuple(
        CellResult(
            sync_interval=interval,
            learning_rate=rate,
            runs=tuple(sorted(group, key=lambda run: run.config.seed)),
            collapsed=tuple(run for run in group if counts_as_collapsed(run, settings)),
            uncollapsed=tuple(run for run in group if counts_as_uncollapsed(run, settings)),
            needed_rate=needed[rate],
        )
        for (rate, interval), group in sorted(groups.items())
    )


def _boundary_caveat(cells: Sequence[CellResult]) -> str:
    used = [
        cell for cell in cells if cell.sync_interval > 1 and cell.outcome in ("stable", "collapsed", "mixed")
    ]
    seeds = sorted({cell.seeds for cell in used})
    said = f"Rests on {len(used)} cells with S > 1"
    if seeds:
        said += f" of {_span(seeds)} seed{'' if seeds == [1] else 's'} each"
    rates = sorted({cell.learning_rate for cell in used if cell.learning_rate > 0})
    steps = [high / low for low, high in pairwise(rates)]
    if steps:
        said += f"; between rates a factor {max(steps):.3g} apart nothing was tried"
    return f"{said}. It speaks of this model and task only."


def _clock_caveat(runs: Sequence[Run], clock: Clock) -> str:
    said = f"Rests on {len(clock.rows)} collapsed run{'' if len(clock.rows) == 1 else 's'} with S > 1"
    horizons = {run.budget.horizon for run in runs if run.budget is not None and run.complete}
    if len(horizons) > 1:
        said += (
            "; horizons differ between rates, and a horizon that shrinks as η grows hides late collapses "
            "at high rates, which can fake the slope"
        )
    return f"{said}. It speaks of this model and task only."


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _notes(
    runs: Sequence[Run], cells: Sequence[CellResult], clock: Clock, settings: ReportSettings
) -> list[str]:
    """Sentences without which the table could be misread."""
    notes = []
    if clock.excluded:
        why = f": {settings.clock_reason.rstrip('.')}" if settings.clock_reason else ""
        notes.append(
            f"{_count(clock.excluded, 'collapse')} at η > {settings.clock_max_learning_rate:g} "
            f"{_are(clock.excluded)} left out of the clock{why}."
        )
    recovered = [run for run in runs if run.outcome == "recovered"]
    if recovered:
        notes.append(
            f"{_count(recovered, 'run')} recovered after a confirmed collapse (marked r); counted as "
            f"{settings.recovered}."
        )
    unwatched = [run for run in runs if run.outcome == "collapsed" and not _watched(run)]
    if unwatched:
        notes.append(f"{_count(unwatched, 'run')} ended at the confirmation: recovery was not watched.")
    gradual = [run for run in runs if run.verdict is not None and run.verdict.gradual]
    if gradual:
        notes.append(
            f"{_count(gradual, 'collapse')} came as a slide, not as a drop; the interval of M is too narrow "
            f"there: {', '.join(run.run_id for run in gradual)}."
        )
    for outcome, meaning in _LEFT_OUT.items():
        found = [run for run in runs if run.outcome == outcome]
        if found:
            notes.append(f"{_count(found, 'run')} {_are(found)} {outcome}: {meaning}.")
    if not clock.rows and any(cell.outcome == "unqualified" for cell in cells):
        notes.append(
            "No collapsed run with S > 1 gives a clock, so nothing says how long is long enough: "
            "no stable cell qualifies."
        )
    return notes


_LEFT_OUT = {
    "incomplete": "not used for anything",
    "pending": "the reward was down when the run ended, too briefly to confirm a collapse; extend them",
    "undetectable": "the reward never rose enough for a drop to be seen, which is not stability",
    "invalid": "not used for anything",
}


def _watched(run: Run) -> bool:
    return run.verdict is None or bool(run.verdict.recovery_watched)


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _are(items: Sequence[object]) -> str:
    return "is" if len(items) == 1 else "are"
