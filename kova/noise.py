"""Observation noise models: P_n, the covariance of the target labels around h(u; θ).

A model is a small immutable value with one method. To write your own, subclass :class:`Noise`::

    @dataclass(frozen=True)
    class Huber(kova.Noise):
        threshold: float

        def covariance(self, batch):
            return (batch.innovation.abs() / self.threshold).clamp(min=1.0)

A model that cannot do without the ratio of policies, or without the variance of the bootstrapped value, says so in
``needs``. Algorithms that do not know it then refuse the model when they are built.

A model that learns from what it sees returns numbers from ``remember``; the filter keeps them, saves them with its own
state, and hands them to the next ``covariance`` as ``batch.memory``. The model itself never changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from kova import _checks
from kova.memories import Memory


@dataclass(frozen=True, eq=False)
class Batch:
    """What a noise model may look at.

    Attributes:
        innovation: δ = y - h(u; θ), (N,).
        ratio: π_old(a|s)/π_new(a|s) per sample, (N,), if the caller gave it.
        next_variance: Variance of the value each label bootstraps from, (N,), if the caller gave it.
        predicted: diag(J P Jᵀ), (N,): how far labels scatter because of the filter's own uncertainty. ``None`` where a
            large batch is taken in pieces and the model has no ``remember`` of its own.
        memory: What the model remembered last.
        trajectory: Which trajectory each label is of, (N,), if the caller said so.
        remaining: How many steps each label looks ahead, (N,), likewise.
        gram: J P Jᵀ, (N, N), for a model that ``correlates``.
    """

    innovation: Tensor
    ratio: Tensor | None = None
    next_variance: Tensor | None = None
    predicted: Tensor | None = None
    memory: Memory = field(default_factory=dict)
    trajectory: Tensor | None = None
    remaining: Tensor | None = None
    gram: Tensor | None = None

    @property
    def size(self) -> int:
        """N."""
        return self.innovation.shape[0]


class Noise(ABC):
    """How far the target labels scatter around the value.

    Attributes:
        needs: The keyword arguments of :meth:`kova.KOVA.step` without which the model cannot work: ``"ratio"``,
            ``"next_variance"``, ``"trajectory"``, ``"remaining"``. An algorithm computes ``next_variance`` only for a
            model that needs it.
        correlates: Whether P_n is a matrix, so that a batch cannot be taken in pieces.
    """

    needs: frozenset[str] = frozenset()
    correlates: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Understand ``needs_next_variance = True``, which models written for 0.1.0 have instead of ``needs``."""
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("needs_next_variance") is True:
            cls.needs = cls.needs | {"next_variance"}

    @abstractmethod
    def covariance(self, batch: Batch) -> Tensor | float:
        """Return P_n: one variance for all, (N,) variances, or an (N, N) covariance."""

    def remember(self, batch: Batch) -> Memory:
        """Return what the next batch's ``memory`` will hold; it is kept if the step succeeds."""
        return {}


@dataclass(frozen=True)
class BatchSize(Noise):
    """σᵢ = scale · N, the paper's *batch-size* setting: the whole batch weighs as much as one sample at σ = scale.

    Args:
        scale: Factor > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "scale", _checks.positive("scale", self.scale))

    def covariance(self, batch: Batch) -> float:
        """Return scale · N."""
        return self.scale * batch.size


@dataclass(frozen=True)
class MaxRatio(Noise):
    """σᵢ = scale · N · max(1, 1/(rᵢ + ε)), the paper's *max-ratio* setting: distrust off-policy samples.

    Args:
        scale: Factor > 0.
        eps: ε > 0.
        orientation: ``"paper"`` takes r = π_old/π_new as printed, ``"code"`` r = π_new/π_old as the authors' code does.
    """

    scale: float = 1.0
    eps: float = 1e-5
    orientation: Literal["paper", "code"] = "paper"

    needs = frozenset({"ratio"})

    def __post_init__(self) -> None:
        """Check the ranges."""
        object.__setattr__(self, "scale", _checks.positive("scale", self.scale))
        object.__setattr__(self, "eps", _checks.positive("eps", self.eps))
        if self.orientation not in ("paper", "code"):
            raise ValueError(f'orientation must be "paper" or "code", got {self.orientation!r}')

    def covariance(self, batch: Batch) -> Tensor:
        """Return scale · N · max(1, 1/(r + ε)), (N,).

        Raises:
            ValueError: No ratio was given.
        """
        if batch.ratio is None:
            raise ValueError("MaxRatio needs ratio: pass step(..., ratio=π_old(a|s)/π_new(a|s)) of shape (N,)")
        ratio = batch.ratio if self.orientation == "paper" else batch.ratio.reciprocal()
        return (ratio + self.eps).reciprocal().clamp(min=1.0) * (self.scale * batch.size)


@dataclass(frozen=True)
class ConstantNoise(Noise):
    """σᵢ = variance: the right choice when the scatter of the returns is known.

    Args:
        variance: Of one target label, > 0. With :class:`kova.LabelUnits` the unit is the variance of all labels; to
            give it in the labels' own units, pass ``units=kova.RawUnits()``.
    """

    variance: float

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "variance", _checks.positive("variance", self.variance))

    def covariance(self, batch: Batch) -> float:
        """Return the variance."""
        return self.variance
