"""Presets: where a run begins, by a name that comes with kova or from a YAML file of one's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from kova.experiments.errors import UsageError
from kova.experiments.runs.expressions import suggestion
from kova.experiments.runs.yaml_file import as_number, read_mapping

#: Settings for every algorithm.
ALL = "all"


def preset_values(preset: str, algo: str, env: str, known: Collection[str]) -> dict[str, Any]:
    """Return what a preset says about a run.

    Args:
        preset: A name, or the path of a file.
        algo: Of the run.
        env: Of the run.
        known: Every algorithm.

    Raises:
        UsageError: There is no such preset, it cannot be read, or it has neither the algorithm nor the environment.
    """
    path = _find(preset)
    content = read_mapping(path)
    for name in content:
        if name != ALL and name not in known:
            raise UsageError(f"preset {preset!r} has {name!r}, which is no algorithm{suggestion(str(name), known)}")
    # Upstream's own settings need no entry.
    if algo not in content and preset != "default":
        raise UsageError(f"preset {preset!r} has no {algo}; it has {', '.join(n for n in content if n != ALL)}")
    values = _merged(_section(content, ALL, preset), _section(content, algo, preset))
    environments = values.pop("environments", None)
    if environments is not None:
        if not isinstance(environments, dict):
            raise UsageError(f"preset {preset!r}: environments must be a mapping, got {environments!r}")
        if env not in environments:
            raise UsageError(f"preset {preset!r} has no {env!r} for {algo}{suggestion(env, environments)}")
        values = _merged(values, _section(environments, env, preset))
    return {name: _with_numbers(value) for name, value in values.items()}


def _find(preset: str) -> Path:
    shipped = shipped_presets()
    if preset in shipped:
        return shipped[preset]
    path = Path(preset)
    # OSError: too long to be the name of anything.
    with suppress(OSError):
        if path.suffix in (".yaml", ".yml") or path.is_file():
            return path
    raise UsageError(f"preset {preset!r} is neither a file nor one that comes with kova{suggestion(preset, shipped)}")


def shipped_presets() -> dict[str, Path]:
    """Return the presets that come with the package, by name."""
    folder = Path(str(resources.files("kova.experiments.runs") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _section(content: Mapping[str, Any], name: str, preset: str) -> dict[str, Any]:
    found = content.get(name)
    if not isinstance(found, dict | None):
        raise UsageError(f"preset {preset!r}: {name} must be a mapping of settings, got {found!r}")
    return found or {}


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both and key != "net_arch" else value
    return merged


def _with_numbers(value: Any) -> Any:
    return {key: _with_numbers(item) for key, item in value.items()} if isinstance(value, dict) else as_number(value)
