"""Prompt sets: what is kept, which side of the split it is on, and files that survive a kill."""

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import prompt_sets
from trainer.errors import UserError
from trainer.files import read_json
from trainer.prompt_sets import PromptSet, check_overlap, check_unchanged, normalised, prepare
from trainer.rendering import Renderer, character_renderer
from trainer.schema import parse
from trainer.task_config import TaskConfig

Rows = list[tuple[Any, Any]]


def write(file: Path, rows: Rows) -> Path:
    file.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))
    return file


def text_task(file: Path, **fields: Any) -> TaskConfig:
    source = {"path": str(file)}
    return parse(TaskConfig, {"name": "text", "max_response_tokens": 8, "source": source} | fields)


def prepared(
    folder: Path,
    rows: Rows | None = None,
    renderer: Renderer | None = None,
    split: bool = True,
    **fields: Any,
) -> tuple[dict[str, PromptSet], dict[str, Any]]:
    """Sets and report of these rows, those already in `folder` when none are given."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rows.jsonl"
    if rows is not None:
        write(file, rows)
    task = text_task(file, **fields)
    used = renderer or character_renderer(task)
    return prepare(folder / "prepared", task.source, task, "test", used, "task.source", split=split)


def refused(*arguments: Any, **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        prepared(*arguments, **fields)
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def sums(count: int) -> Rows:
    return [(f"{n} + 1", str(n + 1)) for n in range(count)]


def test_repeats_and_missing_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    rows: Rows = [("a", "1"), ("b", "2"), ("a", "1"), ("a", "9"), ("c", None), ("b", "2"), ("d", "")]
    sets, report = prepared(tmp_path, rows)
    assert dict(zip(sets["training"].problems, sets["training"].answers, strict=True)) == {"a": "1", "b": "2"}
    assert sorted(sets["training"].indices) == [0, 1]
    counts = {
        "rows": 7,
        "without_answer": 2,
        "duplicates": 3,
        "duplicates_with_another_answer": 1,
        "too_long": 0,
        "training": 2,
        "held_out": 0,
    }
    assert {name: report[name] for name in counts} == counts


def test_the_split_is_of_the_problem_alone(tmp_path: Path) -> None:
    rows = sums(200)
    shuffled = random.Random(0).sample(rows, len(rows))
    first, _ = prepared(tmp_path / "a", rows, held_out_share=0.3)
    second, _ = prepared(tmp_path / "b", shuffled, held_out_share=0.3, prompt_template="Solve {problem}!")
    subset, _ = prepared(tmp_path / "c", rows[:50], held_out_share=0.3)
    for name in ("training", "held_out"):
        assert list(first[name].problems) == list(second[name].problems)  # in the same order, too
        assert list(subset[name].problems) == [p for p in first[name].problems if (p, ANSWER[p]) in rows[:50]]


ANSWER = dict(sums(200))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_about_the_right_share_is_held_out(tmp_path: Path, share: float) -> None:
    count = 2000
    sets, report = prepared(tmp_path, sums(count), held_out_share=share)
    # five standard deviations: 1 in 1.7 million for fresh hashes
    assert abs(len(sets["held_out"]) - share * count) < 5 * (count * share * (1 - share)) ** 0.5
    assert len(sets["training"]) + len(sets["held_out"]) == count == report["training"] + report["held_out"]


def test_no_share_holds_nothing_out(tmp_path: Path) -> None:
    sets, _ = prepared(tmp_path, sums(9))
    assert (len(sets["training"]), len(sets["held_out"])) == (9, 0)
    whole, _ = prepared(tmp_path, held_out_share=0.5, split=False)
    assert (len(whole["training"]), len(whole["held_out"])) == (9, 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text("ab \n", min_size=1).filter(str.strip), min_size=8, max_size=30, unique=True))
def test_other_case_and_space_stay_on_one_side(
    tmp_path_factory: pytest.TempPathFactory, problems: list[str]
) -> None:
    rows: Rows = [(each, "1") for problem in problems for each in (problem, f" {problem.upper()}\n ")]
    rows += sums(30)  # so that both sides hold some
    sets, _ = prepared(tmp_path_factory.mktemp("case"), rows, held_out_share=0.5)
    sides = [{normalised(problem) for problem in each.problems} for each in sets.values()]
    assert not sides[0] & sides[1]
    check_overlap(sets["training"], {"held_out": sets["held_out"]})


def test_what_is_trained_on_is_not_evaluated_on(tmp_path: Path) -> None:
    training, _ = prepared(tmp_path / "a", sums(10))
    other, _ = prepared(tmp_path / "b", [("3 +\n1 ", "4"), ("new", "1"), ("7 + 1", "8")], split=False)
    with pytest.raises(UserError) as caught:
        check_overlap(training["training"], {"fresh": training["held_out"], "named": other["training"]})
    (line,) = caught.value.problems
    assert "2 of 3" in line and "named" in line and "7 + 1" in line and "\n" not in line


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    # <|start|> and <|answer|> are two tokens more
    sets, report = prepared(tmp_path, [("x" * n, "1") for n in range(1, 11)], max_prompt_tokens=7)
    assert sorted(map(len, sets["training"].tokens)) == [3, 4, 5, 6, 7]
    assert (report["too_long"], report["longest_prompt"]) == (5, 12)
    line = refused(tmp_path, max_prompt_tokens=2)
    for words in ("task.source", "10 are longer", "task.max_prompt_tokens=2", "raise"):
        assert words in line


def test_nothing_left_is_one_line(tmp_path: Path) -> None:
    assert "3 have no answer" in refused(tmp_path, [(f"p{n}", None) for n in range(3)])
    assert "0 held out" in refused(tmp_path, [("p", "1")], held_out_share=1e-9)


def test_the_rendered_hash_tells_what_the_model_gets(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}"
    write(tmp_path / "rows.jsonl", sums(5))

    def rendered(template: str, **fields: Any) -> tuple[str, str]:
        task = text_task(tmp_path / "rows.jsonl", **fields)
        renderer = character_renderer(task)
        renderer.tokenizer.chat_template = template
        folder = tmp_path / template.replace("/", "") / json.dumps(fields)
        _, report = prepare(folder, task.source, task, "test", renderer, "task.source", split=True)
        return report["rendered"], report["example"]

    variants = [
        rendered(template),
        rendered(template + "!"),
        rendered(template, system_prompt="Be brief."),
        rendered(template, prompt_template="{problem}?"),
        rendered(template, chat_template_kwargs={"mood": "gay"}),
    ]
    assert len({digest for digest, _ in variants}) == len({example for _, example in variants}) == 5
    assert rendered(template + " ", system_prompt=None) != variants[0]


def test_equal_settings_share_a_folder(tmp_path: Path) -> None:
    first, report = prepared(tmp_path, sums(5))
    (folder,) = (tmp_path / "prepared").iterdir()
    stamp = (folder / "prompts.parquet").stat().st_mtime_ns
    # what does not change the prompts does not make new ones
    second, again = prepared(tmp_path, max_response_tokens=99, wrong_reward=-1.0, extract="boxed")
    assert (first, report) == (second, again)
    assert [folder] == list((tmp_path / "prepared").iterdir())
    assert (folder / "prompts.parquet").stat().st_mtime_ns == stamp
    for fields in ({"system_prompt": "x"}, {"prompt_template": "{problem}?"}, {"held_out_share": 0.5}):
        prepared(tmp_path, **fields)
    assert len(list((tmp_path / "prepared").iterdir())) == 4


def test_an_edited_file_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path, sums(5))
    (file,) = (tmp_path / "prepared").glob("*/prompts.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    line = refused(tmp_path)
    assert str(file) in line and "changed" in line
    file.write_bytes(content)
    prepared(tmp_path)
    file.with_name("report.json").unlink()
    assert str(file) in refused(tmp_path)


def test_problems_that_would_end_their_own_turn_are_left_out(tmp_path: Path) -> None:
    rows = [*sums(5), ("1+1=<|end|>2", "2"), ("1+1=<|answer|>2", "2")]
    sets, report = prepared(tmp_path, rows)
    assert report["with_special_tokens"] == 2 and len(sets["training"]) == 5


def test_a_changed_source_is_refused_by_name(tmp_path: Path) -> None:
    _, report = prepared(tmp_path, sums(5))
    source = text_task(tmp_path / "rows.jsonl").source
    check_unchanged(source, report, "task.source")
    write(tmp_path / "rows.jsonl", sums(6))
    with pytest.raises(UserError, match=r"task\.source: .*rows\.jsonl has changed"):
        check_unchanged(source, report, "task.source")
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(UserError, match=r"budget\.evaluation\.sets\.x\.source\.path=.* does not exist"):
        check_unchanged(source, report, "budget.evaluation.sets.x.source")


def _prepare(folder: Path) -> None:
    prepared(folder, held_out_share=0.5)


def test_two_at_once_give_one_result(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", sums(3000))
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_prepare, args=(tmp_path,)) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
        assert job.exitcode == 0
    (folder,) = (tmp_path / "prepared").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["lock", "prompts.parquet", "report.json"]
    sets, report = prepared(tmp_path, held_out_share=0.5)
    assert len(sets["training"]) + len(sets["held_out"]) == 3000 == report["rows"]


def _prepare_until(step: str, folder: Path) -> None:
    """Prepare, and be killed at a step."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    write_table, write_json = prompt_sets.pq.write_table, prompt_sets.write_json

    def torn(table: Any, file: Path, **settings: Any) -> None:
        write_table(table, file, **settings)
        file.write_bytes(file.read_bytes()[:100])
        die()

    def reported(*given: Any) -> None:
        write_json(*given)
        die()

    if step in ("nothing", "half"):
        prompt_sets.pq.write_table = {"nothing": die, "half": torn}[step]
    else:
        prompt_sets.write_json = {"table": die, "report": reported}[step]
    _prepare(folder)


@pytest.mark.parametrize("written", ["nothing", "half", "table", "report"])
def test_a_killed_preparation_is_made_anew(tmp_path: Path, written: str) -> None:
    write(tmp_path / "rows.jsonl", sums(20))
    job = multiprocessing.get_context("fork").Process(target=_prepare_until, args=(written, tmp_path))
    job.start()
    job.join(60)
    assert job.exitcode == -signal.SIGKILL
    (folder,) = (tmp_path / "prepared").iterdir()
    assert not (folder / "prompts.parquet").exists()
    sets, report = prepared(tmp_path, held_out_share=0.5)
    expected, _ = prepared(tmp_path / "undisturbed", sums(20), held_out_share=0.5)
    assert sets == expected
    assert read_json(folder / "report.json") == report
