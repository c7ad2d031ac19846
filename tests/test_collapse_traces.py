"""The rule with default settings on real curves of a tiny setup, against labels given by eye.

`oracles/laptop_traces_rev88.csv.gz`: 134 runs of a strict schedule, one row per update. Labels of
seeds 0 and 1: collapse, dip (real but transient), healthy, unresolved (falling at the end). There are no
standard errors.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainer.collapse import judge

TRACES = Path(__file__).parent / "oracles" / "laptop_traces_rev88.csv.gz"


@pytest.fixture(scope="module")
def runs():
    """(S, η, seed) -> (label, rewards, verdict)."""
    traces = pd.read_csv(TRACES).sort_values(["S", "eta", "seed", "step"])
    judged = {}
    for key, run in traces.groupby(["S", "eta", "seed"]):
        rewards = run["reward"].tolist()
        assert run["step"].tolist() == list(range(len(rewards)))
        judged[key] = (run["label"].iloc[0], rewards, judge(rewards, None, int(key[0])))
    return judged


def test_no_more_false_or_missed_alarms_than_published(runs):
    assert len(runs) == 134
    alarmed = {key: verdict.confirmed_step is not None for key, (_, _, verdict) in runs.items()}
    false = [key for key, (label, _, _) in runs.items() if label in ("healthy", "dip") and alarmed[key]]
    quiet = [key for key, (label, _, _) in runs.items() if label == "collapse" and not alarmed[key]]
    undetectable = [key for key in quiet if runs[key][2].status == "undetectable"]
    assert len(false) <= 6 and all(runs[key][0] == "dip" for key in false)
    assert len(quiet) - len(undetectable) <= 2
    # reward stays within 0.1 of its warm start before it sinks: no rise, no drop to see
    assert undetectable == [(64, 0.008, 0), (64, 0.008, 1)]


def test_no_healthy_run_is_undetectable(runs):
    assert {verdict.status for label, _, verdict in runs.values() if label == "healthy"} == {"stable"}


def test_onsets_fall_on_weight_syncs(runs):
    # with a strict schedule rewards can only change where the snapshot does, which the rule is not told
    collapses = [(S, v) for (S, _, _), (_, _, v) in runs.items() if S > 1 and v.onset is not None]
    onsets = [(v.onset % S, v.alarm_step % S) for S, v in collapses]
    assert len(onsets) >= 60
    assert np.mean([onset == 0 for onset, _ in onsets]) >= 0.9
    assert np.mean([alarm == 0 for _, alarm in onsets]) <= 0.2


def test_the_snapshot_is_the_first_low_one(runs):
    # independent of the rule: the means of whole snapshots M − 1 and M
    falls = []
    for (S, _, _), (_, rewards, verdict) in runs.items():
        if S < 4 or verdict.snapshot is None or verdict.gradual:
            continue
        means = [
            np.mean(rewards[m * S : (m + 1) * S]) for m in range(len(rewards) // S + 1) if rewards[m * S :]
        ]
        falls.append(means[verdict.snapshot] < 0.75 * means[verdict.snapshot - 1])
    assert len(falls) >= 50 and np.mean(falls) >= 0.95
