"""What the check found: sections of checks and numbers, written as JSON and as text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Section:
    """One section; it passes when it raised nothing and every check passed."""

    name: str
    checks: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    """By name: a number, a text or None."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By title: rows with the same columns."""
    error: str | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.error is None and bool(self.checks) and all(each["passed"] for each in self.checks)

    def check(self, name: str, passed: bool, found: Any = None) -> None:
        """Note whether something holds, and what was found."""
        self.checks.append({"name": name, "passed": bool(passed), "found": found})

    def below(self, name: str, value: float, limit: float) -> None:
        """Check that a value is below a limit; NaN is not."""
        self.check(f"{name} < {limit:g}", value < limit, value)

    def above(self, name: str, value: float, limit: float) -> None:
        """Check that a value is above a limit; NaN is not."""
        self.check(f"{name} > {limit:g}", value > limit, value)

    def data(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {
            "passed": self.passed,
            "seconds": round(self.seconds, 2),
            "error": self.error,
            "checks": self.checks,
            "numbers": self.numbers,
            "tables": self.tables,
        }

    def text(self) -> str:
        """All of it, to read."""
        lines = [f"{self.name}: {'passed' if self.passed else 'FAILED'} ({self.seconds:.1f} s)"]
        lines += [
            f"  {'ok    ' if each['passed'] else 'FAILED'} {each['name']}: {_shown(each['found'])}"
            for each in self.checks
        ]
        lines += [f"  {name}: {_shown(value)}" for name, value in self.numbers.items()]
        for title, rows in self.tables.items():
            lines += [f"  {title}", *(f"    {line}" for line in _aligned(rows))]
        if self.error:
            lines += ["  " + line for line in self.error.rstrip().splitlines()]
        return "\n".join(lines) + "\n"


class Report:
    """report.json and report.txt in a folder, written anew with every section."""

    def __init__(self, folder: Path, environment: dict[str, Any]) -> None:
        self.folder, self.environment = folder, environment
        self.sections: list[Section] = []

    @property
    def passed(self) -> bool:
        return all(section.passed for section in self.sections)

    def head(self) -> str:
        """What the check runs on, one item a line."""
        return "\n".join(f"{name}: {_shown(value)}" for name, value in self.environment.items()) + "\n"

    def conclusion(self) -> str:
        """One sentence."""
        failed = [section.name for section in self.sections if not section.passed]
        seconds = sum(section.seconds for section in self.sections)
        return f"{'FAILED: ' + ', '.join(failed) if failed else 'all passed'} ({seconds:.0f} s)"

    def add(self, section: Section) -> None:
        """Add a section and write both files."""
        self.sections.append(section)
        data = {
            "passed": self.passed,
            "environment": self.environment,
            "sections": {each.name: each.data() for each in self.sections},
        }
        text = json.dumps(_finite(data), indent=2, allow_nan=False) + "\n"
        (self.folder / "report.json").write_text(text, encoding="utf-8")
        parts = [self.head(), *(each.text() for each in self.sections), self.conclusion() + "\n"]
        (self.folder / "report.txt").write_text("\n".join(parts), encoding="utf-8")


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else _grouped(value)


def _grouped(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _aligned(rows: list[dict[str, Any]]) -> list[str]:
    """Rows with the same columns, under their names."""
    if not rows:
        return ["(nothing)"]
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]


def _finite(data: Any) -> Any:
    """The data with numbers that JSON has not as texts."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
