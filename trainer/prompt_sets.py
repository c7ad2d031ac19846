"""Prompt sets: problems read, cleaned, split and rendered once per sweep, then shared by its runs.

    <sweep>/prepared/prompts-<key>/
      prompts.parquet   problem, answer, rendered text, tokens, place in the source, training or held out
      report.json       counts, hashes, what the source was

The key names everything that decides the content: the source, the task's rendering and split, the tokenizer.
Cleaning: rows without an answer, rows whose problem holds the text of a special token or was there before,
and prompts longer than `task.max_prompt_tokens` are left out and counted. Which problems are held out is
decided by a hash of the problem alone, so it is the same for every model and template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.errors import UserError
from trainer.files import fsync_path, locked, read_json, sha256, write_json
from trainer.prompts import HELD_OUT, TRAINING
from trainer.rendering import Renderer
from trainer.sources import Row, describe, fingerprint, read_rows
from trainer.task_config import PromptSource, TaskConfig, canonical_json

RECIPE = 1
"""Changes whenever the same settings would give other prompts."""
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind, ready for the model."""

    problems: Sequence[str]
    answers: Sequence[str]
    rendered: Sequence[str]
    tokens: Sequence[list[int]]
    indices: Sequence[int]
    """Places in the source."""

    def __len__(self) -> int:
        return len(self.problems)


def prepare(
    folder: Path,
    source: PromptSource,
    task: TaskConfig,
    tokenizer: str,
    renderer: Renderer,
    where: str,
    *,
    split: bool,
) -> tuple[dict[str, PromptSet], dict[str, Any]]:
    """The prompt sets `training` and `held_out` of a source, and the report; made if they are not there.

    `tokenizer` identifies the tokenizer of `renderer`; `where` is the field that holds the source.
    Without `split` all is `training`. Raises `UserError` when nothing is left, or when a file has changed
    since the sets were made.
    """
    share = task.held_out_share if split else 0.0
    home = folder / f"prompts-{_key(source, task, tokenizer, share)}"
    file = home / "prompts.parquet"
    if not file.is_file():
        with locked(home / "lock", wait=3600):
            if not file.is_file():
                _make(home, source, task, tokenizer, renderer, where, share)
    report = read_json(home / "report.json") or {}
    if sha256(file) != report.get("content"):
        raise UserError(f"{file} was changed after it was written: delete its folder and start again")
    return _load(file), report


def check_unchanged(source: PromptSource, report: Mapping[str, Any], where: str) -> None:
    """Raise `UserError` when a set was made from another content of its source than is there now."""
    now, then = fingerprint(source, where), report["fingerprint"]
    if now != then:
        raise UserError(
            f"{where}: {describe(source)} has changed since this sweep was prepared from it "
            f"({then[:20]}… → {now[:20]}…): put it back, or give the new sweep a name of its own with --name"
        )


def check_overlap(training: PromptSet, others: Mapping[str, PromptSet]) -> None:
    """Raise `UserError`, with examples, when a problem is both trained and evaluated on.

    Problems are compared without regard to case and white space.
    """
    trained = {normalised(problem) for problem in training.problems}
    problems = []
    for name, found in others.items():
        common = [problem for problem in found.problems if normalised(problem) in trained]
        if common:
            shown = "; ".join(repr(problem[:80]) for problem in common[:EXAMPLES])
            problems.append(
                f"{len(common)} of {len(found)} problems of the evaluation set {name} are trained on too, as "
                f"{shown}: take them out of one of both"
            )
    if problems:
        raise UserError(*problems)


def normalised(problem: str) -> str:
    """A problem with white space and case evened out."""
    return " ".join(problem.casefold().split())


def _key(source: PromptSource, task: TaskConfig, tokenizer: str, share: float) -> str:
    rendering = ("system_prompt", "prompt_template", "chat_template_kwargs", "max_prompt_tokens")
    settings = {
        "recipe": RECIPE,
        "source": source.model_dump(mode="json"),
        "held_out_share": share,
        "tokenizer": tokenizer,
        **task.model_dump(mode="json", include=set(rendering)),
    }
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()[:12]


