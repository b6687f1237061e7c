"""Evolution noise P_v of the Kalman temporal differences: how the weights may move between two transitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Drift(ABC):
    """P_{t|t-1} = P_{t-1|t-1} + P_v."""

    @abstractmethod
    def predict(self, covariance: Tensor) -> Tensor:
        """Return P_{t|t-1}, (d, d)."""


@dataclass(frozen=True)
class RandomWalkDrift(Drift):
    """P_v = q·I; q = 0 leaves the weights where they are.

    Args:
        variance: q >= 0.
    """

    variance: float = 0.0

    def predict(self, covariance: Tensor) -> Tensor:
        """Return P + q·I."""
        return covariance + self.variance * torch.eye(len(covariance), dtype=covariance.dtype)


@dataclass(frozen=True)
class AdaptiveDrift(Drift):
    """P_v = η·P, the adaptive noise of Geist & Pietquin: the past counts 1/(1 + η) less with every transition.

    Args:
        eta: η >= 0.
    """

    eta: float

    def predict(self, covariance: Tensor) -> Tensor:
        """Return (1 + η)P."""
        return (1.0 + self.eta) * covariance
