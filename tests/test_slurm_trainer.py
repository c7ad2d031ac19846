"""The trainer under Slurm's signals, second instances and requeues: nothing lost, nothing doubled."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import job_environment, make_run, run_job
from tests.slurm_tasks import REAL, answer, finish, start, wait_for, write_task
from tests.test_kill import record
from tests.test_slurm_task import report
from tests.text_runs import text_run
from trainer.attempts import read_attempts
from trainer.files import read_json, read_lines
from trainer.record import RunPaths, read_metrics, read_state

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(sys.platform != "linux", reason="Slurm and its signals are Linux's"),
]

UNLOCKED = """
import contextlib, sys
from pathlib import Path
import trainer.job as job
job.locked = lambda path: contextlib.nullcontext()
sys.exit(job.run_job(Path(sys.argv[1])))
"""
CHECKER = """
import json, subprocess, sys
for line in sys.stdin:
    length = len(json.loads(line)["response"])
    open(sys.argv[1], "a").write("checking\\n")
    # what a checker starts has to survive as well: its exit code is the verdict
    slow = subprocess.run(["/bin/sleep", "0.05"]).returncode
    print(json.dumps({"correct": slow == 0 and length % 2 == 0}), flush=True)
"""


def test_a_task_that_is_preempted_killed_and_requeued_leaves_the_record_of_an_undisturbed_one(tmp_path: Path):
    sweep = tmp_path / "a sweep"
    fields = {"sync_interval": 3, "buffer_size": 48, "replay_ratio": 4.0}
    budget = {"usage_window": 8, "checkpoint_every": 15, "evaluation": {"every": 50, "prompts": 16}}
    whole = make_run(sweep / "runs" / "whole", 300, budget=budget, **fields)
    assert run_job(whole)[0] == 0
    broken = make_run(sweep / "runs" / "broken", 300, budget=budget, **fields)
    file = write_task(sweep, broken)
    path = answer(tmp_path / "bin", report(preempted=True))
    ends: list[int] = []
    for restart, number in enumerate((signal.SIGUSR2, signal.SIGKILL, signal.SIGTERM, None)):
        supervisor = start(file, path, restart=restart, command=REAL)
        if number is not None:
            seen = len(read_lines(broken.attempts))
            wait_for(lambda seen=seen: len(read_lines(broken.attempts)) > seen, supervisor)
            before = len(read_lines(broken.metrics))
            wait_for(lambda before=before: len(read_lines(broken.metrics)) > before + 20, supervisor)
            os.killpg(supervisor.pid, number)
        code, output = finish(supervisor)
        ends.append(code)
    assert ends == [85, -signal.SIGKILL, 85, 0], output
    assert record(broken) == record(whole)
    steps = [line["step"] for line in read_metrics(whole)]
    assert [line["step"] for line in read_lines(broken.timings)] == steps == list(range(len(steps)))
    attempts = read_attempts(broken)
    assert [(attempt.ended or {})["how"] for attempt in attempts] == [
        "interrupted",
        "killed",
        "interrupted",
        "finished",
    ]
    assert [attempt.left is None for attempt in attempts] == [False, True, False, False]
    for restart, attempt in enumerate(attempts):
        assert attempt.started is not None
        assert (attempt.started["job"], attempt.started["restart"]) == ("17_0", restart)
    last = attempts[-1].ended
    assert last is not None and last["peak_memory"] > 50e6 and last["peak_device_memory"] is None


def test_outside_of_slurm_an_attempt_names_no_job_and_the_record_says_what_it_cost(tmp_path: Path):
    run = make_run(tmp_path / "s" / "runs" / "r", 20, sync_interval=4)
    (run.folder / "refused.json").write_text("{}")
    code, output = run_job(run, CUDA_VISIBLE_DEVICES="")
    assert code == 0, output
    started = read_lines(run.attempts)[0]
    assert started["job"] is None and started["restart"] is None and started["node"] is None
    assert started["devices"] == "" and not run.refused.exists()
    # every seven updates: what the checkpoint took stands with the update after it
    assert [line["step"] for line in read_lines(run.timings) if line.get("checkpoint")] == [7, 14]
    state = read_state(run)
    assert state is not None and state.lag == read_metrics(run)[-1]["lag_mean"] == 3.0
    old = {
        name: value for name, value in state.model_dump().items() if name not in ("lag", "tokens_per_second")
    }
    run.state.write_text(json.dumps(old))
    assert read_state(run) is not None


@pytest.mark.parametrize("moment", ["between updates", "in an update"])
def test_without_locks_a_newer_attempt_stops_the_older_one(tmp_path: Path, moment: str):
    whole = make_run(tmp_path / "s" / "runs" / "whole", 150)
    assert run_job(whole)[0] == 0
    run = make_run(tmp_path / "s" / "runs" / "twice", 150)
    slow = "" if moment == "between updates" else SLOW_UPDATE
    older = unlocked(run, slow + UNLOCKED)
    deadline = time.monotonic() + 60
    while len(read_lines(run.metrics)) < 20:
        assert time.monotonic() < deadline and older.poll() is None
        time.sleep(0.005)
    os.kill(older.pid, signal.SIGSTOP)
    newer = unlocked(run, UNLOCKED)
    while len(read_attempts(run)) < 2 or not read_lines(run.tail(1)):
        assert time.monotonic() < deadline and newer.poll() is None
        time.sleep(0.005)
    state = read_json(run.state)
    os.kill(older.pid, signal.SIGCONT)
    output, _ = older.communicate(timeout=60)
    assert older.returncode == 76, output
    assert "a newer attempt has started" in output
    assert newer.wait(timeout=60) == 0
    assert state is not None and read_attempts(run)[0].ended is not None
    assert read_attempts(run)[0].ended["how"] == "superseded"
    assert record(run) == record(whole)
    assert [line["step"] for line in read_lines(run.timings)] == list(range(150))


SLOW_UPDATE = """
import time
from trainer.learner import Learner
update = Learner.update
def slow(self, batch, step):
    time.sleep(0.05)
    return update(self, batch, step)
