"""The supervisor of a Slurm task, over stand-ins for the trainer and for scontrol."""

import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.slurm_tasks import answer, environment_of, finish, stand_in_run, start, wait_for, write_task
from trainer.attempts import read_attempts
from trainer.files import read_json, read_lines, write_json
from trainer.paths import RunPaths

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(sys.platform != "linux", reason="Slurm and its signals are Linux's"),
]

REQUEUE = 85


def report(state: str = "RUNNING", *, left: float = 3600, preempted: bool = False, restarts: int = 0) -> str:
    end = datetime.fromtimestamp(time.time() + left).isoformat(timespec="seconds")
    now = datetime.fromtimestamp(time.time()).isoformat(timespec="seconds") if preempted else "None"
    return f"JobId=19 JobState={state} Reason=None Restarts={restarts} EndTime={end} PreemptTime={now}"


def left(run: RunPaths) -> list[dict[str, Any]]:
    return [line for line in read_lines(run.attempts) if line["event"] == "left"]


def interrupt(
    sweep: Path, runs: list[RunPaths], path: str, *signals: int, restart: int = 0, **fields: Any
) -> tuple[int, str]:
    """Run a task and send signals to its whole step once every run has made an update."""
    before = [len(read_lines(run.metrics)) for run in runs]
    supervisor = start(write_task(sweep, *runs, **fields), path, restart=restart)
    for run, count in zip(runs, before, strict=True):
        wait_for(lambda run=run, count=count: len(read_lines(run.metrics)) > count, supervisor)
    for number in signals:
        os.killpg(supervisor.pid, number)
        time.sleep(0.1)
    return finish(supervisor)


def test_runs_side_by_side_get_devices_of_their_own_and_finished_ones_are_not_started_again(tmp_path: Path):
    runs = [stand_in_run(tmp_path, name, 3) for name in ("a b", "c", "d", "e")]
    file = write_task(tmp_path, *runs, devices_per_run=1, threads=2)
    devices = ["4", "GPU-8f2a-11", "6", "MIG-7"]
    code, output = finish(start(file, answer(tmp_path / "bin", None), CUDA_VISIBLE_DEVICES=",".join(devices)))
    assert code == 0, output
    for run, device in zip(runs, devices, strict=True):
        seen = environment_of(run, 1)
        assert seen["CUDA_VISIBLE_DEVICES"] == device
        assert seen["OMP_NUM_THREADS"] == seen["MKL_NUM_THREADS"] == "2"
        assert Path(seen["GRPOSWEEP_CODE"]) == tmp_path / "code" / "c0de"
        attempt = read_attempts(run)[0]
        assert attempt.started and attempt.started["devices"] == device
        assert attempt.left and attempt.left["job"] == "17_0" and attempt.left["exit_code"] == 0
        assert attempt.left["asked"] is None and attempt.left["requeue"] is False
    code, output = finish(start(file, answer(tmp_path / "bin", None), CUDA_VISIBLE_DEVICES=",".join(devices)))
    assert code == 0 and output.count("is finished already") == 4, output
    assert all(len(read_attempts(run)) == 1 for run in runs)
    # a longer horizon is work again, for that run alone
    write_json(runs[1].budget, {"horizon": 5, "updates_after_collapse": 5})
    write_json(runs[1].folder / "plan.json", {"updates": 5})
    code, _ = finish(start(file, answer(tmp_path / "bin", None), CUDA_VISIBLE_DEVICES=",".join(devices)))
    assert code == 0 and [len(read_attempts(run)) for run in runs] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"packages": {"pyyaml": "1.2"}}, ("pyyaml is", "and was 1.2", "site profile")),
        ({"packages": {"no-such-package": "1.2"}}, ("no-such-package is none here",)),
        ({"code": "code/gone"}, ("code=", "is not there")),
        ({"devices_per_run": 2}, ("CUDA_VISIBLE_DEVICES=0,1,2 names 3 devices", "need 4")),
    ],
)
def test_a_task_that_cannot_run_here_says_why_where_status_finds_it(
    tmp_path: Path, fields: dict[str, Any], words: tuple[str, ...]
):
    runs = [stand_in_run(tmp_path, name, 2) for name in "ab"]
    path = answer(tmp_path / "bin", None)
    code, output = finish(start(write_task(tmp_path, *runs, **fields), path, CUDA_VISIBLE_DEVICES="0,1,2"))
    assert code == 2
    for run in runs:
        refused = read_json(run.refused)
        assert refused is not None and refused["job"] == "17_0" and refused["restart"] == 0
        assert refused["reason"] in output and all(word in refused["reason"] for word in words)
        assert not run.attempts.exists()
    assert finish(start(write_task(tmp_path, *runs), path))[0] == 0
    assert not any(run.refused.exists() for run in runs)


