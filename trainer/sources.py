"""Where problems and answers come from: a generator, files, or a data set of a hub. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from trainer.errors import UserError
from trainer.extraction import extract
from trainer.files import sha256
from trainer.hub import LONGEST, unavailable
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


def fingerprint(source: PromptSource, where: str) -> str:
    """What tells that a source still gives the same rows: content, commit, or version of the generator."""
    if source.generator is not None:
        return f"reasoning-gym {metadata.version('reasoning-gym')}"
    if source.path is not None:
        total = hashlib.sha256()
        for file in _files(source.path, f"{where}.path"):
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
    with file.open("rb") as lines:  # bytes: a line ends at \n and nowhere else
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                item = json.loads(text) if text.strip() else None
            except UnicodeDecodeError:
                raise UserError(f"{file}, line {number} is not UTF-8: save the file as UTF-8") from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{file}, line {number} is not JSON ({error}): correct it") from None
            if not text.strip():
                continue
            if not isinstance(item, dict):
                raise UserError(f'{file}, line {number} is no JSON object: write {{"prompt": …}}')
            yield item


def _parquet(file: Path, source: PromptSource, where: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        # a data set's other columns can be gigabytes
        wanted = _columns(source, table.schema_arrow.names, str(file), where)
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read as parquet ({error}): write it anew") from None


def _columns(source: PromptSource, present: Sequence[str], place: str, where: str) -> list[str]:
    """The columns of `present` that hold problem and answer."""
    wanted = []
    for column in (source.prompt_column, source.answer_column):
        name = column if column in present else column.split(".")[0]
        if name not in present:
            _missing(column, present, place, where)
        wanted.append(name)
    return sorted(set(wanted))


def _from_hub(source: PromptSource, where: str) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{where}.dataset={source.dataset} needs the datasets library: pip install 'grposweep[hub]'"
        ) from None
    datasets.disable_progress_bars()
    # without a network the library takes any commit and subset that it has, so each has a cache of its own
    cache = Path(datasets.config.HF_DATASETS_CACHE) / f"{source.revision}-{source.subset or ''}"
    try:
        data = datasets.load_dataset(
            f"hf://datasets/{source.dataset}",  # a folder of this name is not meant
            source.subset,
            split=source.split,
            revision=source.revision,
            cache_dir=str(cache),
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _refused(source, where, error) from None
    return iter(data.select_columns(_columns(source, data.column_names, describe(source), where)))


def _refused(source: PromptSource, where: str, error: Exception) -> UserError:
    """The error of a data set that cannot be loaded, by the field that is wrong."""
    assert source.dataset is not None
    said = " ".join(str(error).split())
    if "BuilderConfig" in said or "Config name is missing" in said or "for config" in said:
        field = f"subset={'null' if source.subset is None else source.subset}"
    elif said.startswith("Unknown split"):
        field = f"split={source.split}"
    else:
        return unavailable(where, "dataset", source.dataset, source.revision, error)
    return UserError(f"{where}.{field} does not fit {source.dataset}: {said[:LONGEST]}; correct it")


def _row(source: PromptSource, index: int, item: Mapping[str, Any], where: str) -> Row:
    place = f"{describe(source)}, row {index}"
    problem = _value(item, source.prompt_column, place, where)
    if isinstance(problem, list) and problem:
        problem = [_message(part, place, where) for part in problem]
    elif not isinstance(problem, str):
        raise UserError(
            f"{place}: column {source.prompt_column} holds {type(problem).__name__}, not text or chat "
            f"messages: set {where}.prompt_column"
        )
    answer = _value(item, source.answer_column, place, where)
    if isinstance(answer, Mapping):
        raise UserError(
            f"{place}: column {source.answer_column} holds {', '.join(answer)}: set {where}.answer_column to "
            f"one of them, as {source.answer_column}.{next(iter(answer), 'NAME')}"
        )
    if isinstance(answer, list):  # some sets list equal ways to write the answer
        answer = answer[0] if answer else None
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    text = "" if answer is None or answer != answer else str(answer)  # NaN is what pandas makes of None
    row = Row(index, problem, extract(text, source.answer_extract) or "")
    try:
        f"{row.text}{row.answer}".encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} holds half of a surrogate pair, which is no text: correct it") from None
    return row


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
    names = column.split(".")
    for depth, name in enumerate(names):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            above = "".join(f"{each}." for each in names[:depth])
            inside = value if isinstance(value, Mapping) else {}
            _missing(column, [above + each for each in inside] or list(item), place, where)
        value = value[name]
    return value


def _missing(column: str, present: Sequence[str], place: str, where: str) -> NoReturn:
    raise UserError(
        f"{place} has no column {column}: there are {', '.join(sorted(present))}; set {where}.prompt_column "
        f"and {where}.answer_column"
    )
