"""The strict lockstep engine: lag, equality with a plain on-policy loop, resume bit for bit."""

import json
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import make_run, run_job, start_job
from trainer.files import locked, read_json, read_lines, sha256, write_json
from trainer.policy import build_policy, weights_of
from trainer.record import RunPaths, read_config, read_metrics, read_summary
from trainer.sampling import Decoding, sample
from trainer.seeding import generator
from trainer.tasks import built_in_task

pytestmark = pytest.mark.end_to_end
SAME = ("metrics.jsonl", "samples.jsonl", "summary.json")


def same_record(one: RunPaths, other: RunPaths) -> None:
    for name in SAME:
        left = (one.folder / name).read_text().replace(one.run_id, "ID")
        assert left == (other.folder / name).read_text().replace(other.run_id, "ID"), name
    assert [line["step"] for line in read_lines(one.timings)] == [
        line["step"] for line in read_lines(other.timings)
    ]


def newest_weights(paths: RunPaths) -> dict[str, torch.Tensor]:
    return load_file(sorted(paths.checkpoints.glob("step-*"))[-1] / "weights.safetensors")


@pytest.mark.parametrize("sync_interval", [1, 3, 8])
def test_lag_is_t_mod_s(tmp_path, sync_interval):
    paths = make_run(tmp_path / "s" / "runs" / "a", 20, sync_interval=sync_interval)
    code, output = run_job(paths)
    assert code == 0, output
    lines = read_metrics(paths)
    assert [line["step"] for line in lines] == list(range(20))
    assert [line["lag_max"] for line in lines] == [t % sync_interval for t in range(20)]
    assert [line["policy_version"] for line in lines] == [t - t % sync_interval for t in range(20)]
    assert lines[0]["gradient_cosine"] is None and lines[0]["nonfinite"] == {"gradient_cosine": "nan"}


def test_on_policy_run_equals_a_plain_loop_bit_for_bit(tmp_path):
    """Same model and sampler; prompts, advantages, loss and optimizer written out again."""
    updates = 12
    paths = make_run(tmp_path / "s" / "runs" / "a", updates, learning_rate=3e-3)
    code, output = run_job(paths)
    assert code == 0, output
    torch.set_num_threads(1)
    config = read_config(paths)
    task = built_in_task(config.task)
    model = build_policy(config.model, task, 0)
    start = load_file(next(paths.warm_starts.glob("*/weights.safetensors")))
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.copy_(start[name])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True
    )
    rewards, losses = [], []
    for t in range(updates):
        prompts = task.prompts(4, generator(0, "prompts", t)).repeat_interleave(4, 0)
        uniforms = torch.rand((16, 4), dtype=torch.float64, generator=generator(0, "sampling", t))
        lengths = torch.full((16,), prompts.shape[1])
        drawn = sample(model, prompts, lengths, uniforms, Decoding(1.0, task.eos_ids, task.pad_id))
        correct = (drawn.tokens == torch.cat([prompts[:, 1:-1], torch.full((16, 1), 7)], 1)).all(1).float()
        group = correct.view(4, 4)
        advantage = (group - group.mean(1, keepdim=True)) / (group.std(1, correction=0, keepdim=True) + 1e-6)
        advantage[group.amax(1) == group.amin(1)] = 0
        logits = model(input_ids=torch.cat([prompts, drawn.tokens[:, :-1]], 1), use_cache=False).logits
        logp = torch.log_softmax(logits[:, 4:].float() / 1.0, -1).gather(-1, drawn.tokens[..., None])[..., 0]
        ratio = torch.where(drawn.mask, logp - drawn.log_probabilities, 0.0).exp()
        weight = advantage.view(-1, 1)
        surrogate = torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
        per_sequence = torch.where(drawn.mask, surrogate, 0.0).sum(1) / drawn.mask.sum(1)
        loss = -per_sequence.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 3e-3 * (t + 1) / 20
        optimizer.step()
        rewards.append(correct.mean().item())
        losses.append(loss.item())
    lines = read_metrics(paths)
    assert [line["reward"] for line in lines] == rewards
    assert [line["loss"] for line in lines] == losses
    final = newest_weights(paths)
    assert all(torch.equal(final[name], weight) for name, weight in weights_of(model).items())
    assert any(not torch.equal(final[name], start[name]) for name in final)


