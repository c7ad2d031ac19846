"""The replay and clock sections of a report, from runs of the real trainer."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from analysis.report import write_report
from analysis.terminal import print_report
from sweeps.identity import run_id
from tests.helpers import SMALL
from trainer.budget import CellConfig
from trainer.files import read_lines
from trainer.job import run_job
from trainer.record import Cell, SweepFile, SweepPaths, write_budget, write_config, write_sweep
from trainer.schema import flatten, parse

BUDGET = {"horizon": {"updates": 60}, "evaluation": {"every": 5, "prompts": 64}}
LARGER = {"batch_size": 64, "group_size": 8, "learning_rate": 2e-3, "warm_start": {"target_reward": 0.2}}
FREE = {"schedule": "free", "generation_cost_ratio": 2.0, "inference_workers": 2}


def run_sweep(folder, arms, axes, report):
    """Train every arm at two seeds and write the sweep's file."""
    paths = SweepPaths(folder)
    cells = []
    for arm in arms:
        for seed in (0, 1):
            cell = parse(CellConfig, SMALL | LARGER | {"budget": BUDGET, "seed": seed} | arm)
            run = paths.run(run_id(cell.run()))
            write_config(run, cell.run())
            write_budget(run, cell.budget.resolve(cell.run()))
            assert run_job(run.folder) == 0
            flat = flatten(cell.model_dump(mode="json"))
            cells.append(Cell(run_id=run.run_id, values={axis: flat[axis] for axis in axes}))
    values = {axis: list(dict.fromkeys(cell.values[axis] for cell in cells)) for axis in axes}
    fixed = {name: value for name, value in flat.items() if name not in axes}
    write_sweep(paths, SweepFile(name="s", preset="s", axes=values, fixed=fixed, cells=cells, report=report))
    return paths


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out puts") / "s"
    arms = [{}, {"buffer_size": 256, "replay_ratio": 4.0}]
    axes = ["buffer_size", "replay_ratio", "learning_rate", "seed"]
    return run_sweep(folder, arms, axes, {"replay": {"accuracy": 0.5, "accuracies": [0.4, 0.5, 0.999]}})


def test_every_number_of_the_replay_section_follows_from_the_journals(swept, tmp_path):
    report = write_report([swept], tmp_path / "report")
    content = json.loads(report.results_file.read_text())
    arms = {arm["label"]: arm for arm in content["frontier"]["arms"]}
    assert set(arms) == {"no buffer", "N=256, y=4"}
    for arm in arms.values():
        (rate,) = arm["rates"]
        curves = []
        for name in rate["run_ids"]:
            run = swept.run(name)
            metrics = read_lines(run.metrics)
            points = []
            for line in read_lines(run.evaluations):
                done = metrics[line["step"] - 1] if line["step"] else {}
                cost = done.get("rollouts_trained", 0) + 5 * done.get("rollouts_generated", 0)
                points.append((cost / 64 / 6, line["value"]))
            curves.append(points)
        values = np.array(curves)
        assert rate["peak"] == values[:, :, 1].max(axis=1).tolist()
        assert rate["final"] == values[:, -1, 1].tolist()
        assert rate["horizon"] == pytest.approx(np.median(values[:, -1, 0]))
        assert rate["compute_to_accuracy"]["0.999"] is None
    (saved,) = content["savings"]
    base, other = (arms[k]["rates"][0]["compute_to_accuracy"]["0.5"] for k in ("no buffer", "N=256, y=4"))
    assert base is not None and other is not None
    assert saved["saving"] == pytest.approx(1 - other / base)
    page = report.index.read_text()
    assert all(cell["run_id"] in page for cell in content["runs"]) and "What replay saves" in page
    assert page.count("data:image/svg+xml") >= 3 and "http://" not in page.split("<body>")[0]
    shown = io.StringIO()
    print_report(report, Console(file=shown, width=120))
    assert "N=256, y=4 against no buffer" in shown.getvalue()


def test_usage_of_a_real_run_obeys_the_identities(swept):
    buffered = next(c.run_id for c in json_cells(swept) if c.values["buffer_size"])
    rows = pq.read_table(swept.run(buffered).rollouts).to_pandas()
    made, used = rows[rows.event == "generated"], rows[rows.event == "used"]
    metrics = read_lines(swept.run(buffered).metrics)
    assert len(made) == metrics[-1]["rollouts_generated"] == 64 + 59 * 16
    assert len(used) == metrics[-1]["rollouts_trained"] == 60 * 64
    version = made.set_index("rollout").version_first
    created = made.set_index("rollout").step
    assert (used.step - used.rollout.map(version) == used.lag).all()
    assert (used.step - used.rollout.map(created) == used.age).all()
    for line, (_, batch) in zip(metrics, used.groupby("step"), strict=True):
        assert line["lag_mean"] == batch.lag.mean() and line["age_mean"] == batch.age.mean()
        assert line["distinct_share"] == batch.rollout.nunique() / 64
        arrived = made[made.step == line["step"]]
        assert line["reward"] == pytest.approx(arrived.reward.mean())
    last: dict[int, int] = {}
    for row in used.itertuples():
        since = row.since_last_use
        assert np.isnan(since) if row.rollout not in last else since == row.step - last[row.rollout]
        last[row.rollout] = row.step
    assert len(made) - len(rows[rows.event == "left"]) == metrics[-1]["rollouts_held"]


def json_cells(paths):
    from trainer.record import read_sweep

    return read_sweep(paths).cells


def test_the_clock_section_shows_who_waits(tmp_path):
    arms = [FREE, FREE | {"buffer_size": 256}]
    paths = run_sweep(tmp_path / "s", arms, ["buffer_size", "learning_rate", "seed"], {})
    report = write_report([paths], tmp_path / "report")
    queue, buffer = report.clock
    assert queue.configuration == "buffer_size 0" and queue.seeds == 2
    assert queue.uses == pytest.approx(1.0, abs=0.2) and queue.time_per_update >= 1
    line = read_lines(paths.run(buffer.run_ids[0]).metrics)[-1]
    other = read_lines(paths.run(buffer.run_ids[1]).metrics)[-1]
    assert buffer.time_per_update == pytest.approx((line["virtual_time"] + other["virtual_time"]) / 120)
    content = json.loads(report.results_file.read_text())
    assert [row["configuration"] for row in content["virtual_clock"]] == ["buffer_size 0", "buffer_size 256"]
    assert "Virtual clock" in report.index.read_text()
