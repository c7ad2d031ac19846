"""The configuration tree: groups, their options, and presets composed with a choice for each group.

Each folder of the tree is a group, each file in it an option. Group `sweep` holds the presets. An option is
merged into the section that its group is named after (`model`, `task`, `optimizer`, …); presets, and options
of groups that are named after no section, are merged at the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeps.cost import CostFigures
from trainer.budget import CellConfig
from trainer.errors import UserError
from trainer.schema import field_paths, flatten, nearest, parse

CONF = Path(__file__).resolve().parent / "conf"
SWEEP = "sweep"
PRESET_KEYS = ("description", "axes", "report", "cost")
FIELDS = dict(field_paths(CellConfig))
"""Dotted field of a cell → default."""
OPEN = [path for path, default in FIELDS.items() if isinstance(default, dict)]
"""Fields that hold names of the user's or of a library's own."""
SECTIONS = {path[:end] for path in FIELDS for end, sign in enumerate(path) if sign == "."}
AT_THE_TOP = "@_global_"


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset composed with one choice for each group."""

    place: str
    """For messages."""
    description: str
    axes: dict[str, list[Any]]
    """Field (dotted) or group → values."""
    fields: dict[str, Any]
    """Flat and dotted; not yet validated."""
    report: dict[str, Any]
    cost: CostFigures


class ConfigTree:
    """The product's tree and, when there is one, the user's own beside it."""

    def __init__(self, config_dir: Path | None) -> None:
        """Raises `UserError` when `config_dir` is no folder or holds an option of ours."""
        self.files: dict[str, dict[str, Path]] = {}
        self._composed: dict[tuple[str, ...], tuple[dict[str, Any], dict[str, str]]] = {}
        self.config_dir = config_dir.resolve() if config_dir else None
        if config_dir is not None and not config_dir.is_dir():
            raise UserError(
                f"--config-dir={config_dir} is not a folder: give the folder that holds sweep/*.yaml"
            )
        for root in filter(None, (CONF, self.config_dir)):
            for path in sorted(root.glob("*/*.yaml")):
                names = self.files.setdefault(path.parent.name, {})
                if path.stem in names:
                    raise UserError(f"{path} has the name of one of the product's own: rename it")
                names[path.stem] = path

    @property
    def options(self) -> dict[str, list[str]]:
        """Group → names of its options."""
        return {group: sorted(names) for group, names in self.files.items()}

    def place(self, preset: str) -> str:
        """What messages call a preset."""
        path = self.files[SWEEP][preset]
        return f"preset {preset}" if path.is_relative_to(CONF) else f"preset {path}"

    def compose(self, preset: str, choices: Mapping[str, str]) -> Preset:
        """The preset with an option for each of these groups; raises `UserError`."""
        _, chosen = self._compose(preset, [])
        keys = {key.split("@")[0]: key for key in chosen}  # a group that the preset itself chooses from
        overrides = []
        for group, option in choices.items():
            added = f"+{group}" if group in SECTIONS else f"+{group}{AT_THE_TOP}"
            overrides.append(f"{keys.get(group, added)}={_quoted(option)}")
        composed, _ = self._compose(preset, overrides)
        return _preset(self.place(preset), composed)

    def _compose(self, preset: str, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Plain data, and the option of each group as Hydra names them; composed once for equal arguments."""
        key = (preset, *overrides)
        if key not in self._composed:
            search = f"hydra.searchpath=[{_quoted(f'file://{self.config_dir}')}]" if self.config_dir else None
            words = [f"{SWEEP}{AT_THE_TOP}={_quoted(preset)}", *overrides, *filter(None, [search])]
            try:
                self._composed[key] = _hydra(words)
            except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
                opening = " with ".join([self.place(preset), *overrides])
                raise UserError(f"{opening}: {' '.join(str(error).split())}") from None
        return self._composed[key]


def _hydra(overrides: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        composed = compose("config", overrides=overrides, return_hydra_config=True)
    chosen = {str(key): str(value) for key, value in composed.hydra.runtime.choices.items()}
    names: list[Any] = [key for key in composed if key != "hydra"]
    ours = OmegaConf.masked_copy(composed, names)
    plain = OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, chosen


def _preset(place: str, composed: dict[str, Any]) -> Preset:
    """Checks the keys that are the preset's own; the cells check the fields."""
    problems = [
        f"{place}: {key} has to be a mapping of names to values"
        for key in ("axes", "report", "cost")
        if not isinstance(composed.get(key) or {}, dict)
    ]
    if problems:
        raise UserError(*problems)
    axes = {
        str(name): values if isinstance(values, list) else [] if values is None else [values]
        for name, values in (composed.get("axes") or {}).items()
    }
    fields = flatten({key: value for key, value in composed.items() if key not in PRESET_KEYS})
    for name, values in axes.items():
        if any(isinstance(value, list | dict) for value in values):
            problems.append(f"{place}: axis {name} is a list of single values; write {name}: [a, b, c]")
        if not values:
            problems.append(f"{place}: axis {name} has no value: give at least one")
        if name in fields:
            problems.append(f"{place} sets {name} and lists it under axes too: keep one")
    if problems:
        raise UserError(*problems)
    return Preset(
        place=place,
        description=str(composed.get("description") or ""),
        axes=axes,
        fields=fields,
        report=dict(composed.get("report") or {}),
        cost=parse(CostFigures, composed.get("cost") or {}, where=f"{place}: cost"),
    )


def unknown_field(name: str, groups: Sequence[str]) -> str | None:
    """Why `name` is not a field that can be set, or None when it is."""
    if name in FIELDS or any(name.startswith(f"{path}.") for path in OPEN):
        return None
    if name in SECTIONS:
        example = next(path for path in FIELDS if path.startswith(f"{name}."))
        return f"{name} is a section: set its fields one by one, as in {example}=…"
    if name.split(".")[0] in PRESET_KEYS:
        return f"{name} is set in the preset's file, not on the command line"
    return f"unknown field {name}{nearest(name, [*FIELDS, *groups])}"


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()
