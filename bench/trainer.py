"""Where a run's time goes, as ratios measured within one run: `make bench`.

For each store and schedule one run of the demo's model is trained and its parts are timed:

    checkpoints    time in saving, at the default cadence, over all training time      at most 5%
    bookkeeping    update time that is neither model (sampling, learner) nor evaluation at most 15%
                   (20% on the clock, where groups enter the store one by one)
    usage          time in the per-rollout record, over all training time              at most 5%

Exits with 1 when a limit is passed. Nothing here is an absolute time, so a slow machine changes little.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trainer.rollouts
from trainer.budget import CellConfig
from trainer.job import run_job
from trainer.learner import Learner
from trainer.lockstep import Lockstep
from trainer.record import RunPaths, write_budget, write_config
from trainer.schema import parse
from trainer.usage import Usage

UPDATES = 400
RUNS: dict[str, dict[str, Any]] = {
    "queue, S=1": {},
    "queue, S=16": {"sync_interval": 16},
    "buffer, y=4": {"buffer_size": 256, "replay_ratio": 4},
    "free buffer": {
        "schedule": "free",
        "generation_cost_ratio": 4,
        "inference_workers": 4,
        "buffer_size": 256,
    },
}
LIMITS = {"checkpoints": 0.05, "bookkeeping": 0.15, "usage": 0.05}


def main() -> int:
    seconds: dict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, part: str) -> None:
        action: Callable[..., Any] = getattr(owner, name)

        def measured(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return action(*arguments, **named)
            finally:
                seconds[part] += time.perf_counter() - started

        setattr(owner, name, measured)

    timed(Lockstep, "advance", "advance")
    timed(Lockstep, "save", "save")
    timed(Lockstep, "_evaluate", "evaluate")
    timed(Lockstep, "_write_samples", "evaluate")
    timed(Learner, "update", "learner")
    timed(trainer.rollouts, "sample", "sampling")
    for name in ("add", "close_update", "tensors"):
        timed(Usage, name, "usage")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for index, (label, fields) in enumerate(RUNS.items()):
            seconds.clear()
            paths = RunPaths(Path(folder) / "sweep" / "runs" / str(index))
            cell = parse(
                CellConfig, {"budget": {"horizon": {"updates": UPDATES}}, "learning_rate": 1e-3} | fields
            )
            write_config(paths, cell.run())
            write_budget(paths, cell.budget.resolve(cell.run()))
            with contextlib.redirect_stdout(io.StringIO()):
                code = run_job(paths.folder)
            assert code == 0, f"{label}: exit code {code}"
            total = seconds["advance"] + seconds["save"]
            # sampling counts the warm start and what is written to read, too: little, and only to our cost
            model = seconds["learner"] + seconds["sampling"]
            shares = {
                "checkpoints": seconds["save"] / total,
                "bookkeeping": max(0.0, seconds["advance"] - seconds["evaluate"] - model) / total,
                "usage": seconds["usage"] / total,
            }
            print(f"{label:12}", *(f"{name} {100 * share:.1f}%" for name, share in shares.items()), sep="  ")
            for name, share in shares.items():
                limit = LIMITS[name] + (0.05 if name == "bookkeeping" and "schedule" in fields else 0)
                if share > limit:
                    failed = True
                    print(f"  {name} takes more than {100 * limit:.0f}%")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
