"""What happens to a gradient before the optimizer: cosine, alignment limit, clipping."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.gradients import cosine, distance, gather, limit_alignment, norm_of, put_back, scale

LIMITS = st.floats(0, 0.99)
SEEDS = st.integers(0, 10_000)


def pair(seed, mix):
    """Two float32 vectors, the second leaning on the first by `mix`."""
    one, other = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
    return mix * one + other, one


def test_cosine_by_hand():
    gradient, previous = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 0.0])
    assert cosine(gradient, previous) == pytest.approx(18 / (5 * 6), rel=1e-15)
    assert math.isnan(cosine(gradient, None))
    assert math.isnan(cosine(gradient, torch.zeros(2)))
    assert math.isnan(cosine(torch.tensor([math.inf, 0.0]), previous))


def test_alignment_by_hand():
    # previous along the first axis, τ = .6: the first component becomes .6·4/√(1 - .36) = 3
    found = limit_alignment(torch.tensor([10.0, 4.0]), torch.tensor([2.0, 0.0]), 0.6)
    assert found.tolist() == pytest.approx([3.0, 4.0], rel=1e-15)


@given(SEEDS, st.floats(-5, 50), LIMITS)
def test_the_cosine_is_limited_and_the_rest_of_the_gradient_kept(seed, mix, limit):
    gradient, previous = pair(seed, mix)
    found = limit_alignment(gradient, previous, limit)
    if cosine(gradient, previous) <= limit:
        assert torch.equal(found, gradient.double())
        return
    # also after the rounding to the weights' type
    assert cosine(found.float(), previous) == pytest.approx(limit, abs=1e-6)
    direction = previous.double() / previous.double().norm()
    across = [each - (each @ direction) * direction for each in (found, gradient.double())]
    assert torch.allclose(*across, rtol=1e-9, atol=1e-9)
    assert found.norm() <= gradient.double().norm()


def test_alignment_needs_a_previous_direction():
    gradient = torch.tensor([1.0, 2.0])
    for previous in (None, torch.zeros(2), torch.tensor([math.nan, 1.0]), -gradient):
        assert torch.equal(limit_alignment(gradient, previous, 0.1), gradient.double())
    assert limit_alignment(gradient, 2 * gradient, 0.5).norm() < 1e-15


@given(SEEDS, st.floats(0.01, 100))
def test_scaling_keeps_the_direction_and_sets_the_norm(seed, limit):
    gradient, _ = pair(seed, 0.0)
    weights = [torch.zeros(20, requires_grad=True), torch.zeros(30, requires_grad=True)]
    for weight, part in zip(weights, gradient.split([20, 30]), strict=True):
        weight.grad = part.clone()
    norm = norm_of(gradient)
    scale(weights, limit / norm)
    found = gather(weights)
    assert norm_of(found) == pytest.approx(limit, rel=1e-6)
    assert cosine(found, gradient) == pytest.approx(1, abs=1e-6)


def test_long_vectors_are_taken_in_parts(monkeypatch):
    one, other = pair(0, 0.5)
    whole = cosine(one, other), norm_of(one)
    weights = [one[:20].clone(), one[20:].clone().view(6, 5)]
    assert distance(weights, other) == pytest.approx((one - other).square().mean().sqrt().item(), rel=1e-6)
    monkeypatch.setattr("trainer.gradients.PART", 7)
    assert (cosine(one, other), norm_of(one)) == pytest.approx(whole, rel=1e-14)
    assert distance(weights, other) == pytest.approx((one - other).square().mean().sqrt().item(), rel=1e-6)
    assert cosine(one, other.bfloat16()) == pytest.approx(whole[0], abs=1e-2)


def test_a_gradient_goes_out_and_comes_back():
    weights = [torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True), torch.zeros(2)]
    (weights[0].sum() * 2 + weights[1].sum() * 3).backward()
    vector = gather(weights)
    assert vector.tolist() == [2.0] * 6 + [3.0] * 4 + [0.0] * 2
    put_back(vector.double() * torch.arange(12), weights)
    assert gather(weights).tolist() == [0, 2, 4, 6, 8, 10, 18, 21, 24, 27, 0, 0]
    assert weights[0].grad.shape == (2, 3) and weights[2].grad is None
