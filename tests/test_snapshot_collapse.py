"""The snapshot rule against the worked examples and the simulation of math.md C1."""

import json
from pathlib import Path

import numpy as np
import pytest

from trainer.snapshot_collapse import SnapshotRuleConfig, causal, post_hoc

ORACLES = json.loads((Path(__file__).parent / "oracles" / "worked_examples.json").read_text())["detector"]


@pytest.mark.parametrize("case", ORACLES, ids=lambda case: str(case["x"]))
def test_worked_examples(case):
    verdict = causal(case["x"])
    assert [verdict.status, verdict.snapshot, verdict.confirmed] == case["causal"]
    assert post_hoc(case["x"]).snapshot == case["posthoc"]


def test_only_the_slide_is_gradual():
    slide, two_stage, cliff = ORACLES[5]["x"], ORACLES[0]["x"], ORACLES[1]["x"]
    assert causal(slide).gradual and post_hoc(slide).gradual
    assert not causal(two_stage).gradual and not causal(cliff).gradual


def test_a_low_reference_is_undetectable_even_when_it_falls_to_zero():
    fall = [0.19, 0.19, 0.0, 0.0]
    assert causal(fall).status == post_hoc(fall).status == "undetectable"
    room = [0.2, 0.2, 0.0, 0.0]
    assert causal(room).snapshot == post_hoc(room).snapshot == 2


def test_the_fall_must_clear_the_noise():
    fall = [0.5, 0.5, 0.2, 0.2]
    assert causal(fall, [0.07] * 4).status == "collapsed"  # 0.3 ≥ 4 · 0.07
    assert causal(fall, [0.08] * 4).status == "none"
    assert causal(fall, [0.08] * 4, SnapshotRuleConfig(z=3.0)).status == "collapsed"


def test_a_candidate_keeps_its_reference_frozen():
    # the low snapshots that follow must not move the line they are held against
    verdict = causal([0.6, 0.6, 0.29, 0.29, 0.29, 0.29], config=SnapshotRuleConfig(confirm=4))
    assert (verdict.status, verdict.snapshot, verdict.confirmed) == ("collapsed", 2, 5)


def test_simulated_curves_give_exact_onsets_and_no_false_alarm():
    rng = np.random.default_rng(11)
    for _ in range(400):
        clean = 0.3 + 0.3 * (1 - np.exp(-np.arange(20) / 5)) + rng.normal(0, 0.02, 20)
        onset = int(rng.integers(1, 18))
        dropped = clean.copy()
        dropped[onset:] = 0.03 + rng.normal(0, 0.02, 20 - onset)
        assert causal(clean.tolist()).status == post_hoc(clean.tolist()).status == "none"
        assert causal(dropped.tolist()).snapshot == post_hoc(dropped.tolist()).snapshot == onset
        assert all(causal(dropped[:m].tolist()).status == "none" for m in range(1, onset + 1))


def test_standard_errors_must_match():
    with pytest.raises(ValueError, match="standard_errors has 1 values for 2 rewards"):
        causal([0.5, 0.5], [0.1])
