"""Which part of a response counts as its answer."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.extraction import extract

BALANCED = st.recursive(
    st.text(alphabet="ab1 +^$\n", max_size=5) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac12"]),
    lambda inner: st.lists(inner.map("{{{}}}".format) | inner, max_size=4).map("".join),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{a \\}", r"a \\"),
        (r"\fbox{ 7 }", "7"),
        (r"\boxed {5}", "5"),
        ("\\boxed\n{5}", "5"),
        (r"$\boxed 5$ apples", "5"),
        (r"\boxed \frac{1}{2} is it", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed 2", "2"),
        (r"\boxed{1} or \boxed{2", "1"),
        (r"\boxed{{1} or \boxed{2}", "2"),
        (r"\boxed{1 \boxed{2}}", "2"),
        (r"} \boxed{3}", "3"),
        (r"x \\\boxed{4}", "4"),
        (r"\\boxed{4}", "4"),
        (r"\boxed{}", ""),
        (r"\boxed", None),
        (r"\boxed $", None),
        (r"\boxed{2", None),
        (r"\boxedness{2}", None),
        ("42", None),
        ("", None),
    ],
)
def test_boxed(text: str, expected: str | None) -> None:
    assert extract(text, "boxed") == expected


@settings(deadline=None)
@given(BALANCED)
def test_a_box_gives_its_content(content: str) -> None:
    assert extract(f"x \\boxed{{{content}}}", "boxed") == content.strip()


@settings(deadline=None)
@given(st.text(alphabet="\\boxedf{} 1$\n", max_size=60))
def test_a_box_is_a_part_of_the_text_or_nothing(text: str) -> None:
    found = extract(text, "boxed")
    assert found is None or (found in text and found == found.strip())


@pytest.mark.parametrize("piece", [r"\boxed{{{{", r"\boxed", r"\boxed ", "\\", "{", "}", r"\boxed{"])
def test_boxed_is_linear(piece: str) -> None:
    start = time.process_time()
    extract(piece * (100_000 // len(piece)), "boxed")
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "rule", "expected"),
    [
        (" a b \n", "whole", "a b"),
        ("", "whole", ""),
        ("#### 1\n#### 2", r"#### (.+)", "2"),
        ("x=1 x=2", r"x=\d", "x=2"),
        ("x=1", r"y=(\d)", None),
        ("a", r"a(b)?", None),
        ("<answer> 3\n4 </answer>", r"(?s)<answer>(.*?)</answer>", "3\n4"),
        ("<answer> 3\n4 </answer>", r"<answer>(.*?)</answer>", None),
        ("12", r"(\d)(\d)", "1"),
    ],
)
def test_whole_and_regular_expressions(text: str, rule: str, expected: str | None) -> None:
    assert extract(text, rule) == expected
