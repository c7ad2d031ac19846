"""`python -P -m trainer.export <run folder> best|last|<step> <out>`: weights in Hugging Face format."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trainer.errors import UserError
from trainer.files import read_json, sha256, write_json
from trainer.policy import weights_of
from trainer.record import CHECKPOINT_MARKER, RunPaths, read_budget, read_config, read_summary
from trainer.setup import fresh_policy, make_task


def export(paths: RunPaths, step: str, out: Path) -> dict[str, Any]:
    """Write model, generation settings and, for tasks in words, tokenizer; returns what was written.

    Raises `UserError` when there is no such checkpoint, or when `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: give another folder with --out, or delete it")
    config, budget = read_config(paths), read_budget(paths)
    source = find_checkpoint(paths, step)
    marker = read_json(source / CHECKPOINT_MARKER) or {}
    weights = source / "weights.safetensors"
    if sha256(weights) != marker["sha256"][weights.name]:
        raise UserError(f"{weights} does not match its checksum: choose another --step")
    task, pretrained = make_task(config, paths.prepared, budget.evaluation)
    policy = fresh_policy(config, task, pretrained)
    saved = load_file(weights)
    missing = set(weights_of(policy)) ^ set(saved)
    if missing:
        raise UserError(f"{weights} is of another model: it differs in {', '.join(sorted(missing)[:3])}")
    for name, weight in weights_of(policy).items():
        weight.data.copy_(saved[name])
    building = out.with_name(f".{out.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    policy.generation_config.eos_token_id = list(task.eos_ids)
    policy.generation_config.pad_token_id = task.pad_id
    policy.save_pretrained(building)
    task.save_tokenizer(building)
    summary = read_summary(paths)
    about = {
        "run_id": paths.run_id,
        "step": marker["step"],
        "weights": marker["sha256"][weights.name],
        "initial_weights": summary.warm_start if summary else None,
        "config": config.model_dump(mode="json"),
    }
    write_json(building / "grposweep.json", about)
    if out.exists():
        out.rmdir()
    out.parent.mkdir(parents=True, exist_ok=True)
    building.rename(out)
    return about


def find_checkpoint(paths: RunPaths, step: str) -> Path:
    """Folder of a complete checkpoint: the best, the last, or the one after `step` updates."""
    complete = [path.parent for path in sorted(paths.checkpoints.glob(f"step-*/{CHECKPOINT_MARKER}"))]
    if step == "best":
        if (paths.best / CHECKPOINT_MARKER).is_file():
            return paths.best
        raise UserError(
            f"run {paths.run_id} has no best checkpoint: it needs budget.evaluation.every above 0 and "
            "budget.evaluation.keep_best=true; use --step last"
        )
    if not complete:
        raise UserError(f"run {paths.run_id} has no checkpoint yet")
    if step == "last":
        return complete[-1]
    wanted = paths.checkpoints / f"step-{int(step):08d}"
    if wanted in complete:
        return wanted
    steps = ", ".join(str(int(path.name.removeprefix("step-"))) for path in complete)
    raise UserError(f"run {paths.run_id} has no checkpoint after {step} updates: there are {steps}")


if __name__ == "__main__":
    try:
        done = export(RunPaths(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
        print(f"the policy after {done['step']} updates is in {sys.argv[3]}")
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
