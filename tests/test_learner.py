"""The learner: parts of a batch, alignment and clipping, reference, single rollouts, checkpoint."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import SMALL, make_run, run_job
from trainer.batch_loss import BatchLoss
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.gradients import cosine, flatten, gather
from trainer.learner import Learner
from trainer.policy import build_policy, response_log_probabilities, weights_of
from trainer.record import read_metrics
from trainer.schema import parse
from trainer.seeding import generator
from trainer.tasks import built_in_task

LOSSES = [
    {},
    {"ratio_level": "sequence", "aggregation": "token_mean"},
    {"kind": "truncated", "weight_cap": 1.2, "aggregation": "constant_length", "kl_weight": 0.1},
    {"kind": "asymre", "aggregation": "token_mean", "kl_weight": 0.1},
]
NUMBERS = ("loss", "entropy", "clip_fraction", "kl", "ratio_min", "ratio_max", "gradient_norm")


def config_of(**fields):
    return parse(RunConfig, SMALL | fields)


def build(config):
    """A learner and a stale batch with lengths from 1 to 4 and advantages of both signs."""
    task = built_in_task(config.task)
    policy = build_policy(config.model, task, 0)
    n, length, stream = config.batch_size, config.task.max_response_tokens, generator(0, "batch", 0)
    prompts = task.prompts(n, stream)
    responses = torch.randint(task.vocabulary_size, (n, length), generator=stream)
    with torch.no_grad():
        current, _ = response_log_probabilities(policy, prompts, responses, config.sampling.temperature)
    batch = SimpleNamespace(
        prompts=prompts,
        prompt_lengths=torch.full((n,), prompts.shape[1]),
        trained=torch.ones(n, dtype=torch.bool),
        responses=responses,
        mask=torch.arange(length) < 1 + torch.arange(n).unsqueeze(1) % length,
        log_probabilities=current + 0.3 * torch.randn(n, length, generator=stream),
        advantages=torch.randn(n, generator=stream),
    )
    return Learner(policy, config), batch


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("micro_batch", [8, 4, 1, 5, 100])
def test_an_update_does_not_depend_on_the_split(loss, micro_batch):
    found = []
    for resources in ({}, {"micro_batch": micro_batch}):
        learner, batch = build(config_of(loss=loss, resources=resources))
        # away from the initial weights, where the reference term and its gradient are 0
        perturb(learner, 0.02)
        found.append((learner.update(batch, 0), learner.previous_gradient))
    (whole, gradient), (split, other) = found
    for name in NUMBERS:
        assert getattr(split, name) == pytest.approx(getattr(whole, name), rel=1e-6), name
    assert (gradient - other).abs().max() < 1e-6 * gradient.abs().max()
    if "kl_weight" in loss:
        assert split.reference_kl == pytest.approx(whole.reference_kl, rel=1e-5) and whole.reference_kl > 0
    else:
        assert split.reference_kl is None and whole.reference_kl is None


def perturb(learner, size):
    stream = generator(0, "perturbation", 0)
    with torch.no_grad():
        for weight in learner.parameters:
            weight.add_(size * torch.randn(weight.shape, generator=stream))


def test_default_updates_equal_a_plain_loop_bit_for_bit():
    config = config_of(learning_rate=3e-3)
    learner, batch = build(config)
    model = build_policy(config.model, built_in_task(config.task), 0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for step in range(4):
        logits = model(
            input_ids=torch.cat([batch.prompts, batch.responses[:, :-1]], 1), use_cache=False
        ).logits
        every = torch.log_softmax(logits[:, batch.prompts.shape[1] - 1 :] / 1.0, -1)
        chosen = every.gather(-1, batch.responses[..., None])[..., 0]
        ratio = torch.where(batch.mask, chosen - batch.log_probabilities, 0.0).exp()
        weight = batch.advantages.view(-1, 1)
        worth = torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
        loss = -(torch.where(batch.mask, worth, 0.0).sum(1) / batch.mask.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 3e-3 * (step + 1) / 20
        optimizer.step()
        entropy = -(every.exp() * every).sum(-1)
        update = learner.update(batch, step)
        assert update.loss == loss.item()
        assert update.entropy == ((entropy * batch.mask).sum() / batch.mask.sum()).item()
    theirs = dict(model.named_parameters())
    assert all(torch.equal(weight, theirs[name]) for name, weight in weights_of(learner.policy).items())
    assert not torch.equal(flatten(learner.parameters), learner.initial)


def test_recorded_norm_is_raw_and_the_optimizer_gets_the_clipped_gradient():
    raw, batch = build(config_of())
    free = raw.update(batch, 0)
    clipped, _ = build(config_of(optimizer={"clip_norm": free.gradient_norm / 3}))
    held = clipped.update(batch, 0)
    assert held.gradient_norm == free.gradient_norm
    assert torch.equal(clipped.previous_gradient, raw.previous_gradient)
    used = gather(clipped.parameters)
    assert used.double().norm().item() == pytest.approx(free.gradient_norm / 3, rel=1e-6)
    assert cosine(used, raw.previous_gradient) == pytest.approx(1, abs=1e-6)
    loose, _ = build(config_of(optimizer={"clip_norm": 2 * free.gradient_norm}))
    loose.update(batch, 0)
    assert torch.equal(flatten(loose.parameters), flatten(raw.parameters))


def test_alignment_then_clipping_while_the_record_keeps_raw_numbers():
    # a tiny rate and the same batch again: the second gradient is nearly the first one, and what alignment
    # leaves of it is still longer than the clip
    fields = {"learning_rate": 1e-6}
    free, batch = build(config_of(**fields))
    both, _ = build(config_of(optimizer={"alignment_limit": 0.4, "clip_norm": 1e-5}, **fields))
    free.update(batch, 0)
    assert math.isnan(both.update(batch, 0).gradient_cosine)
    first = both.previous_gradient
    expected, found = free.update(batch, 1), both.update(batch, 1)
    assert found.gradient_cosine > 0.9
    assert found.gradient_cosine == pytest.approx(expected.gradient_cosine, abs=1e-3)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    used = gather(both.parameters)
    assert cosine(used, first) == pytest.approx(0.4, abs=1e-6)
    assert used.double().norm().item() == pytest.approx(1e-5, rel=1e-6)


def test_reference_is_the_initial_policy_and_stays_it():
    learner, batch = build(config_of(learning_rate=1e-2, loss={"kl_weight": 0.5}))
    initial = flatten(list(learner.reference.parameters()))
    first = learner.update(batch, 0)
    assert first.reference_kl == 0
    for step in range(1, 4):
        expected = []
        with torch.no_grad():
            for model in (learner.policy, learner.reference):
                expected.append(response_log_probabilities(model, batch.prompts, batch.responses, 1.0)[0])
        q = (expected[1] - expected[0])[batch.mask].double()
        update = learner.update(batch, step)
        assert update.reference_kl == pytest.approx((q.exp() - 1 - q).mean().item(), rel=1e-3)
    assert update.reference_kl > 0
    assert torch.equal(flatten(list(learner.reference.parameters())), initial)
    assert torch.equal(initial, learner.initial)
    assert all(parameter.grad is None for parameter in learner.reference.parameters())
    assert build(config_of())[0].reference is None


def test_reference_term_holds_the_policy_back():
    distance = []
    for weight in (1e-9, 10.0):
        learner, batch = build(config_of(learning_rate=1e-3, loss={"kl_weight": weight}))
        distance.append([learner.update(batch, step).reference_kl for step in range(60)][-1])
    assert distance[1] < distance[0] / 2


def test_ratios_are_measured_for_every_kind_of_loss():
    plain = None
    for loss in LOSSES:
        learner, batch = build(config_of(loss=loss))
        update = learner.update(batch, 0)
        measured = (update.ratio_min, update.ratio_max, update.kl)
        plain = plain or measured
        assert measured == plain and update.ratio_min < 1 < update.ratio_max and update.kl > 0
        assert (update.clip_fraction == 0) == (loss.get("kind") == "asymre")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", [{}, {"family": "qwen3", "tie_embeddings": True, "heads": 2}])
def test_gradient_norms_of_single_rollouts_equal_single_backward_passes(loss, model):
    fields = {"model": model, "buffer_size": 32, "store": {"selection": "gradient_norm"}}
    learner, batch = build(config_of(loss=loss, resources={"micro_batch": 5}, **fields))
    perturb(learner, 0.02)
    whole = BatchLoss(batch, learner.reference, learner.config)
    vectors = []
    for row in range(16):
        share = whole.share(learner.policy, slice(row, row + 1))
        found = torch.autograd.grad(share.loss, learner.parameters)
        vectors.append(16 * flatten(found).double())
    expected = torch.stack(vectors)
    learner.update(batch, 0)
    norms = learner.rollout_gradient_norms
    assert norms.dtype == torch.float64 and norms.shape == (16,)
    assert torch.allclose(norms, expected.norm(dim=1), rtol=1e-4)
    assert norms.max() > 2 * norms.median() > 0
    gradient = learner.previous_gradient.double()
    assert (expected.mean(0) - gradient).norm() < 1e-5 * gradient.norm()


def test_gradient_norms_are_only_taken_where_the_store_needs_them():
    learner, batch = build(config_of())
    learner.update(batch, 0)
    assert learner.rollout_gradient_norms is None


def test_norms_leave_the_update_itself_alone():
    found = []
    for selection in ("uniform", "gradient_norm"):
        learner, batch = build(config_of(buffer_size=32, store={"selection": selection}))
        for step in range(3):
            learner.update(batch, step)
        found.append(flatten(learner.parameters))
    assert torch.equal(*found)


def test_a_restored_learner_goes_on_bit_for_bit():
    config = config_of(
        learning_rate=3e-3,
        loss={"kl_weight": 0.1, "dual_clip": 3.0},
        optimizer={"alignment_limit": 0.2, "clip_norm": 0.05},
    )
    learner, batch = build(config)
    for step in range(3):
        learner.update(batch, step)
    # as a resumed run does: from the initial weights, then everything that the checkpoint holds
    restored, _ = build(config)
    with torch.no_grad():
        for new, old in zip(restored.parameters, learner.parameters, strict=True):
            new.copy_(old)
    restored.load_optimizer_tensors({k: v.clone() for k, v in learner.optimizer_tensors().items()})
    restored.previous_gradient = learner.previous_gradient.clone()
    for step in range(3, 6):
        one, other = learner.update(batch, step), restored.update(batch, step)
        for name in (*NUMBERS, "gradient_cosine", "displacement", "reference_kl"):
            assert getattr(one, name) == getattr(other, name), name
    assert torch.equal(flatten(learner.parameters), flatten(restored.parameters))


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    learner, batch = build(config_of(optimizer={"alignment_limit": 0.2, "clip_norm": 0.05}))
    learner.update(batch, 0)
    before = flatten(learner.parameters)
    batch.advantages[3] = math.nan
    assert not learner.update(batch, 1).finite
    assert torch.equal(flatten(learner.parameters), before)


def test_no_rate_means_no_movement():
    learner, batch = build(config_of(learning_rate=0.0))
    updates = [learner.update(batch, step) for step in range(3)]
    assert [update.displacement for update in updates] == [0.0] * 3
    assert len({(update.loss, update.kl) for update in updates}) == 1


def test_bf16_masters_are_refused():
    with pytest.raises(UserError, match=r"optimizer\.master_dtype='bfloat16' is refused"):
        parse(RunConfig, {"optimizer": {"master_dtype": "bfloat16"}})
    config = config_of()
    with pytest.raises(TypeError, match="float32"):
        Learner(build_policy(config.model, built_in_task(config.task), 0).bfloat16(), config)


def test_a_small_update_moves_nearly_all_weights():
    learner, batch = build(config_of(learning_rate=6e-8, optimizer={"ramp_updates": 0}))
    before = flatten(learner.parameters)
    update = learner.update(batch, 0)
    touched = gather(learner.parameters) != 0
    assert update.gradient_norm > 0 and touched.float().mean() > 0.5
    assert (before != flatten(learner.parameters))[touched].float().mean() > 0.99


@pytest.mark.end_to_end
def test_settings_reach_a_run(tmp_path):
    fields = {"buffer_size": 32, "replay_ratio": 2, "learning_rate": 5e-3, "sync_interval": 4}
    plain = make_run(tmp_path / "s" / "runs" / "plain", 24, **fields)
    other = make_run(
        tmp_path / "s" / "runs" / "other",
        24,
        loss={"kind": "truncated", "weight_cap": 1.1, "kl_weight": 0.1},
        optimizer={"alignment_limit": 0.1, "clip_norm": 0.1},
        store={"selection": "gradient_norm"},
        resources={"micro_batch": 7},
        **fields,
    )
    for paths in (plain, other):
        code, output = run_job(paths)
        assert code == 0, output
    lines = read_metrics(other)
    assert [line["reference_kl"] for line in read_metrics(plain)] == [None] * 24
    assert lines[0]["reference_kl"] == 0 and lines[-1]["reference_kl"] > 0
    assert any(line["clip_fraction"] > 0 for line in lines)
    assert all(line["gradient_norm"] > 0.1 for line in lines)
