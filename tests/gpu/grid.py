"""A grid of real jobs on the device, in processes of their own, and one that is stopped and continued."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpu.material import Material
from gpu.report import Section
from trainer.budget import CellConfig
from trainer.files import read_lines
from trainer.policy import build_policy
from trainer.record import Exit, RunPaths, read_metrics, read_summary, write_budget, write_config
from trainer.rendering import character_tokenizer
from trainer.schema import parse
from trainer.setup import make_task
from trainer.warm_start import initial_weights, load_weights

CELLS = [(interval, rate) for interval in (1, 4) for rate in (1e-6, 1e-5)]
UPDATES = 6
EVALUATED_EVERY = 3
LONGEST_WAIT = 180.0
"""Seconds for a job, the imports of all of them at once included."""


def check(material: Material, section: Section) -> None:
    started = time.perf_counter()
    folder = _taught_model(material)
    section.numbers["seconds to teach the model"] = time.perf_counter() - started
    runs = material.work / "outputs" / "gpu_check" / "runs"
    cells = {
        f"S={interval} rate={rate:g}": _prepared(
            runs / f"cell-{index}",
            _cell(material, folder, UPDATES, sync_interval=interval, learning_rate=rate),
        )
        for index, (interval, rate) in enumerate(CELLS)
    }
    horizon = material.sizes.interrupted_updates
    stopped = _prepared(runs / "stopped", _cell(material, folder, horizon, sync_interval=4))
    started = time.perf_counter()
    jobs = {name: _Job(paths) for name, paths in (cells | {"stopped": stopped}).items()}
    try:
        _stop(jobs.pop("stopped"), section)
        for name, job in jobs.items():
            job.expect(section, name, Exit.FINISHED)
        section.numbers["seconds for the grid"] = time.perf_counter() - started
        _Job(stopped).expect(section, "the stopped job, continued,", Exit.FINISHED)
    finally:
        for job in jobs.values():
            job.end()
    steps = [line["step"] for line in read_metrics(stopped)]
    section.numbers["seconds for it and the continued job"] = time.perf_counter() - started
    section.check("the continued job has every update once", steps == list(range(horizon)), len(steps))
    section.tables["cells"] = [
        _cell_row(section, name, paths, interval)
        for (name, paths), (interval, _) in zip(cells.items(), CELLS, strict=True)
    ]


def _cell(material: Material, folder: Path | None, updates: int, **fields: Any) -> CellConfig:
    """Rollouts of sums by the taught model, or, without a folder, by one that has yet to be taught."""
    shape = {"hidden_size": 32, "layers": 2, "intermediate_size": 64}
    data = {
        "batch_size": 32,
        "group_size": 8,
        "task": {
            "name": "text",
            "source": {"path": str(material.problems)},
            "max_response_tokens": 4,
            "held_out_share": 0.2,
        },
        "model": shape if folder is None else {"pretrained": str(folder)},
        "resources": {"device": "cpu" if folder is None else material.device.type},
        "budget": {
            "horizon": {"updates": updates},
            "evaluation": {"every": EVALUATED_EVERY, "max_prompts": 16},
            "checkpoint_every": 1000,
        },
    }
    return parse(CellConfig, data | fields)


def _taught_model(material: Material) -> Path:
    """A folder with a small model that is right now and then: where all is wrong, nothing is learnt."""
    config = _cell(material, None, 1).run()
    task, _ = make_task(config, material.work / "prepared")
    weights, _ = initial_weights(config, task, material.work / "warm_starts", lambda: None)
    policy = build_policy(config.model, task, config.warm_start.seed)
    load_weights(policy, weights)
    folder = material.work / "taught"
    policy.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def _prepared(folder: Path, cell: CellConfig) -> RunPaths:
    paths = RunPaths(folder)
    write_config(paths, cell.run())
    write_budget(paths, cell.budget.resolve(cell.run()))
    return paths


class _Job:
    """A job as a launcher starts it."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.log = paths.folder / "output.txt"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer", str(paths.folder)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def expect(self, section: Section, name: str, code: Exit) -> None:
        """Wait for the end; the exit code, and the end of the output where it is another, is a check."""
        try:
            self.process.wait(LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self.end()
        found = self.process.returncode
        words = "" if found == code else f"\n{self.log.read_text(errors='replace')[-2000:]}"
        section.check(f"{name} ends with {code.value}", found == code, f"{found}{words}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _stop(job: _Job, section: Section) -> None:
    """Ask the job to stop as soon as it has done some updates."""
    deadline = time.monotonic() + LONGEST_WAIT
    while len(read_metrics(job.paths)) < UPDATES and job.process.poll() is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    job.process.send_signal(signal.SIGTERM)
    job.expect(section, "the job that is told to stop", Exit.INTERRUPTED)
    section.numbers["updates before the stop"] = len(read_metrics(job.paths))


def _cell_row(section: Section, name: str, paths: RunPaths, interval: int) -> dict[str, Any]:
    lines = read_metrics(paths)
    lags = [(line["lag_mean"], line["lag_max"]) for line in lines]
    wanted = [(step % interval, step % interval) for step in range(UPDATES)]
    section.check(f"{name}: lag is t mod S", lags == wanted, str([lag for _, lag in lags]))
    numbers = [line[key] for line in lines for key in ("loss", "gradient_norm")]
    finite = all(number is not None and math.isfinite(number) for number in numbers)
    section.check(f"{name}: loss and gradient are finite", bool(lines) and finite)
    off = [
        max(abs(1 - line["ratio_min"]), abs(1 - line["ratio_max"])) for line in lines if not line["lag_max"]
    ]
    section.below(f"{name}: largest |ratio - 1| at lag 0", max(off, default=math.nan), 1e-4)
    evaluated = [line["step"] for line in read_lines(paths.evaluations) if line["value"] is not None]
    due = list(range(0, UPDATES + 1, EVALUATED_EVERY))
    section.check(f"{name}: it was evaluated", evaluated == due, str(evaluated))
    summary = read_summary(paths)
    timings = read_lines(paths.timings)
    return {
        "cell": name,
        "updates": len(lines),
        "reward": _mean([line["reward"] for line in lines]),
        "gradient norm": _mean([line["gradient_norm"] for line in lines]),
        "displacement": lines[-1]["displacement"] if lines else None,
        "generate s": _mean([line["generate"] for line in timings[1:]]),
        "learn s": _mean([line["learn"] for line in timings[1:]]),
        "outcome": None if summary is None else summary.outcome.value,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return torch.tensor(known).mean().item() if known else None
