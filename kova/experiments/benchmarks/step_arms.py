"""The arms of the step benchmark: one optimisation step of a critic on one batch, done in different ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import kova

Step = Callable[[], object]
StepMaker = Callable[[nn.Module, Tensor, Tensor], Step]

#: Hyper-parameters common to the filters; they do not change the work of a step.
EVOLUTION = kova.FadingMemory(0.01)


def critic(inputs: int, *units: int) -> nn.Sequential:
    """Return a tanh critic with these hidden layers."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip((inputs, *units), units, strict=False):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(units[-1], 1))


def adam(module: nn.Module, u: Tensor, y: Tensor) -> Step:
    """Forward, backward and a step of Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(u).squeeze(1), y).backward()
        optimizer.step()

    return step


def literal(module: nn.Module, u: Tensor, y: Tensor) -> Step:
    """Algorithm 1 as printed: P + P_v formed, S inverted, K formed; only the Jacobian is the library's fast one."""
    observation = kova.KOVA(module, evolution=kova.Memoryless(0.01)).observation
    size = len(u)
    P = torch.eye(observation.dim)

    def step() -> None:
        nonlocal P
        jacobian = observation.linearise(u, size, torch.float32)
        J = jacobian.transposed().T
        P = P + 0.01 / 0.99 * P
        cross = P @ J.T
        S = J @ P @ J.T + size * torch.eye(size)
        K = cross @ torch.linalg.inv(S)
        update = K @ (y - jacobian.values)
        with torch.no_grad():
            theta = nn.utils.parameters_to_vector(module.parameters()) + update
            nn.utils.vector_to_parameters(theta, module.parameters())
        P = P - K @ S @ K.T

    return step


def filtered(
    module: nn.Module,
    u: Tensor,
    y: Tensor,
    *,
    covariance: str,
    evolution: kova.Evolution,
    units: kova.Units | None = None,
) -> Step:
    """One step of the library's filter."""
    # One batch again and again leaves little to learn: with less noise P would soon need float64.
    optimizer = kova.KOVA(module, covariance=covariance, evolution=evolution, noise=kova.BatchSize(), units=units)
    return lambda: optimizer.step(u, y)


ARMS: Mapping[str, StepMaker] = {
    "literal Algorithm 1": literal,
    "full": partial(filtered, covariance="full", evolution=EVOLUTION),
    "full, raw units": partial(filtered, covariance="full", evolution=EVOLUTION, units=kova.RawUnits()),
    "full, directional": partial(filtered, covariance="full", evolution=kova.DirectionalForgetting(0.01)),
    "layer": partial(filtered, covariance="layer", evolution=EVOLUTION),
    "block:512": partial(filtered, covariance="block:512", evolution=EVOLUTION),
    "low_rank:64": partial(filtered, covariance="low_rank:64", evolution=EVOLUTION),
    "neuron": partial(filtered, covariance="neuron", evolution=EVOLUTION),
    "neuron, raw units": partial(filtered, covariance="neuron", evolution=EVOLUTION, units=kova.RawUnits()),
    "diagonal": partial(filtered, covariance="diagonal", evolution=EVOLUTION),
    "last_layer": partial(filtered, covariance="last_layer", evolution=EVOLUTION),
    "memoryless": partial(filtered, covariance="auto", evolution=kova.Memoryless(0.01)),
    "Adam": adam,
}


def make(arm: str, shape: tuple[int, ...], size: int) -> Step:
    """Return the step of an arm on a fresh critic; every arm starts from the same weights and batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, u, y = critic(*shape), torch.randn(size, shape[0]), torch.randn(size)
    return ARMS[arm](copy.deepcopy(module), u, y)
