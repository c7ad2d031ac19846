"""Built-in tasks against plain definitions on lists and integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.prompts import Prompts
from trainer.schema import parse
from trainer.seeding import generator
from trainer.task_config import TaskConfig
from trainer.tasks import built_in_task

PLAIN = {
    "copy": lambda letters, base: letters,
    "reverse": lambda letters, base: letters[::-1],
    "sort": lambda letters, base: sorted(letters),
    "running_sum": lambda letters, base: [sum(letters[: k + 1]) % base for k in range(len(letters))],
}


def task_of(name, length, alphabet, spare=0):
    tokens = length + (2 if name == "arithmetic" else 1) + spare
    return built_in_task(
        parse(
            TaskConfig, {"name": name, "length": length, "alphabet": alphabet, "max_response_tokens": tokens}
        )
    )


def correct(task, prompts, responses):
    mask = torch.ones_like(responses, dtype=torch.bool)
    return task.verify(Prompts.unpadded(prompts), responses, mask).correct


def number(digits, base):
    value = 0
    for digit in digits:
        value = value * base + digit
    return value


@given(st.sampled_from(sorted(PLAIN)), st.integers(1, 12), st.integers(2, 30), st.integers(0, 99))
def test_letters_are_answered_by_definition(name, length, alphabet, seed):
    task = task_of(name, length, alphabet)
    prompts = task.prompts(5, generator(seed, "prompts", 0))
    for prompt, answer in zip(prompts.tolist(), task.answers(prompts).tolist(), strict=True):
        assert prompt[0] == alphabet + 1 and prompt[-1] == alphabet + 2
        assert answer == [*PLAIN[name](prompt[1:-1], alphabet), task.eos_id]


@given(st.integers(1, 40), st.integers(2, 30), st.integers(0, 99))
def test_arithmetic_is_that_of_integers(length, base, seed):
    task = task_of("arithmetic", length, base)
    prompts = task.prompts(20, generator(seed, "prompts", 0))
    for prompt, answer in zip(prompts.tolist(), task.answers(prompts).tolist(), strict=True):
        left, sign, right = prompt[1 : 1 + length], prompt[1 + length], prompt[2 + length : -1]
        assert sign in (base + 4, base + 5) and len(right) == length
        a, b = number(left, base), number(right, base)
        value = a + b if sign == base + 4 else a - b
        assert value >= 0 and number(answer[:-1], base) == value
        assert len(answer) == length + 2 and answer[-1] == task.eos_id
    assert {token for prompt in prompts.tolist() for token in prompt} <= set(range(task.vocabulary_size))


@pytest.mark.parametrize("name", [*PLAIN, "arithmetic"])
def test_only_the_answer_is_rewarded(name):
    task = task_of(name, 4, 9, spare=2)
    prompts = task.prompts(50, generator(1, "prompts", 0))
    answers = task.answers(prompts)
    right = torch.cat([answers, torch.full((50, 2), task.pad_id)], dim=1)
    assert bool(correct(task, prompts, right).all())
    for place in range(answers.shape[1]):
        wrong = right.clone()
        wrong[:, place] = (wrong[:, place] + 1) % task.vocabulary_size
        assert not correct(task, prompts, wrong).any()
    longer = right.clone()
    longer[:, -1] = 0
    assert not correct(task, prompts, longer).any()
    assert len({tuple(prompt) for prompt in prompts.tolist()}) > 40


def test_prompts_are_readable():
    task = task_of("arithmetic", 2, 10)
    prompt = torch.tensor([[11, 4, 2, 15, 1, 7, 12]])
    assert task.render(prompt[0]) == "^42-17>" and task.render(task.answers(prompt)[0]) == "025."
    task = task_of("sort", 3, 8)
    prompt = torch.tensor([[9, 2, 0, 1, 10]])
    assert task.render(prompt[0]) == "^cab>" and task.render(task.answers(prompt)[0]) == "abc."


@pytest.mark.parametrize(("name", "least"), [("sort", 5), ("arithmetic", 6)])
def test_an_answer_that_does_not_fit_is_refused(name, least):
    with pytest.raises(UserError, match=f"use {least} or more"):
        parse(TaskConfig, {"name": name, "length": 4, "max_response_tokens": least - 1})
