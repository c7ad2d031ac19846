"""Preparing runs from the command line: what is refused, where, and that nothing is left by it."""

import json
import shlex
import subprocess
import sys

import pytest

from launcher.executors import job_environment
from tests.helpers import job_environment as environment
from tests.helpers import run_job
from tests.text_runs import SUMS, text_run, write_lines
from trainer.record import read_summary

pytestmark = pytest.mark.end_to_end
PRESET = """
axes: {learning_rate: [1e-3, 3e-3]}
task:
  name: text
  source: {path: sums.jsonl}
  max_response_tokens: 4
warm_start: {target_reward: 0.0}
batch_size: 16
model: {hidden_size: 32}
budget: {horizon: {updates: 2}}
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "a user's folder"
    write_lines(folder / "sums.jsonl", SUMS)
    (folder / "mine" / "sweep").mkdir(parents=True)
    (folder / "mine" / "sweep" / "sums.yaml").write_text(PRESET)
    return folder


def grposweep(home, *words):
    return subprocess.run(
        [sys.executable, "-m", "launcher.cli", *words],
        cwd=home,
        env=environment(HF_TOKEN="hf_secret"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def submit(home, *words):
    return grposweep(home, "submit", "sweep=sums", "--config-dir", "mine", *words)


def test_a_sweep_in_words_from_relative_paths(home):
    fetched = grposweep(home, "prefetch", "sweep=sums", "--config-dir", "mine")
    assert fetched.returncode == 0, fetched.stderr
    assert f"prompts training: {len(SUMS)} of {len(SUMS)} problems of sums.jsonl" in fetched.stdout
    assert not (home / "outputs" / "sums" / "runs").exists()
    (home / "check.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'correct': True}), flush=True)\n"
    )
    command = shlex.join([sys.executable, "check.py"])
    checked = ("task.verifier.kind=command", f"task.verifier.command={json.dumps(command)}")
    done = submit(home, *checked)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = list((home / "outputs" / "sums" / "runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        # every response that ended was called right
        assert all(line["reward"] == pytest.approx(1 - line["truncated_share"]) for line in lines)
    for file in (home / "outputs").rglob("*"):
        assert not file.is_file() or b"hf_secret" not in file.read_bytes(), file
    (home / "check.py").write_text("print(1)")
    again = grposweep(home, "extend", "sums", "--horizon", "3")
    assert again.returncode == 2 and "is not what it was when this sweep was prepared" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task.source.path=nowhere.jsonl"], "task.source.path=nowhere.jsonl does not exist"),
        (["task.source.prompt_column=problem"], "has no column problem: there are answer, prompt"),
        (["task.max_prompt_tokens=2"], "are longer than task.max_prompt_tokens=2"),
        (
            ["task.verifier.kind=command", "task.verifier.command='no-such-program x'"],
            "is no executable file",
        ),
        (
            [
                "task.verifier.kind=command",
                f"task.verifier.command={json.dumps(shlex.join([sys.executable, 'missing.py']))}",
            ],
            "gave no verdict on a right answer",
        ),
        (
            ["budget.evaluation.every=2", "budget.evaluation.sets.same.source.path=sums.jsonl"],
            f"{len(SUMS)} of {len(SUMS)} problems of the evaluation set same are trained on too",
        ),
        (["model.pretrained=./no-model"], "model.pretrained=./no-model does not exist"),
    ],
)
def test_a_fault_is_told_before_anything_is_written(home, words, said):
    shape = [] if "pretrained" not in words[0] else ["model.hidden_size=32", "warm_start.target_reward=0.1"]
    done = submit(home, *words, *shape)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and said in lines[0], done.stderr
    sweep = home / "outputs" / "sums"
    assert not (sweep / "sweep.yaml").exists() and not (sweep / "runs").exists()


def test_nothing_to_fetch(home):
    done = grposweep(home, "prefetch", "sweep=smoke")
    assert done.returncode == 0 and "nothing to fetch" in done.stdout


def test_jobs_are_offline_and_get_no_token(tmp_path):
    found = job_environment({"HF_TOKEN": "x", "HF_HOME": "cache", "PATH": "p"}, tmp_path, 1)
    assert "HF_TOKEN" not in found and found["HF_HOME"] == "cache"
    assert found["HF_HUB_OFFLINE"] == found["HF_DATASETS_OFFLINE"] == "1"


def test_a_verifier_that_never_answers_ends_the_run(tmp_path):
    checker = tmp_path / "check.py"
    checker.write_text("import sys\nfor line in sys.stdin:\n    print('{\"correct\": null}', flush=True)\n")
    verifier = {"kind": "command", "command": shlex.join([sys.executable, str(checker)])}
    task = {"verifier": verifier, "max_response_tokens": 200}
    paths = text_run(tmp_path / "s", "mute", 60, task=task, warm_start={"target_reward": 0.0}, batch_size=4)
    code, output = run_job(paths)
    assert code == 0, output
    summary = read_summary(paths)
    assert summary.outcome == "invalid" and "gave no verdict on the last" in summary.reason
