"""`submit`, `resume` and `status` with a site profile, over fake Slurm commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from launcher_fakes import install
from launcher_shell import Shell, finish

from launcher import cli
from launcher.ledger import LedgerWriter, new_token, read_ledger
from launcher.slurm.submission import slug
from tests.fake_slurm_fixture import FakeSlurm
from trainer.files import append_line, read_lines, write_json
from trainer.record import RunPaths, SweepPaths, read_config, read_sweep

ROOT = Path(__file__).parent.parent
Call = Callable[..., tuple[int, str, str]]
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


@pytest.fixture
def slurm(fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("SLURM_CONF", "the cluster's")
    monkeypatch.setattr("launcher.slurm.submission.PAUSES", (0.01, 0.01))
    monkeypatch.setattr("launcher.slurm.commands.PAUSE", 0.01)
    monkeypatch.setattr("launcher.slurm.commands.RETRY_SECONDS", 0.1)
    return fake_slurm


def tasks(slurm: FakeSlurm) -> dict[str, str]:
    """Task → what Slurm says of it."""
    return {name: task["word"] for name, _, task in slurm._state.tasks()}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a user's folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    modules: dict[str, object] = {}
    install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return folder


@pytest.fixture
def call(
    home: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Run a command in this process: exit code, output, errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["grposweep", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        output, errors = capfd.readouterr()
        return int(caught.value.code or 0), output, errors

    return run


def site(home: Path, **fields: object) -> str:
    """A profile's file, as --site takes it."""
    (home / "site.yaml").write_text(yaml.safe_dump({"time": 10, "signal_lead": 60, **fields}))
    return "site.yaml"


def sweep(home: Path, name: str = "tiny") -> SweepPaths:
    return SweepPaths(home / "outputs" / name)


def seeds(count: int) -> str:
    return "seed=" + ",".join(map(str, range(count)))


def jobs_of(home: Path) -> dict[str, str | None]:
    """Run id → its task in Slurm."""
    return {run: task.job for run, task in read_ledger(sweep(home)).tasks.items()}


def states(call: Call, name: str = "tiny") -> list[tuple[str, str | None]]:
    found = json.loads(call("status", name, "-f", "json")[1])
    return [(run["job"], run["failure"]) for run in found["runs"]]


def record(run: RunPaths, job: str, *, finished: bool = True, number: int = 1, **left: object) -> None:
    """What a task leaves of an attempt."""
    now = time.time()
    line = {"attempt": number, "time": now, "host": "n1"}
    append_line(run.attempts, line | {"event": "started", "job": job, "restart": 0, "node": "n1"})
    state = {"attempt": number, "pid": 1, "host": "n1", "heartbeat": now, "step": 20, "horizon": 20}
    write_json(run.state, {"state": "finished" if finished else "running", **state})
    if finished:
        append_line(run.attempts, line | {"event": "ended", "how": "finished"})
        numbers = {"updates": 20, "horizon": 20, "cumulative_rate": 0.1, "peak_reward": 0.5, "peak_step": 1}
        words = {"run_id": run.run_id, "outcome": "stable", "rule_version": "1", "warm_start": "none"}
        write_json(run.summary, {**words, **numbers, "final_reward": 0.5, "collapse": {"onset": None}})
    if finished or left:
        ending = {"exit_code": 0, "signal": None, "asked": None, "requeue": False, **left}
        append_line(run.attempts, line | {"event": "left", "job": job, "restart": 0, **ending})


def finish_all(home: Path, slurm: FakeSlurm) -> None:
    """Every task that is in the queue finishes its runs."""
    paths = sweep(home)
    for run, task in read_ledger(paths).tasks.items():
        if task.job is not None and tasks(slurm)[task.job] == "PENDING":
            record(paths.run(run), task.job)
            slurm.say(task.job, "COMPLETED", nodes="n1")


