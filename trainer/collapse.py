"""The collapse rule for runs that record a reward per learner update: the specification (math.md C1, E).

Input, once per update t = 0, 1, …: x_t, the mean reward of all rollouts generated for that update, before
any selection; and its standard error s_t, the standard deviation of the prompt-group means over √(prompts),
or None. Rewards are on a scale on which 0 is failure. A missing x_t (None, NaN, ±inf) is counted and
otherwise skipped: it moves no average and neither lengthens nor breaks a spell.

Average     e_t, the mean of all rewards so far with weights that halve every h = `half_life` updates:
            W ← 1 + W·2^(−1/h), e ← e + (x − e)/W. With a = 1/W its variance obeys v ← (1 − a)²v + a²s²,
            which settles at s²·a/(2 − a): at h = 5, sd(e) = 0.263 s. An unknown s leaves v as it is (0 if
            none was ever known).
Reference   running maximum of e once more than `reference_after` rewards were seen. The run is *at level*
            while e ≥ recovery_level·reference.
Visible     Let floor = max(min_abs, z·√v), the least fall the rule tells from noise, and `start` the mean
            of the first `start_updates` rewards. A drop can be seen once the run is at level, the reference
            is ≥ 2·floor, and either start ≥ 2.5·floor or reference − start ≥ floor; that stays so.
            Why: half of a reference below 2·floor is no visible fall. And the maximum of a noisy flat curve
            at 0.18 does cross 0.2 sooner or later, so a start without clear room must be left by a rise as
            large as the falls the rule accepts. A warm start at 0.18 that sinks to 0 is thus never called
            collapsed or stable; a run that starts at 0.9 and stays there is stable.
Candidate   visible, e < (1 − drop)·reference and reference − e > floor. Consecutive candidates form a
            spell, its first update is the alarm. One update without the condition ends it.
Collapsed   a spell of `confirm` updates. The average lags, so the alarm is not the onset: that is the
            change point of one drop in the raw rewards (`trainer.onset`), searched between the last update
            at level and the alarm and fitted on all rewards up to the confirmation. The search starts
            earlier by the longest time e stays at level after a drop, log2(drop/(recovery_level − 1 + drop))
            half-lives, and by one half-life more to show the level before. At most about `WINDOW_LIMIT`
            rewards are looked back over.
Snapshot    M = max(1, ⌊onset/S⌋); M_low, M_high the same of the likelihood interval. The policy left the
            stable region in updates (t_low, t_high] = ((M_low − 1)·S, M_high·S] (math.md B1).
Gradual     the last update at level lies max(2S, 2·half_life) or more before the onset: a slide, for which
            one drop is a poor model and the likelihood interval too narrow.
Recovered   after a collapse, e > recovery_level·reference for `confirm` updates in a row. The spell rule
            then runs on: a relapse makes the run collapsed again, with the onset of the first collapse.

Status of a series, in this order: collapsed or recovered; `pending`, it ends inside an unconfirmed spell;
`undetectable`, no drop could have been seen so far (too short, or never visible; not to be counted as
stable); `stable`, no collapse up to the end of the series. A confirmed onset never changes with later
rewards; the verdict at any prefix is what the detector said at that update. `judge` is the detector fed
from a list.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.onset import Onset, change_point
from trainer.verdict import Status, Verdict

RULE_VERSION = "1"
"""Changes whenever the same rewards could get another verdict."""

WINDOW_LIMIT = 512
"""Most rewards below reference level that the onset search looks back over; bounds the checkpoint."""


class CollapseRuleConfig(BaseModel):
    """Thresholds of the rule, defaults chosen on labelled curves; the module text gives each one its part."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    drop: float = Field(default=0.5, gt=0, lt=1)
    """Share of the reference that must be lost."""
    min_abs: float = Field(default=0.1, gt=0)
    """Least loss, in reward."""
    z: float = Field(default=4.0, ge=0)
    """Least loss, in standard deviations of the average."""
    half_life: float = Field(default=5.0, gt=0)
    """Half-life of the average, in updates."""
    reference_after: int = Field(default=5, ge=0)
    """Rewards that only warm the average up, before the reference starts."""
    start_updates: int = Field(default=10, ge=1)
    """Rewards whose mean is the starting level."""
    confirm: int = Field(default=20, ge=1)
    """Updates in a row that confirm a collapse, and a recovery."""
    recovery_level: float = Field(default=0.8, gt=0, le=1)
    """Share of the reference that counts as back (or still) at reference level."""

    @model_validator(mode="after")
    def _levels_apart(self) -> Self:
        if self.recovery_level <= 1 - self.drop:
            raise ValueError(
                f"recovery_level={self.recovery_level} is not above the collapse line 1 - drop = "
                f"{1 - self.drop:g}: raise recovery_level or drop"
            )
        return self


@dataclass(frozen=True)
class _Collapse:
    """The first confirmed collapse; never changes afterwards."""

    alarm_step: int
    confirmed_step: int
    onset: Onset
    reference: float
    gradual: bool


