"""Answers that may reach a scorer of reasoning-gym which evaluates them as Python code. Torch-free.

Nine scorers of reasoning-gym 0.1.25 call `eval`, or sympy's `parse_expr`, which does, on the answer: a
response could run code in this process, or hold it for ever by 9**9**9. Right answers of those generators
are values, arithmetic or expressions of a few functions, so that nothing else need reach them. Some answers
that intermediate_integration has itself hold an unevaluated `Integral`; that is no answer and is wrong here.
"""

from __future__ import annotations

import re

# `eval` of a list gives part of the score only, but the scorer calls it all the same
VALUES = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
ARITHMETIC = frozenset({"countdown", "puzzle24"})
EXPRESSIONS = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})

EXPONENTS = 1000
"""Largest product of the exponents of parentheses in an expression: they may stand within one another, and
the product bounds the digits of what they come to."""

_VALUES = re.compile(r"[\w\s,.\[\]'\"+-]*")
_ARITHMETIC = re.compile(r"(?!.*\*\s*\*)[\d\s+*/().-]*", re.DOTALL)
_EXPRESSION = re.compile(r"[\w\s+*/().-]*")
# a call of another function, an attribute, a name that Python gives a meaning
_FORBIDDEN = re.compile(
    r"\b(?!(?:sin|cos|tan|sinh|cosh|exp|log|sqrt|asin|acos|atan)\s*\()[^\W\d]\w*\s*\(|\.\s*[^\W\d]|__"
)
_POWER = re.compile(
    r"(?P<base>\S)\s*\*\s*\*\s*"
    r"(?P<exponent>\d{1,4}(?![\w.])|\(\s*-?\d{1,4}\s*(?:/\s*\d{1,4}\s*)?\))?"
)
_POWER_OF_POWER = re.compile(r"\*\s*\*\s*(?:\d+|\([^()]*\))\s*\*\s*\*")


def is_harmless(answer: str, generator: str) -> bool:
    """Whether the scorer of `generator` may be given the answer.

    >>> is_harmless("(1 + 2) * 3", "countdown"), is_harmless("9**9**9", "countdown")
    (True, False)
    >>> is_harmless("exit()", "countdown"), is_harmless("exit()", "chain_sum")
    (False, True)
    """
    if generator in VALUES:
        return _VALUES.fullmatch(answer) is not None
    if generator in ARITHMETIC:
        return _ARITHMETIC.fullmatch(answer) is not None
    if generator in EXPRESSIONS:
        return _is_plain_expression(answer)
    return True


def _is_plain_expression(answer: str) -> bool:
    if not _EXPRESSION.fullmatch(answer) or _FORBIDDEN.search(answer) or _POWER_OF_POWER.search(answer):
        return False
    product = 1
    for power in _POWER.finditer(answer):
        if power["exponent"] is None:
            return False
        if power["base"] == ")":
            product *= max(1, int(re.findall(r"\d+", power["exponent"])[0]))
    return product <= EXPONENTS
