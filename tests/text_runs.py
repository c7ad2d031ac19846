"""Small tasks in words for tests: sums as text, a character model, prepared once per folder."""

import json
from pathlib import Path
from typing import Any

from trainer.budget import CellConfig
from trainer.record import RunPaths, write_budget, write_config
from trainer.schema import parse

SUMS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(12) for b in range(12)]


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def text_cell(file: Path, updates: int, **fields: Any) -> CellConfig:
    """Sums of two numbers below 12, a fifth of them held out; `fields` go over the defaults."""
    task = {"name": "text", "max_response_tokens": 4, "held_out_share": 0.2, "source": {"path": str(file)}}
    data: dict[str, Any] = {
        "batch_size": 32,
        "group_size": 4,
        "task": task | fields.pop("task", {}),
        "model": {"hidden_size": 48, "intermediate_size": 96},
        "warm_start": {"target_reward": 0.3, "batch_size": 128},
        "budget": {"horizon": {"updates": updates}, "checkpoint_every": 3, "sample_every": 4}
        | fields.pop("budget", {}),
    }
    return parse(CellConfig, data | fields)


def text_run(sweep: Path, name: str, updates: int, **fields: Any) -> RunPaths:
    """A run folder of such a cell; runs of one sweep share prompts and warm start."""
    file = sweep / "sums.jsonl"
    if not file.exists():
        write_lines(file, SUMS)
    cell = text_cell(file, updates, **fields)
    paths = RunPaths(sweep / "runs" / name)
    write_config(paths, cell.run())
    write_budget(paths, cell.budget.resolve(cell.run()))
    return paths
