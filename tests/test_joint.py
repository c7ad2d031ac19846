"""One staleness for sync lag and replay: truths are recovered, rivals rejected, narrow grids left open."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis.boundary import Cell, rate_brackets
from analysis.joint import compare, joint
from analysis.joint_fit import best_split, left_out_wrong, slack, table_of
from analysis.joint_report import finding, joint_results, notes
from analysis.joint_scores import Scores
from analysis.joint_terminal import print_joint
from analysis.load import load_sweeps
from analysis.report import write_report
from analysis.results import jsonable
from analysis.stability import stability
from analysis.staleness import Configuration, Lag, RateCell, measured_lag, steady_updates
from sweeps.grid import expand
from tests.synthetic import Curve, RunSpec, write_synthetic_sweep

FINE = tuple(2.5e-4 * 2 ** (k / 2) for k in range(15))
COARSE = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
QUEUE, DELAY, REUSE, OLD = (0, None, 0), (0, None, 6), (256, 4, 0), (512, 2, 0)
ARMS = (QUEUE, DELAY, REUSE, OLD)


def lag_of(interval, buffer, ratio, delay):
    """Lag of a strict schedule: held ages 0 … x−1 on top of the sync lag."""
    oldest = buffer * (ratio or 1) / 64 - 1 if buffer else delay
    mean = (interval - 1) / 2 + (oldest / 2 if buffer else delay)
    most = interval - 1 + oldest
    return Lag(mean, most, int(most), float(ratio or 1), 900, 4, (mean, mean))


def configuration(interval, arm, cells, lag=None):
    """From {rate: outcomes of the seeds}; a cell given as None did not qualify."""
    rows = {rate: ((0, False),) if ends is None else tuple(enumerate(ends)) for rate, ends in cells.items()}
    counted = [
        Cell(interval, rate, sum(down for _, down in row), len(row), cells[rate] is not None)
        for rate, row in sorted(rows.items())
    ]
    return Configuration(
        sync_interval=interval,
        arm=dict(zip(("buffer_size", "replay_ratio", "store.delay"), arm, strict=True)),
        lag=lag or lag_of(interval, *arm),
        bracket=rate_brackets(counted)[0],
        cells=tuple(RateCell(cell.learning_rate, cell.outcome, rows[cell.learning_rate]) for cell in counted),
    )


def world(edge, rates=FINE, intervals=(2, 8, 32), arms=ARMS, slope=math.inf, seeds=2, draw=0):
    """Collapsed from η = edge(lag, S) on, exactly or with logistic noise."""
    rng = np.random.default_rng(draw)

    def ends(rate, at):
        chance = float(rate >= at) if math.isinf(slope) else 1 / (1 + (at / rate) ** slope)
        return [bool(rng.random() < chance) for _ in range(seeds)]

    return [
        configuration(
            interval, arm, {rate: ends(rate, edge(lag_of(interval, *arm), interval)) for rate in rates}
        )
        for arm in arms
        for interval in intervals
    ]


def verdicts(answer):
    return {item.coordinate.key: item.verdict for item in answer.coordinates}


def by_key(answer):
    return {item.coordinate.key: item for item in answer.coordinates}


PLAIN = {
    "rate",
    "sync_interval",
    "uses",
    "mean_lag",
    "one_plus_twice_mean_lag",
    "maximum_lag",
    "one_plus_maximum_lag",
}


@pytest.mark.parametrize(
    ("edge", "right", "threshold"),
    [
        (lambda lag, _: 0.0202 / lag.mean, "mean_lag", 0.0202),
        (lambda lag, _: 0.0303 / (1 + lag.maximum), "one_plus_maximum_lag", 0.0303),
        (lambda lag, _: 2.3e-3, "rate", 2.3e-3),
        (lambda lag, interval: 0.0202 / interval, "sync_interval", 0.0202),
    ],
    ids=["mean lag", "one plus maximum lag", "no lag", "sync interval"],
)
def test_the_true_coordinate_is_recovered_and_no_other_product(edge, right, threshold):
    answer = compare(world(edge))
    found = by_key(answer)
    assert found[right].verdict == "collapses" and found[right].separates
    assert found[right].wrong == found[right].left_out_wrong == 0
    assert found[right].threshold == pytest.approx(threshold, rel=0.1)
    low, high = found[right].threshold_range
    assert low < threshold < high
    for key in PLAIN - {right}:
        assert found[key].verdict != "collapses" and not found[key].separates, key
        assert found[key].wrong > 0 and found[key].slack.value > 0
    refuted = {key for key in PLAIN if found[key].verdict == "does not"}
    assert len(refuted) >= 5 and {"rate", "sync_interval", "uses"} - {right} <= refuted
    assert found[right].score > max(found[key].score for key in PLAIN - {right})


def test_a_square_root_law_is_a_power_and_no_product():
    found = by_key(compare(world(lambda lag, _: 7e-3 * lag.mean**-0.5)))
    power = found["mean_lag_power"]
    assert power.verdict == "collapses" and power.separates
    low, high = power.exponent
    assert low < 0.5 < high and high - low < 0.3 and power.p == pytest.approx(0.5, abs=0.1)
    assert power.slack.exponents[0] < 0.5 < power.slack.exponents[1]
    assert {key for key in PLAIN if found[key].verdict == "does not"} == PLAIN


def test_without_lag_in_the_truth_no_power_is_said_to_matter():
    found = by_key(compare(world(lambda lag, _: 2.3e-3)))
    powers = [item for item in found.values() if item.coordinate.fitted]
    assert len(powers) == 4
    assert all(item.verdict == "cannot tell" and item.exponent[0] <= 0 <= item.exponent[1] for item in powers)


def test_a_narrow_grid_cannot_tell():
    narrow = world(lambda lag, _: 0.0202 / lag.mean, (5e-4, 2e-3, 8e-3), (4, 8), (QUEUE, REUSE))
    found = by_key(compare(narrow))
    for key in ("mean_lag", "one_plus_twice_mean_lag", "maximum_lag", "one_plus_maximum_lag"):
        assert found[key].verdict == "cannot tell" and found[key].separates
        assert found[key].exponent[1] - found[key].exponent[0] > 0.5


def test_seeds_that_disagree_do_not_refute_the_truth():
    for draw in range(3):
        noisy = world(lambda lag, _: 0.0303 / (1 + 2 * lag.mean), COARSE, (1, 4, 16), slope=4.0, draw=draw)
        found = by_key(compare(noisy))
        truth = found["one_plus_twice_mean_lag"]
        assert truth.verdict != "does not" and truth.slack.value <= truth.slack_by_noise
        assert found["sync_interval"].verdict == found["uses"].verdict == "does not"


def test_a_cap_on_the_rate_does_not_refute_a_product():
    found = by_key(compare(world(lambda lag, _: min(0.0202 / lag.mean, 5.2e-3))))
    assert found["mean_lag"].verdict == "cannot tell" and "cap on η" in found["mean_lag"].reason
    assert found["rate"].verdict == "does not"


def test_without_lag_products_are_silent_and_the_others_speak():
    answer = compare(world(lambda lag, _: 0.0303 / (1 + 2 * lag.mean), COARSE, (1, 4, 16)))
    assert [item.name for item in answer.used if item.lag.mean == 0] == ["S=1, queue"]
    covered = {item.coordinate.key: sum(item.covered) for item in answer.coordinates}
    everywhere = {"rate", "uses"} | {key for key in covered if key.startswith("one_plus")}
    assert {key for key, count in covered.items() if count == 12} == everywhere
    assert {key for key, count in covered.items() if count == 11} == set(covered) - everywhere
    assert any("S=1, queue" in note and "k̄ = 0" in note for note in notes(answer))


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(st.floats(1e-4, 1e4), st.randoms(use_true_random=False), st.integers(0, 50))
def test_units_of_the_rate_and_order_do_not_matter(unit, random, draw):
    first = world(lambda lag, _: 0.0303 / (1 + lag.maximum), COARSE, (2, 16), (QUEUE, REUSE), 5.0, draw=draw)
    second = [_in_units(item, unit) for item in first]
    random.shuffle(second)
    one, two = compare(first), compare(second)
    assert verdicts(one) == verdicts(two)
    for mine, other in zip(one.coordinates, two.coordinates, strict=True):
        assert other.threshold == pytest.approx(mine.threshold * unit, rel=1e-5, nan_ok=True)
        assert other.score == pytest.approx(mine.score, abs=1e-6)
        assert other.slack.value == pytest.approx(mine.slack.value, abs=1e-6)
        assert (other.wrong, other.left_out_wrong) == (mine.wrong, mine.left_out_wrong)
        assert (other.rival is None) == (mine.rival is None)


def _in_units(item, unit):
    cells = {cell.learning_rate * unit: [down for _, down in cell.trials] for cell in item.cells}
    return configuration(item.sync_interval, tuple(item.arm.values()), cells, item.lag)


def test_slack_and_splits_in_closed_form():
    up, down = [False], [True]
    items = [
        configuration(3, QUEUE, {1e-3: up, 2e-3: up, 4e-3: down}),  # k̄ = 1: bracket [2e-3, 4e-3)
        configuration(17, QUEUE, {1e-3: up, 2e-3: down, 4e-3: down}),  # k̄ = 8: [1e-3, 2e-3)
    ]
    table, factor = table_of(items), np.log([1.0, 8.0])
    # products [2e-3, 4e-3) and [8e-3, 16e-3): a factor 2 apart, √2 at both ends
    assert slack(table, factor, fitted=False).value == pytest.approx(math.log(2) / 2)
    # q − 0 in [2, 4), q − p·log 8 in [1, 2): p·log 8 from 0 to log 4
    assert slack(table, factor, fitted=True).exponents == pytest.approx((0, 2 / 3), abs=1e-9)
    value = table.rate + factor[table.place]
    split = best_split(table, value)
    assert split.wrong == 1
    # from the other alone: 2.83e-3 or 11.3e-3; the first calls 8e-3 wrongly, the second 4e-3
    assert left_out_wrong(table, factor, fitted=False) == 2
    constant = np.zeros(2)
    assert slack(table, constant, fitted=False).value == 0.0  # the brackets touch, which is not enough
    assert not slack(table, constant, fitted=False).none_needed


def test_a_rival_is_ahead_by_what_it_gains_and_equals_are_no_rivals():
    items = world(lambda lag, _: 2e-3, (1e-3, 4e-3), (4, 16), (QUEUE,), seeds=3)
    right = np.array([-2.0, 2.0, -2.0, 2.0])
    scores = Scores.of(items, ["a", "b", "c"], [right, right, np.zeros(4)])
    rival = scores.rival(2)
    gain = math.log(2) - math.log1p(math.exp(-2))
    assert rival.gain == pytest.approx(gain) and rival.symbol == "a"
    assert [value for _, value in rival.by_seed] == pytest.approx([gain] * 3)
    assert Scores.of(items, ["a", "b"], [right, right]).rival(0) is None


def test_the_interval_of_a_gain_covers_it():
    """Mean gains drawn around a truth; the simultaneous 95% interval may miss at most a few of 60."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(60):
        totals = np.zeros((2, 20, 2))
        totals[1] = 5 * rng.normal(0.2, 0.4, size=(20, 1)) + 5 * rng.normal(0, 0.2, size=(20, 2))
        rival = Scores(("a", "b"), (0, 1), totals, np.full((20, 2), 5.0)).rival(0)
        held += rival.range[0] <= 0.2 <= rival.range[1]
    assert 50 <= held <= 60


