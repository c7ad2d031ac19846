"""The report on sweeps of known truth: table, results.json, page, and odd inputs."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from analysis.report import write_report
from analysis.terminal import print_report
from tests.synthetic import Curve, RunSpec, Truth, grid, write_synthetic_sweep
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
        folder, grid(Truth(cap=1.0), seeds=(0, 1, 2)), name="<i>sweep</i>", samples=[sample], ramp_updates=20
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
    clock = data["clock"]
    assert (clock["c2"]["low"] is None) == clock["sets"]["a_1_b_0"]["empty"]
    assert clock["posterior"]["c2"]["low"] < 0.5 < clock["posterior"]["c2"]["high"]
    assert len(clock["run_ids"]) == sum(
        row["collapsed"] for row in cells.values() if row["sync_interval"] > 1
    )
    assert {run["run_id"] for run in data["runs"]} >= set(cells[(1, 1e-3)]["run_ids"])
    assert len(data["claims"]) == 2


def test_page_escapes_and_stands_alone(written):
    page = written.index.read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
    assert "<i>sweep</i>" not in page and "&lt;i&gt;sweep" in page
    links = re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', page)
    assert links == []
    assert page.count('<img src="data:image/svg+xml;base64,') == 4
    assert "<script" not in page.lower() and not re.search(r"<[^>]*\son\w+=", page)


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_report(written, width):
    text = shown(written, width)
    assert max(map(len, text.splitlines()[:-2])) <= width or str(written.index) in text
    assert "CONSISTENT" in text or "CANNOT TELL" in text
    assert ("S = 64" in text and "Clopper" in text) or "%" in text


def test_equal_records_give_equal_files(tmp_path):
    paths = write_synthetic_sweep(tmp_path / "s", grid(Truth(), (4, 16), (2e-3, 8e-3)))
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


def test_figures_and_tables_are_written_beside_the_page(written):
    folder = written.index.parent
    for name in ("table", "rewards", "boundary", "clock"):
        assert (folder / "figures" / f"{name}.svg").read_text().lstrip().startswith("<?xml")
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    header, _, *rows = (folder / "tables" / "stability.md").read_text().strip().splitlines()
    assert header == "| η | S=1 | S=4 | S=16 | S=64 |" and len(rows) == 4
    assert len((folder / "tables" / "runs.csv").read_text().splitlines()) == 49


def test_plain_pipes_get_no_escape_codes_and_no_wider_lines(written):
    text = shown(written, 80)
    assert "\x1b" not in text
    assert all(cell_len(line) <= 80 for line in text.splitlines() if "report/" not in line)


def test_several_facets_stand_under_their_own_heading(tmp_path):
    specs = [
        RunSpec(interval, 4e-3, 0, 400, Curve(collapse_at=128), science={"group_size": size})
        for interval in (4, 16)
        for size in (4, 8)
    ]
    # the same id for other science would be one run twice
    specs = [replace(spec, seed=k) for k, spec in enumerate(specs)]
    report = write_report([write_synthetic_sweep(tmp_path / "s", specs)], tmp_path / "report")
    data = json.loads(report.results_file.read_text())
    assert [facet["facet"] for facet in data["facets"]] == [{"group_size": 4}, {"group_size": 8}]
    assert len(data["collapse_table"]) == 4 and "clock" not in data
    assert {"group_size": 8} in [row["facet"] for row in data["collapse_table"]]
    assert (tmp_path / "report" / "figures" / "rewards-2.svg").is_file()
    assert "group_size 4" in shown(report)


def test_sweeps_with_different_report_settings_are_refused(tmp_path):
    one = write_synthetic_sweep(tmp_path / "one", [RunSpec(4, 1e-3)], report={"kappa": 1.5})
    two = write_synthetic_sweep(tmp_path / "two", [RunSpec(4, 2e-3)])
    with pytest.raises(UserError, match="one and two give different report settings"):
        write_report([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_report_setting_names_the_nearest(tmp_path):
    sweep = write_synthetic_sweep(tmp_path / "s", [RunSpec(4, 1e-3)], report={"clock_max_rate": 1e-3})
    with pytest.raises(UserError, match=r"s: report: unknown field clock_max_rate.*clock_max_learning_rate"):
        write_report([sweep], tmp_path / "out")


def test_an_empty_sweep_still_gives_a_report(tmp_path):
    report = write_report([write_synthetic_sweep(tmp_path / "s", [])], tmp_path / "out")
    assert "nothing to report yet" in report.index.read_text()
    assert "nothing to report yet" in shown(report)
    assert json.loads(report.results_file.read_text())["collapse_table"] == []


def test_reporting_imports_no_training_and_no_tracking():
    code = "import sys, analysis.report, analysis.terminal; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "transformers", "ray", "vllm", "mlflow", "matplotlib.pyplot"} & set(modules.split())