def test_runs_go_as_one_array_highest_rate_first_and_submit_returns(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    code, output, errors = call("submit", "learning_rate=1e-3,4e-3,2e-3", "--site", site(home), "-y")
    assert (code, errors) == (0, "")
    assert "job 1: 3 runs in 3 tasks" in output and "grposweep status tiny --watch" in output
    in_order = sorted((job or "", run) for run, job in jobs_of(home).items())
    rates = [read_config(sweep(home).run(run)).learning_rate for _, run in in_order]
    assert rates == [4e-3, 2e-3, 1e-3]
    assert list(tasks(slurm).values()) == ["PENDING"] * 3
    (entry,) = slurm.jobs.values()
    assert entry["name"].startswith("tiny-") and entry["name"].endswith("-0")
    assert states(call) == [("queued", None)] * 3


def test_a_second_submit_sends_nothing_and_a_finished_sweep_needs_nothing(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    words = ("submit", seeds(3), "--site", site(home), "-y")
    assert call(*words)[0] == 0
    assert call(*words)[0] == 1  # they are not finished, and nothing is to be sent
    assert len(slurm.calls("sbatch")) == 1
    finish_all(home, slurm)
    code, output, _ = call(*words)
    assert code == 0 and "nothing to do: 3 stable" in output
    assert len(slurm.calls("sbatch")) == 1 and call("resume", "tiny", "-y")[0] == 0


def test_arrays_are_no_longer_than_the_cluster_allows(home: Path, slurm: FakeSlurm, call: Call) -> None:
    slurm.set(max_array_size=6)
    assert call("submit", seeds(14), "--site", site(home), "-y")[0] == 0
    assert [len(job["tasks"]) for job in slurm.jobs.values()] == [6, 6, 2]
    found = jobs_of(home)
    assert len(set(found.values())) == 14
    for job, sent in zip(slurm.jobs, slurm.calls("sbatch"), strict=True):
        file = Path(sent["argv"][-1]).with_suffix(".json")
        for index, runs in enumerate(json.loads(file.read_text())["tasks"]):
            assert [found[Path(run).name] for run in runs] == [f"{job}_{index}"]
    # each task is resumed by itself
    slurm.say("2_3", "CANCELLED")
    slurm.say("3_1", "CANCELLED")
    code, output, _ = call("resume", "tiny", "-y")
    assert code == 0 and "to run: 2, of these after 2 cancelled" in output
    assert [len(job["tasks"]) for job in slurm.jobs.values()] == [6, 6, 2, 2]


def test_what_finds_no_room_waits_and_later_commands_send_it(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    """88 runs where 25 may be in the queue: nothing is sent twice, nothing is lost."""
    slurm.set(max_submit=25)
    words = ("submit", seeds(88), "--site", site(home), "-y")
    code, output, errors = call(*words)
    assert (code, errors) == (3, "")
    assert "63 runs wait for room: QOSMaxSubmitJobPerUserLimit" in output
    assert len(tasks(slurm)) == 25
    assert sorted(states(call)) == [("queued", None)] * 25 + [("waiting", None)] * 63
    for expected in (50, 75, 88):
        finish_all(home, slurm)
        code, _, _ = call("resume", "tiny", "-y") if expected == 75 else call(*words)
        assert len(tasks(slurm)) == expected
        assert code == (0 if expected == 88 else 3)
    finish_all(home, slurm)
    assert call(*words)[0] == 0
    assert states(call) == [("finished", None)] * 88
    assert len(set(jobs_of(home).values())) == 88


def test_a_cap_of_the_profile_is_kept_without_asking_slurm_too_much(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    words = ("submit", seeds(5), "--site", site(home, max_submit=2), "-y")
    code, output, _ = call(*words)
    assert code == 3 and "3 runs wait for room" in output and "max_submit=2" in output
    assert len(tasks(slurm)) == 2 and len(slurm.calls("sbatch")) == 1
    finish_all(home, slurm)
    assert call(*words)[0] == 3 and len(tasks(slurm)) == 4


def test_a_refusal_for_another_reason_is_a_message(home: Path, slurm: FakeSlurm, call: Call) -> None:
    reason = "Batch job submission failed: Invalid account or account/partition combination specified"
    slurm.fail("sbatch", f"sbatch: error: {reason}")
    code, _, errors = call("submit", seeds(2), "--site", site(home), "-y")
    assert code == 2 and reason in errors and "Traceback" not in errors and "site.yaml" in errors
    assert states(call) == [("planned", None)] * 2
    assert call("submit", seeds(2), "--site", site(home), "-y")[0] == 0
    assert list(tasks(slurm).values()) == ["PENDING"] * 2


def test_a_job_that_slurm_took_without_saying_so_is_found(home: Path, slurm: FakeSlurm, call: Call) -> None:
    slurm.fail("sbatch", TIMEOUT, queued=True)
    code, output, _ = call("submit", seeds(3), "--site", site(home), "-y")
    assert code == 0 and "job 1: 3 runs" in output
    assert len(slurm.calls("sbatch")) == 1 and states(call) == [("queued", None)] * 3


def test_a_job_that_is_not_found_at_once_is_adopted_by_the_next_command(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    slurm.fail("sbatch", TIMEOUT, queued=True)
    slurm.fail("squeue", AWAY, times=100_000)
    words = ("submit", seeds(3), "--site", site(home), "-y")
    code, output, _ = call(*words)
    assert code == 3 and "Traceback" not in output
    assert states(call) == [("unknown", None)] * 3
    code, output, _ = call(*words)
    assert code == 3 and "nothing was sent" in output
    slurm.set(calls=[])
    code, output, _ = call(*words)
    assert "job 1 of an earlier command that was cut off is in Slurm and counts" in output
    assert len(slurm.jobs) == 1 and states(call) == [("queued", None)] * 3


@pytest.mark.parametrize("taken", [False, True])
def test_a_launcher_killed_around_sbatch_doubles_nothing(
    home: Path, slurm: FakeSlurm, call: Call, taken: bool
) -> None:
    """The ledger says that a job was being sent; whether Slurm took it is for Slurm to say."""
    words = ("submit", seeds(2), "--site", site(home), "-y")
    assert call(*words)[0] == 0
    lines = read_lines(sweep(home).submissions)
    assert [line["event"] for line in lines] == ["submitted", "sending", "accepted"]
    kept = [json.dumps(line) for line in lines if line["event"] != "accepted"]
    sweep(home).submissions.write_text("\n".join(kept) + "\n")
    if not taken:
        slurm._state.write("jobs.json", {})
    assert states(call) == [("unknown", None)] * 2
    _, output, _ = call(*words)
    assert len(slurm.jobs) == 1 and states(call) == [("queued", None)] * 2
    assert ("of an earlier command" in output) is taken


def test_passing_faults_are_outlasted(home: Path, slurm: FakeSlurm, call: Call) -> None:
    slurm.fail(
        "sbatch", AWAY.replace("slurm_load_jobs error", "sbatch: error: Batch job submission failed"), times=2
    )
    slurm.fail("squeue", AWAY)
    code, _, _ = call("submit", seeds(2), "--site", site(home), "-y")
    assert code == 0 and len(slurm.jobs) == 1 and states(call) == [("queued", None)] * 2


@pytest.mark.end_to_end
def test_two_submits_at_once_send_each_run_once(home: Path, slurm: FakeSlurm) -> None:
    shell = Shell(home)
    words = ("submit", seeds(6), "--site", site(home), "-y")
    both = [shell.start(*words) for _ in range(2)]
    ended = sorted(finish(process) for process in both)
    assert all("Traceback" not in errors for _, _, errors in ended)
    assert len(tasks(slurm)) == 6 and len(set(jobs_of(home).values())) == 6


def test_nothing_of_an_allocation_reaches_the_job_but_the_cluster_does(
    home: Path, slurm: FakeSlurm, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ("SLURM_CPU_BIND", "SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "HF_TOKEN", "RAY_ADDRESS")
    for name in foreign:
        monkeypatch.setenv(name, "foreign")
    assert call("submit", seeds(1), "--site", site(home), "-y")[0] == 0
    (sent,) = slurm.calls("sbatch")
    assert not set(foreign) & set(sent["env"])
    assert sent["env"]["SLURM_CONF"] == "the cluster's"
    assert "foreign" not in sent["script"]


def test_a_question_is_asked_and_without_a_terminal_refused(home: Path, slurm: FakeSlurm, call: Call) -> None:
    code, _, errors = call("submit", seeds(1), "--site", site(home))
    assert code == 2 and "-y" in errors and not slurm.calls("sbatch")


def test_status_knows_nothing_where_slurm_does_not_answer_and_writes_nothing(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    assert call("submit", seeds(2), "--site", site(home), "-y")[0] == 0
    run, job = next(iter(jobs_of(home).items()))
    assert job is not None
    record(sweep(home).run(run), job)
    slurm.fail("squeue", AWAY, times=100_000)
    before = {path: path.stat().st_mtime_ns for path in (home / "outputs").rglob("*")}
    assert sorted(states(call)) == [("finished", None), ("unknown", None)]
    assert before == {path: path.stat().st_mtime_ns for path in (home / "outputs").rglob("*")}
    assert call("submit", seeds(2), "--site", site(home), "-y")[0] != 0 and len(slurm.jobs) == 1


def test_a_state_of_slurm_that_nobody_knows_is_unknown_and_not_run_again(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    assert call("submit", seeds(1), "--site", site(home), "-y")[0] == 0
    slurm.say("1_0", "HIBERNATING")
    assert states(call) == [("unknown", None)]
    call("resume", "tiny", "-y")
    assert len(slurm.jobs) == 1


def test_without_accounting_the_record_decides(home: Path, slurm: FakeSlurm, call: Call) -> None:
    assert call("submit", seeds(4), "--site", site(home), "-y")[0] == 0
    slurm.set(accounting=False)
    by_job = {job: sweep(home).run(run) for run, job in jobs_of(home).items()}
    record(by_job["1_0"], "1_0")
    record(by_job["1_1"], "1_1", finished=False, exit_code=1)
    record(by_job["1_2"], "1_2", finished=False, exit_code=75, asked="preempted")
    for job, word in (("1_0", "COMPLETED"), ("1_1", "FAILED"), ("1_2", "COMPLETED"), ("1_3", "RUNNING")):
        slurm.say(job, word)
    found = dict(zip(by_job, states(call), strict=True))
    assert found == {
        "1_0": ("finished", None),
        "1_1": ("failed", "exception"),
        "1_2": ("interrupted", "preempted"),
        "1_3": ("running", None),
    }


def test_a_job_that_is_gone_is_finishing_then_lost_and_then_run_again(
    home: Path, slurm: FakeSlurm, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("submit", seeds(2), "--site", site(home), "-y")[0] == 0
    slurm.say("1_1", "COMPLETED")
    slurm.set(accounting_from=time.time() + 1000)
    assert sorted(states(call)) == [("finishing", None), ("queued", None)]
    monkeypatch.setattr("launcher.slurm.evidence.SETTLING", 0.0)
    assert sorted(states(call)) == [("lost", "lost"), ("queued", None)]
    code, output, _ = call("resume", "tiny", "-y")
    assert code == 0 and "to run: 1, of these after 1 lost" in output
    assert sorted(states(call)) == [("queued", None)] * 2 and len(tasks(slurm)) == 3


def test_a_job_that_slurm_starts_again_after_a_lost_node_is_left_to_it(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    assert call("submit", seeds(1), "--site", site(home), "-y")[0] == 0
    (run,) = jobs_of(home)
    record(sweep(home).run(run), "1_0", finished=False)
    slurm.say("1_0", "PENDING", reason="BeginTime")
    assert states(call) == [("queued", None)]
    call("resume", "tiny", "-y")
    assert len(slurm.calls("sbatch")) == 1


def test_failures_are_retried_by_class_within_budgets_and_away_from_bad_nodes(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    profile = site(home, retries={"node_failure": 1})
    assert call("submit", seeds(3), "--site", profile, "-y")[0] == 0
    slurm.say("1_0", "NODE_FAIL", nodes="n3")
    slurm.say("1_1", "OUT_OF_MEMORY", nodes="n2")
    assert sorted(states(call)) == [
        ("killed", "node_failure"),
        ("killed", "out_of_memory"),
        ("queued", None),
    ]
    code, output, _ = call("resume", "tiny", "-y")
    assert "to run: 1, of these after 1 node_failure" in output
    assert "not run again: 1 out_of_memory; once the cause is gone: --retry out_of_memory" in output
    assert "--exclude=n3" in slurm.calls("sbatch")[-1]["argv"]
    slurm.say("2_0", "NODE_FAIL", nodes="n1")
    code, output, _ = call("resume", "tiny", "-y")
    assert "to run: 0" in output and "1 have used up the profile's retries.node_failure" in output
    code, output, _ = call("resume", "tiny", "--retry", "oom,node_failure", "-y")
    assert code == 0 and "to run: 2" in output
    assert "--exclude=n1,n3" in slurm.calls("sbatch")[-1]["argv"]
    assert call("resume", "tiny", "--retry", "memory", "-y")[0] == 2


def test_resume_of_selected_runs_alone_and_anew(home: Path, slurm: FakeSlurm, call: Call) -> None:
    assert call("submit", seeds(3), "--site", site(home), "-y")[0] == 0
    runs = {job: sweep(home).run(run) for run, job in jobs_of(home).items()}
    for job, run in runs.items():
        record(run, job or "", finished=False, exit_code=75, asked="cancelled")
        append_line(run.metrics, {"step": 0})
        slurm.say(job or "", "CANCELLED")
    code, output, _ = call("resume", "tiny", "seed=1", "--restart", "-y")
    assert code == 0 and "to run: 1, of these after 1 cancelled" in output
    anew = [run for run in runs.values() if not run.metrics.exists()]
    assert len(anew) == 1 and read_config(anew[0]).seed == 1
    assert read_lines(anew[0].folder / "discarded" / "1" / "metrics.jsonl") == [{"step": 0}]
    assert anew[0].attempts.is_file() and anew[0].config.is_file() and anew[0].budget.is_file()
    assert len(tasks(slurm)) == 4


def test_local_runs_are_refused_beside_jobs_of_slurm(home: Path, slurm: FakeSlurm, call: Call) -> None:
    assert call("submit", seeds(2), "--site", site(home), "-y")[0] == 0
    code, _, errors = call("submit", seeds(3))
    assert code == 2 and "jobs of Slurm that have not ended" in errors and "grposweep cancel" in errors


def test_two_sweeps_of_one_name_stay_apart(home: Path, slurm: FakeSlurm, call: Call) -> None:
    for folder in ("one", "other"):
        words = ("submit", seeds(2), "--site", site(home), "-y", "--outputs", folder)
        assert call(*words)[0] == 0
    slurm.say("1_0", "CANCELLED")
    found = [json.loads(call("status", f"{name}/tiny", "-f", "json")[1]) for name in ("one", "other")]
    counts = [sorted(run["job"] for run in sweep["runs"]) for sweep in found]
    assert counts == [["interrupted", "queued"], ["queued", "queued"]]


@pytest.mark.end_to_end
def test_a_queued_job_runs_the_code_of_its_submission(home: Path, slurm: FakeSlurm) -> None:
    """Also where the checkout is edited, and then deleted, before it starts."""
    checkout = home / "checkout"
    for package in ("trainer", "analysis", "sweeps", "launcher", "slurm"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    words = ["submit", "sweep=smoke", "sync_interval=1", "learning_rate=1e-3", "--site", site(home), "-y"]
    command = [sys.executable, "-m", "launcher.cli", *words]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trainer = checkout / "trainer" / "job.py"
    trainer.write_text(trainer.read_text() + "\nraise RuntimeError('the edited trainer')\n")
    assert slurm.run("1_0") == 0
    paths = sweep(home, "smoke")
    (cell,) = read_sweep(paths).cells
    run = paths.run(cell.run_id)
    assert run.summary.is_file() and "the edited trainer" not in run.log(1).read_text()
    started = next(line for line in read_lines(run.attempts) if line["event"] == "started")
    assert Path(started["code"]).parent == paths.code and (started["job"], started["node"]) == ("1_0", "n1")
    shutil.rmtree(checkout)
    assert slurm.run("1_0") == 0  # finished already: nothing is trained again
    assert len([line for line in read_lines(run.attempts) if line["event"] == "started"]) == 1


def test_names_of_jobs_are_plain() -> None:
    assert slug('my "best" sweep\'s name, 2') == "my_best_sweep_s_name_2" and slug("ß") == "sweep"


def test_a_cut_off_submission_of_another_token_is_settled_under_its_own(home: Path, tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "s")
    paths.folder.mkdir()
    first, second = LedgerWriter(paths, new_token()), LedgerWriter(paths, new_token())
    first.submitted("slurm", "c0de", ["a", "b"], site="x")
    first.sending("s-1-0", [["a"], ["b"]])
    second.sending("s-2-0", [["a"]])
    second.refused("s-2-0", "no")
    first.accepted("s-1-0", "7")
    ledger = read_ledger(paths)
    assert {run: task.job for run, task in ledger.tasks.items()} == {"a": "7_0", "b": "7_1"}
    assert ledger.unanswered == {} and ledger.site == "x"


def test_a_dry_run_writes_what_would_be_sent_and_nothing_else(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    slurm.set(max_array_size=2)
    words = ("submit", seeds(3), "--site", site(home, account="proj"), "--dry-run")
    assert call("submit", seeds(3), "--dry-run")[0] == 2
    code, output, errors = call(*words)
    assert (code, errors) == (0, "") and not slurm.calls("sbatch")
    assert output.count("\nsbatch --job-name=tiny-dry-run-") == 2 and "--account=proj" in output
    folder = sweep(home).folder / "dry-run"
    assert [path.name for path in sweep(home).folder.iterdir()] == ["dry-run"]
    assert len(json.loads((folder / "0.json").read_text())["tasks"]) == 2
    assert "trainer.slurm_task" in (folder / "1.sh").read_text()
    written = [read_config(RunPaths(run)).seed for run in (folder / "runs").iterdir()]
    assert sorted(written) == [0, 1, 2]
    assert call(*words)[0] == 0
    assert call("submit", seeds(3), "--site", "site.yaml", "-y")[0] == 0 and len(tasks(slurm)) == 3


def test_what_speaks_against_the_runs_is_told_before_anything_is_written(
    home: Path, slurm: FakeSlurm, call: Call
) -> None:
    small = site(home, mem_per_run="100M")
    for command in ("plan", "submit"):
        code, output, errors = call(command, seeds(2), "--site", small, "-y")
        assert code == 2 and "mem_per_run" in errors, output + errors
    assert [path.name for path in sweep(home).folder.iterdir()] == ["runner.lock"]
    assert not slurm.calls("sbatch")
    code, output, _ = call("plan", seeds(2), "--site", site(home))
    assert code == 0 and "on site.yaml: 2 runs, 40 updates; at most" in output
    code, _, errors = call("submit", seeds(2), "--site", site(home), "-y", "--max-gpu-hours", "0")
    assert code == 0, errors  # the runs take no GPU at all