Learner.update = slow
"""


def unlocked(run: RunPaths, script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", script, str(run.folder)],
        env=job_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, in whatever session."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def test_a_term_to_every_process_in_the_middle_of_a_verifier_leaves_its_verdict_as_it_is(tmp_path: Path):
    sweep = tmp_path / "s"
    sweep.mkdir()
    (sweep / "check.py").write_text(CHECKER)
    calls = tmp_path / "calls"
    command = shlex.join([sys.executable, str(sweep / "check.py"), str(calls)])
    verifier = {"kind": "command", "command": command, "time_limit": 20, "batch": 4}
    fields = {"task": {"verifier": verifier}, "warm_start": {"target_reward": 0.0}, "batch_size": 8}
    whole = text_run(sweep, "whole", 4, **fields)
    assert run_job(whole)[0] == 0
    broken = text_run(sweep, "broken", 4, **fields)
    path = answer(tmp_path / "bin", report(preempted=True)) + ":" + os.environ["PATH"]
    file = write_task(sweep, broken)
    supervisor = start(file, path, command=REAL)
    wait_for(lambda: len(read_lines(broken.metrics)) >= 2, supervisor)
    seen = calls.stat().st_size
    wait_for(lambda: calls.stat().st_size > seen, supervisor)
    for pid in [supervisor.pid, *descendants(supervisor.pid)]:
        os.kill(pid, signal.SIGTERM)
    code, output = finish(supervisor)
    assert code == 85, output
    assert 0 < len(read_lines(broken.metrics)) < 4
    code, output = finish(start(file, path, restart=1, command=REAL))
    assert code == 0, output
    assert "verifier:" not in broken.log(1).read_text()
    assert all(line["unscored_share"] == 0 for line in read_metrics(broken))
    assert record(broken) == record(whole)