def _make(
    home: Path,
    source: PromptSource,
    task: TaskConfig,
    tokenizer: str,
    renderer: Renderer,
    where: str,
    share: float,
) -> None:
    read = fingerprint(source, where)
    rows = read_rows(source, where)
    needed = task.verifier.kind in ("exact", "math") or source.generator is None
    kept, counts = _cleaned(rows, renderer.marks, needed=needed)
    rendered = [renderer.text(row.problem) for row in kept]
    tokens = renderer.tokens(rendered)
    fits = [len(each) <= task.max_prompt_tokens for each in tokens]
    digests = [hashlib.sha256(normalised(row.text).encode()).hexdigest() for row in kept]
    held_out = [int(digest[:16], 16) < share * 2**64 for digest in digests]
    order = sorted(range(len(kept)), key=lambda place: digests[place])
    order = [place for place in order if fits[place]]
    parts = [HELD_OUT if held_out[place] else TRAINING for place in order]
    counts |= {"too_long": fits.count(False), "longest_prompt": max(map(len, tokens), default=0)}
    counts |= {name: parts.count(name) for name in (TRAINING, HELD_OUT)}
    if not counts[TRAINING] or (share and not counts[HELD_OUT]):
        raise UserError(
            f"{where}: of {len(rows)} rows of {describe(source)} {counts[TRAINING]} are left to train on and "
            f"{counts[HELD_OUT]} held out ({counts['without_answer']} have no answer, "
            f"{counts['duplicates']} repeat a problem, {counts['too_long']} are longer than "
            f"task.max_prompt_tokens={task.max_prompt_tokens}): raise that, or give more rows"
        )
    columns = {
        "problem": pa.array([kept[place].text for place in order]),
        "answer": pa.array([kept[place].answer for place in order]),
        "rendered": pa.array([rendered[place] for place in order]),
        "tokens": pa.array([tokens[place] for place in order], type=pa.list_(pa.int32())),
        "index": pa.array([kept[place].index for place in order]),
        "part": pa.array(parts),
    }
    home.mkdir(parents=True, exist_ok=True)
    temporary = home / "prompts.parquet.tmp"
    pq.write_table(pa.table(columns), temporary, compression="zstd")
    fsync_path(temporary)
    text = hashlib.sha256()
    for place in order:
        text.update(rendered[place].encode() + b"\0")
    report = {
        "source": describe(source),
        "fingerprint": read,
        "tokenizer": tokenizer,
        "rows": len(rows),
        **counts,
        "rendered": text.hexdigest(),
        "example": rendered[order[0]],
        "content": sha256(temporary),
    }
    write_json(home / "report.json", report)
    temporary.replace(home / "prompts.parquet")


def _cleaned(rows: Sequence[Row], marks: Sequence[str], needed: bool) -> tuple[list[Row], dict[str, int]]:
    """Each problem once, with an answer where one is `needed`, and counts of what was left out.

    A problem that holds the text of one of the tokenizer's `marks` would end its own turn.
    """
    seen: dict[str, str] = {}
    kept = []
    counts = {"without_answer": 0, "with_special_tokens": 0}
    counts |= {"duplicates": 0, "duplicates_with_another_answer": 0}
    for row in rows:
        if needed and not row.answer.strip():
            counts["without_answer"] += 1
        elif any(mark in row.text for mark in marks):
            counts["with_special_tokens"] += 1
        elif row.text in seen:
            counts["duplicates"] += 1
            counts["duplicates_with_another_answer"] += seen[row.text] != row.answer
        else:
            seen[row.text] = row.answer
            kept.append(row)
    return kept, counts


def _load(file: Path) -> dict[str, PromptSet]:
    table = pq.read_table(file)
    parts = np.array(table["part"].to_pylist())
    found = {}
    for name in (TRAINING, HELD_OUT):
        rows = table.take(pa.array(np.flatnonzero(parts == name)))
        columns = ("problem", "answer", "rendered", "tokens", "index")
        found[name] = PromptSet(*(rows[column].to_pylist() for column in columns))
    return found
