"""Number types of configuration fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