def test_a_task_that_is_not_there_is_refused(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 2)
    file, path = write_task(tmp_path, run), answer(tmp_path / "bin", None)
    for extra in ({"SLURM_ARRAY_TASK_ID": "1"}, {"SLURM_ARRAY_TASK_ID": ""}):
        code, output = finish(start(file, path, **extra))
        assert code == 2 and ("submit" in output or "job script" in output)
        assert "Traceback" not in output
    assert not run.attempts.exists()


def test_a_failed_run_disturbs_no_neighbour_and_is_not_run_again_by_their_requeue(tmp_path: Path):
    bad = stand_in_run(tmp_path, "bad", 3, way="fail")
    silent = stand_in_run(tmp_path, "silent", 3, way="silent")
    good = stand_in_run(tmp_path, "good", 30, pause=0.1)
    path = answer(tmp_path / "bin", report(preempted=True))
    file = write_task(tmp_path, bad, silent, good)
    supervisor = start(file, path)
    wait_for(lambda: read_lines(good.metrics) and left(bad) and left(silent), supervisor)
    os.killpg(supervisor.pid, signal.SIGUSR2)
    code, output = finish(supervisor)
    assert code == REQUEUE, output
    assert left(bad)[0]["exit_code"] == 1 and left(good)[0]["requeue"]
    assert "has no record of an end" in output
    write_json(good.folder / "plan.json", {"updates": 3})
    write_json(good.budget, {"horizon": 3, "updates_after_collapse": 5})
    code, output = finish(start(file, path, restart=1))
    assert code == 1 and "bad failed in this job" in output
    assert [len(read_attempts(run)) for run in (bad, good)] == [1, 2]
    # a new submission of it is another job
    code, _ = finish(start(file, path, SLURM_ARRAY_JOB_ID="18"))
    assert code == 1 and len(read_attempts(bad)) == 2 and len(read_attempts(good)) == 2


def test_a_preemption_is_one_request_and_what_trainers_start_lives_on(tmp_path: Path):
    runs = [stand_in_run(tmp_path, name, 1000, pause=0.1) for name in "ab"]
    path = answer(tmp_path / "bin", report(left=60, preempted=True), slow=0.3)
    code, output = interrupt(
        tmp_path, runs, path, signal.SIGUSR2, signal.SIGUSR2, time_limit=300, signal_lead=120.0
    )
    assert code == REQUEUE, output
    for run in runs:
        attempt = read_attempts(run)[0]
        assert attempt.ended and attempt.ended["requests"] == 1 and attempt.ended["helper"] is None
        assert attempt.left and attempt.left["asked"] == "preempted" and attempt.left["requeue"]
        assert attempt.left["exit_code"] == 75 and attempt.left["signal"] is None
    assert (tmp_path / "bin" / "asked").read_text().splitlines()[0] == "show job 17_0 -o"


@pytest.mark.parametrize(
    ("text", "signals", "asked", "expected"),
    [
        (report("COMPLETING"), [signal.SIGTERM], "cancelled", 75),
        (report(), [signal.SIGTERM], "stopped", 75),
        (report(left=60), [signal.SIGUSR2], "time_limit", REQUEUE),
        # Slurm has requeued it by itself
        (report("COMPLETING", restarts=1), [signal.SIGTERM], "preempted", 75),
        (None, [signal.SIGUSR2], "preempted", REQUEUE),
        (None, [signal.SIGINT], "stopped", 75),
    ],
)
def test_only_what_slurm_will_want_again_is_requeued(
    tmp_path: Path, text: str | None, signals: list[int], asked: str, expected: int
):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.1)
    code, output = interrupt(tmp_path, [run], answer(tmp_path / "bin", text), *signals)
    assert code == expected, output
    assert left(run)[0]["asked"] == asked
    assert left(run)[0]["requeue"] == (asked in ("preempted", "time_limit"))


def test_a_cancellation_after_a_warning_wins(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.6)
    path = answer(tmp_path / "bin", report(preempted=True))
    supervisor = start(write_task(tmp_path, run), path)
    wait_for(lambda: read_lines(run.metrics), supervisor)
    os.killpg(supervisor.pid, signal.SIGUSR2)
    time.sleep(0.2)
    answer(tmp_path / "bin", report("CANCELLED"))
    os.killpg(supervisor.pid, signal.SIGTERM)
    code, output = finish(supervisor)
    assert code == 75 and left(run)[0]["asked"] == "cancelled", output


