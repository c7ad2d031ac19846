"""Selectors: which runs words mean, and what is said of words that mean none."""

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
    "sync_interval": [1, 4],
    "learning_rate": [1e-6, 2e-6],
    "loss.clip_high": [0.2, None],
    "replay": ["queue", "fifo_y2"],
}
IDS = [
    *("1f0c11111111", "1f0c22222222", "abcdef000000", "000100010001", "123456789012", "beef00000001"),
    *("3333aaaaaaaa", "4444aaaaaaaa", "5555aaaaaaaa", "6666aaaaaaaa", "7777aaaaaaaa", "8888aaaaaaaa"),
    *("9999aaaaaaaa", "aaaaaaaaaaaa", "bbbbaaaaaaaa", "ccccaaaaaaaa"),
]
CELLS = [
    Cell(run_id=run, values=dict(zip(AXES, values, strict=True)))
    for run, values in zip(IDS, itertools.product(*AXES.values()), strict=True)
]


def status(index: int, run: str) -> RunStatus:
    if index == 1:
        return RunStatus(run, JobState.FAILED, 1, None, None, failure=Failure.EXCEPTION)
    if index == 2:
        return RunStatus(run, JobState.KILLED, 1, None, None, failure=Failure.OUT_OF_MEMORY)
    if index == 3:
        return RunStatus(run, JobState.WAITING, 0, None, None)
    if index % 2:
        return RunStatus(run, JobState.RUNNING, 1, None, None)
    outcome = Outcome.STABLE if index % 4 else Outcome.COLLAPSED
    summary = Summary.model_construct(outcome=outcome, updates=3)
    return RunStatus(run, JobState.FINISHED, 1, None, summary)


STATUSES = {run: status(index, run) for index, run in enumerate(IDS)}


def chosen(*words: str) -> list[int]:
    return [IDS.index(run) for run in select(words, CELLS, STATUSES, AXES)]


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        ([], range(16)),
        (["S=4"], range(8, 16)),
        (["sync_interval=4.0"], range(8, 16)),
        (["eta=0.000001", "S=1"], range(4)),
        (["η=1e-6,2e-6"], range(16)),
        (["learning_rate=2E-6", "S=1"], range(4, 8)),
        (["clip_high=null", "S=1"], [2, 3, 6, 7]),
        (["loss.clip_high=.2", "S=1", "!replay=queue"], [1, 5]),
        (["replay=queue,fifo_y2"], range(16)),
        (["0"], [0]),
        (["3-7", "!5"], [3, 4, 6, 7]),
        (["0,4-5,beef"], [0, 4, 5]),
        (["0,4,beef00000001"], [0, 4, 5]),
        (["1f0c"], [0, 1]),  # all that begin so
        (["1f0c2"], [1]),
        (["0001"], [3]),  # no index is written with zeros before it
        (["123456789012"], [4]),  # digits alone, and beyond the grid
        (["state=failed,killed"], [1, 2]),
        (["state=waiting"], [3]),
        (["class=out_of_memory"], [2]),
        (["class=oom"], [2]),
        (["class=none", "0-3"], [0, 3]),
        (["outcome=collapsed", "outcome=collapsed,stable"], [0, 4, 8, 12]),
        (["outcome=none", "0-4"], [1, 2, 3]),
    ],
)
def test_words_mean_runs_in_the_order_of_the_grid(words, indices):
    assert chosen(*words) == [*indices]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["eta=3e-6"], ["selector eta=3e-6", "learning_rate is 1e-06, 2e-06"]),
        (
            ["learning_rat=1e-6"],
            ["learning_rat is no axis", "did you mean learning_rate?", "sync_interval (S)"],
        ),
        (["B=4"], ["B is no axis", "outcome"]),
        (["state=faild"], ["state=faild", "did you mean failed?"]),
        (["class=oomm"], ["did you mean oom?"]),
        (["state="], ["state= has no value"]),
        (["16"], ["16 is no index", "0 to 15"]),
        (["7-3"], ["7-3 ends before it begins"]),
        (["failed"], ["did you mean state=failed?"]),
        (["collapsed"], ["did you mean outcome=collapsed?"]),
        (["oom"], ["did you mean class=oom?"]),
        (["eta"], ["did you mean eta=VALUE?"]),
        (["1f"], ["'1f'", "4 characters or more"]),
        (["dead"], ["no run's id begins with 'dead'"]),
        ([""], ["no run's id begins with ''"]),
        (["!"], ["no run's id begins with ''"]),
        (["eta!=1e-6"], ["'!eta=1e-6'"]),
        (["state=lost"], ["no run is selected by state=lost", "1 failed, 1 killed", "16 runs"]),
        (["S=1", "S=4"], ["S=1 8, S=4 8", "outcome: 4 collapsed"]),
    ],
)
def test_words_that_mean_nothing_say_what_there_is(words, parts):
    with pytest.raises(UserError) as caught:
        chosen(*words)
    (message,) = caught.value.problems
    assert all(part in message for part in parts), message


def test_a_short_name_that_two_axes_have_is_refused():
    axes = {"a.rate": [1], "b.rate": [1]}
    cells = [Cell(run_id="x", values={"a.rate": 1, "b.rate": 1})]
    with pytest.raises(UserError, match=r"a\.rate and b\.rate: give the full name"):
        select(["rate=1"], cells, {}, axes)
    assert select(["a.rate=1"], cells, {}, axes) == ["x"]


WORDS = st.sampled_from(
    (
        *("S=1", "eta=1e-6", "clip_high=null", "replay=fifo_y2", "3-7", "0,9", "1f0c"),
        *("state=running", "class=oom", "outcome=stable,none", "outcome=pending"),
    )
)


def meant(*words: str) -> set[int]:
    try:
        return set(chosen(*words))
    except UserError as error:
        assert "no run is selected" in str(error)
        return set()


@given(WORDS)
def test_a_negated_word_is_the_complement(word):
    assert meant(f"!{word}") == set(range(16)) - meant(word)
    assert meant(f"!!{word}") == meant(word)


@given(st.lists(WORDS, max_size=4), st.randoms())
def test_words_narrow_and_their_order_means_nothing(words, draw):
    mixed = draw.sample(words, len(words))
    assert meant(*mixed) == meant(*words) == set(range(16)).intersection(*(meant(word) for word in words))


@given(st.lists(st.sampled_from(["0", "5-6", "abcd", "beef"]), min_size=1, max_size=4))
def test_values_of_a_word_widen(pieces):
    assert meant(",".join(pieces)) == set().union(*(meant(piece) for piece in pieces))
