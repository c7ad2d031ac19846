"""`python -P -m trainer.prefetch <prepared folder> <problems file>`: what runs need, before any of them.

Reads a JSON list of `{"run": …, "evaluation": …}` from standard input. Afterwards the runs find prompts,
tokenizers and models on this machine or in the sweep's folder and need no network. Faults of the user's are
written to the file, and the exit code is 2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import write_json
from trainer.pretrained import check_length
from trainer.prompt_sets import check_unchanged
from trainer.prompts import HELD_OUT, TRAINING
from trainer.schema import parse
from trainer.setup import make_task


def main(prepared: Path) -> None:
    """Prepare every listed run, and print what came of it."""
    told: set[str] = set()
    for cell in json.load(sys.stdin):
        config = parse(RunConfig, cell["run"])
        evaluation = parse(EvaluationConfig, cell["evaluation"])
        task, model = make_task(config, prepared, evaluation)
        if model is not None:
            _tell(told, f"model {config.model.pretrained}: {model.folder}")
            check_length(AutoConfig.from_pretrained(model.folder), config.model, task.max_tokens)
        try:
            task.try_verifiers()
        except UserError:
            for note in prepared.glob("verifier-*.json"):  # so that the corrected files are the ones noted
                note.unlink()
            raise
        sources = {TRAINING: ("task.source", config.task.source)}
        for name, each in evaluation.sets.items():
            sources[name] = (f"budget.evaluation.sets.{name}.source", each.source)
        for name, (where, source) in sources.items():
            report = task.reports[name]
            check_unchanged(source, report, where)
            _tell(told, f"prompts {name}: {_counts(report)}")


def _tell(told: set[str], line: str) -> None:
    if line not in told:
        told.add(line)
        print(line, flush=True)


def _counts(report: dict[str, Any]) -> str:
    """One line on a prompt set."""
    words = [f"{report[TRAINING]} of {report['rows']} problems of {report['source']}"]
    if report[HELD_OUT]:
        words.append(f"{report[HELD_OUT]} more held out")
    for key, text in (
        ("duplicates", "repeated"),
        ("duplicates_with_another_answer", "of them with another answer"),
        ("without_answer", "without an answer"),
        ("with_special_tokens", "with the text of a special token"),
        ("too_long", "too long"),
    ):
        if report[key]:
            words.append(f"{report[key]} {text}")
    return ", ".join(words)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        write_json(Path(sys.argv[2]), {"problems": list(error.problems)})
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
