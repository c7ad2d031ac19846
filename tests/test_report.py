"""The report on sweeps of known truth: table, results.json, page, and odd inputs."""

import io
import json
import re

import pytest
from rich.console import Console

from analysis.report import print_report, write_report
from tests.synthetic import Truth, grid, write_synthetic_sweep
from trainer.errors import UserError
from trainer.record import SweepPaths


def shown(report, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs") / "a 'sweep\" <b>"
    sample = {"policy_version": 0, "prompt": "<script>alert(1)</script>", "response": "x", "reward": 1.0}
    paths = write_synthetic_sweep(
        folder, grid(Truth(cap=1.0), seeds=(0, 1, 2)), name="<i>sweep</i>", samples=[sample]
    )
    return write_report([paths], folder / "report")


def test_table_follows_the_truth(written):
    data = json.loads(written.results_file.read_text())
    cells = {(row["sync_interval"], row["learning_rate"]): row for row in data["collapse_table"]}
    assert len(cells) == 16
    for (interval, rate), row in cells.items():
        should = rate >= 8e-3 * interval**-0.5
        assert row["outcome"] in (("collapsed", "mixed") if should else ("stable", "unqualified")), row
        assert row["seeds"] == 3 and len(row["run_ids"]) == 3
        if row["outcome"] == "collapsed":
            assert 0 <= row["t_low"] < row["t_high"]
    c2 = data["clock"]["posterior"]["c2"]
    assert c2["low"] < 0.5 < c2["high"] and c2["low"] < c2["median"] < c2["high"]
    assert {run["run_id"] for run in data["runs"]} >= set(cells[(1, 1e-3)]["run_ids"])
    assert len(data["claims"]) == 2


def test_page_escapes_and_stands_alone(written):
    page = written.index.read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
    assert "<i>sweep</i>" not in page and "&lt;i&gt;sweep" in page
    links = re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', page)
    assert links == []
    assert page.count("<svg") == 3
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_report(written, width):
    text = shown(written, width)
    assert max(map(len, text.splitlines()[:-2])) <= width or str(written.index) in text
    assert "CONSISTENT" in text or "CANNOT TELL" in text
    assert ("S = 64" in text and "Clopper" in text) or "%" in text


def test_equal_records_give_equal_files(tmp_path):
    paths = write_synthetic_sweep(tmp_path / "s", grid(Truth()))
    first = write_report([paths], tmp_path / "one")
    second = write_report([paths], tmp_path / "two")
    assert first.results_file.read_bytes() == second.results_file.read_bytes()
    assert first.index.read_bytes() == second.index.read_bytes()


@pytest.mark.parametrize(
    "truth", [Truth(q=1e9, cap=1e9), Truth(q=1e-9), Truth(spread=0.0)], ids=["stable", "collapsed", "exact"]
)
@pytest.mark.parametrize("size", [(1, 1), (4, 1), (1, 4), (4, 4)])
def test_every_shape_of_table_is_reported(tmp_path, truth, size):
    intervals, rates = (4, 8, 16, 64)[: size[0]], (1e-3, 2e-3, 4e-3, 8e-3)[: size[1]]
    paths = write_synthetic_sweep(tmp_path / "s", grid(truth, intervals, rates))
    report = write_report([paths], tmp_path / "report")
    assert "two laws" in shown(report)
    json.loads(report.results_file.read_text(), parse_constant=pytest.fail)


def test_no_sweep_is_one_message(tmp_path):
    with pytest.raises(UserError, match="no sweep at"):
        write_report([SweepPaths(tmp_path / "none")], tmp_path / "out")
