"""Cholesky factors of matrices that rounding may have made indefinite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kova.errors import NumericalError


def cholesky_with_jitter(what: str, matrix: Tensor, jitter: float) -> Tensor:
    """Factorise positive semi-definite matrices with the least of jitter · {1, 10, …, 1e5} on the diagonal that works.

    Raises:
        NumericalError: None does.
    """
    for boost in range(6):
        regular = matrix.clone()
        regular.diagonal(dim1=-2, dim2=-1).add_(jitter * 10.0**boost)
        factor: Tensor
        factor, status = torch.linalg.cholesky_ex(regular)
        if not bool(status.any()):
            return factor
    raise NumericalError(f"{what} is not positive semi-definite, even with {jitter * 1e5:g} on its diagonal")


def cholesky_with_retry(what: str, build: Callable[[torch.dtype], Tensor], dtype: torch.dtype) -> Tensor:
    """Factorise ``build(dtype)``; if that fails in a narrower type, build and factorise once more in float64.

    Args:
        what: Name of the matrix, for the error.
        build: Gives the symmetric matrix, accumulated in the dtype it is called with.
        dtype: The precision to try first.

    Returns:
        The lower Cholesky factor, in the precision that succeeded.

    Raises:
        NumericalError: It failed in float64 as well.
    """
    info = 0
    for precision in dict.fromkeys((dtype, torch.float64)):
        matrix = build(precision)
        factor: Tensor
        factor, status = torch.linalg.cholesky_ex(matrix)
        info = int(status)
        if info == 0:
            return factor
    raise NumericalError(
        f"{what} cannot be factorised in {dtype} nor in float64 (leading minor {info} is not positive); "
        "nothing was changed"
    )
