"""Values written as text, in YAML and after ``--set``: parsed against a table of names, never evaluated as code."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

import kova
from kova.suggest import suggestion

__all__ = ["CALLS", "NAMES", "call_of", "linear", "resolve", "suggestion"]

MODEL_ADVICE = "write it like FadingMemory(0.01)"


def linear(start: float, end: float = 0.0) -> LinearSchedule:
    """Return a learning rate that goes from ``start`` to ``end`` over the run."""
    return LinearSchedule(float(start), float(end), 1.0)


def _models() -> dict[str, Callable[..., Any]]:
    """Return every model that the library exports, by name."""
    exported = {name: getattr(kova, name) for name in kova.__all__}
    return {
        name: model
        for name, model in exported.items()
        if isinstance(model, type) and issubclass(model, MODELS) and not inspect.isabstract(model)
    }


#: What a filter is composed of.
MODELS = (kova.Evolution, kova.Noise, kova.Prior, kova.Trust, kova.Units)

#: What may be called.
CALLS: Mapping[str, Callable[..., Any]] = {**_models(), "linear": linear}

#: What may be named.
NAMES: Mapping[str, Any] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "ELU": nn.ELU,
    "SiLU": nn.SiLU,
    "GELU": nn.GELU,
    "inf": math.inf,
}


def resolve(value: Any) -> Any:
    """Return the object that a value of a configuration stands for; other values are returned unchanged.

    Raises:
        ValueError: A call of an unknown name, or with arguments it does not take.
    """
    if isinstance(value, dict):
        return {key: resolve(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if not isinstance(value, str):
        return value
    if value in NAMES:
        return NAMES[value]
    return _call(value) if "(" in value else value


def call_of(text: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the dotted name in a text and the arguments in its brackets, if it has any; nothing is called.

    Raises:
        ValueError: It is not written like a name or a call.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text; write it like package.Name or package.Name(1, key=2)")
    advice = "write it like package.Name or package.Name(1, key=2)"
    node = _tree(text, advice)
    positional, named = _arguments(node, text, advice) if isinstance(node, ast.Call) else ([], {})
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{text!r} cannot be read; {advice}")
    return name, positional, named


def _call(text: str) -> Any:
    return _called(_tree(text, MODEL_ADVICE), text)


def _tree(text: str, advice: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} cannot be read; {advice}") from None


def _called(node: ast.expr, text: str) -> Any:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{text!r} cannot be read; {MODEL_ADVICE}")
    name = node.func.id
    if name not in CALLS:
        raise ValueError(f"{name!r} is unknown in {text!r}{suggestion(name, CALLS)}")
    positional, named = _arguments(node, text, MODEL_ADVICE)
    try:
        return CALLS[name](*positional, **named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from None


def _arguments(node: ast.Call, text: str, advice: str) -> tuple[list[Any], dict[str, Any]]:
    positional = [_literal(argument, text) for argument in node.args]
    if any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"{text!r} cannot be read; {advice}")
    names = [keyword.arg for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise ValueError(f"{text!r} gives an argument twice; leave one out")
    return positional, {keyword.arg: _literal(keyword.value, text) for keyword in node.keywords if keyword.arg}


def _literal(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return _called(node, text)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_literal(item, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r}: {ast.unparse(node)!r} is not a number or a string") from None
