"""Argument checks: each names the argument and says what was wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Integral, Real

import torch
from torch import Tensor

#: What a critic may be evaluated on: a tensor, or a tuple or dict of tensors, with N as their first dimension.
Inputs = Tensor | tuple["Inputs", ...] | dict[str, "Inputs"]


def number(name: str, value: object) -> float:
    """Return ``value`` as a float; it must be a real number, which may be infinite but not NaN."""
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number, got nan")
    return float(value)


def positive(name: str, value: object) -> float:
    """Return a finite number > 0."""
    result = number(name, value)
    if not 0.0 < result < math.inf:
        raise ValueError(f"{name} must be finite and > 0, got {value!r}")
    return result


def non_negative(name: str, value: object) -> float:
    """Return a finite number >= 0."""
    result = number(name, value)
    if not 0.0 <= result < math.inf:
        raise ValueError(f"{name} must be finite and >= 0, got {value!r}")
    return result


def forgetting(name: str, value: object) -> float:
    """Return a forgetting rate in [0, 1); at 1 the factor 1/(1 - eta) is infinite."""
    result = number(name, value)
    if not 0.0 <= result < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return result


def count(name: str, value: object) -> int:
    """Return an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    return int(value)


def representable(name: str, value: object, dtype: torch.dtype) -> float:
    """Return a number > 0 that neither overflows nor vanishes in ``dtype``."""
    result = positive(name, value)
    limits = torch.finfo(dtype)
    if not limits.tiny <= result <= limits.max:
        raise ValueError(f"{name} must be between {limits.tiny:g} and {limits.max:g} in {dtype}, got {value!r}")
    return result


def tensor(name: str, value: object) -> Tensor:
    """Return ``value``, refusing what is not a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    return value


def finite(name: str, tensor: Tensor) -> Tensor:
    """Return ``tensor``; raise with the count of NaN or infinite entries if there are any."""
    if not all_finite(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name} has {bad} non-finite entries of {tensor.numel()} (shape {tuple(tensor.shape)})")
    return tensor


def all_finite(tensor: Tensor) -> bool:
    """Say whether every entry is finite."""
    # A finite sum proves that every entry is finite, in a third of the time of testing each. A sum that is not finite
    # proves nothing, because finite entries may overflow.
    if tensor.is_floating_point() and math.isfinite(float(tensor.detach().sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def per_sample(name: str, value: object, like: Tensor, *, size: int | None = None, whole: bool = False) -> Tensor:
    """Return (N,) finite floating numbers from (N,) or (N, 1); they fit the dtype of ``like`` and are on its device.

    Whole numbers are refused, as a likely mistake, unless ``whole`` says that they count or name something.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of shape (N,) or (N, 1), got {type(value).__name__}")
    if whole:
        value = value.double()
    if not value.is_floating_point():
        raise ValueError(f"{name} must have a floating dtype, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{name} is on {value.device}, the critic on {like.device}")
    if value.dim() == 0 or value.dim() > 2 or (value.dim() == 2 and value.shape[1] != 1):
        raise ValueError(f"{name} must have shape (N,) or (N, 1), got {tuple(value.shape)}")
    flat = value.detach().reshape(-1)
    if flat.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(value.shape)}): a step needs at least one sample")
    if size is not None and flat.numel() != size:
        raise ValueError(f"{name} has {flat.numel()} entries for a batch of {size}")
    # The cast must not overflow, but it is not returned: differences are taken in the wider of the two types.
    finite(name, flat.to(like.dtype))
    return flat


def not_below_zero(name: str, tensor: Tensor) -> Tensor:
    """Return ``tensor``; raise with the count of negative entries if there are any."""
    negative = int((tensor < 0).sum())
    if negative:
        raise ValueError(f"{name} must be >= 0, {negative} of {tensor.numel()} entries are negative")
    return tensor


def inputs(value: object, device: torch.device) -> int:
    """Return N, the common first dimension of every tensor of ``value``, after checking them all.

    Raises:
        TypeError: Something in it is not a tensor.
        ValueError: A tensor is 0-dimensional, empty, not finite, on another device, or of another length.
    """
    size: int | None = None
    for name, leaf in leaves("inputs", value):
        if not isinstance(leaf, Tensor):
            raise TypeError(f"{name} must be a tensor or a tuple/dict of tensors, got {type(leaf).__name__}")
        if leaf.dim() == 0:
            raise ValueError(f"{name} is 0-dimensional; its first dimension must be the batch")
        if leaf.device != device:
            raise ValueError(f"{name} is on {leaf.device}, the critic on {device}")
        size = leaf.shape[0] if size is None else size
        if leaf.shape[0] != size:
            raise ValueError(f"{name} has first dimension {leaf.shape[0]}, another input has {size}")
        finite(name, leaf)
    if not size:
        raise ValueError(f"inputs hold no samples: {'no tensor' if size is None else 'first dimension 0'}")
    return size


def map_inputs(function: Callable[[Tensor], Tensor], value: Inputs) -> Inputs:
    """Apply ``function`` to every tensor of ``value``."""
    if isinstance(value, tuple):
        items = [map_inputs(function, item) for item in value]
        # A namedtuple takes its fields one by one.
        rebuild: Callable[[list[Inputs]], Inputs] = getattr(type(value), "_make", tuple)
        return rebuild(items)
    if isinstance(value, dict):
        return {key: map_inputs(function, item) for key, item in value.items()}
    return function(value)


def leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every leaf of nested tuples and dicts, with the path by which error messages name it."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from leaves(f"{name}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{name}[{key!r}]", item)
    else:
        yield name, value
