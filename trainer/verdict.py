"""What the collapse rule says about one run; how it comes to say so is specified in `trainer.collapse`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["stable", "pending", "collapsed", "recovered", "undetectable"]


@dataclass(frozen=True)
class Verdict:
    """What one run shows up to its last update. Steps are update indices from 0; None is nothing to tell."""

    status: Status
    rule_version: str
    sync_interval: int
    updates: int
    missing: int
    """Updates without a finite reward."""
    reference: float | None
    """Reference level: at the alarm for a collapsed run, so far otherwise."""
    peak: float | None
    peak_step: int | None
    final: float | None
    """Average at the end."""
    alarm_step: int | None = None
    confirmed_step: int | None = None
    onset: int | None = None
    onset_low: int | None = None
    onset_high: int | None = None
    snapshot: int | None = None
    """M, the first collapsed snapshot."""
    snapshot_low: int | None = None
    snapshot_high: int | None = None
    t_low: int | None = None
    t_high: int | None = None
    """The policy left the stable region in updates (t_low, t_high]."""
    gradual: bool = False
    recovered_step: int | None = None
    """Update that completed the latest recovery."""
    relapsed_step: int | None = None
    """Update that confirmed the latest collapse after a recovery."""
    recovery_watched: int | None = None
    """Updates seen after the confirmation; 0 means recovery was not watched."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, keys as the attributes."""
        return asdict(self)
