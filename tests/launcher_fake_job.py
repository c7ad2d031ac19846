"""A job that keeps the contract of `python -P -m trainer <run folder>` on disk but trains nothing.

FAKE_JOB in the environment holds JSON: `pause`, seconds per update, and `seeds`, a seed's way to end:
`raise`, `die` (killed in the middle), `die early` (before it writes anything), `silent` (exit code 0 without
a summary), `collapse`, `deaf` (does not listen to SIGTERM). Every update is a checkpoint.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import yaml

import trainer.files
from trainer.files import LockHeldError, append_line, locked, read_json, read_lines, write_json

FINISHED, FAILED, INTERRUPTED, BUSY = 0, 1, 75, 76


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
        self.horizon = read_json(folder / "budget.json")["horizon"]
        started = [line for line in read_lines(folder / "attempts.jsonl") if line["event"] == "started"]
        self.attempt = len(started) + 1
        self.step = len(read_lines(folder / "metrics.jsonl"))
        plan = json.loads(os.environ.get("FAKE_JOB", "{}"))
        self.pause = plan.get("pause", 0.0)
        self.way = plan.get("seeds", {}).get(str(self.seed), "")
        self.stop = False

    def state(self, state: str, error: str | None = None) -> None:
        write_json(
            self.folder / "state.json",
            {
                "state": state,
                "attempt": self.attempt,
                "pid": os.getpid(),
                "host": "here",
                "heartbeat": time.time(),
                "step": self.step,
                "horizon": self.horizon,
                "updates_per_second": 1 / self.pause if self.pause else None,
                "error": error,
            },
        )

    def ended(self, state: str, error: str | None = None) -> None:
        self.state(state, error)
        append_line(self.folder / "attempts.jsonl", {"event": "ended", "attempt": self.attempt, "how": state})

    def train(self) -> int:
        append_line(self.folder / "attempts.jsonl", {"event": "started", "attempt": self.attempt})
        self.state("running")
        launcher = int(os.environ["GRPOSWEEP_LAUNCHER"])
        while self.step < self.horizon:
            if self.stop or os.getppid() != launcher:
                self.ended("interrupted")
                return INTERRUPTED
            if self.way in ("raise", "die") and self.step >= self.horizon // 2:
                if self.way == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError(f"seed {self.seed} cannot be trained")
            if self.way == "collapse" and self.step >= 5:
                break
            time.sleep(self.pause)
            append_line(self.folder / "metrics.jsonl", {"step": self.step})
            self.step += 1
            self.state("running")
        if self.way != "silent":
            self.summary("collapsed" if self.way == "collapse" else "stable")
            self.ended("finished")
        return FINISHED

    def summary(self, outcome: str) -> None:
        write_json(
            self.folder / "summary.json",
            {
                "run_id": self.folder.name,
                "outcome": outcome,
                "updates": self.step,
                "horizon": self.horizon,
                "cumulative_rate": 0.1,
                "collapse": {"onset": 3 if outcome == "collapsed" else None},
                "rule_version": "1",
                "peak_reward": 0.5,
                "peak_step": 1,
                "final_reward": 0.5,
                "warm_start": "none",
            },
        )


def main() -> int:
    folder = Path(sys.argv[1])
    code = Path(os.environ["GRPOSWEEP_CODE"])
    if not Path(trainer.files.__file__).is_relative_to(code):
        raise SystemExit(f"runs from {trainer.files.__file__}, not from {code}")
    job = Job(folder)
    print(f"attempt {job.attempt} of seed {job.seed} at step {job.step}", json.dumps(sorted(os.environ)))
    if job.way == "die early":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.way == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: setattr(job, "stop", True))
    try:
        with locked(folder / "lock"):
            return job.train()
    except LockHeldError as error:
        print(error)
        return BUSY
    except RuntimeError:
        traceback.print_exc()
        job.ended("failed", traceback.format_exc(limit=-1))
        return FAILED


sys.exit(main())