def test_the_clock_acts_where_no_warning_comes_and_waits_where_the_limit_was_raised(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.1)
    file = write_task(tmp_path, run, time_limit=4, signal_lead=3.0)
    code, output = finish(start(file, answer(tmp_path / "bin", None)))
    assert code == REQUEUE and left(run)[0]["asked"] == "time_limit", output
    path = answer(tmp_path / "raised", report(left=3600))
    supervisor = start(file, path, restart=1)
    wait_for((tmp_path / "raised" / "asked").exists, supervisor)
    time.sleep(0.5)
    assert supervisor.poll() is None and len(left(run)) == 1
    os.killpg(supervisor.pid, signal.SIGTERM)
    assert finish(supervisor)[0] == 75


def test_time_limits_are_counted_and_preemptions_are_not(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.1)
    preempted = answer(tmp_path / "preempted", report(preempted=True))
    limited = answer(tmp_path / "limited", report(left=60))
    paths = [limited, preempted, preempted, limited, limited]
    codes = [
        interrupt(tmp_path, [run], path, signal.SIGUSR2, restart=place, max_timeouts=2)[0]
        for place, path in enumerate(paths)
    ]
    assert codes == [REQUEUE] * 4 + [75]
    assert [line["requeue"] for line in left(run)] == [True] * 4 + [False]


def test_a_run_that_never_gets_anywhere_within_the_limit_is_not_requeued_for_ever(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 10, pause=0.1, way="stuck")
    file = write_task(tmp_path, run, time_limit=4, signal_lead=3.0)
    path = answer(tmp_path / "bin", None)
    assert finish(start(file, path))[0] == REQUEUE
    code, output = finish(start(file, path, restart=1))
    assert code == 75 and "made no progress" in output


def test_a_trainer_that_dies_of_the_request_before_it_listens_was_interrupted(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 10, way="import")
    supervisor = start(write_task(tmp_path, run), answer(tmp_path / "bin", report(preempted=True)))
    wait_for((run.folder / "importing").exists, supervisor)
    os.killpg(supervisor.pid, signal.SIGTERM)
    code, output = finish(supervisor)
    assert code == REQUEUE, output
    (attempt,) = read_attempts(run)
    assert attempt.started is None and attempt.left
    assert attempt.left["signal"] == signal.SIGTERM and attempt.left["requeue"]


def test_a_run_that_an_earlier_process_trains_is_tried_again_and_then_given_up(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 2, busy=2)
    path = answer(tmp_path / "bin", None)
    code, output = finish(start(write_task(tmp_path, run), path, "0.1,0.2"))
    assert code == 0 and output.count("next try") == 2, output
    assert [attempt.number for attempt in read_attempts(run)] == [1]
    busy = stand_in_run(tmp_path, "b", 2, busy=9)
    code, output = finish(start(write_task(tmp_path, busy), path, "0.1,0.2"))
    assert code == 1 and left(busy)[0]["exit_code"] == 76 and not left(busy)[0]["requeue"]
    # one that a newer attempt put off does not go for it again
    old = stand_in_run(tmp_path, "c", 2, way="superseded")
    code, output = finish(start(write_task(tmp_path, old), path, "0.1,0.2"))
    assert code == 1 and "next try" not in output and left(old)[0]["exit_code"] == 76


def test_no_trainer_outlives_a_killed_supervisor(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.1)
    supervisor = start(write_task(tmp_path, run), answer(tmp_path / "bin", None))
    wait_for(lambda: read_lines(run.metrics), supervisor)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    deadline = time.monotonic() + 30
    while not any(line["event"] == "ended" for line in read_lines(run.attempts)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # the task starts anew, on another node
    write_json(run.folder / "plan.json", {"updates": 1})
    write_json(run.budget, {"horizon": 1, "updates_after_collapse": 5})
    code, output = finish(start(write_task(tmp_path, run), answer(tmp_path / "bin", None), restart=1))
    assert code == 0, output
    assert [attempt.number for attempt in read_attempts(run)] == [1, 2]
    assert read_attempts(run)[0].left is None


def test_a_slow_controller_holds_nothing_up(tmp_path: Path):
    run = stand_in_run(tmp_path, "a", 1000, pause=0.1)
    path = answer(tmp_path / "bin", report(preempted=True), slow=2.0)
    supervisor = start(write_task(tmp_path, run), path)
    wait_for(lambda: read_lines(run.metrics), supervisor)
    asked_at = time.time()
    os.killpg(supervisor.pid, signal.SIGUSR2)
    # a TERM to the whole step, which scontrol survives
    time.sleep(0.5)
    os.killpg(supervisor.pid, signal.SIGTERM)
    code, output = finish(supervisor)
    assert code == REQUEUE and left(run)[0]["asked"] == "preempted", output
    ended = read_attempts(run)[0].ended
    assert ended is not None and ended["time"] - asked_at < 1.5
    assert left(run)[0]["time"] - asked_at >= 1.9
