"""Runs killed again and again, at every kind of moment, end with the record of an undisturbed run."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers import ROOT, job_environment, make_run, run_job
from trainer.files import read_lines
from trainer.record import RunPaths

pytestmark = pytest.mark.end_to_end

BUFFER = {"buffer_size": 48, "replay_ratio": 4.0}
FREE = {"schedule": "free", "generation_cost_ratio": 4.0, "inference_workers": 3, "trainers": 2}
RUNS = {
    "queue": {"sync_interval": 4},
    "delay": {"store": {"delay": 2, "order": "lifo"}},
    "buffer": BUFFER | {"sync_interval": 3},
    "positive": BUFFER | {"trainers": 2, "store": {"positive_share": 0.5, "max_lag": 20}},
    "gradient": BUFFER | {"store": {"selection": "gradient_norm", "within_batch_replacement": False}},
    "free queue": FREE | {"sync_interval": 2, "store": {"order": "lifo"}},
    "free buffer": FREE
    | {
        "buffer_size": 32,
        "clock": {
            "in_flight_updates": True,
            "sync_cost": 0.05,
            "verifier_share": 0.3,
            "verifier_variation": 1.0,
        },
    },
}
PLANS = {
    "queue": [["journal", 25], ["checkpoint", 3], ["sync", 3], ["marker", 2], ["usage", 2], ["summary", 1]],
    "delay": [["sync", 5], ["journal", 40], ["prune", 2], ["resume", 1], ["checkpoint", 9], ["summary", 1]],
    "buffer": [["checkpoint", 11], ["journal", 7], ["usage", 1], ["sync", 2], ["marker", 1], ["summary", 1]],
    "positive": [["journal", 33], ["usage", 2], ["marker", 2], ["resume", 1], ["sync", 9], ["checkpoint", 1]],
    "gradient": [["sync", 12], ["checkpoint", 5], ["journal", 28], ["prune", 1], ["heartbeat", 1]],
    "free queue": [
        ["journal", 19],
        ["sync", 4],
        ["checkpoint", 13],
        ["usage", 1],
        ["marker", 2],
        ["summary", 1],
    ],
    "free buffer": [
        ["sync", 3],
        ["journal", 31],
        ["checkpoint", 20],
        ["resume", 1],
        ["prune", 1],
        ["usage", 2],
    ],
}
MORE = [["journal", 2], ["sync", 1]]
"""Kills at once after a start, before each of the others' updates have been saved again."""
COMPARED = ("metrics.jsonl", "samples.jsonl", "evaluations.jsonl", "summary.json")


def train_with_kills(paths: RunPaths, plan: list[list[object]]) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "tests" / "kill_driver.py"), str(paths.folder), json.dumps(plan)],
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ends: list[object] = json.loads(done.stdout.splitlines()[-1])
    return ends


def record(paths: RunPaths) -> dict[str, bytes]:
    files = [paths.folder / name for name in COMPARED] + sorted(paths.rollouts.iterdir())
    files += paths.checkpoints.glob("*/*.safetensors")
    return {
        str(file.relative_to(paths.folder)): file.read_bytes().replace(paths.run_id.encode(), b"ID")
        for file in files
    }


def used_prompts(paths: RunPaths) -> Counter[int]:
    rows = pq.read_table(paths.rollouts).to_pandas()
    prompt_of = rows[rows.event == "generated"].set_index("rollout").prompt
    assert prompt_of.index.is_unique
    issued = Counter(prompt_of)
    assert set(issued.values()) == {4}
    assert len(set(range(int(max(issued)))) - set(issued)) <= 3  # at the end some are with their workers
    return Counter(rows[rows.event == "used"].rollout.map(prompt_of))


def test_the_plans_hit_every_kind_of_moment():
    plans = [plan + MORE for plan in PLANS.values()]
    kinds = Counter(moment for plan in plans for moment, _ in plan)
    assert sum(kinds.values()) >= 50
    for moment in ("checkpoint", "marker", "journal", "sync", "summary", "usage", "resume", "prune"):
        assert kinds[moment] >= 3, moment


@pytest.mark.parametrize("name", RUNS)
def test_killed_runs_equal_undisturbed_ones(tmp_path: Path, name: str):
    fields = RUNS[name] | {"budget": {"usage_window": 8, "evaluation": {"every": 5, "prompts": 16}}}
    whole = make_run(tmp_path / "s" / "runs" / "whole", 40, **fields)
    code, output = run_job(whole)
    assert code == 0, output
    broken = make_run(tmp_path / "s" / "runs" / "broken run", 40, **fields)
    plan = [entry for one in PLANS[name] for entry in (one, *(MORE if one is PLANS[name][1] else ()))]
    ends = train_with_kills(broken, plan)
    assert ends == [moment for moment, _ in plan] + [0]
    assert record(broken) == record(whole)
    assert used_prompts(broken) == used_prompts(whole)
    steps = [line["step"] for line in read_lines(broken.timings)]
    assert steps == list(range(40))
    assert [path.name for path in sorted(broken.checkpoints.glob("*"))] == ["best", "step-00000040"]
    for name in ("weights.safetensors", "complete.json"):
        assert (broken.best / name).read_bytes() == (whole.best / name).read_bytes()
