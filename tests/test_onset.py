"""The change point of one drop: exact on clean steps, covering on noisy ones, open about gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.onset import Onset, change_point


def dated(rewards, first_step, last_candidate):
    return change_point(range(first_step, first_step + len(rewards)), rewards, last_candidate)


@given(
    before=st.integers(1, 40),
    after=st.integers(1, 40),
    first=st.integers(0, 1000),
    high=st.floats(0.05, 1.0),
    fall=st.floats(0.01, 1.0),
)
def test_clean_step_is_exact(before, after, first, high, fall):
    rewards = [high] * before + [high * (1 - fall)] * after
    step = first + before
    assert dated(rewards, first, first + len(rewards)) == Onset(step, step, step)


@given(scale=st.floats(0.01, 100.0), shift=st.floats(-5, 5), seed=st.integers(0, 50))
def test_scale_and_shift_do_not_move_the_onset(scale, shift, seed):
    rng = np.random.default_rng(seed)
    rewards = np.concatenate([rng.normal(0.8, 0.05, 12), rng.normal(0.2, 0.05, 25)])
    moved = [float(x) for x in rewards * scale + shift]
    assert dated(moved, 100, 120) == dated(rewards.tolist(), 100, 120)


def test_the_biggest_of_two_falls_wins():
    assert dated([0.9] * 6 + [0.8] * 6 + [0.1] * 20, 0, 20).step == 12


def test_a_rise_is_no_onset():
    # the rise alone would fit better
    assert dated([0.3] * 2 + [0.9] * 10 + [0.6] * 10, 0, 21).step == 12


def test_rewards_after_the_last_candidate_are_fitted_but_not_chosen():
    rewards = [0.9] * 6 + [0.6] * 6 + [0.0] * 20
    assert dated(rewards, 0, 31).step == 12
    assert dated(rewards, 0, 11).step == 11


def test_a_fall_inside_a_gap_is_dated_after_it_and_covers_it():
    steps = [10, 11, 12, 16, 17, 18]
    assert change_point(steps, [0.9, 0.9, 0.9, 0.1, 0.1, 0.1], 18) == Onset(16, 13, 16)


def test_without_a_fall_the_window_is_the_answer():
    assert dated([0.1, 0.2, 0.3], 5, 7) == Onset(7, 5, 7)
    assert dated([0.3], 7, 7) == Onset(7, 7, 7)


@pytest.mark.parametrize("fall", [0.05, 0.1, 0.15])
def test_the_interval_covers_the_true_onset(fall):
    # falls of 1, 2 and 3 noise deviations; 95% is promised, 0.93 leaves two standard errors of 400 draws
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(400):
        rewards = np.concatenate([rng.normal(0.5, 0.05, 20), rng.normal(0.5 - fall, 0.05, 30)])
        onset = dated(rewards.tolist(), 0, 40)
        covered.append(onset.low <= 20 <= onset.high)
        assert onset.low <= onset.step <= onset.high
    assert np.mean(covered) >= 0.93, np.mean(covered)