@dataclass
class _State:
    """All the detector remembers, in JSON types but for `window` and `collapse`."""

    updates: int = 0
    missing: int = 0
    weight: float = 0.0
    average: float = 0.0
    variance: float = 0.0
    start_sum: float = 0.0
    visible: bool = False
    reference: float | None = None
    reference_step: int | None = None
    at_level_step: int = -1
    window: deque[tuple[int, float]] = field(default_factory=deque)
    """(update, reward) of the latest rewards, as far back as the onset search may look; empty after it."""
    spell: int = 0
    alarm_step: int | None = None
    collapse: _Collapse | None = None
    down: bool = False
    back_up: int = 0
    """Updates in a row above the recovery level while down."""
    recovered_step: int | None = None
    relapsed_step: int | None = None


class CollapseDetector:
    """The rule, fed update by update at constant cost; only the confirmation computes a change point."""

    def __init__(self, config: CollapseRuleConfig, sync_interval: int) -> None:
        if sync_interval < 1:
            raise ValueError(
                f"sync_interval={sync_interval} is below 1: give the updates between weight syncs"
            )
        self.config = config
        self.sync_interval = sync_interval
        # plain attributes: pydantic field access on every update would cost more than the rule
        self._decay = 2.0 ** (-1.0 / config.half_life)
        # a fall of just `drop` leaves the average at reference level for this many half-lives
        lag = math.log2(config.drop / (config.recovery_level + config.drop - 1.0))
        self._lead = math.ceil((lag + 1.0) * config.half_life)
        self._window_limit = WINDOW_LIMIT + self._lead + config.confirm
        self._state = _State()

    def update(self, reward: float | None, standard_error: float | None = None) -> None:
        """Take in the next update's mean reward and standard error; None and non-finite mean unknown."""
        state = self._state
        step = state.updates
        state.updates += 1
        value = _known(reward)
        if value is None:
            state.missing += 1
            return
        if state.collapse is None:
            state.window.append((step, value))
            if len(state.window) > self._window_limit:
                state.window.popleft()
        self._average(value, _known(standard_error))
        seen = state.updates - state.missing
        if seen <= self.config.start_updates:
            state.start_sum += value
        if seen > self.config.reference_after:
            if state.reference is None or state.average > state.reference:
                state.reference, state.reference_step = state.average, step
            if not state.visible:
                state.visible = self._drop_visible(state.reference, seen)
        if state.down:
            self._watch_recovery(step)
        else:
            self._watch_drop(step)

    @property
    def status(self) -> Status:
        """Status of the series so far."""
        state = self._state
        if state.collapse is not None:
            return "collapsed" if state.down else "recovered"
        if state.alarm_step is not None:
            return "pending"
        return "stable" if state.visible else "undetectable"

    def verdict(self) -> Verdict:
        """All there is to say so far; cheap enough to ask for at any update."""
        state, S = self._state, self.sync_interval
        seen = state.updates - state.missing
        common: dict[str, Any] = {
            "status": self.status,
            "rule_version": RULE_VERSION,
            "sync_interval": S,
            "updates": state.updates,
            "missing": state.missing,
            "peak": state.reference,
            "peak_step": state.reference_step,
            "final": state.average if seen else None,
        }
        collapse = state.collapse
        if collapse is None:
            return Verdict(reference=state.reference, alarm_step=state.alarm_step, **common)
        onset = collapse.onset
        low, high = snapshot_of(onset.low, S), snapshot_of(onset.high, S)
        return Verdict(
            reference=collapse.reference,
            alarm_step=collapse.alarm_step,
            confirmed_step=collapse.confirmed_step,
            onset=onset.step,
            onset_low=onset.low,
            onset_high=onset.high,
            snapshot=snapshot_of(onset.step, S),
            snapshot_low=low,
            snapshot_high=high,
            t_low=(low - 1) * S,
            t_high=high * S,
            gradual=collapse.gradual,
            recovered_step=state.recovered_step,
            relapsed_step=state.relapsed_step,
            recovery_watched=state.updates - 1 - collapse.confirmed_step,
            **common,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly here, in JSON types; floats survive JSON bit for bit."""
        state = {f.name: getattr(self._state, f.name) for f in fields(_State)}
        state["window"] = [list(entry) for entry in self._state.window]
        state["collapse"] = None if self._state.collapse is None else asdict(self._state.collapse)
        return {
            "rule_version": RULE_VERSION,
            "config": self.config.model_dump(),
            "sync_interval": self.sync_interval,
            "state": state,
        }

    @classmethod
    def from_state(cls, saved: Mapping[str, Any]) -> CollapseDetector:
        """The detector that `state_dict` described. ValueError if another version of the rule wrote it."""
        if saved["rule_version"] != RULE_VERSION:
            raise ValueError(
                f"rule_version={saved['rule_version']!r} wrote this state, this is version {RULE_VERSION!r}: "
                f"judge the run again from its recorded rewards"
            )
        detector = cls(CollapseRuleConfig.model_validate(saved["config"]), saved["sync_interval"])
        state = dict(saved["state"])
        state["window"] = deque((step, reward) for step, reward in state["window"])
        if (collapse := state["collapse"]) is not None:
            state["collapse"] = _Collapse(**{**collapse, "onset": Onset(**collapse["onset"])})
        detector._state = _State(**state)
        return detector

    def _average(self, reward: float, standard_error: float | None) -> None:
        state = self._state
        state.weight = 1.0 + self._decay * state.weight
        share = 1.0 / state.weight
        state.average += share * (reward - state.average)
        if standard_error is not None:
            if standard_error < 0:
                raise ValueError(
                    f"standard_error={standard_error} is negative: give 0 or more, or None if unknown"
                )
            state.variance = (1.0 - share) ** 2 * state.variance + (share * standard_error) ** 2

    def _floor(self) -> float:
        return max(self.config.min_abs, self.config.z * math.sqrt(self._state.variance))

    def _drop_visible(self, reference: float, seen: int) -> bool:
        state, floor = self._state, self._floor()
        # not during a fall: noise shrinks with the reward, and would uncover a reference it had hidden
        if state.average < self.config.recovery_level * reference or reference < 2 * floor:
            return False
        start = state.start_sum / min(seen, self.config.start_updates)
        return start >= 2.5 * floor or reference - start >= floor

    def _watch_drop(self, step: int) -> None:
        state, config = self._state, self.config
        reference, average = state.reference, state.average
        if reference is None or average >= config.recovery_level * reference:
            state.at_level_step = step
            while len(state.window) > self._lead + 1:
                state.window.popleft()
        if (
            reference is None
            or not state.visible
            or average >= (1 - config.drop) * reference
            or reference - average <= self._floor()
        ):
            state.spell, state.alarm_step = 0, None
            return
        state.spell += 1
        if state.alarm_step is None:
            state.alarm_step = step
        if state.spell < config.confirm:
            return
        if state.collapse is None:
            state.collapse = self._confirm(step, state.alarm_step, reference)
            state.window.clear()
        else:
            state.relapsed_step = step
        state.down, state.back_up = True, 0
        state.spell, state.alarm_step = 0, None

    def _confirm(self, step: int, alarm_step: int, reference: float) -> _Collapse:
        state = self._state
        onset = change_point([t for t, _ in state.window], [x for _, x in state.window], alarm_step)
        slide = max(2.0 * self.sync_interval, 2.0 * self.config.half_life)
        gradual = onset.step - state.at_level_step >= slide
        return _Collapse(alarm_step, step, onset, reference, gradual)

    def _watch_recovery(self, step: int) -> None:
        state, config = self._state, self.config
        assert state.reference is not None
        state.back_up = state.back_up + 1 if state.average > config.recovery_level * state.reference else 0
        if state.back_up >= config.confirm:
            state.down, state.recovered_step = False, step


def _known(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


def snapshot_of(step: int, sync_interval: int) -> int:
    """Snapshot that generated the rewards of an update; at least 1, as snapshot 0 is the initial policy."""
    return max(1, step // sync_interval)


def judge(
    rewards: Sequence[float | None],
    standard_errors: Sequence[float | None] | None,
    sync_interval: int,
    config: CollapseRuleConfig | None = None,
) -> Verdict:
    """Verdict on a recorded series, one value per update; the detector's own answer at its last update."""
    if standard_errors is not None and len(standard_errors) != len(rewards):
        raise ValueError(
            f"standard_errors has {len(standard_errors)} values for {len(rewards)} rewards: "
            f"give one per update"
        )
    detector = CollapseDetector(config or CollapseRuleConfig(), sync_interval)
    for step, reward in enumerate(rewards):
        detector.update(reward, None if standard_errors is None else standard_errors[step])
    return detector.verdict()


@dataclass(frozen=True)
class Sensitivity:
    """Snapshot found at each drop; without agreement snapshot_low … snapshot_high is the interval."""

    statuses: dict[float, Status]
    snapshots: dict[float, int | None]
    agrees: bool
    """The same snapshot (or none) at every drop."""
    snapshot_low: int | None
    snapshot_high: int | None


def sensitivity(
    rewards: Sequence[float | None],
    standard_errors: Sequence[float | None] | None,
    sync_interval: int,
    config: CollapseRuleConfig | None = None,
    drops: Sequence[float] = (0.3, 0.5, 0.7),
) -> Sensitivity:
    """Judge one series at several values of `drop` (math.md C1): an abrupt collapse has the same M at all."""
    base = (config or CollapseRuleConfig()).model_dump()
    verdicts = {
        drop: judge(rewards, standard_errors, sync_interval, CollapseRuleConfig(**{**base, "drop": drop}))
        for drop in drops
    }
    snapshots = {drop: verdict.snapshot for drop, verdict in verdicts.items()}
    found = [snapshot for snapshot in snapshots.values() if snapshot is not None]
    return Sensitivity(
        statuses={drop: verdict.status for drop, verdict in verdicts.items()},
        snapshots=snapshots,
        agrees=len(set(snapshots.values())) <= 1,
        snapshot_low=min(found, default=None),
        snapshot_high=max(found, default=None),
    )
