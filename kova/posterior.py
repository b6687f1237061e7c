"""What the filter believes about values and labels, and scores of such beliefs.

The scores take a Normal of shape (N,) and the outcomes, (N,); lower NLL, CRPS and sharpness are better, coverage
should equal its level and the PIT be uniform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal

from kova import _checks


@dataclass(frozen=True, eq=False)
class Predictive:
    """A value and a label at N inputs, with the two sources of spread kept apart.

    Attributes:
        mean: h(u; θ), (N,).
        epistemic: j P jᵀ, (N,): what more data would remove.
        observation: R, (N,): the scatter of labels around the value, which no data remove.
    """

    mean: Tensor
    epistemic: Tensor
    observation: Tensor

    @property
    def value(self) -> Normal:
        """The distribution of h(u; θ) under the posterior."""
        return _normal(self.mean, self.epistemic)

    @property
    def label(self) -> Normal:
        """The distribution of a label y."""
        return _normal(self.mean, self.epistemic + self.observation)


def _normal(mean: Tensor, variance: Tensor) -> Normal:
    # A Normal needs a positive scale; rounding can leave a well-known value at or just below 0.
    return Normal(mean, variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt())


def nll(belief: Normal, outcome: Tensor) -> Tensor:
    """Return the mean negative log-likelihood, a 0-dim tensor."""
    likelihood: Tensor = belief.log_prob(_checked(belief, outcome))
    return -likelihood.mean()


def crps(belief: Normal, outcome: Tensor) -> Tensor:
    """Return the mean continuous ranked probability score, σ (z (2Φ(z) - 1) + 2φ(z) - 1/√π), a 0-dim tensor."""
    z = _standardised(belief, outcome)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    cumulative: Tensor = torch.special.ndtr(z)
    stddev: Tensor = belief.stddev
    return (stddev * (z * (2 * cumulative - 1) + 2 * density - 1 / math.sqrt(math.pi))).mean()


def pit(belief: Normal, outcome: Tensor) -> Tensor:
    """Return the probability integral transform Φ((y - μ)/σ), (N,)."""
    transformed: Tensor = torch.special.ndtr(_standardised(belief, outcome))
    return transformed


def pit_histogram(belief: Normal, outcome: Tensor, bins: int = 10) -> Tensor:
    """Return the share of the PIT in equal bins of [0, 1], (bins,); 1/bins each for a calibrated belief."""
    transformed = pit(belief, outcome)
    counts = torch.histc(transformed.float(), bins, 0.0, 1.0)
    return counts / len(transformed)


def coverage(belief: Normal, outcome: Tensor, levels: Sequence[float] = (0.5, 0.8, 0.95)) -> Tensor:
    """Return the share of outcomes inside the central interval of each level, (levels,).

    Raises:
        ValueError: A level is not in (0, 1).
    """
    if not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels must be in (0, 1), got {list(levels)}")
    distance = _standardised(belief, outcome).abs()
    bounds: Tensor = torch.special.ndtri(0.5 + 0.5 * torch.tensor(levels, dtype=torch.float64))
    return (distance.double()[:, None] <= bounds).double().mean(0)


def sharpness(belief: Normal) -> Tensor:
    """Return the mean standard deviation, a 0-dim tensor."""
    stddev: Tensor = belief.stddev
    return stddev.mean()


def check_variance(value: float | Tensor, mean: Tensor) -> float | Tensor:
    """Return an observation noise for N predictions, checked: a number or (N,) variances."""
    if not isinstance(value, Tensor):
        return _checks.non_negative("observation_noise", value)
    if value.dim() == 0:
        value = value.expand(mean.shape)
    variance = _checks.per_sample("observation_noise", value, mean, size=mean.shape[0])
    if bool((variance < 0).any()):
        raise ValueError("observation_noise is a variance and must be >= 0")
    return variance.to(mean.dtype)


def _standardised(belief: Normal, outcome: Tensor) -> Tensor:
    z: Tensor = (_checked(belief, outcome) - belief.mean) / belief.stddev
    return z


def _checked(belief: Normal, outcome: Tensor) -> Tensor:
    if outcome.shape != belief.mean.shape:
        raise ValueError(f"outcome must have the belief's shape {tuple(belief.mean.shape)}, got {tuple(outcome.shape)}")
    return outcome
