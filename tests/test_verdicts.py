"""Advantages where some rollouts do not count, pass@k, and drawing from the top of a distribution."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import group_advantages
from trainer.budget import CellConfig
from trainer.config import AdvantageConfig, LossConfig, RunConfig
from trainer.errors import UserError
from trainer.evaluation import pass_at
from trainer.losses import Extent, LossInputs, policy_loss
from trainer.sampling import _invert
from trainer.schema import parse

GROUP = st.lists(st.tuples(st.sampled_from([0.0, 1.0, -1.0]), st.booleans()), min_size=6, max_size=6)


@given(GROUP, st.sampled_from([0, 1]), st.sampled_from(["std", "none"]), st.sampled_from(["grpo", "asymre"]))
def test_what_does_not_count_leaves_the_others_as_if_alone(group, ddof, normalize, kind):
    rewards, counted = (torch.tensor(column) for column in zip(*group, strict=True))
    config, loss = AdvantageConfig(ddof=ddof, normalize=normalize), LossConfig(kind=kind)
    found = group_advantages(rewards, counted, 6, config, loss)
    assert torch.isfinite(found).all() and (found[~counted] == 0).all()
    inside = rewards[counted]
    if len(inside) > 1:
        alone = group_advantages(inside, torch.ones(len(inside), dtype=torch.bool), len(inside), config, loss)
        assert torch.allclose(found[counted], alone, atol=1e-5)
    else:
        assert (found == 0).all()


def test_the_loss_is_that_of_the_rollouts_that_count():
    stream = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(*size, generator=stream) for size in ((5, 3), (5, 3), (5,)))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=torch.bool)
    counted = torch.tensor([True, True, False, True, False])
    for kind, aggregation in itertools.product(
        ("grpo", "asymre"), ("sequence_mean", "token_mean", "constant_length")
    ):
        config = LossConfig(kind=kind, aggregation=aggregation)
        part = mask & counted.unsqueeze(1)
        masked, _ = policy_loss(LossInputs(new, old, advantages, part), Extent.of(part, 3), config)
        rows = counted.nonzero().squeeze(1)
        alone, _ = policy_loss(
            LossInputs(new[rows], old[rows], advantages[rows], mask[rows]), Extent.of(mask[rows], 3), config
        )
        assert masked.item() == pytest.approx(alone.item(), rel=1e-6)
    nothing = torch.zeros_like(mask)
    loss, _ = policy_loss(LossInputs(new, old, advantages, nothing), Extent.of(nothing, 3), LossConfig())
    assert loss.item() == 0


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 999))
def test_pass_at_k_counts_subsets(n, k, prompts, seed):
    k = min(k, n)
    correct = torch.rand(prompts, n, generator=torch.Generator().manual_seed(seed)) < 0.4
    hits = [
        any(row[place] for place in chosen)
        for row in correct.tolist()
        for chosen in itertools.combinations(range(n), k)
    ]
    assert pass_at(k, correct) == pytest.approx(sum(hits) / len(hits), abs=1e-12)


def test_pass_at_k_of_many_samples_does_not_overflow():
    correct = torch.zeros(1, 2000, dtype=torch.bool)
    correct[0, 0] = True
    assert pass_at(1000, correct) == pytest.approx(0.5)


def test_pass_at_k_needs_k_responses():
    with pytest.raises(UserError, match="needs 8 responses per prompt: raise samples=4"):
        parse(CellConfig, {"budget": {"evaluation": {"samples": 4, "pass_at": [1, 8]}}})


def test_top_p_draws_from_the_smallest_likeliest_set():
    probabilities = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])
    uniforms = torch.linspace(0, 1 - 1e-9, 2000, dtype=torch.float64)
    logs = probabilities.log().expand(2000, -1)
    for top_p, kept in ((0.3, [1]), (0.4, [1]), (0.5, [1, 3]), (0.86, [1, 3, 4, 0]), (1.0, [0, 1, 2, 3, 4])):
        drawn, _ = _invert(logs, uniforms, top_p)
        shares = torch.bincount(drawn, minlength=5) / 2000
        expected = torch.zeros(5)
        expected[kept] = probabilities[kept] / probabilities[kept].sum()
        assert (shares - expected).abs().max() < 2e-3, (top_p, shares)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sampling": {"top_p": 0.9}}, "sampling: top_p=0.9 is refused in training"),
        ({"sampling": {"top_k": 50}}, "sampling: top_k=50 is refused in training"),
        ({"group_size": 1}, "a group of one has no advantage"),
        ({"optimizer": {"master_dtype": "bfloat16"}}, "swallows small updates"),
        (
            {"buffer_size": 32, "batch_size": 64, "store": {"within_batch_replacement": False}},
            "only sure to hold 32",
        ),
    ],
)
def test_refusals_name_the_fix(data, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        parse(RunConfig, data)
