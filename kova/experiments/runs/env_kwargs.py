"""Arguments of an environment: which can be given, and which of them it does not take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from kova.experiments.errors import UsageError
from kova.suggest import suggestion

#: Arguments of ``gymnasium.make`` that a run decides itself.
RESERVED = {"id": "name the environment after the algorithm", "render_mode": "use kova eval --video"}

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def check(values: Any) -> None:
    """Refuse what cannot be arguments of an environment.

    Raises:
        UsageError: It is not a mapping of names to numbers, texts, flags and lists of them.
    """
    if not isinstance(values, dict):
        raise UsageError(f"env_kwargs must be a mapping of arguments, got {values!r}")
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"env_kwargs has {name!r}, which is not the name of an argument")
        if name in RESERVED:
            raise UsageError(f"env_kwargs has {name!r}, which the run decides itself; {RESERVED[name]}")
        if not _is_plain(value):
            raise UsageError(f"env_kwargs.{name} must be a number, a text, true, false or a list, got {value!r}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def refused(make: Callable[..., gym.Env[Any, Any]], kwargs: Mapping[str, Any], error: Exception) -> list[str]:
    """Return the arguments that an environment does not know; it complains of one at a time.

    Args:
        make: Makes the environment with some of the arguments.
        kwargs: All of them.
        error: What it raised.
    """
    left, unknown = dict(kwargs), []
    while (found := UNEXPECTED.search(str(error))) and found[1] in left:
        unknown.append(found[1])
        del left[found[1]]
        try:
            make(**left).close()
            break
        except Exception as another:
            error = another
    return unknown


def hint(name: str, unknown: str) -> str:
    """Return which arguments an environment does take, if it says."""
    spec = gym.registry.get(name)
    if spec is None or spec.entry_point is None:
        return ""
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    known = [own for own in _parameters(creator) if own not in RESERVED]
    return suggestion(unknown, known) if known else "; it takes none"


def _parameters(creator: Any) -> list[str]:
    """Return the names of the arguments of a function, or of a class and those that it hands its own to."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = (
        [vars(base)["__init__"] for base in creator.__mro__ if "__init__" in vars(base)]
        if isinstance(creator, type)
        else [creator]
    )
    names: dict[str, None] = {}
    for function in own:
        if function is object.__init__:
            continue
        parameters = inspect.signature(function).parameters.values()
        names |= dict.fromkeys(entry.name for entry in parameters if entry.kind in kinds and entry.name != "self")
        if not any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters):
            break
    return list(names)
