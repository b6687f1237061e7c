"""Errors that a caller may want to catch by type."""

from __future__ import annotations


class NumericalError(ArithmeticError):
    """The filter could not be advanced in floating point; nothing was changed.

    Raised when the innovation covariance S (Eq. 14) is not finite or has no Cholesky factor, however P is inflated, and
    when an update or a variance is not finite.
    """


class CovarianceTooLarge(MemoryError):
    """The covariance structure asked for does not fit in memory.

    Attributes:
        wanted: Bytes the structure would need.
        available: Bytes that may be used.
    """

    def __init__(self, message: str, *, wanted: int, available: int) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.available = available

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword arguments when the error crosses a process boundary."""
        return _rebuild_too_large, (str(self), self.wanted, self.available)


def _rebuild_too_large(message: str, wanted: int, available: int) -> CovarianceTooLarge:
    return CovarianceTooLarge(message, wanted=wanted, available=available)
