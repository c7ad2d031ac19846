"""Which part of a response is its answer. Torch-free."""

from __future__ import annotations

import re

# An escaped character is consumed as a pair, so that \{ and \} open and close nothing. A box may be written
# with its backslash doubled, as text that went through JSON twice is.
_LATEX = re.compile(r"\\\\?(?:boxed|fbox)(?![A-Za-z])\s*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"[^\s$]+")


def extract(text: str, rule: str) -> str | None:
    """The answer in `text`, without white space at its ends; None where the rule finds none.

    `rule` is `whole` (all of the text), `boxed` (inside the last balanced \\boxed{…} or \\fbox{…}, or the
    token after a \\boxed without braces), or a regular expression: of its last match group 1 counts, or the
    whole match where the pattern has no group.

    >>> extract(r"so \\boxed{\\frac{1}{2}}.", "boxed")
    '\\\\frac{1}{2}'
    >>> extract("x = 1, x = 2", r"x = (\\d)")
    '2'
    """
    if rule == "whole":
        return text.strip()
    found = _last_box(text) if rule == "boxed" else _last_match(text, rule)
    return None if found is None else found.strip()


def _last_match(text: str, pattern: str) -> str | None:
    last = None
    for last in re.finditer(pattern, text):  # noqa: B007
        pass
    if last is None:
        return None
    found: str | None = last.group(1 if last.re.groups else 0)
    return found


def _last_box(text: str) -> str | None:
    """Content of the box that starts last, among those whose braces are balanced; one pass over the text."""
    open_braces: list[tuple[int, bool]] = []  # where the content starts; whether it is a box's
    last: tuple[int, int | None] | None = None  # where the content starts and ends; end None: a token
    for match in _LATEX.finditer(text):
        piece = match.group()
        if match["open"] is not None:
            open_braces.append((match.end(), True))
        elif piece == "{":
            open_braces.append((match.end(), False))
        elif piece == "}":
            if open_braces:
                start, is_box = open_braces.pop()
                if is_box and (last is None or start > last[0]):
                    last = (start, match.start())
        elif len(piece) > 2 and text[match.end() : match.end() + 1] not in ("", "$", "}"):
            last = (match.end(), None)
    if last is None:
        return None
    start, end = last
    if end is not None:
        return text[start:end]
    token = _TOKEN.match(text, start)
    return None if token is None else token.group()
