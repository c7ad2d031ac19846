"""Where problems and answers come from: a generator, files, or a data set of a hub. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.errors import UserError
from trainer.extraction import extract
from trainer.files import sha256
from trainer.task_config import PromptSource, canonical_json

Problem = str | list[dict[str, str]]
"""Text, or the messages of a chat."""


@dataclass(frozen=True, slots=True)
class Row:
    """One problem as it was read."""

    index: int
    """Place in its source, from 0."""
    problem: Problem
    answer: str
    """Empty where there is none."""

    @property
    def text(self) -> str:
        """The problem as one text."""
        return self.problem if isinstance(self.problem, str) else canonical_json(self.problem)


def read_rows(source: PromptSource, where: str) -> list[Row]:
    """All rows of a source, in its order; `where` is the field that holds it, for messages.

    Raises `UserError` when the source, a column or a library is missing.
    """
    if source.generator is not None:
        return _generated(source, where)
    raw = _from_files(source, where) if source.path is not None else _from_hub(source, where)
    rows = [_row(source, index, item, where) for index, item in enumerate(islice(raw, source.rows))]
    if not rows:
        raise UserError(f"{where}: {describe(source)} has no rows")
    return rows


def describe(source: PromptSource) -> str:
    """What people call a source."""
    if source.generator is not None:
        return f"reasoning-gym {source.generator}"
    if source.path is not None:
        return source.path
    return "/".join(filter(None, (source.dataset, source.subset, source.split)))


def fingerprint(source: PromptSource) -> str:
    """What tells that a source still gives the same rows: content, commit, or version of the generator."""
    if source.generator is not None:
        return f"reasoning-gym {metadata.version('reasoning-gym')}"
    if source.path is not None:
        total = hashlib.sha256()
        for file in _files(source.path, "task.source.path"):
            total.update(sha256(file).encode())
        return f"sha256 {total.hexdigest()}"
    return f"commit {source.revision}"


def _generated(source: PromptSource, where: str) -> list[Row]:
    from trainer.verifiers import make_generator

    data = make_generator(source)
    assert source.rows is not None
    items = [data[index] for index in range(source.rows)]
    # where many answers are right there is none to tell, and the generator's own scorer needs none
    answers = ["" if item["answer"] is None else str(item["answer"]) for item in items]
    return [Row(index, item["question"], answers[index]) for index, item in enumerate(items)]


def _files(path: str, where: str) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_dir():
        found = sorted(file for kind in ("*.jsonl", "*.parquet") for file in place.glob(kind))
        if len({file.suffix for file in found}) == 1:
            return found
        what = "holds both .jsonl and .parquet files" if found else "holds no .jsonl or .parquet file"
        raise UserError(f"{where}={path} {what}: give a folder of files of one kind, or one file")
    if place.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"{where}={path} has to be a .jsonl or .parquet file, or a folder of those")
    if not place.is_file():
        raise UserError(f"{where}={path} does not exist (looked for {place.absolute()})")
    return [place]


def _from_files(source: PromptSource, where: str) -> Iterator[Mapping[str, Any]]:
    assert source.path is not None
    for file in _files(source.path, f"{where}.path"):
        yield from _jsonl(file) if file.suffix == ".jsonl" else _parquet(file, source, where)


def _jsonl(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except ValueError as error:
                raise UserError(f"{file}, line {number} is not JSON ({error}): correct it") from None
            if not isinstance(item, dict):
                raise UserError(f'{file}, line {number} is no JSON object: write {{"prompt": …}}')
            yield item


def _parquet(file: Path, source: PromptSource, where: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    # a data set's other columns can be gigabytes
    wanted = {name.split(".")[0] for name in (source.prompt_column, source.answer_column)}
    columns = [name for name in table.schema_arrow.names if name in wanted]
    if len(columns) < len(wanted):
        present = dict.fromkeys(table.schema_arrow.names)
        _missing(next(iter(wanted - set(columns))), present, str(file), where)
    for batch in table.iter_batches(batch_size=1024, columns=columns):
        yield from batch.to_pylist()


def _from_hub(source: PromptSource, where: str) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{where}.dataset={source.dataset} needs the datasets library: pip install 'grposweep[hub]'"
        ) from None
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(
            source.dataset, source.subset, split=source.split, revision=source.revision
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{where}.dataset={source.dataset} cannot be loaded at revision {source.revision}: "
            f"{' '.join(str(error).split())}"
        ) from None
    wanted = {name.split(".")[0] for name in (source.prompt_column, source.answer_column)}
    for name in wanted - set(data.column_names):
        _missing(name, dict.fromkeys(data.column_names), describe(source), where)
    return iter(data.select_columns(sorted(wanted)))


def _row(source: PromptSource, index: int, item: Mapping[str, Any], where: str) -> Row:
    place = f"{describe(source)}, row {index}"
    problem = _value(item, source.prompt_column, place, where)
    if isinstance(problem, list):
        problem = [_message(part, place, where) for part in problem]
    elif not isinstance(problem, str):
        raise UserError(
            f"{place}: column {source.prompt_column} holds {type(problem).__name__}, not text or chat "
            f"messages: set {where}.prompt_column"
        )
    answer = _value(item, source.answer_column, place, where)
    if isinstance(answer, list):  # some sets list equal ways to write the answer
        answer = answer[0] if answer else None
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    text = "" if answer is None else str(answer)
    return Row(index, problem, extract(text, source.answer_extract) or "")


def _message(part: Any, place: str, where: str) -> dict[str, str]:
    if isinstance(part, dict) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str):
        return {"role": part["role"], "content": part["content"]}
    raise UserError(
        f"{place}: a chat message needs the texts role and content: correct it, or set {where}.prompt_column"
    )


def _value(item: Mapping[str, Any], column: str, place: str, where: str) -> Any:
    """The value of a column, dots leading into nested ones."""
    if column in item:
        return item[column]
    value: Any = item
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            _missing(column, item, place, where)
        value = value[name]
    return value


def _missing(column: str, present: Mapping[str, Any], place: str, where: str) -> None:
    raise UserError(
        f"{place} has no column {column}: there are {', '.join(sorted(present))}; set {where}.prompt_column "
        f"and {where}.answer_column"
    )