def test_unqualified_cells_and_unmeasured_configurations_are_listed_and_not_used():
    items = world(lambda lag, _: 0.0303 / (1 + 2 * lag.mean), COARSE, (4, 16))
    short = configuration(64, QUEUE, dict.fromkeys(COARSE))
    unmeasured = replace(items[0], sync_interval=128, lag=None)
    odd = replace(items[1], unused=(("r7", "undetectable"),))
    answer = compare([items[0], odd, *items[2:], short, unmeasured])
    assert len(answer.configurations) == 10 and len(answer.used) == 8
    assert verdicts(answer) == verdicts(compare(items))
    said = " ".join(notes(answer))
    assert "S=64" in said and "S=128" in said and "undetectable: r7" in said


@pytest.mark.parametrize("end", [True, False])
def test_too_little_to_compare_is_said(end):
    items = [configuration(4, QUEUE, {1e-3: [end]}), configuration(8, QUEUE, {1e-3: [end]})]
    answer = compare(items)
    assert answer.coordinates == () and finding(answer).startswith("Too little")
    assert joint_results([answer]) == jsonable(joint_results([answer]))
    assert joint([]) == ()


def records(folder, specs):
    return load_sweeps([write_synthetic_sweep(folder, specs)])


BUFFER = {"buffer_size": 256, "replay_ratio": 8.0}
WAITING = {"store": {"delay": 16}}


