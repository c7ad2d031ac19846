"""Rows of problems and answers from files: what is read, and what people are told when it cannot be."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.schema import parse
from trainer.sources import fingerprint, read_rows
from trainer.task_config import PromptSource


def write(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def read(path: Path | str, **fields: Any) -> list[tuple[str, str]]:
    rows = read_rows(parse(PromptSource, {"path": str(path)} | fields), "task.source")
    assert [row.index for row in rows] == list(range(len(rows)))
    return [(row.text, row.answer) for row in rows]


def refused(path: Path | str, **fields: Any) -> str:
    """The one line that people are told."""
    with pytest.raises(UserError) as caught:
        read(path, **fields)
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def table(file: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("x", "x"),
        (" x ", "x"),
        (3, "3"),
        (142.0, "142"),
        (-0.5, "-0.5"),
        (True, "True"),
        (None, ""),
        (float("nan"), ""),
        (["3", "3.0"], "3"),
        ([142.0], "142"),
        ([], ""),
        ([None], ""),
        (10**30, str(10**30)),
    ],
)
def test_answers_of_any_type_become_text(tmp_path: Path, answer: Any, text: str) -> None:
    assert read(write(tmp_path / "a.jsonl", {"prompt": "p", "answer": answer})) == [("p", text)]


def test_both_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = [
        {"q": {"text": f"p{n}"}, "reward_model": {"ground_truth": float(n), "style": "rule"}, "big": "x" * 99}
        for n in range(5)
    ]
    lines = write(tmp_path / "a.jsonl", *rows)
    columns = table(tmp_path / "a.parquet", **{name: [row[name] for row in rows] for name in rows[0]})
    names = {"prompt_column": "q.text", "answer_column": "reward_model.ground_truth"}
    assert read(lines, **names) == read(columns, **names) == [(f"p{n}", str(n)) for n in range(5)]
    assert read(lines, rows=2, **names) == read(columns, rows=2, **names) == [("p0", "0"), ("p1", "1")]


def test_a_name_with_a_dot_may_be_a_column_itself(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", {"a.b": "p", "answer": "1"})
    columns = table(tmp_path / "a.parquet", **{"a.b": ["p"], "answer": ["1"]})
    assert read(lines, prompt_column="a.b") == read(columns, prompt_column="a.b") == [("p", "1")]


def test_an_answer_inside_null_is_none(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "reward_model": None}, {"prompt": "q", "reward_model": {"ground_truth": "1"}}]
    file = write(tmp_path / "a.jsonl", *rows)
    assert read(file, answer_column="reward_model.ground_truth") == [("p", ""), ("q", "1")]


def test_chat_messages_keep_role_and_content(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "p", "name": "x"}]
    source = parse(PromptSource, {"path": str(write(tmp_path / "a.jsonl", {"prompt": chat, "answer": "1"}))})
    (row,) = read_rows(source, "task.source")
    assert row.problem == [chat[0], {"role": "user", "content": "p"}]


@pytest.mark.parametrize(
    "problem", [3, None, {"a": 1}, [{"role": "user"}], [{"role": 1, "content": "x"}], []]
)
def test_a_problem_is_text_or_chat(tmp_path: Path, problem: Any) -> None:
    good = {"prompt": "p", "answer": "1"}
    line = refused(write(tmp_path / "a.jsonl", good, good | {"prompt": problem}))
    assert f"{tmp_path / 'a.jsonl'}, row 1" in line and "task.source.prompt_column" in line


def test_an_answer_is_not_a_group_of_columns(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl", {"prompt": "p", "reward_model": {"ground_truth": "1", "style": "rule"}}
    )
    line = refused(file, answer_column="reward_model")
    assert "task.source.answer_column" in line and "ground_truth" in line


def test_blank_lines_and_a_byte_order_mark_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "p", "answer": 1}\r\n\r\n  \n{"prompt": "q", "answer": 2}')
    assert read(file) == [("p", "1"), ("q", "2")]


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, problem: str) -> None:
    # U+2028, U+2029, U+0085, \x0b, \x0c and \x1c end lines for str.splitlines, not for JSON lines
    problem += "\u2028\u2029\x85\x1c."
    file = write(tmp_path_factory.mktemp("any") / "a.jsonl", {"prompt": problem, "answer": problem})
    assert read(file) == [(problem, problem.strip())]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "p"', ["line 3", "JSON"]),
        (b"[1, 2]", ["line 3", "JSON object"]),
        (b'{"prompt": "\xff", "answer": 1}', ["UTF-8"]),
        (b'{"prompt": "\\ud800", "answer": 1}', ["row 1", "surrogate"]),
        (b'{"prompt": "p", "anwser": 1}', ["row 1", "answer", "anwser", "task.source.answer_column"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, words: list[str]) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"prompt": "p", "answer": 1}\n\n' + content + b"\n")
    line = refused(file)
    assert str(file) in line
    for word in words:
        assert word in line


@pytest.mark.parametrize("wrong", ["prompt_column", "answer_column"])
@pytest.mark.parametrize("name", ["nope", "nope.deeper", "prompt.deeper"])
def test_a_missing_column_is_told_with_those_there_are(tmp_path: Path, wrong: str, name: str) -> None:
    lines = write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "1", "level": 3})
    columns = table(tmp_path / "a.parquet", prompt=["p"], answer=["1"], level=[3])
    for file in (lines, columns):
        line = refused(file, **{wrong: name})
        assert name.split(".")[0] in line and "answer" in line and f"task.source.{wrong}" in line


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", {"prompt": "2", "answer": "b"})
    write(tmp_path / "a.jsonl", {"prompt": "1", "answer": "a"})
    (tmp_path / "README.md").write_text("not read")
    assert read(tmp_path) == [("1", "a"), ("2", "b")]
    table(tmp_path / "c.parquet", prompt=["3"], answer=["c"])
    assert "both .jsonl and .parquet" in refused(tmp_path)


def test_what_is_no_source_is_told(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert "holds no .jsonl" in refused(tmp_path / "none")
    assert "does not exist" in refused(tmp_path / "a.jsonl")
    assert "has to be a .jsonl" in refused(tmp_path / "a.csv")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "no rows" in refused(tmp_path / "empty.jsonl")
    assert "no rows" in refused(table(tmp_path / "empty.parquet", prompt=[], answer=[]))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert "torn.parquet" in refused(tmp_path / "torn.parquet")


def test_paths_may_have_spaces_quotes_and_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'it\'s a "folder"'
    folder.mkdir()
    write(folder / "my file.jsonl", {"prompt": "p", "answer": "1"})
    monkeypatch.setenv("HOME", str(folder))
    assert read(folder) == read(folder / "my file.jsonl") == read("~/my file.jsonl") == [("p", "1")]


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    first = parse(PromptSource, {"path": str(write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "1"}))})
    second = parse(PromptSource, {"path": str(write(tmp_path / "b.jsonl", {"prompt": "p", "answer": "1"}))})
    assert fingerprint(first, "task.source") == fingerprint(second, "task.source")
    write(tmp_path / "b.jsonl", {"prompt": "p", "answer": "2"})
    assert fingerprint(first, "task.source") != fingerprint(second, "task.source")
