"""The YAML of a site profile, read as people write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import UserError


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to base 60: `time: 4:00:00` is a time, not 14400. No key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice: keep one", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"),
}
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(f"(?:{_NUMBERS[tag].pattern})$") if tag in _NUMBERS else pattern)
        for tag, pattern in found
    ]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_profile(path: Path) -> dict[str, Any]:
    """The mapping in the file; raises `UserError` that names the line where it is not YAML."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{where}: {getattr(error, 'problem', None) or error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no fields: write NAME: VALUE lines, as slurm/sites/template.yaml does")
    return content
