"""Runs of a task in words: records, interruption, truncation, missing verdicts, evaluations, export."""

import json
import shlex
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from launcher.locate import find_run
from tests.helpers import ROOT, job_environment, run_job, start_job
from tests.test_lockstep import same_record
from tests.text_runs import SUMS, text_run, write_lines
from trainer.errors import UserError
from trainer.files import read_json, read_lines
from trainer.record import read_metrics, read_summary

pytestmark = pytest.mark.end_to_end
EVALUATION = {"every": 3, "max_prompts": 20, "samples": 4, "pass_at": [1, 4], "top_p": 0.95}
CHECKER = """
import json, os, sys
for line in sys.stdin:
    item = json.loads(line)
    if item["problem"] in CRASH:
        os._exit(7)
    print(json.dumps({"correct": len(item["response"]) % 2 == 0}), flush=True)
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return tmp_path_factory.mktemp('a sweep\'s "folder"')


@pytest.fixture(scope="module")
def plain(sweep):
    paths = text_run(sweep, "plain", 9, learning_rate=3e-3, budget={"evaluation": EVALUATION})
    code, output = run_job(paths)
    assert code == 0, output
    return paths


def test_a_run_in_words_leaves_a_whole_record(plain, sweep):
    lines = read_metrics(plain)
    assert [line["step"] for line in lines] == list(range(9))
    assert all(line["reward"] == line["accuracy"] for line in lines)
    assert 0.05 < sum(line["reward"] for line in lines) / 9 < 0.95
    assert all(abs(line["ratio_max"] - 1) < 1e-4 and abs(line["ratio_min"] - 1) < 1e-4 for line in lines)
    report = read_json(plain.prompts)
    assert report["training"]["training"] + report["training"]["held_out"] == len(SUMS)
    summary = read_summary(plain)
    assert summary.prompts == report["training"]["rendered"] and len(summary.prompts) == 64
    problems = {row["prompt"] for row in SUMS}
    sample = read_lines(plain.samples)[0]
    assert sample["prompt"] in problems and set(sample) == {"policy_version", "prompt", "response", "reward"}


def test_evaluations_name_set_policy_and_sampling(plain):
    lines = read_lines(plain.evaluations)
    assert [(line["step"], line["metric"]) for line in lines] == [
        (step, metric) for step in (0, 3, 6, 9) for metric in ("accuracy", "pass@1", "pass@4")
    ]
    for line in lines:
        assert line["policy_version"] == line["step"] and line["set"] == "held_out"
        assert (line["n"], line["samples"], line["temperature"], line["top_p"]) == (20, 4, 1.0, 0.95)
    by_metric = {line["metric"]: line["value"] for line in lines[-3:]}
    assert by_metric["accuracy"] == pytest.approx(by_metric["pass@1"], abs=1e-12)
    assert by_metric["pass@4"] >= by_metric["pass@1"]
    best = max((line for line in lines if line["metric"] == "accuracy"), key=lambda line: line["value"])
    summary = read_summary(plain)
    assert summary.best == {key: best[key] for key in ("step", "set", "metric", "value")}
    assert read_json(plain.best / "complete.json")["step"] == best["step"]


def test_evaluations_do_not_disturb_training(plain, sweep):
    for name, evaluation in (("none", {}), ("other", {"every": 2, "max_prompts": 3, "keep_best": False})):
        paths = text_run(sweep, name, 9, learning_rate=3e-3, budget={"evaluation": evaluation})
        code, output = run_job(paths)
        assert code == 0, output
        assert paths.metrics.read_bytes() == plain.metrics.read_bytes()
        assert paths.samples.read_bytes() == plain.samples.read_bytes()
    assert not paths.best.exists() and read_summary(paths).best is None


def test_a_killed_run_continues_byte_for_byte(plain, sweep):
    paths = text_run(sweep, "killed", 9, learning_rate=3e-3, budget={"evaluation": EVALUATION})
    job = start_job(paths)
    deadline = time.monotonic() + 120
    while len(read_lines(paths.metrics)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    job.kill()
    job.communicate()
    assert 5 <= len(read_lines(paths.metrics)) < 9, "it was not killed in the middle"
    code, output = run_job(paths)
    assert code == 0 and "continues at update 3" in output
    same_record(plain, paths)
    assert paths.evaluations.read_bytes() == plain.evaluations.read_bytes()


@pytest.fixture(scope="module")
def truncated(sweep):
    """Metrics by truncation policy. Two tokens hold one digit and an end mark: longer answers are cut off."""
    found = {}
    for policy in ("wrong", "mask", "filter"):
        task = {"truncation": policy, "max_response_tokens": 2}
        paths = text_run(sweep, f"cut-{policy}", 6, task=task, warm_start={"target_reward": 0.2})
        code, output = run_job(paths)
        assert code == 0, output
        found[policy] = read_metrics(paths)
    return found


@pytest.mark.parametrize("policy", ["wrong", "mask", "filter"])
def test_truncated_responses(truncated, policy):
    lines = truncated[policy]
    cut = [line for line in lines if line["truncated_share"] > 0]
    assert len(cut) >= 3
    if policy == "filter":
        assert all(line["filtered_share"] > line["truncated_share"] for line in cut)
        # as many rollouts are trained on as ever, more are generated, and the reward counts them all
        assert lines[-1]["rollouts_trained"] == 6 * 32 < lines[-1]["rollouts_generated"]
        assert sum(line["reward"] for line in cut) < sum(line["reward_trained"] for line in cut)
    else:
        assert lines[-1]["rollouts_generated"] == lines[-1]["rollouts_trained"] == 6 * 32
        assert all(line["filtered_share"] == 0 for line in lines)


def test_the_truncation_policy_decides_what_is_learnt_from(truncated):
    wrong, masked = truncated["wrong"][0], truncated["mask"][0]
    assert wrong["reward"] == masked["reward"] and wrong["truncated_share"] > 0
    assert wrong["gradient_norm"] != masked["gradient_norm"]


def test_nothing_but_truncated_groups_ends_with_a_reason(sweep):
    task = {"truncation": "filter", "max_response_tokens": 1}
    paths = text_run(sweep, "hopeless", 6, task=task, warm_start={"target_reward": 0.0})
    code, output = run_job(paths)
    assert code == 0, output
    summary = read_summary(paths)
    assert summary.outcome == "invalid" and "raise task.max_response_tokens" in summary.reason


def test_rewards_of_plus_and_minus_one_are_the_same_experiment(plain, sweep):
    paths = text_run(
        sweep, "dapo", 9, learning_rate=3e-3, task={"wrong_reward": -1.0}, advantage={"epsilon": 0.0}
    )
    other = text_run(sweep, "zero", 9, learning_rate=3e-3, advantage={"epsilon": 0.0})
    for run in (paths, other):
        code, output = run_job(run)
        assert code == 0, output
    for line, twin in zip(read_metrics(paths), read_metrics(other), strict=True):
        assert line["accuracy"] == pytest.approx(twin["accuracy"], abs=1e-6)
        assert line["reward"] == pytest.approx(2 * twin["reward"] - 1, abs=1e-6)
        assert line["gradient_norm"] == pytest.approx(twin["gradient_norm"], rel=1e-3)
    assert read_summary(paths).outcome == read_summary(other).outcome
    assert read_summary(paths).final_reward == pytest.approx(read_summary(other).final_reward, abs=1e-6)


def test_a_checker_that_crashes_leaves_finite_advantages(sweep):
    crash = [row["prompt"] for row in SUMS[::3]]
    (sweep / "check.py").write_text(CHECKER.replace("CRASH", repr(crash)))
    verifier = {
        "kind": "command",
        "command": shlex.join([sys.executable, str(sweep / "check.py")]),
        "time_limit": 5.0,
    }
    # fresh weights: a third of the responses end, and half of those have an even length
    cold, task = {"target_reward": 0.0}, {"verifier": verifier, "max_response_tokens": 40}
    paths = text_run(sweep, "checked", 6, task=task, warm_start=cold)
    code, output = run_job(paths)
    assert code == 0, output
    assert "verifier: " in output and "exit status 7" in output
    lines = read_metrics(paths)
    assert sum(line["unscored_share"] > 0 for line in lines) >= 3
    assert sum(line["gradient_norm"] > 0 for line in lines) >= 3
    assert all(
        line["loss"] is not None and set(line.get("nonfinite", {})) <= {"gradient_cosine"} for line in lines
    )
    (sweep / "check.py").write_text(CHECKER.replace("CRASH", "[]"))
    code, output = run_job(text_run(sweep, "changed", 6, task=task, warm_start=cold))
    assert code == 2 and "is not what it was when this sweep was prepared" in output


def test_named_sets_beside_the_held_out_one(sweep):
    far = write_lines(sweep / "far.jsonl", [{"prompt": f"{a}+90=", "answer": str(a + 90)} for a in range(9)])
    sets = {
        "far": {"source": {"path": str(far)}, "temperature": 0.1, "top_p": 0.95},
        "seldom": {"source": {"path": str(far)}, "every": 2, "max_prompts": 4, "samples": 2},
    }
    evaluation = {"every": 2, "max_prompts": 5, "sets": sets}
    paths = text_run(sweep, "sets", 6, budget={"evaluation": evaluation})
    code, output = run_job(paths)
    assert code == 0, output
    found = [(line["step"], line["set"], line["n"]) for line in read_lines(paths.evaluations)]
    both = [("held_out", 5), ("far", 9), ("seldom", 4)]
    assert found == [(step, *each) for step in (0, 2, 4, 6) for each in both[: 3 if step % 4 == 0 else 2]]
    assert set(read_json(paths.prompts)) == {"training", "far", "seldom"}


def test_trained_problems_are_not_evaluated_on(sweep):
    same = write_lines(
        sweep / "same.jsonl", [{"prompt": f" {row['prompt']} ", "answer": "1"} for row in SUMS]
    )
    evaluation = {"every": 2, "sets": {"same": {"source": {"path": str(same)}}}}
    paths = text_run(sweep, "overlap", 6, budget={"evaluation": evaluation})
    code, output = run_job(paths)
    assert code == 2
    assert (
        "problems of the evaluation set same are trained on too, as '" in output and "Traceback" not in output
    )


@pytest.mark.parametrize("step", ["best", "last", "9"])
def test_export_writes_what_transformers_reads(plain, tmp_path, step):
    out = tmp_path / f"out {step}"
    done = run_export(plain, step, out)
    assert done.returncode == 0, done.stderr
    about = read_json(out / "grposweep.json")
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    known = {"best": read_summary(plain).best["step"], "last": 9, "9": 9}
    assert about["step"] == known[step] and about["run_id"] == plain.run_id
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3+4="}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert 1 <= written.shape[1] - inputs["input_ids"].shape[1] <= 4
    again = run_export(plain, step, out)
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_exported_weights_are_the_checkpoints(plain, tmp_path):
    from safetensors.torch import load_file

    assert run_export(plain, "last", tmp_path / "x").returncode == 0
    weights = load_file(plain.checkpoints / "step-00000009" / "weights.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())


def test_export_says_what_there_is(plain, tmp_path):
    done = run_export(plain, "5", tmp_path / "x")
    assert done.returncode == 2 and "there are 9" in done.stderr, done.stderr
    assert not (tmp_path / "x").exists()


def run_export(paths, step, out):
    return subprocess.run(
        [sys.executable, "-P", "-m", "trainer.export", str(paths.folder), step, str(out)],
        env=job_environment(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_runs_are_found_by_the_beginning_of_their_id(tmp_path):
    for sweep, run in (("one", "abc123"), ("one", "abd456"), ("two", "abc999")):
        folder = tmp_path / sweep / "runs" / run
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("{}")
    assert find_run("abd", tmp_path).run_id == "abd456"
    assert find_run(str(tmp_path / "two" / "runs" / "abc999"), tmp_path).run_id == "abc999"
    with pytest.raises(UserError, match="is not one but 2"):
        find_run("abc", tmp_path)
    with pytest.raises(UserError, match="no run 'x'"):
        find_run("x", tmp_path)


def test_problems_of_reasoning_gym_are_scored_by_it(sweep):
    source = {"generator": "gcd", "rows": 40, "settings": {"max_value": 9, "max_numbers": 2}}
    paths = text_run(
        sweep, "gym", 2, task={"source": source, "held_out_share": 0.0}, warm_start={"target_reward": 0.0}
    )
    code, output = run_job(paths)
    assert code == 0, output
    report = read_json(paths.prompts)["training"]
    assert report["fingerprint"].startswith("reasoning-gym ") and report["training"] > 10
    assert report["training"] + report["duplicates"] == 40
    assert json.loads(json.dumps(report)) == report and "greatest common divisor" in report["example"].lower()
