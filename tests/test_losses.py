"""Losses and advantages: cases worked by hand, double-precision gradients, parts of a batch, stale tokens."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import group_advantages
from trainer.config import AdvantageConfig, LossConfig
from trainer.errors import UserError
from trainer.losses import Extent, LossInputs, LossMetrics, policy_loss
from trainer.schema import parse

KINDS = [
    ("grpo", "token"),
    ("grpo", "sequence"),
    ("truncated", "token"),
    ("truncated", "sequence"),
    ("asymre", "token"),
]
AGGREGATIONS = ("sequence_mean", "token_mean", "constant_length")
EXACT = AdvantageConfig(epsilon=0.0)

# Two responses, of two tokens and of one; the longest allowed is 4.
#   response 1, A = 1:  learner .5 .2, behaviour .25 .2: token ratios 2 and 1, the response's ratio 2
#   response 2, A = -2: learner .9,    behaviour .6:     ratio 1.5
LEARNER = torch.log(torch.tensor([[0.5, 0.2], [0.9, 0.5]], dtype=torch.float64))
BEHAVIOUR = torch.log(torch.tensor([[0.25, 0.2], [0.6, 0.1]], dtype=torch.float64))
ADVANTAGES = torch.tensor([1.0, -2.0], dtype=torch.float64)
MASK = torch.tensor([[True, True], [True, False]])
LONGEST = 4


def advantages_of(rewards, group_size, config, loss):
    """With every rollout counted."""
    return group_advantages(rewards, torch.ones(len(rewards), dtype=torch.bool), group_size, config, loss)


def losses(config, learner=LEARNER, behaviour=BEHAVIOUR, advantages=ADVANTAGES, mask=MASK, reference=None):
    inputs = LossInputs(learner, behaviour, advantages, mask, reference)
    return policy_loss(inputs, Extent.of(mask, LONGEST), config)


def random_batch(n, length, spread=0.3, dtype=torch.float64):
    stream = torch.Generator().manual_seed(n * 100 + length)
    learner = -2 * torch.rand(n, length, dtype=dtype, generator=stream)
    behaviour = learner + spread * torch.randn(n, length, dtype=dtype, generator=stream)
    advantages = torch.randn(n, dtype=dtype, generator=stream)
    lengths = torch.randint(1, length + 1, (n, 1), generator=stream)
    reference = learner + spread * torch.randn(n, length, dtype=dtype, generator=stream)
    return learner, behaviour, advantages, torch.arange(length) < lengths, reference


# What each token is worth before averaging: response 1's two tokens, then response 2's one.
LN5, LN2, LN9 = math.log(0.5), math.log(0.2), math.log(0.9)
WORTH = {
    # min(2, 1.2)·1, min(1, 1)·1; min(1.5·-2, 1.2·-2) = -3, as the clip does not help a negative advantage
    ("grpo", "token"): (1.2, 1.0, -3.0),
    # the response's ratio 2 is clipped to 1.2 for both tokens
    ("grpo", "sequence"): (1.2, 1.2, -3.0),
    # weights min(2, 1.6), 1 and 1.5: -1.1090, -1.6094; 1.5·-2·(-.1054) = .3161
    ("truncated", "token"): (1.6 * LN5, 1.0 * LN2, 1.5 * -2 * LN9),
    # weight min(2, 1.6) and log π = ln .1 = -2.3026 of the whole response
    ("truncated", "sequence"): (1.6 * (LN5 + LN2), 1.6 * (LN5 + LN2), 1.5 * -2 * LN9),
    # advantages less the shift of -.1: 1.1 and -1.9
    ("asymre", "token"): (1.1 * LN5, 1.1 * LN2, -1.9 * LN9),
}
CUT = {
    ("grpo", "token"): 1 / 3,
    ("grpo", "sequence"): 2 / 3,
    ("truncated", "token"): 1 / 3,
    ("truncated", "sequence"): 2 / 3,
    ("asymre", "token"): 0.0,
}


def config_of(kind, level, aggregation="sequence_mean", **fields):
    if kind == "truncated":
        fields = {"weight_cap": 1.6} | fields
    return LossConfig(kind=kind, ratio_level=level, aggregation=aggregation, **fields)


@pytest.mark.parametrize("kind,level", KINDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_by_hand(kind, level, aggregation):
    first, second, third = WORTH[kind, level]
    expected = {
        "sequence_mean": -((first + second) / 2 + third) / 2,
        "token_mean": -(first + second + third) / 3,
        "constant_length": -(first + second + third) / (2 * 4),
    }[aggregation]
    loss, metrics = losses(config_of(kind, level, aggregation))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert metrics.clip_fraction.item() == pytest.approx(CUT[kind, level])
    # what is measured of the ratios is per token, whatever the loss: 2, 1, 1.5
    assert metrics.ratio_max.item() == pytest.approx(2) and metrics.ratio_min.item() == pytest.approx(1)
    assert metrics.kl.item() == pytest.approx((1 - math.log(2) + 0.5 - math.log(1.5)) / 3)
    assert metrics.reference_kl is None


@pytest.mark.parametrize(
    "kind,level,expected",
    [
        # -(A·r)/(tokens·responses) where not clipped: 1·1/4; 2·1.5/2
        ("grpo", "token", [0.0, -0.25, 1.5]),
        ("grpo", "sequence", [0.0, 0.0, 1.5]),
        # -(w·A)/(tokens·responses); a response's log π has each of its tokens once, and is not divided again
        ("truncated", "token", [-1.6 / 4, -1 / 4, 1.5]),
        ("truncated", "sequence", [-1.6 / 2, -1.6 / 2, 1.5]),
        ("asymre", "token", [-1.1 / 4, -1.1 / 4, 1.9 / 2]),
    ],
)
def test_gradient_by_hand(kind, level, expected):
    learner = LEARNER.clone().requires_grad_()
    losses(config_of(kind, level), learner)[0].backward()
    assert learner.grad[MASK].tolist() == pytest.approx(expected, rel=1e-12)
    assert learner.grad[1, 1] == 0


def test_dual_clip_bounds_what_a_negative_advantage_costs():
    # response 2: max(-3, 1.3·-2) = -2.6, and its ratio 1.5 has no gradient any more; response 1 as before
    learner = LEARNER.clone().requires_grad_()
    loss, metrics = losses(LossConfig(dual_clip=1.3), learner)
    assert loss.item() == pytest.approx(-((1.2 + 1.0) / 2 - 2.6) / 2)
    assert metrics.clip_fraction.item() == pytest.approx(2 / 3)
    loss.backward()
    assert learner.grad[MASK].tolist() == pytest.approx([0.0, -0.25, 0.0])
    assert losses(LossConfig(dual_clip=1.6))[0].item() == losses(LossConfig())[0].item()


def test_low_clip_cuts_only_what_a_negative_advantage_pushes_down():
    # ratio .5: A = -1 is cut at .8, A = 1 is not; clip_low = 1 switches it off
    halved = torch.log(torch.full((1, 1), 0.5, dtype=torch.float64))
    mask = torch.ones(1, 1, dtype=torch.bool)
    for advantage, low, loss, cut in ((-1.0, 0.2, 0.8, 1), (1.0, 0.2, -0.5, 0), (-1.0, 1.0, 0.5, 0)):
        found, metrics = losses(
            LossConfig(clip_low=low), halved, torch.zeros_like(halved), torch.tensor([advantage]), mask
        )
        assert found.item() == pytest.approx(loss) and metrics.clip_fraction.item() == cut


@pytest.mark.parametrize("n", [1, 7, 16, 60, 64])
def test_default_loss_is_the_written_out_mean_bit_for_bit(n):
    learner, behaviour, advantages, mask, _ = random_batch(n, 9, dtype=torch.float32)
    one, other = learner.clone().requires_grad_(), learner.clone().requires_grad_()
    loss, _ = losses(LossConfig(), one, behaviour, advantages, mask)
    ratio = torch.where(mask, other - behaviour, 0.0).exp()
    weight = advantages.view(-1, 1)
    worth = torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
    plain = -(torch.where(mask, worth, 0.0).sum(1) / mask.sum(1)).mean()
    loss.backward()
    plain.backward()
    assert torch.equal(loss, plain) and torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("kind,level", KINDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kl_weight", [0.0, 0.3])
def test_gradients_in_double_precision(kind, level, aggregation, kl_weight):
    learner, behaviour, advantages, mask, reference = random_batch(3, 4)
    if kind == "truncated":
        # the weight is a constant to the gradient: a finite difference agrees where all are at the cap
        behaviour = learner - 1.0
    config = config_of(kind, level, aggregation, kl_weight=kl_weight)
    assert torch.autograd.gradcheck(
        lambda x: losses(config, x, behaviour, advantages, mask, reference)[0],
        (learner.requires_grad_(),),
        atol=1e-8,
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_truncated_differentiates_the_log_probability_only(level, aggregation):
    learner, behaviour, advantages, mask, _ = random_batch(5, 6, spread=1.0)
    one = learner.clone().requires_grad_()
    losses(config_of("truncated", level, aggregation), one, behaviour, advantages, mask)[0].backward()
    gap = torch.where(mask, learner - behaviour, 0.0)
    gap = gap.sum(1, keepdim=True) if level == "sequence" else gap
    weight = gap.exp().clamp(max=1.6) * advantages.view(-1, 1)
    sizes = mask.double().sum(1, keepdim=True)
    each = {"sequence_mean": 1 / (5 * sizes), "token_mean": 1 / sizes.sum(), "constant_length": 1 / 20}
    counted = sizes if level == "sequence" else 1
    expected = torch.where(mask, -weight * each[aggregation] * counted, 0.0)
    assert torch.allclose(one.grad, expected, rtol=1e-12, atol=0)
    assert (gap.exp()[mask] > 1.6 if level == "token" else gap.exp() > 1.6).any()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_truncated_and_grpo_have_the_same_gradient_on_policy(level, aggregation):
    learner, _, advantages, mask, _ = random_batch(6, 5)
    gradients = []
    for kind in ("grpo", "truncated"):
        leaf = learner.clone().requires_grad_()
        losses(config_of(kind, level, aggregation), leaf, learner, advantages, mask)[0].backward()
        gradients.append(leaf.grad)
    assert torch.allclose(*gradients, rtol=1e-12, atol=0) and gradients[0].any()


def test_asymre_without_normalising_is_the_shifted_policy_gradient():
    # rewards 1 0 0 0, V̂ = 1/4, δV = -.1: weights r - V̂ - δV = .85 and -.15; no ratio is in it
    advantages = advantages_of(torch.tensor([1.0, 0, 0, 0]), 4, AdvantageConfig(), LossConfig(kind="asymre"))
    learner = torch.log(torch.tensor([[0.5], [0.25], [0.5], [0.125]])).requires_grad_()
    mask = torch.ones(4, 1, dtype=torch.bool)
    config = LossConfig(kind="asymre", aggregation="constant_length")
    found = [losses(config, learner, stale, advantages, mask)[0] for stale in (learner - 3, learner + 3)]
    expected = -(0.85 * math.log(0.5) - 0.15 * math.log(0.25 * 0.5 * 0.125)) / (4 * LONGEST)
    assert [loss.item() for loss in found] == pytest.approx([expected] * 2, rel=1e-6)
    # a group that is all wrong is still pushed up by -δV, as published
    flat = advantages_of(torch.zeros(4), 4, AdvantageConfig(), LossConfig(kind="asymre"))
    losses(config, learner, learner, flat, mask)[0].backward()
    assert learner.grad.flatten().tolist() == pytest.approx([-0.1 / (4 * LONGEST)] * 4)


@given(st.lists(st.tuples(*[st.floats(-3, 0)] * 2, st.floats(-2, 2)), min_size=1, max_size=6))
def test_one_token_responses_have_one_ratio(rows):
    learner, behaviour, advantages = torch.tensor(rows, dtype=torch.float64).T
    mask = torch.ones(len(rows), 1, dtype=torch.bool)
    for kind, aggregation in itertools.product(("grpo", "truncated"), AGGREGATIONS):
        found = []
        for level in ("token", "sequence"):
            leaf = learner.view(-1, 1).clone().requires_grad_()
            config = config_of(kind, level, aggregation)
            loss, metrics = losses(config, leaf, behaviour.view(-1, 1), advantages, mask)
            loss.backward()
            found.append((loss.item(), metrics.clip_fraction.item(), leaf.grad.tolist()))
        assert found[0] == found[1]


@pytest.mark.parametrize("kind,level", KINDS)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("pair", [(-1.0, -100.0), (-100.0, -1.0)])
def test_loss_and_gradient_stay_finite_for_a_very_stale_token(kind, level, advantage, pair):
    learner = torch.tensor([[pair[0]] * 9], requires_grad=True)
    stale = torch.full((1, 9), pair[1])
    mask = torch.ones(1, 9, dtype=torch.bool)
    config = config_of(kind, level, kl_weight=0.1)
    loss, metrics = losses(config, learner, stale, torch.tensor([advantage]), mask, reference=stale)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(learner.grad).all()
    extreme = metrics.ratio_max if pair[0] > pair[1] else metrics.ratio_min
    assert extreme.item() == pytest.approx(math.exp(math.copysign(20, pair[0] - pair[1])), rel=1e-5)
    assert math.isfinite(metrics.kl) and math.isfinite(metrics.reference_kl)


@pytest.mark.parametrize("kind,level", KINDS)
def test_what_is_behind_the_end_mark_has_no_say(kind, level):
    learner, behaviour, advantages, mask, reference = random_batch(4, 5)
    config = config_of(kind, level, kl_weight=0.1)
    clean = losses(config, learner, behaviour, advantages, mask, reference)[0]
    garbage = torch.where(mask, learner, torch.nan).requires_grad_()
    loss, metrics = losses(config, garbage, behaviour.where(mask, -torch.inf), advantages, mask, reference)
    loss.backward()
    assert torch.equal(loss, clean) and math.isfinite(metrics.kl)
    assert torch.isfinite(garbage.grad).all() and not garbage.grad[~mask].any()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_half_a_nat_between_stored_and_current_is_clipped(level):
    stored = torch.full((2, 3), -1.0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    advantages = torch.tensor([1.0, -1.0])
    config = config_of("grpo", level)
    assert losses(config, stored + 0.5, stored, advantages, mask)[1].clip_fraction.item() == 0.5
    assert losses(config, stored - 0.5, stored, advantages, mask)[1].clip_fraction.item() == 0.5
    assert losses(config, stored, stored, advantages, mask)[1].clip_fraction.item() == 0


@pytest.mark.parametrize("kind,level", KINDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [(8,), (2, 2, 2, 2), (3, 3, 2), (1, 7)])
def test_shares_of_the_parts_add_up_to_the_batch(kind, level, aggregation, sizes):
    learner, behaviour, advantages, mask, reference = random_batch(8, 6)
    config, extent = config_of(kind, level, aggregation, kl_weight=0.2), Extent.of(mask, LONGEST)
    whole, parts = learner.clone().requires_grad_(), learner.clone().requires_grad_()
    loss, metrics = losses(config, whole, behaviour, advantages, mask, reference)
    loss.backward()
    found = []
    for rows in torch.arange(8).split(sizes):
        tensors = (x[rows] for x in (parts, behaviour, advantages, mask, reference))
        found.append(policy_loss(LossInputs(*tensors), extent, config))
        found[-1][0].backward()
    assert sum(loss for loss, _ in found).item() == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(parts.grad, whole.grad, rtol=1e-12)
    total = LossMetrics.total([each for _, each in found])
    for name in ("ratio_min", "ratio_max", "clip_fraction", "kl", "reference_kl"):
        assert getattr(total, name).item() == pytest.approx(getattr(metrics, name).item(), rel=1e-6), name


def test_reference_term_by_hand():
    # reference .25 .4 and .9 against the learner's .5 .2 and .9: q = -ln 2, ln 2, 0;
    # exp(q) - 1 - q = .1931, .3069, 0, together .5; their gradient 1 - exp(q) = .5, -1, 0;
    # A = 0 leaves only the term
    reference = torch.log(torch.tensor([[0.25, 0.4], [0.9, 1.0]], dtype=torch.float64))
    learner = LEARNER.clone().requires_grad_()
    reference.requires_grad_()
    nothing = torch.zeros_like(ADVANTAGES)
    loss, metrics = losses(LossConfig(kl_weight=2.0), learner, advantages=nothing, reference=reference)
    loss.backward()
    assert loss.item() == pytest.approx(2 * (0.5 / 2 + 0) / 2)
    assert metrics.reference_kl.item() == pytest.approx(0.5 / 3)
    assert learner.grad[MASK].tolist() == pytest.approx([2 * 0.5 / 4, 2 * -1 / 4, 0])
    assert reference.grad is None
    with pytest.raises(ValueError, match=r"kl_weight=2\.0 needs reference_log_probabilities"):
        losses(LossConfig(kl_weight=2.0))


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=2, max_size=8))
def test_both_estimates_of_kl_are_never_negative_and_right_on_average(weights):
    # every token of a small vocabulary once, as a response of its own, weighted by how likely it is
    one, other = torch.tensor(weights, dtype=torch.float64).T
    one, other = (one / one.sum()).log(), (other / other.sum()).log()
    exact = (one.exp() * (one - other)).sum().item()
    token = torch.ones(1, 1, dtype=torch.bool)
    to_reference, from_behaviour = 0.0, 0.0
    for p, q in zip(one.view(-1, 1, 1), other.view(-1, 1, 1), strict=True):
        config, zero = LossConfig(kl_weight=1.0), torch.zeros(1, dtype=torch.float64)
        found = losses(config, p, p, zero, token, reference=q)[1].reference_kl.item()
        stored = losses(LossConfig(), q, p, zero, token)[1].kl.item()
        assert found >= 0 and stored >= 0
        to_reference += p.exp().item() * found
        from_behaviour += p.exp().item() * stored
    assert to_reference == pytest.approx(exact, abs=1e-12)
    assert from_behaviour == pytest.approx(exact, abs=1e-12)


def test_advantages_match_the_worked_example():
    rewards = torch.tensor([1.0, 0, 0, 0])
    population = advantages_of(rewards, 4, EXACT, LossConfig()).tolist()
    assert population == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-6)
    sample_std = advantages_of(rewards, 4, EXACT.model_copy(update={"ddof": 1}), LossConfig()).tolist()
    assert sample_std == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-6)
    # std of the population is √3/4; ε = 1 is added to it
    shifted = advantages_of(rewards, 4, AdvantageConfig(epsilon=1.0), LossConfig())
    assert shifted[0].item() == pytest.approx(0.75 / (math.sqrt(3) / 4 + 1), rel=1e-6)
    centred = [0.75, -0.25, -0.25, -0.25]
    assert advantages_of(rewards, 4, AdvantageConfig(normalize="none"), LossConfig()).tolist() == centred
    assert advantages_of(rewards, 4, AdvantageConfig(), LossConfig(kind="asymre")).tolist() == centred


def test_seven_equal_rewards_and_one_other_are_no_explosion():
    # mean .425, deviations -.075 (seven) and .525, standard deviation √(7·.075² + .525²)/√8 = .19843
    rewards = torch.tensor([0.35] * 7 + [0.95])
    found = advantages_of(rewards, 8, EXACT, LossConfig()).tolist()
    assert found == pytest.approx([-1 / math.sqrt(7)] * 7 + [math.sqrt(7)], rel=1e-5)


@given(
    st.floats(-100, 100, width=32),
    st.integers(2, 16),
    st.sampled_from([EXACT, AdvantageConfig(epsilon=0.0, ddof=1), AdvantageConfig(normalize="none")]),
    st.sampled_from(["grpo", "asymre"]),
)
def test_a_group_without_variance_gets_exactly_nothing(reward, size, config, kind):
    rewards = torch.tensor([reward] * size + [0.0] * (size - 1) + [1.0])
    found = advantages_of(rewards, size, config, LossConfig(kind=kind))
    assert found[:size].tolist() == [0.0] * size
    assert found[-1] > 0 and found.isfinite().all()


@given(
    st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8),
    st.sampled_from([AdvantageConfig(), AdvantageConfig(ddof=1), AdvantageConfig(normalize="none")]),
)
def test_groups_are_apart_and_their_advantages_sum_to_nothing(rewards, config):
    both = advantages_of(torch.tensor(rewards), 4, config, LossConfig()).view(2, 4)
    alone = advantages_of(torch.tensor(rewards[4:]), 4, config, LossConfig())
    assert torch.allclose(both[1], alone, rtol=1e-5, atol=1e-6)
    assert both.sum(1).abs().max() < 1e-4 * max(1.0, both.abs().max().item())


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("asymre", "clip_low", 0.3),
        ("truncated", "clip_high", 0.3),
        ("truncated", "dual_clip", 3.0),
        ("grpo", "weight_cap", 3.0),
        ("grpo", "asymre_shift", -0.2),
        ("asymre", "ratio_level", "sequence"),
    ],
)
def test_a_setting_without_effect_is_refused(kind, field, value):
    with pytest.raises(UserError, match=f"{field}={value} has no effect when kind={kind}"):
        parse(LossConfig, {"kind": kind, field: value})
