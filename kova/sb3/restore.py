"""All or nothing: an algorithm whose parameters are loaded keeps what it had if the loading fails."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr


@contextmanager
def unchanged_on_error(model: BaseAlgorithm, names: Iterable[str]) -> Iterator[None]:
    """Put networks and optimizers back as they were if the block raises.

    Args:
        model: The algorithm.
        names: Where they are in it, as in ``get_parameters``.

    Raises:
        ValueError: There is no network or optimizer of such a name; the block is not entered.
    """
    parts = []
    for name in names:
        try:
            part = recursive_getattr(model, name)
            parts.append((part, copy.deepcopy(part.state_dict())))
        except AttributeError as error:
            raise ValueError(f"Key {name} is an invalid object name.") from error
    try:
        yield
    except BaseException:
        for part, before in parts:
            part.load_state_dict(before)
        raise
