"""Answers that are equal in value, by math-verify. Torch-free."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError
from trainer.time_limit import within

if TYPE_CHECKING:
    from trainer.verifiers import Item

GOLD_ANSWERS_KEPT = 4096

# math-verify takes LaTeX only between delimiters; from other text it takes the last number, so that a bare
# 2\pi would be 2. Text without delimiters is therefore put between them, unless it holds words.
_DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_WORD = re.compile(r"(?<![^\s(])[A-Za-z]{3,}(?![^\s.,:;!?)])")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|log|ln|exp|pi)(?![A-Za-z])")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]\+?(-?\d+)(?![\w.])")
_DIGIT_SPACE = re.compile(r"(?<=\d)\\[,!](?=\d)")
_MATH = re.compile(r"[\d\\^_=+*/<>{}]")


class MathVerifier:
    """Right is an answer equal in value; words, and what is no mathematics, are compared as text.

    `time_limit` in seconds bounds the work on one response, also with the right answer to parse; a response
    that takes longer is wrong. It is kept by SIGALRM, which Python delivers to the main thread only: on other
    threads nothing bounds the time.
    """

    def __init__(self, time_limit: float) -> None:
        try:
            math_verify = importlib.import_module("math_verify")
        except ImportError:
            raise UserError(
                "task.verifier.kind=math needs the package math-verify: pip install 'grposweep[text]'"
            ) from None
        for name in ("math_verify", "latex2sympy2_extended"):
            # a warning for each response that does not parse would drown the log of a run
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._math_parse: Callable[..., list[Any]] = math_verify.parse
        self._math_verify: Callable[..., bool] = math_verify.verify
        self._time_limit = time_limit
        self._gold = lru_cache(maxsize=GOLD_ANSWERS_KEPT)(self._parse_gold)

    def verify(self, items: Sequence[Item]) -> list[bool | None]:
        return [item.extracted is not None and self._equal(item.answer, item.extracted) for item in items]

    def _equal(self, answer: str, extracted: str) -> bool:
        if _as_text(extracted) == _as_text(answer):
            return True
        gold = self._gold(answer)
        if not gold or not extracted.strip():
            return False

        def compare() -> bool:
            return bool(self._math_verify(gold, self._parse(extracted), timeout_seconds=None))

        try:
            return within(self._time_limit, compare, late=False)
        except Exception:
            # whatever a response provokes in the parser or in sympy: it is no right answer
            return False

    def _parse_gold(self, answer: str) -> list[Any]:
        """Parsed expressions of a right answer; none: it is compared as text."""
        text = _as_text(answer)
        if _WORD.search(text) and not _MATH.search(text):
            return []
        try:
            nothing: list[Any] = []
            parsed = within(self._time_limit, lambda: self._parse(answer), late=nothing)
        except Exception:
            return []
        # math-verify appends the text that it tried to parse; alone it means that it did not parse
        return parsed if any(not isinstance(expression, str) for expression in parsed) else []

    def _parse(self, text: str) -> list[Any]:
        text = text.strip()
        if _DELIMITED.search(text):
            return self._math_parse(text, parsing_timeout=None)
        parsed: list[Any] = []
        if _WORD.search(_TEXT_COMMAND.sub("", text)):
            parsed = self._math_parse(text, parsing_timeout=None)
        return parsed or self._math_parse(f"${_as_latex(text)}$", parsing_timeout=None)


def _as_latex(text: str) -> str:
    """The text with bare names of functions, powers of ten and spaced digits written as in LaTeX."""
    text = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text)
    return _DIGIT_SPACE.sub("", _FUNCTION.sub(r"\\\1", text))


def _as_text(text: str) -> str:
    """The text without white space and dollar signs at its ends, and out of a \\text{…} around it all."""
    text = text.strip().strip("$").strip()
    wrapped = _TEXT_COMMAND.fullmatch(text)
    return text if wrapped is None else wrapped[1].strip()
