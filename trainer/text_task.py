"""Tasks in words: prompts from prepared sets, verdicts from a verifier."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.budget import EvaluationConfig
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.extraction import extract
from trainer.files import read_json, sha256, write_json
from trainer.pretrained import Pretrained
from trainer.prompt_sets import PromptSet, check_overlap, prepare
from trainer.prompts import HELD_OUT, TRAINING, Prompts, Verdicts
from trainer.rendering import Renderer, character_renderer, pretrained_renderer
from trainer.seeding import numpy_generator
from trainer.task_config import TaskConfig, VerifierConfig
from trainer.verifiers import Item, Verifier, make_verifier


class TextTask:
    """Problems in words. Training prompts come in epochs, each a permutation of the set of its own."""

    def __init__(
        self,
        config: TaskConfig,
        renderer: Renderer,
        sets: Mapping[str, PromptSet],
        verifiers: Mapping[str, Verifier],
        reports: Mapping[str, Any],
    ) -> None:
        """`sets` has `training`, `held_out` where some are, and the named ones; so has `verifiers`."""
        self.config, self.renderer, self.sets, self.verifiers = config, renderer, sets, verifiers
        self.reports = reports
        """Report of each set's preparation (`trainer.prompt_sets`)."""
        self._epoch: tuple[int, int, np.ndarray[Any, Any]] | None = None
        self._padded: dict[str, Prompts] = {}
        self._problem: str | None = None

    @property
    def pad_id(self) -> int:
        return self.renderer.pad_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.renderer.eos_ids

    @property
    def vocabulary_size(self) -> int:
        return len(self.renderer.tokenizer)

    @cached_property
    def max_tokens(self) -> int:
        longest = max(len(tokens) for found in self.sets.values() for tokens in found.tokens)
        return longest + self.config.max_response_tokens

    def training_prompts(self, seed: int, block: int, count: int) -> Prompts:
        size = len(self.sets[TRAINING])
        numbers = range(block * count, (block + 1) * count)
        return self._prompts(TRAINING)[
            torch.tensor([int(self._order(seed, number // size)[number % size]) for number in numbers])
        ]

    def evaluation_prompts(self, name: str, most: int) -> Prompts:
        return self._prompts(name)[:most]

    def sample_prompts(self, count: int) -> Prompts:
        return self._prompts(HELD_OUT if HELD_OUT in self.sets else TRAINING)[:count]

    def lesson(self, count: int, stream: torch.Generator) -> tuple[Prompts, Tensor, Tensor]:
        """Raises `UserError` when a right answer, written as a response, would not be judged right."""
        found, longest = self.sets[TRAINING], self.config.max_response_tokens
        chosen = torch.randint(len(found), (count,), generator=stream)
        taught = [self.renderer.answer_tokens(found.answers[item]) for item in chosen.tolist()]
        kept = [row for row, tokens in enumerate(taught) if len(tokens) <= longest]
        if not kept:
            raise UserError(
                f"warm start: no answer fits into task.max_response_tokens={longest}: raise it, or skip the "
                "warm start with warm_start.target_reward=0"
            )
        answers = torch.full((len(kept), max(len(taught[row]) for row in kept)), self.pad_id)
        mask = torch.zeros(answers.shape, dtype=torch.bool)
        for place, row in enumerate(kept):
            answers[place, : len(taught[row])] = torch.tensor(taught[row])
            mask[place, : len(taught[row])] = True
        prompts = self._prompts(TRAINING)[chosen[kept]]
        first = self.verify(prompts[:1], answers[:1], mask[:1])
        if bool((first.scored & ~first.correct).any()):
            problem, answer = found.problems[int(chosen[kept[0]])], found.answers[int(chosen[kept[0]])]
            raise UserError(
                f"warm start: the answer {answer!r} to {problem[:80]!r}, as a whole response, is not judged "
                "right: set task.extract=whole or another verifier, or warm_start.target_reward=0"
            )
        return prompts, answers, mask

    def verify(self, prompts: Prompts, responses: Tensor, mask: Tensor) -> Verdicts:
        found = self.sets[prompts.name]
        items = []
        for item, tokens, kept in zip(prompts.items.tolist(), responses, mask, strict=True):
            # without the end mark, which is the last token
            text = self.renderer.decode(tokens[kept].tolist()[:-1])
            items.append(
                Item(
                    found.problems[item],
                    found.answers[item],
                    text,
                    extract(text, self.config.extract),
                    found.indices[item],
                )
            )
        verifier = self.verifiers[prompts.name]
        verdicts = verifier.verify(items)
        problem = getattr(verifier, "last_problem", None)
        if problem is not None and problem != self._problem:
            print(f"verifier: {problem}", flush=True)
            self._problem = problem
        scored = torch.tensor([verdict is not None for verdict in verdicts], dtype=torch.bool)
        return Verdicts(torch.tensor([bool(verdict) for verdict in verdicts], dtype=torch.bool), scored)

    def render(self, tokens: Tensor) -> str:
        return self.renderer.decode(tokens[tokens != self.pad_id].tolist())

    def try_verifiers(self) -> None:
        """Judge the right answer to a problem of each set, whatever the verdict may be."""
        for name, found in self.sets.items():
            item = Item(
                found.problems[0], found.answers[0], found.answers[0], found.answers[0], found.indices[0]
            )
            if self.verifiers[name].verify([item]) == [None]:
                problem = getattr(self.verifiers[name], "last_problem", None)
                raise UserError(
                    f"task.verifier.command={self.config.verifier.command!r} gave no verdict on a right "
                    f"answer ({problem or 'it wrote null'}): correct it; docs/tasks.md shows the protocol"
                )

    def save_tokenizer(self, folder: Path) -> None:
        self.renderer.tokenizer.save_pretrained(folder)

    def _order(self, seed: int, epoch: int) -> np.ndarray[Any, Any]:
        if self._epoch is None or self._epoch[:2] != (seed, epoch):
            order = numpy_generator(seed, "prompt order", epoch).permutation(len(self.sets[TRAINING]))
            self._epoch = (seed, epoch, order)
        return self._epoch[2]

    def _prompts(self, name: str) -> Prompts:
        """All prompts of a set, padded to its longest."""
        if name not in self._padded:
            tokens = self.sets[name].tokens
            lengths = torch.tensor([len(each) for each in tokens])
            padded = torch.full((len(tokens), int(lengths.max())), self.pad_id)
            for row, each in enumerate(tokens):
                padded[row, padded.shape[1] - len(each) :] = torch.tensor(each)
            self._padded[name] = Prompts(padded, lengths, torch.arange(len(tokens)), name)
        return self._padded[name]


def make_text_task(
    config: RunConfig, model: Pretrained | None, prepared: Path, evaluation: EvaluationConfig | None
) -> TextTask:
    """The task of a run, with the tokenizer of `model` or characters as tokens.

    `prepared` is the sweep's folder of prompt sets: what is missing there is made. Raises `UserError` when a
    source or an argument of the chat template is wrong, or when a problem is both trained and evaluated on.
    """
    task = config.task
    if model is None:
        identity, renderer = "characters 1", character_renderer(task)
    else:
        identity = model.tokenizer
        renderer = pretrained_renderer(task, model.folder, str(config.model.pretrained))
    processes = config.resources.verifier_processes
    folder = command_folder(task.verifier, prepared)
    found, report = prepare(prepared, task.source, task, identity, renderer, "task.source", split=True)
    sets = {name: each for name, each in found.items() if len(each)}
    reports = {TRAINING: report}
    verifiers = dict.fromkeys(sets, make_verifier(task, processes, folder))
    for name, settings in (evaluation.sets if evaluation else {}).items():
        where = f"budget.evaluation.sets.{name}.source"
        named, reports[name] = prepare(
            prepared, settings.source, task, identity, renderer, where, split=False
        )
        sets[name] = named[TRAINING]
        verifiers[name] = make_verifier(
            task.model_copy(update={"source": settings.source}), processes, folder
        )
    check_overlap(sets[TRAINING], {name: each for name, each in sets.items() if name != TRAINING})
    return TextTask(task, renderer, sets, verifiers, reports)


def command_folder(verifier: VerifierConfig, prepared: Path) -> Path:
    """The folder that a command verifier runs in: where the sweep was first prepared from.

    The files that the command names are hashed then. Raises `UserError` when one has changed since, as later
    runs would be judged by other rules.
    """
    if verifier.command is None:
        return prepared
    key = hashlib.sha256(verifier.command.encode()).hexdigest()[:12]
    note = prepared / f"verifier-{key}.json"
    found = read_json(note)
    if found is None:
        here = Path.cwd()
        named = [here / word for word in shlex.split(verifier.command)]
        files = {str(file): sha256(file) for file in named if file.is_file()}
        found = {"folder": str(here), "files": files}
        write_json(note, found)
    for name, content in found["files"].items():
        if not Path(name).is_file() or sha256(Path(name)) != content:
            raise UserError(
                f"task.verifier.command={verifier.command!r}: {name} is not what it was when this sweep was "
                "prepared: put it back, or give the new sweep a name of its own with --name"
            )
    return Path(found["folder"])