def test_killed_and_interrupted_runs_resume_bit_for_bit(tmp_path):
    fields = {"sync_interval": 8, "learning_rate": 4e-3}
    whole = make_run(tmp_path / "s" / "runs" / "whole", 60, **fields)
    assert run_job(whole)[0] == 0
    broken = make_run(tmp_path / "s" / "runs" / "broken", 60, **fields)
    draw = random.Random(0)
    seen = set()
    for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL]:
        job = start_job(broken)
        wanted = len(read_lines(broken.metrics)) + draw.randint(2, 9)
        deadline = time.monotonic() + 60
        while len(read_lines(broken.metrics)) < wanted and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        if job.poll() is None:
            job.send_signal(number)
        output, _ = job.communicate(timeout=60)
        seen.add(job.returncode)
        assert job.returncode in (-9, 75, 0), output
    assert -9 in seen and 75 in seen
    code, output = run_job(broken)
    assert code == 0, output
    same_record(whole, broken)
    final, expected = newest_weights(broken), newest_weights(whole)
    assert all(torch.equal(final[name], expected[name]) for name in expected)
    events = [(line["attempt"], line["event"]) for line in read_lines(broken.attempts)]
    assert events == [(k, event) for k in range(1, 6) for event in ("started", "ended")]
    tails = [json.loads(x) for f in broken.folder.glob("attempts/*.tail.jsonl") for x in f.open()]
    assert all(set(line) == {"journal", "line"} for line in tails)


def test_a_longer_budget_continues_and_equals_a_longer_run(tmp_path):
    fields = {"sync_interval": 8, "learning_rate": 2e-3}
    short = make_run(tmp_path / "s" / "runs" / "short", 13, **fields)
    assert run_job(short)[0] == 0
    assert read_summary(short).updates == 13
    long = make_run(tmp_path / "s" / "runs" / "long", 30, **fields)
    assert run_job(long)[0] == 0
    short.budget.write_bytes(long.budget.read_bytes())
    before = short.metrics.read_bytes()
    assert run_job(short)[0] == 0
    assert short.metrics.read_bytes().startswith(before)
    same_record(short, long)


def test_an_extension_that_cannot_go_on_leaves_the_result(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 8)
    assert run_job(paths)[0] == 0
    result = paths.summary.read_bytes()
    longer = make_run(tmp_path / "s" / "runs" / "b", 16)
    paths.budget.write_bytes(longer.budget.read_bytes())
    (checkpoint,) = paths.checkpoints.glob("step-*")
    meta = read_json(checkpoint / "meta.json")
    write_json(checkpoint / "meta.json", meta | {"format": 1})
    marker = read_json(checkpoint / "complete.json")
    marker["sha256"]["meta.json"] = sha256(checkpoint / "meta.json")
    write_json(checkpoint / "complete.json", marker)
    code, output = run_job(paths)
    assert code == 2 and "has format 1" in output and "Traceback" not in output
    assert paths.summary.read_bytes() == result
    shutil.rmtree(checkpoint)  # from the start again: the result speaks of updates that are gone
    assert run_job(paths)[0] == 0
    assert read_summary(paths).updates == 16


def test_second_job_on_a_run_is_turned_away(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 5)
    with locked(paths.lock):
        code, output = run_job(paths)
    assert code == 76 and "held by process" in output
    assert not paths.metrics.exists()


def test_code_from_elsewhere_is_refused(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 5)
    code, output = run_job(paths, GRPOSWEEP_CODE=str(tmp_path))
    assert code == 2 and "not from its snapshot" in output and "Traceback" not in output


def test_an_exception_is_recorded_with_its_last_lines(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 5, warm_start={"target_reward": 0.99, "max_updates": 2})
    code, _ = run_job(paths)
    assert code == 2
    state = read_json(paths.state)
    assert state["state"] == "failed" and "max_updates" in state["error"]
    assert not paths.summary.exists()


def test_launchers_death_interrupts_the_job(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 5)
    code, _ = run_job(paths, GRPOSWEEP_LAUNCHER="1")
    assert code == 75
    assert read_lines(paths.attempts)[-1]["reason"] == "the launcher ended"
