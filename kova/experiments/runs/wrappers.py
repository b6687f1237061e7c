"""Wrappers of an environment, written as text: ``gymnasium.wrappers.TimeLimit(max_episode_steps=100)``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.expressions import call_of
from kova.suggest import suggestion


def wrapped(env: gym.Env[Any, Any], wrappers: Sequence[str]) -> gym.Env[Any, Any]:
    """Return the environment in its wrappers, the first innermost.

    Raises:
        UsageError: One of them cannot be found, or does not take its arguments or the environment.
    """
    for text in wrappers:
        name, positional, named = parsed(text)
        wrapper = _found(name)
        try:
            env = wrapper(env, *positional, **named)
        except Exception as error:
            # A wrapper may raise any error.
            raise UsageError(f"the wrapper {text} cannot be made: {one_line(error)}") from error
    return env


def parsed(text: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the dotted name of a wrapper and its arguments.

    Raises:
        UsageError: It is not written like one.
    """
    try:
        name, positional, named = call_of(text)
    except ValueError as error:
        raise UsageError(f"wrapper {error}") from None
    if "." not in name:
        raise UsageError(f"wrapper {name!r} has no module; write it like gymnasium.wrappers.FlattenObservation")
    return name, positional, named


def _found(name: str) -> type[gym.Wrapper[Any, Any, Any, Any]]:
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # A module may raise any error when it is imported.
        reason = f"{one_line(error)}; install its package, or put its folder on PYTHONPATH"
        raise UsageError(f"wrapper {name!r} cannot be imported: {reason}") from error
    found = getattr(module, attribute, None)
    if found is None:
        known = [own for own in dir(module) if _is_wrapper(getattr(module, own, None))]
        hint = suggestion(attribute, known) if known else "; it has no wrappers"
        raise UsageError(f"wrapper {name!r} cannot be imported: {module_name} has no {attribute}{hint}")
    # A configuration may come from somebody else, and must not be able to call just anything.
    if not _is_wrapper(found):
        raise UsageError(f"wrapper {name!r} is not a gymnasium.Wrapper; name a class that is")
    wrapper: type[gym.Wrapper[Any, Any, Any, Any]] = found
    return wrapper


def _is_wrapper(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, gym.Wrapper)
