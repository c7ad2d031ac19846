"""The collapse rule: closed forms, every status, and the invariants that resuming and judging rest on."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.collapse import WINDOW_LIMIT, CollapseDetector, CollapseRuleConfig, judge, sensitivity

DEFAULT = CollapseRuleConfig()
QUICK = CollapseRuleConfig(half_life=2.0, reference_after=2, start_updates=3, confirm=4)


def fed(rewards, standard_errors=None, sync_interval=1, config=DEFAULT):
    detector = CollapseDetector(config, sync_interval)
    for step, reward in enumerate(rewards):
        detector.update(reward, None if standard_errors is None else standard_errors[step])
    return detector


# --- the average and its noise -------------------------------------------------------------------


def test_average_and_variance_are_those_of_the_weighted_mean():
    rng = np.random.default_rng(0)
    rewards, errors = rng.uniform(size=30), rng.uniform(0.01, 0.1, size=30)
    weights = 2.0 ** (-np.arange(29, -1, -1) / 5.0)
    weights /= weights.sum()
    state = fed(rewards.tolist(), errors.tolist()).state_dict()["state"]
    assert math.isclose(state["average"], weights @ rewards, rel_tol=1e-12)
    assert math.isclose(state["variance"], weights**2 @ errors**2, rel_tol=1e-12)


def test_steady_noise_of_the_average_matches_its_closed_form():
    share = 1 - 2 ** (-1 / 5)
    state = fed([0.5] * 400, [0.1] * 400).state_dict()["state"]
    assert math.isclose(math.sqrt(state["variance"]), 0.1 * math.sqrt(share / (2 - share)), rel_tol=1e-9)
    assert math.isclose(math.sqrt(share / (2 - share)), 0.263, abs_tol=5e-4)


def test_the_floor_is_z_times_the_noise_of_the_average():
    # the floor is 4 · 0.263 · s = 1.052 s; a start of 0.6 has room while that is at most 0.6 / 2.5: s ≤ 0.228
    assert judge([0.6] * 200, [0.22] * 200, 1).status == "stable"
    assert judge([0.6] * 200, [0.24] * 200, 1).status == "undetectable"
    # noise that grows later hides a fall by 0.4 from s = 0.380 on
    fall = [0.6] * 150 + [0.2] * 100
    assert judge(fall, [0.1] * 80 + [0.37] * 170, 1).status == "collapsed"
    assert judge(fall, [0.1] * 80 + [0.39] * 170, 1).status == "stable"


# --- one clean step --------------------------------------------------------------------------------


@given(
    sync_interval=st.integers(1, 128),
    snapshot=st.integers(1, 40),
    high=st.floats(0.3, 1.0),
    low=st.floats(0.0, 0.45),
)
@settings(max_examples=60, deadline=None)
def test_clean_step_is_exact_for_any_sync_interval(sync_interval, snapshot, high, low):
    onset = max(sync_interval * snapshot, DEFAULT.reference_after + 1)
    true_snapshot = max(1, onset // sync_interval)
    verdict = judge([high] * onset + [high * low] * 80, None, sync_interval)
    assert (verdict.status, verdict.onset, verdict.snapshot) == ("collapsed", onset, true_snapshot)
    assert verdict.onset_low == verdict.onset_high == onset
    assert verdict.snapshot_low == verdict.snapshot_high == true_snapshot
    assert (verdict.t_low, verdict.t_high) == (
        (true_snapshot - 1) * sync_interval,
        true_snapshot * sync_interval,
    )
    assert verdict.alarm_step > onset and not verdict.gradual


@pytest.mark.parametrize("sync_interval", [1, 4, 16, 64])
def test_noisy_steps_at_snapshot_borders(sync_interval):
    rng = np.random.default_rng(sync_interval)
    for _ in range(100):
        snapshot = int(rng.integers(max(1, 40 // sync_interval), max(2, 300 // sync_interval) + 1))
        onset = snapshot * sync_interval
        climb = 0.2 + 0.7 * (1 - np.exp(-np.arange(onset + 200) / 15))
        clean = climb + rng.normal(0, 0.02, onset + 200)
        dropped = np.where(np.arange(onset + 200) < onset, clean, 0.1 + rng.normal(0, 0.02, onset + 200))
        assert judge(clean.tolist(), None, sync_interval).status == "stable"
        verdict = judge(dropped.tolist(), None, sync_interval)
        assert (verdict.status, verdict.onset, verdict.snapshot) == ("collapsed", onset, snapshot)
        assert verdict.snapshot_low <= snapshot <= verdict.snapshot_high


def test_onset_in_the_first_cycle_is_snapshot_one():
    verdict = judge([0.9] * 20 + [0.0] * 60, None, 64)
    assert (verdict.onset, verdict.snapshot, verdict.t_low, verdict.t_high) == (20, 1, 0, 64)


@given(scale=st.sampled_from([0.5, 2.0, 8.0]), seed=st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_rewards_and_min_abs_scaled_alike_give_the_same_steps(scale, seed):
    rng = np.random.default_rng(seed)
    rewards = np.concatenate([rng.normal(0.7, 0.1, 60), rng.normal(0.15, 0.1, 60)])
    plain = judge(rewards.tolist(), None, 4)
    scaled = judge((rewards * scale).tolist(), None, 4, CollapseRuleConfig(min_abs=0.1 * scale))
    for name in ("status", "onset", "onset_low", "onset_high", "alarm_step", "confirmed_step", "peak_step"):
        assert getattr(scaled, name) == getattr(plain, name)


# --- statuses --------------------------------------------------------------------------------------


def test_pending_becomes_collapsed_at_the_twentieth_update_of_the_spell():
    rewards = [0.8] * 50 + [0.01] * 60
    alarm = judge(rewards, None, 1).alarm_step
    # 0.01 + 0.79 · 2^(−n/5) < 0.4 from n = 5.1 updates on: the sixth low one
    assert alarm == 55
    before, after = judge(rewards[: alarm + 19], None, 1), judge(rewards[: alarm + 20], None, 1)
    assert (before.status, before.alarm_step, before.onset) == ("pending", alarm, None)
    assert (after.status, after.confirmed_step, after.recovery_watched) == ("collapsed", alarm + 19, 0)


def test_a_dip_shorter_than_the_confirmation_is_stable():
    verdict = judge([0.8] * 50 + [0.0] * 15 + [0.8] * 50, None, 1)
    assert (verdict.status, verdict.alarm_step) == ("stable", None)


def test_spells_do_not_add_up():
    dip = [0.0] * 15 + [0.8] * 50
    assert judge([0.8] * 50 + 4 * dip, None, 1).status == "stable"


def test_recovery_takes_as_long_as_confirmation_and_keeps_the_onset():
    rewards = [0.8] * 50 + [0.0] * 40 + [0.8] * 60
    steps = [fed(rewards[:n]).status for n in range(90, len(rewards) + 1)]
    first_up = next(n for n in range(1, 60) if 0.8 * (1 - 2 ** (-n / 5)) > 0.64)
    assert steps.index("recovered") == first_up + 19
    verdict = judge(rewards, None, 1)
    assert verdict.recovered_step == 90 + first_up + 19 - 1
    assert (verdict.onset, verdict.relapsed_step) == (50, None)
    assert verdict.recovery_watched == len(rewards) - 1 - verdict.confirmed_step


def test_a_rise_to_less_than_the_recovery_level_is_no_recovery():
    assert judge([0.8] * 50 + [0.0] * 40 + [0.6] * 200, None, 1).status == "collapsed"


def test_relapse_is_collapsed_again_with_the_first_onset():
    verdict = judge([0.8] * 50 + [0.0] * 40 + [0.8] * 60 + [0.0] * 60, None, 1)
    assert (verdict.status, verdict.onset) == ("collapsed", 50)
    assert verdict.confirmed_step < verdict.recovered_step < verdict.relapsed_step


def test_only_a_slide_is_gradual():
    slide = np.concatenate([np.full(60, 0.9), np.linspace(0.9, 0.35, 120), np.full(60, 0.1)])
    assert judge(slide.tolist(), None, 4).gradual
    assert not judge([0.9] * 60 + [0.1] * 60, None, 4).gradual


# --- undetectable ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "status"),
    [
        ([0.18] * 40 + [0.0] * 100, "undetectable"),  # warm start below 2 · min_abs, never rises
        ([0.0] * 200, "undetectable"),
        ([0.9] * 200, "stable"),  # a high start needs no rise
        ([0.9] * 40 + [0.0] * 100, "collapsed"),
        ([0.31] * 40 + [0.02] * 100, "collapsed"),  # a start with room to fall
        ([0.18] * 30 + [0.5] * 100, "stable"),  # a low start that learns
        ([0.05] * 30 + [0.5] * 60 + [0.0] * 60, "collapsed"),
        ([0.22] * 200, "undetectable"),  # too little room and no rise
        ([0.9] * 5, "undetectable"),  # no reference yet
        ([], "undetectable"),
    ],
)
def test_stable_means_that_a_drop_would_have_been_seen(rewards, status):
    assert judge(rewards, None, 4).status == status


@pytest.mark.parametrize("known", [True, False])
def test_noise_does_not_make_a_low_warm_start_detectable(known):
    rng = np.random.default_rng(2)
    for _ in range(60):
        accuracy = np.concatenate([np.full(300, 0.18), np.zeros(60)])
        rewards = rng.binomial(64, accuracy) / 64
        errors = np.sqrt(accuracy * (1 - accuracy) / 64).tolist() if known else None
        assert judge(rewards.tolist(), errors, 4).status == "undetectable"


def test_falling_noise_cannot_make_a_drop_visible_afterwards():
    # the reference 0.5 was reached in noise that hides any fall; rewards of exactly 0 have no noise
    rewards, errors = [0.5] * 60 + [0.0] * 200, [0.4] * 60 + [0.0] * 200
    assert judge(rewards, errors, 1).status == "undetectable"


# --- missing rewards -------------------------------------------------------------------------------


def test_missing_rewards_are_counted_and_change_nothing_else():
    rewards = [0.8] * 50 + [0.0] * 60
    holes = [0.8] * 50
    for value in (None, math.nan, math.inf, -math.inf):
        holes += [0.0, value]
    holes += [0.0] * 56
    plain, gappy = judge(rewards, None, 1), judge(holes, None, 1)
    assert (gappy.missing, gappy.updates) == (4, plain.updates + 4)
    assert gappy.final == plain.final and gappy.peak == plain.peak
    assert (gappy.status, gappy.onset) == ("collapsed", 50)


def test_leading_missing_rewards_only_shift_the_steps():
    rewards = [0.9] * 8 + [0.3] * 40 + [0.0] * 40  # the start has room, its first rewards settle that
    plain, late = judge(rewards, None, 1), judge([None] * 30 + rewards, None, 1)
    assert plain.status == late.status == "collapsed"
    assert (late.onset, late.alarm_step, late.final) == (plain.onset + 30, plain.alarm_step + 30, plain.final)
    low = [0.15] * 12 + [0.23] * 40
    assert judge(low, None, 1).status == judge([None] * 30 + low, None, 1).status == "undetectable"


def test_a_run_without_any_reward_is_undetectable():
    verdict = judge([None] * 300, None, 8)
    assert (verdict.status, verdict.missing, verdict.final, verdict.reference) == (
        "undetectable",
        300,
        None,
        None,
    )


def test_a_drop_behind_a_gap_covers_the_gap():
    verdict = judge([0.8] * 50 + [None] * 30 + [0.0] * 60, None, 10)
    assert (verdict.onset, verdict.onset_low, verdict.onset_high) == (80, 50, 80)
    assert (verdict.snapshot, verdict.t_low, verdict.t_high) == (8, 40, 80)


def test_a_gap_of_any_length_is_covered():
    gap = 2 * WINDOW_LIMIT
    verdict = judge([0.8] * 50 + [None] * gap + [0.0] * 60, None, 1)
    assert (verdict.onset, verdict.onset_low, verdict.onset_high) == (50 + gap, 50, 50 + gap)


# --- online, post hoc, resumed: one answer -----------------------------------------------------------

values = st.one_of(st.none(), st.floats(-0.2, 1.2), st.sampled_from([0.0, 1.0, math.nan]))
stretches = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 0.3), st.integers(1, 25)), min_size=1, max_size=5
)


@st.composite
def series(draw):
    """Levels with noise, so that alarms, collapses and recoveries all happen; some missing or wild."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    rewards, errors = [], []
    for level, noise, length in draw(stretches):
        rewards += [float(x) for x in level + noise * rng.normal(size=length)]
        errors += [noise if rng.random() < 0.8 else None for _ in range(length)]
    for _ in range(draw(st.integers(0, 4))):
        rewards[draw(st.integers(0, len(rewards) - 1))] = draw(values)
    return rewards, errors


