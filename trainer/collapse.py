"""Collapse rule (its settings)."""

from pydantic import BaseModel, ConfigDict


class CollapseRuleConfig(BaseModel):
    """Settings of the collapse rule."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    drop: float = 0.5
