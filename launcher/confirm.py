"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys

from trainer.errors import UserError


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether to go on: `yes`, or what the person at the terminal answers.

    Raises `UserError` where nobody can be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError(f"{question} Nobody can be asked here: add --yes (-y) to go on")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