@given(series(), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_online_equals_post_hoc_at_every_prefix(data, sync_interval):
    rewards, errors = data
    detector = CollapseDetector(QUICK, sync_interval)
    first = None
    for step, (reward, error) in enumerate(zip(rewards, errors, strict=True)):
        detector.update(reward, error)
        verdict = detector.verdict()
        assert verdict == judge(rewards[: step + 1], errors[: step + 1], sync_interval, QUICK)
        assert verdict.status == detector.status
        if verdict.confirmed_step is not None:
            first = first or verdict
            collapse = (
                verdict.onset,
                verdict.onset_low,
                verdict.onset_high,
                verdict.confirmed_step,
                verdict.reference,
            )
            assert collapse == (
                first.onset,
                first.onset_low,
                first.onset_high,
                first.confirmed_step,
                first.reference,
            )
            assert verdict.onset_low <= verdict.onset <= verdict.onset_high <= verdict.alarm_step
            assert verdict.t_low < verdict.t_high


@given(series(), st.data())
@settings(max_examples=120, deadline=None)
def test_a_json_round_trip_at_any_update_changes_nothing(data, draw):
    rewards, errors = data
    cut = draw.draw(st.integers(0, len(rewards)))
    whole, part = fed(rewards, errors, 3, QUICK), fed(rewards[:cut], errors[:cut], 3, QUICK)
    resumed = CollapseDetector.from_state(json.loads(json.dumps(part.state_dict(), allow_nan=False)))
    assert resumed.verdict() == part.verdict()
    for reward, error in zip(rewards[cut:], errors[cut:], strict=True):
        resumed.update(reward, error)
    assert resumed.verdict() == whole.verdict()
    assert resumed.state_dict() == whole.state_dict()
    json.dumps(whole.verdict().to_dict(), allow_nan=False)


def test_resuming_at_every_update_of_collapse_recovery_and_relapse():
    rewards = [0.8] * 12 + [0.0] * 10 + [0.9] * 20 + [0.0] * 10 + [0.9] * 20
    whole = fed(rewards, config=QUICK).verdict()
    assert whole.status == "recovered" and whole.relapsed_step < whole.recovered_step
    for cut in range(len(rewards)):
        saved = json.dumps(fed(rewards[:cut], config=QUICK).state_dict())
        detector = CollapseDetector.from_state(json.loads(saved))
        for reward in rewards[cut:]:
            detector.update(reward)
        assert detector.verdict() == whole


def test_the_series_of_the_properties_reach_every_status():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        levels = rng.choice([0.0, 0.1, 0.9], size=4)
        rewards = np.repeat(levels, 12) + 0.05 * rng.normal(size=48)
        seen.add(judge(rewards[: rng.integers(1, 49)].tolist(), None, 3, QUICK).status)
    assert seen == {"stable", "pending", "collapsed", "recovered", "undetectable"}


def test_memory_is_bounded():
    detector = fed([0.9] * 100 + [0.6] * 5000)  # between collapse line and reference level for ever
    assert len(detector.state_dict()["state"]["window"]) <= WINDOW_LIMIT + 50
    at_level = fed([0.9] * 5000)
    assert len(at_level.state_dict()["state"]["window"]) <= 20


# --- sensitivity, errors -----------------------------------------------------------------------------


def test_sensitivity_agrees_on_a_step_and_gives_the_range_of_a_staircase():
    step = sensitivity([0.9] * 64 + [0.05] * 100, None, 16)
    assert step.agrees and step.snapshot_low == step.snapshot_high == 4
    staircase = sensitivity([0.9] * 64 + [0.55] * 64 + [0.05] * 100, None, 16)
    assert not staircase.agrees
    assert staircase.snapshots == {0.3: 4, 0.5: 8, 0.7: 8}
    assert (staircase.snapshot_low, staircase.snapshot_high) == (4, 8)


def test_sensitivity_of_a_partial_fall_disagrees():
    partial = sensitivity([0.9] * 64 + [0.55] * 100, None, 16)
    assert partial.statuses == {0.3: "collapsed", 0.5: "stable", 0.7: "stable"}
    assert not partial.agrees


def test_a_low_recovery_level_is_refused_with_the_fix():
    with pytest.raises(
        ValidationError, match=r"recovery_level=0\.4 .* 1 - drop = 0\.5: raise recovery_level"
    ):
        CollapseRuleConfig(recovery_level=0.4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CollapseDetector(DEFAULT, 0), "sync_interval=0 is below 1"),
        (lambda: judge([0.5, 0.5], [0.1], 1), "standard_errors has 1 values for 2 rewards"),
        (lambda: judge([0.5], [-0.1], 1), r"standard_error=-0\.1 is negative"),
        (lambda: CollapseDetector.from_state({"rule_version": "0"}), "rule_version='0' wrote this state"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