@pytest.mark.parametrize(
    ("interval", "science", "mean", "most", "uses"),
    [
        (1, {}, 0.0, 0, 1.0),
        (4, {}, 1.5, 3, 1.0),
        (1, WAITING, 16.0, 16, 1.0),
        (4, WAITING, 17.5, 19, 1.0),
        (1, BUFFER, 15.5, 31, 8.0),
        (4, BUFFER, 17.0, 34, 8.0),
    ],
)
def test_measured_lag(tmp_path, interval, science, mean, most, uses):
    specs = [RunSpec(interval, 1e-3, seed, 403, science=science) for seed in (0, 1)]
    lag = measured_lag(records(tmp_path / "s", specs).runs)
    assert lag.mean == pytest.approx(mean) and lag.maximum == lag.greatest == most
    assert lag.uses == pytest.approx(uses) and lag.runs == 2
    assert lag.run_means == pytest.approx((mean, mean))


def test_steady_updates_are_whole_cycles_after_the_warm_up_and_before_the_alarm(tmp_path):
    specs = [
        RunSpec(16, 1e-3, 0, 403, science=BUFFER),
        RunSpec(16, 8e-3, 0, 403, Curve(collapse_at=160), science=BUFFER),
        RunSpec(16, 8e-3, 1, 60, science=BUFFER),
        RunSpec(16, 8e-3, 2, 40, science=BUFFER),
    ]
    stable, collapsed, short, shorter = records(tmp_path / "s", specs).runs
    assert steady_updates(stable) == (32, 400)
    first, last = steady_updates(collapsed)
    assert first == 32 and last == 160 and 160 <= collapsed.verdict.alarm_step < 176
    assert steady_updates(short) == (32, 48)
    assert measured_lag([shorter]) is None and measured_lag([]) is None
    assert measured_lag([collapsed]).mean == pytest.approx(measured_lag([stable]).mean)


