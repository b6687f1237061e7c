"""Reads YAML files that people write; what is wrong is reported in one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.expressions import suggestion


def read_fields(path: Path, kind: type, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the values a file gives for the fields of a dataclass.

    Args:
        path: The file.
        kind: The dataclass.
        needed: Fields that must be there.

    Raises:
        UsageError: It cannot be read, is not a mapping, or has other names.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} must have {', '.join(needed)}, each with its value; it has none of them")
    known = [entry.name for entry in fields(kind)]
    for name in content:
        if name not in known:
            raise UsageError(f"{path} has {name!r}, which is unknown{suggestion(str(name), known)}")
    for name in needed:
        if name not in content:
            raise UsageError(f"{path} has no {name}; it must have {', '.join(needed)}")
    return content


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the content of a file.

    Raises:
        UsageError: It cannot be read, or is not a mapping.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} must have names, each with its value; it has none")
    return content


def _load(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(), _UniqueKeys)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # ValueError: not UTF-8, or an impossible date.
        raise UsageError(f"{path} cannot be read: {one_line(error)}") from None


def as_number(value: Any) -> Any:
    """Return the number that a text of YAML stands for: in YAML 3e-4 and 1e6 are texts, because floats need a dot."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if "." not in value and number.is_integer() else number


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a name that is given twice is an error: YAML itself would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)
