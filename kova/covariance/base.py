"""What every covariance structure offers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kova.covariance.scales import Scales
from kova.linearisation.jacobian import Jacobian
from kova.linearisation.observation import trainable
from kova.prediction import Prediction


class Covariance(ABC):
    """A Gaussian's covariance over d parameters in one structure.

    Attributes:
        dim: d, the number of parameters.
        prior_variance: p₀ of P_{0|0} = p₀ diag(f²).
        scales: f, the unit of each parameter tensor; 1 for the paper's P_{0|0} = p₀ I.
        dtype: Precision of the stored numbers.
        device: Where they are.
    """

    #: What ``covariance=`` calls this structure.
    name: ClassVar[str]

    dim: int
    prior_variance: float
    scales: Scales
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def parameters_of(cls, module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters this structure optimises: all that require grad."""
        return trainable(module)

    @abstractmethod
    def seen_by(self, jacobian: Jacobian) -> Prediction:
        """Return P_{t-1|t-1} with the Jacobian of a batch, for an evolution model to build P_{t|t-1} from."""

    @abstractmethod
    def variance_of(self, jacobian: Jacobian) -> Tensor:
        """Return diag(J P Jᵀ), (N,)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return P as a (d, d) tensor."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return the d variances."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held by this structure."""

    @abstractmethod
    def mean_variance(self) -> Tensor:
        """Return tr(P) / d as a 0-dim tensor."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return ``count`` draws from N(0, P), (count, d)."""

    @abstractmethod
    def rescale(self, scales: Scales) -> Callable[[], None]:
        """Prepare to store P in other units, and return the function that does it: P stays, and P₀ moves with them."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move the stored numbers."""

    def become(self, other: Covariance) -> None:
        """Take the place of a copy that was worked on; one assignment, so that nothing can come in between."""
        self.__dict__ = other.__dict__

    def trace(self) -> Tensor:
        """Return tr(P) as a 0-dim tensor."""
        return self.mean_variance() * self.dim

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot (copies) that ``torch.load(weights_only=True)`` can read."""
        scales = {} if self.scales.trivial else {"scales": list(self.scales.values)}
        return {**self._identity(), **scales, **self._content()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ``ValueError`` unless ``state`` is a snapshot of the same structure, size, prior and precision."""
        own = self._identity()
        theirs = {key: state.get(key) for key in own}
        if own != theirs:
            raise ValueError(f"the checkpoint's covariance is {theirs}, this optimizer's is {own}")
        saved = state.get("scales", [1.0] * len(self.scales.values))
        sound = isinstance(saved, list) and len(saved) == len(self.scales.values)
        if not sound or not all(isinstance(value, float) and 0.0 < value < math.inf for value in saved):
            raise ValueError(f"the checkpoint's scales are {saved!r}, expected {len(self.scales.values)} numbers > 0")
        try:
            self._check_content(state)
        except KeyError as error:
            raise ValueError(f"the checkpoint's covariance lacks {error}") from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a snapshot bit for bit; raise ``ValueError`` before changing anything if it does not fit."""
        self.check_state(state)
        self._restore(state)
        # Those of 0.1.0 have none: their prior was spherical.
        self.scales = Scales(self.scales.counts, tuple(state.get("scales", [1.0] * len(self.scales.values))))

    def _identity(self) -> dict[str, Any]:
        return {
            "structure": self.name,
            "dim": self.dim,
            "dtype": str(self.dtype),
            "prior_variance": self.prior_variance,
        }

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return copies of every number that determines the next step."""

    @abstractmethod
    def _check_content(self, state: dict[str, Any]) -> None:
        """Raise ``ValueError`` or ``KeyError`` unless :meth:`_restore` can take ``state`` over."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Take over the numbers of a snapshot that fits."""
