"""Where each file of a run and of a sweep lies. Standard library alone, so that it costs nothing to import.

outputs/<sweep>/
  sweep.yaml            SweepFile: axes, fixed fields, cells
  submissions.jsonl     the launcher's ledger
  jobs/<token>/         scripts, tasks and output of Slurm submissions
  code/<hash>/          snapshot that jobs run from
  warm_starts/<key>/    initial weights, shared by runs with the same settings
  runs/<run id>/        RunPaths
  report/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Every path of one run; `folder` is outputs/<sweep>/runs/<run id>."""

    folder: Path

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def config(self) -> Path:
        """Scientific and resource configuration; byte-identical for every attempt."""
        return self.folder / "config.yaml"

    @property
    def budget(self) -> Path:
        return self.folder / "budget.json"

    @property
    def state(self) -> Path:
        """Written by the job only, replaced atomically."""
        return self.folder / "state.json"

    @property
    def attempts(self) -> Path:
        """What is known of each attempt: `trainer.attempts`."""
        return self.folder / "attempts.jsonl"

    @property
    def metrics(self) -> Path:
        """One line per learner update, no clock times: the truth."""
        return self.folder / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        """One line per learner update: seconds spent in each phase.

        `checkpoint` is what the one before this update took: its own would come after its line."""
        return self.folder / "timings.jsonl"

    @property
    def samples(self) -> Path:
        """Completions of fixed prompts: policy_version, prompt, response, reward."""
        return self.folder / "samples.jsonl"

    @property
    def evaluations(self) -> Path:
        """One line per evaluation: step (= policy version), set, metric, value, n, temperature."""
        return self.folder / "evaluations.jsonl"

    @property
    def rollouts(self) -> Path:
        """`part-*.parquet`: one row per rollout generated, used, or gone from the store."""
        return self.folder / "rollouts"

    @property
    def refused(self) -> Path:
        """Why a Slurm task did not start the run: job, restart, time, reason; gone once an attempt starts."""
        return self.folder / "refused.json"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def lock(self) -> Path:
        """Held by the process that trains this run."""
        return self.folder / "lock"

    @property
    def warm_starts(self) -> Path:
        return self.folder.parent.parent / "warm_starts"

    @property
    def prepared(self) -> Path:
        """Prompt sets and pretrained models of the sweep."""
        return self.folder.parent.parent / "prepared"

    @property
    def prompts(self) -> Path:
        """What the run's prompt sets are: counts, hashes, an example; for tasks in words."""
        return self.folder / "prompts.json"

    @property
    def best(self) -> Path:
        """Weights that did best in evaluations: a folder like a checkpoint's, with fewer files."""
        return self.checkpoints / "best"

    def tail(self, attempt: int) -> Path:
        """Journal lines that the resume after `attempt` cut off."""
        return self.folder / "attempts" / f"{attempt}.tail.jsonl"

    def log(self, attempt: int) -> Path:
        """Standard output and error of one attempt."""
        return self.folder / "logs" / f"attempt-{attempt}.out"


@dataclass(frozen=True, slots=True)
class SweepPaths:
    """Every path of one sweep; `folder` is outputs/<sweep>."""

    folder: Path

    @property
    def sweep(self) -> Path:
        return self.folder / "sweep.yaml"

    @property
    def submissions(self) -> Path:
        return self.folder / "submissions.jsonl"

    @property
    def jobs(self) -> Path:
        """`<token>/<chunk>.sh`, `.json` and output of every Slurm submission."""
        return self.folder / "jobs"

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def prepared(self) -> Path:
        return self.folder / "prepared"

    @property
    def lock(self) -> Path:
        """Held while a command changes the sweep folder or the ledger."""
        return self.folder / "lock"

    @property
    def runner_lock(self) -> Path:
        """Held by the local runner as long as it starts jobs."""
        return self.folder / "runner.lock"

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(self.runs / run_id)
