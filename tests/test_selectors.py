"""Words that select runs of a sweep."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.failures import Failure
from launcher.selectors import select
from launcher.state import RunStatus
from trainer.errors import UserError
from trainer.record import Cell, JobState, Outcome, Summary

AXES = {
    "sync_interval": [1, 4, 16],
    "learning_rate": [1e-6, 2e-6],
    "store.selection": ["uniform", "least_used"],
    "optimizer.nesterov": [True, False],
}
CELLS = [
    Cell(run_id=f"{index:02d}ab{index:08x}", values=dict(zip(AXES, values, strict=True)))
    for index, values in enumerate(itertools.product(*AXES.values()))
]


def summary(run: str, outcome: Outcome) -> Summary:
    numbers = {"updates": 20, "horizon": 20, "cumulative_rate": 0.1, "collapse": {}, "peak_step": None}
    words = {"rule_version": "1", "warm_start": "", "peak_reward": None, "final_reward": None}
    return Summary.model_validate({"run_id": run, "outcome": outcome, **numbers, **words})


def status(index: int, run: str) -> RunStatus:
    if index % 3 == 0:
        outcome = Outcome.COLLAPSED if index % 2 else Outcome.STABLE
        return RunStatus(run, JobState.FINISHED, 1, None, summary(run, outcome))
    failure = Failure.OUT_OF_MEMORY if index % 3 == 1 else None
    job = JobState.KILLED if failure else JobState.WAITING
    return RunStatus(run, job, 1, None, None, failure=failure)


STATUSES = {cell.run_id: status(index, cell.run_id) for index, cell in enumerate(CELLS)}


def picked(*words: str) -> list[int]:
    found = select(words, CELLS, STATUSES, AXES)
    return [index for index, cell in enumerate(CELLS) if cell.run_id in found]


def on_axes(**wanted: object) -> list[int]:
    return [
        index
        for index, cell in enumerate(CELLS)
        if all(cell.values[field] == value for field, value in wanted.items())
    ]


@pytest.mark.parametrize("word", ["eta=1e-6", "η=0.000001", "learning_rate=1.0e-06", "eta=1e-6,1e-6"])
def test_numbers_are_compared_as_numbers(word: str) -> None:
    assert picked(word) == on_axes(learning_rate=1e-6)


def test_axes_by_symbol_last_part_and_words() -> None:
    assert picked("S=4,16") == sorted(on_axes(sync_interval=4) + on_axes(sync_interval=16))
    assert picked("selection=uniform") == picked("store.selection=uniform")
    assert picked("nesterov=true") == picked("!nesterov=False") == picked("!optimizer.nesterov=false")
    assert picked("S=1", "eta=2e-6") == on_axes(sync_interval=1, learning_rate=2e-6)


def test_states_outcomes_and_classes() -> None:
    assert picked("state=finished") == [index for index in range(len(CELLS)) if index % 3 == 0]
    assert picked("outcome=collapsed") == [index for index in range(len(CELLS)) if index % 6 == 3]
    assert picked("class=oom") == picked("class=out_of_memory") == picked("state=killed")
    assert picked("state=waiting") == [index for index in range(len(CELLS)) if index % 3 == 2]
    assert picked("state=finished,killed") == picked("!state=waiting")


def test_places_ranges_and_ids() -> None:
    assert picked("5") == [5] and picked("3-7") == [3, 4, 5, 6, 7] and picked("20-90") == [20, 21, 22, 23]
    assert picked(CELLS[7].run_id) == picked(CELLS[7].run_id[:6]) == [7]
    assert picked("!0-21") == [22, 23]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("eta=3e-6", "eta=3e-6: learning_rate has no 3e-6; it has 1e-06, 2e-06"),
        ("rate=1e-6", "rate is no axis of this sweep"),
        ("seed=0", "seed is no axis of this sweep"),
        ("state=faild", "no state 'faild'; did you mean failed?"),
        ("class=memory", "no class 'memory'"),
        ("S=", "a value is missing"),
        ("S=1,,4", "a value is missing"),
        ("7-3", "the range is empty; write 3-7"),
        ("99", "neither FIELD=VALUE, nor a place in the grid (0 to 23)"),
        ("zz", "nor the beginning of a run id of 4 letters or more"),
        ("", "neither FIELD=VALUE"),
        ("state=lost", "no run is state=lost: there are 24 runs; sync_interval 1, 4, 16; "),
    ],
)
def test_what_means_nothing_is_refused(word: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        picked(word)
    assert said in str(caught.value)


WORDS = st.sampled_from(
    ["S=1", "S=4,16", "eta=1e-6", "selection=least_used", "state=finished", "class=oom", "0-11", "3"]
)


@given(WORDS)
def test_not_is_the_complement(word: str) -> None:
    assert sorted(picked(word) + picked(f"!{word}")) == list(range(len(CELLS)))
    assert picked(f"!!{word}") == picked(word)


@given(st.lists(WORDS, max_size=3), st.randoms())
def test_words_are_all_to_hold_in_any_order(words: list[str], random) -> None:  # type: ignore[no-untyped-def]
    each = [set(picked(word)) for word in words]
    wanted = sorted(set(range(len(CELLS))).intersection(*each))
    shuffled = list(words)
    random.shuffle(shuffled)
    if wanted:
        assert picked(*words) == picked(*shuffled) == wanted
    else:
        with pytest.raises(UserError):
            picked(*words)
