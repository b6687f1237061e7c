"""Your own evolution and noise models: each is a small class with one method.

Labels with outliers on a target that jumps half-way. The evolution below mixes fading memory and a random walk, which
the library does not ship; the noise distrusts a label in proportion to how surprising it is.
"""

from dataclasses import dataclass

import torch
from torch import nn

import kova


@dataclass(frozen=True)
class FadingRandomWalk(kova.Evolution):
    """Forget gently, and drift a little in every direction."""

    eta: float
    drift: float

    def predict(self, P: kova.Prediction) -> kova.Prediction:
        return P.scaled(1 / (1 - self.eta)).shifted(self.drift).guarded(None)


@dataclass(frozen=True)
class Huber(kova.Noise):
    """Beyond ``threshold`` standard deviations a sample pulls with constant force, like the Huber loss."""

    variance: float
    threshold: float

    def covariance(self, batch: kova.noise.Batch) -> torch.Tensor:
        surprise = batch.innovation.abs() / self.variance**0.5
        return self.variance * (surprise / self.threshold).clamp(min=1.0)


def fit(noise: kova.Noise) -> float:
    """Return the error against the clean target at the end."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = kova.KOVA(critic, evolution=FadingRandomWalk(eta=0.02, drift=1e-4), noise=noise)
    for update in range(200):
        state = 4 * torch.rand(32, 1) - 2
        clean = torch.sin(2 * state[:, 0]) + (2.0 if update >= 100 else 0.0)
        outlier = (torch.rand(32) < 0.05).float() * 20
        optimizer.step(state, clean + 0.1 * torch.randn(32) + outlier)
    state = torch.linspace(-2, 2, 100)[:, None]
    return float((optimizer.predict(state).mean - torch.sin(2 * state[:, 0]) - 2.0).square().mean().sqrt())


def main() -> tuple[float, float]:
    plain, robust = fit(kova.ConstantNoise(0.1)), fit(Huber(0.1, threshold=2.0))
    print(f"error with constant noise {plain:.3f}, with the Huber noise {robust:.3f}")
    return plain, robust


if __name__ == "__main__":
    main()
