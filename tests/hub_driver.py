"""Prepares tasks from a hub in a process of its own, as the hub's libraries read the environment once.

    python -m tests.hub_driver STEPS.json

Each step is a run's configuration, the sweep's folder, named evaluation sets, and what to set in the
environment; a line of JSON per step goes to the output.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trainer.budget import EvaluationConfig
from trainer.config import ModelConfig, RunConfig
from trainer.errors import UserError
from trainer.schema import parse
from trainer.sources import read_rows
from trainer.task_config import PromptSource


def do(step: dict[str, Any]) -> dict[str, Any]:
    """The result of one step."""
    os.environ.update(step.get("environment", {}))
    if "source" in step:
        rows = read_rows(parse(PromptSource, step["source"]), "task.source")
        return {"rows": [[row.text, row.answer] for row in rows]}
    from trainer.pretrained import find_pretrained, load_pretrained
    from trainer.setup import make_task

    prepared = Path(step["prepared"])
    if "model" in step:
        model = parse(ModelConfig, step["model"])
        found = find_pretrained(model, prepared)
        weights = load_pretrained(model, found, 32).parameters()
        return {"content": found.content, "weights": sum(each.numel() for each in weights)}
    config = parse(RunConfig, step["config"])
    evaluation = parse(EvaluationConfig, {"sets": step.get("sets", {})})
    task, found = make_task(config, prepared, evaluation)
    return {
        "content": found.content if found else None,
        "sizes": {name: len(each) for name, each in task.sets.items()},
        "reports": task.reports,
        "problems": {name: sorted(zip(s.problems, s.answers, strict=True)) for name, s in task.sets.items()},
    }


def main() -> None:
    if "UNREACHABLE" in os.environ:  # the hub's libraries wait half a minute between their tries
        time.sleep = lambda _: None
    for step in json.loads(Path(sys.argv[1]).read_text()):
        try:
            result = do(step)
        except UserError as error:
            result = {"error": list(error.problems)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