def small_sweep(truth=0.06):
    """Three rates, two S, queue and buffer; collapse from (1 + 2k̄)·η = truth on."""
    for science, oldest in (({}, 0), (BUFFER, 31)):
        for interval in (2, 16):
            staleness = interval + oldest
            for rate in (1e-3, 4e-3, 1.6e-2):
                curve = Curve(96 + 32 * (rate < 1e-2)) if staleness * rate >= truth else Curve()
                yield RunSpec(interval, rate, 0, 2000 if rate < 2e-3 else 500, curve, science=science)


def test_the_report_has_the_section_where_the_sweep_varies_a_buffer(tmp_path):
    report = write_report([write_synthetic_sweep(tmp_path / "s", list(small_sweep()))], tmp_path / "out")
    (entry,) = json.loads(report.results_file.read_text(), parse_constant=pytest.fail)["joint"]
    assert len(entry["configurations"]) == 4 and len(entry["coordinates"]) == 11
    assert [item["lag"]["mean"] for item in entry["configurations"]] == pytest.approx([0.5, 7.5, 16.0, 23.0])
    brackets = [(item["bracket"]["low"], item["bracket"]["high"]) for item in entry["configurations"]]
    assert brackets == [(1.6e-2, None), (1e-3, 4e-3), (1e-3, 4e-3), (1e-3, 4e-3)]
    page = report.index.read_text()
    assert "One staleness for sync lag and replay?" in page and entry["finding"] in page.replace("&#39;", "'")
    assert (tmp_path / "out" / "figures" / "joint.png").read_bytes().startswith(b"\x89PNG")
    for width in (80, 120):
        console = Console(file=io.StringIO(), width=width)
        for section in report.joint:
            print_joint(section, console)
        text = console.file.getvalue()
        assert "(1+2k̄)·η" in text and "nan" not in text and "None" not in text.replace("None of 11", "")
        assert all(len(line) <= width + line.count("̄") for line in text.splitlines())


def test_the_order_of_runs_does_not_matter(tmp_path):
    found = records(tmp_path / "s", list(small_sweep()))
    results = [stability(runs, None, facet) for facet, runs in found.facets()]
    turned = [stability(result.runs[::-1], None, result.facet) for result in results[::-1]]
    assert joint_results(joint(results)) == joint_results(joint(turned))


def test_no_section_where_nothing_lies_between(tmp_path):
    specs = [RunSpec(interval, 1e-3) for interval in (1, 4)]
    report = write_report([write_synthetic_sweep(tmp_path / "s", specs)], tmp_path / "out")
    assert report.joint == () and json.loads(report.results_file.read_text())["joint"] == []
    assert "One staleness" not in report.index.read_text()


def test_other_axes_are_not_pooled(tmp_path):
    specs = [
        RunSpec(interval, 1e-3, 0, 60, science={**science, "group_size": size})
        for interval in (1, 4)
        for science in ({}, BUFFER)
        for size in (4, 8)
    ]
    found = records(tmp_path / "s", specs)
    answers = joint([stability(runs, None, facet) for facet, runs in found.facets()])
    assert [answer.shared for answer in answers] == [{"group_size": 4}, {"group_size": 8}]
    assert [len(answer.configurations) for answer in answers] == [4, 4]
    assert all(finding(answer).startswith("Too little") for answer in answers)


def test_the_preset_crosses_sync_lag_delay_and_replay():
    grid = expand(["sweep=laptop_joint"])
    arms = {
        (cell.config.buffer_size, cell.config.replay_ratio, cell.config.store.delay) for cell in grid.cells
    }
    assert arms == {(0, None, 0), (0, None, 16), (256, 8.0, 0), (1024, 2.0, 0)}
    assert len(grid.cells) == 3 * 4 * 5 * 2
    longest = max(cell.config.budget.horizon.resolve(cell.config.learning_rate) for cell in grid.cells)
    assert longest == 4000
