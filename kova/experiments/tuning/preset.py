"""What a search found as a preset, a file for ``kova train --preset``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

import yaml

from kova.experiments.runs.config import RunConfig


def as_preset(config: RunConfig, comments: Sequence[str]) -> str:
    """Return the text of a preset with the settings of a run and, above them, how they were found."""
    above = [line for comment in comments for line in textwrap.wrap(comment, 118) or [""]]
    own: dict[str, Any] = {config.algo: _said(asdict(config))}
    body: str = yaml.safe_dump(own, sort_keys=False, allow_unicode=True)
    return "\n".join([*(f"# {line}".rstrip() for line in above), body])


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run has that a preset would not give it anyway; algorithm, environment and seed are not said."""
    defaults = {
        entry.name: entry.default if entry.default is not MISSING else None
        for entry in fields(RunConfig)
        if entry.name not in ("algo", "env", "preset", "seed")
    }
    return {name: values[name] for name, default in defaults.items() if values[name] not in (default, {}, [])}
