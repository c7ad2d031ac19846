"""Words of the replay section, the same on the page and in the terminal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.frontier import Reached
from analysis.replay import Arm, Comparison, Replay
from analysis.wording import rate


@dataclass(frozen=True)
class ArmRow:
    """One line of the table of arms."""

    arm: str
    rate: str
    tried: str
    """Rates tried."""
    uses: str
    compute: str
    """Compute to the headline accuracy."""
    saving: str
    final: str
    peak: str
    collapsed: str
    run_ids: tuple[str, ...]

    def texts(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        return (
            self.arm,
            self.rate,
            self.tried,
            self.uses,
            self.compute,
            self.saving,
            self.final,
            self.peak,
            self.collapsed,
        )


HEADINGS = ("arm", "best η", "of", "uses y", "compute", "saving", "final", "peak", "collapsed")


def arm_rows(found: Replay) -> list[ArmRow]:
    """One row per arm, at its best rate; savings are against the first comparison's baseline."""
    base = found.comparisons[0].base
    against = {item.arm.label: item for item in found.comparisons if item.base is base}
    return [_row(found, arm, against.get(arm.label)) for arm in found.arms]


def _row(found: Replay, arm: Arm, item: Comparison | None) -> ArmRow:
    trial = found.best(arm)
    finals = [float(curve.accuracy[-1]) for curve in trial.curves]
    peaks = [float(curve.accuracy.max()) for curve in trial.curves]
    runs = sum(len(each.runs) for each in arm.trials)
    return ArmRow(
        arm=arm.label,
        rate=rate(trial.learning_rate),
        tried=str(len(arm.trials)),
        uses=f"{arm.uses:.2f}",
        compute=compute_text(found.reached(arm, found.settings.accuracy)),
        saving="baseline" if item is None else saving_text(item),
        final=_spread(finals),
        peak=_spread(peaks),
        collapsed=f"{sum(each.collapsed for each in arm.trials)} of {runs}",
        run_ids=tuple(run.run_id for each in arm.trials for run in each.runs),
    )


def compute_text(found: Reached) -> str:
    """A number of baseline updates, or that it lies beyond the horizon."""
    return f"> {found.horizon:.0f}" if found.compute is None else f"{found.compute:.0f}"


def saving_text(item: Comparison) -> str:
    """Saving in percent, with its least and greatest over resampled seeds."""
    if item.saving is None:
        return "unknown"
    text = percent(item.saving)
    if item.range is not None:
        text += f" [{percent(item.range.low)}, {percent(item.range.high)}]"
    return text


def percent(value: float) -> str:
    return f"{100 * value:.0f}%".replace("-", "−")


def _spread(values: list[float]) -> str:
    middle = float(np.median(values))
    return f"{middle:.2f} ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else f"{middle:.2f}"


def sentences(found: Replay) -> list[str]:
    """What the comparisons say, one sentence each."""
    settings = found.settings
    said = []
    for item in found.comparisons:
        start = f"{item.arm.label} against {item.base.label}, to accuracy {settings.accuracy:g}"
        if item.saving is None:
            said.append(f"{start}: cannot tell, as one of them did not reach it.")
            continue
        text = f"{start} at μ = {settings.generation_cost_ratio:g}: saving {saving_text(item)}"
        known = [value for value in item.left_out if value is not None]
        if item.left_out:
            missing = len(item.left_out) - len(known)
            scored = ", ".join(percent(value) for value in known) or "none"
            text += f"; rates chosen without a seed and scored on it: {scored}"
            text += f" ({missing} not reached)" if missing else ""
        if item.break_even is not None:
            text += f"; breaks even at μ = {item.break_even:.2g}"
        elif all(value is not None and value >= 0 for value in item.by_mu):
            text += "; saves at every μ shown"
        elif all(value is None or value < 0 for value in item.by_mu):
            text += "; saves at no μ shown"
        best = found.best(item.arm)
        if best.collapsed:
            text += f"; {best.collapsed} of {len(best.runs)} runs at its best η collapsed"
        said.append(text + ".")
    return said


def caveats(found: Replay) -> list[str]:
    """What a reader has to know before believing the table."""
    seeds = {len(trial.runs) for arm in found.arms for trial in arm.trials}
    least = min(seeds)
    measured = (
        f" This machine's own ratio was {found.measured_mu:.2g}, so its wall time shows another saving."
        if found.measured_mu is not None
        else ""
    )
    lines = [
        "One unit of compute is one update of the baseline: generating a batch and training on it once. "
        f"The cost ratio μ = {found.settings.generation_cost_ratio:g} is declared, not measured.{measured}",
        f"Brackets are the least and the greatest saving over all resamples of {least} seeds with the rates "
        "chosen on all of them; they are no 95% interval. Choosing the best of several rates flatters both "
        "sides: the savings on left-out seeds say by how much.",
    ]
    if least < 6:
        lines.append(f"{least} {'seed' if least == 1 else 'seeds'} of a toy: no law is confirmed by this.")
    return lines
