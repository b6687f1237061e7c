"""The constructor's real arguments, for ``help``, ``inspect.signature`` and notebooks.

They are read from the version of upstream that is installed, so that a new argument of upstream's is taken and shown
without a change here. Editors cannot run this: for them every algorithm repeats its arguments under ``TYPE_CHECKING``,
and a test compares both.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

from kova.sb3 import upstream

Algorithm = TypeVar("Algorithm", bound=type)


def with_upstreams_arguments(algorithm: Algorithm) -> Algorithm:
    """Give a class a constructor whose signature is upstream's, with this library's defaults and additional arguments.

    The classes of this library name what they add or change as keyword-only arguments of their ``__init__``. Upstream's
    own arguments may be given by position or by name; ``__init__`` gets all of them by name, and only those given.
    """
    init, signature = algorithm.__init__, _signature(algorithm)  # type: ignore[misc]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(**signature.bind(self, *args, **kwargs).arguments)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    algorithm.__init__ = __init__  # type: ignore[misc]
    return algorithm


def _signature(algorithm: type) -> inspect.Signature:
    parameters = dict(inspect.signature(upstream.plain_class(algorithm).__init__).parameters)
    ours = [vars(base)["__init__"] for base in reversed(algorithm.__mro__) if _is_ours(base)]
    for parameter in (p for init in ours for p in inspect.signature(init).parameters.values()):
        if parameter.kind is parameter.KEYWORD_ONLY:
            known = parameters.get(parameter.name)
            parameters[parameter.name] = known.replace(default=parameter.default) if known else parameter
    return inspect.Signature(list(parameters.values()), return_annotation=None)


def _is_ours(base: type) -> bool:
    return base.__module__.startswith("kova.") and "__init__" in vars(base)
