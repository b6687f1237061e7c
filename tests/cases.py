"""Critics, data and models that several tests share."""

from __future__ import annotations

import math

import reference
import torch
from torch import Tensor, nn

import kova

INPUTS = 3

#: (evolution, its literal rule) with the guard set low enough to act within a few dozen steps.
EVOLUTIONS = [
    (kova.Static(), reference.static()),
    (kova.FadingMemory(0.1, max_variance=1.5), reference.fading(0.1, 1.5)),
    (kova.FadingMemory(0.01, max_variance=math.inf), reference.fading(0.01, math.inf)),
    (kova.PriorRelaxation(0.05), reference.relaxation(0.05)),
    (kova.DirectionalForgetting(0.1, max_variance=1.2), reference.directional(0.1, 1.2)),
    (kova.DirectionalForgetting(0.1), reference.directional(0.1, 10.0)),
    (kova.RandomWalk(0.01), reference.random_walk(0.01)),
    (kova.Memoryless(0.1), reference.memoryless(0.1)),
]
EVOLUTION_IDS = [repr(evolution) for evolution, _ in EVOLUTIONS]

#: Those that keep a matrix.
REMEMBERING = [evolution for evolution, _ in EVOLUTIONS if evolution.keeps_memory]


def mlp(inputs: int = INPUTS, hidden: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        ).to(dtype)


def paper_filter(critic: nn.Module, observation_fn: object = None, **settings: object) -> kova.KOVA:
    """Return the paper's filter: its models, P₀ = I, labels as they are; the default looks after these itself."""
    if "prior_variance" not in settings and not isinstance(settings.get("covariance"), kova.Covariance):
        settings = {"prior": kova.Isotropic(), **settings}
    models = {"evolution": kova.FadingMemory(0.01), "noise": kova.BatchSize(), "units": kova.RawUnits()}
    return kova.KOVA(critic, observation_fn, **{**models, **settings})


def linear(inputs: int = INPUTS, seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(inputs, 1).double()


def batch(size: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and smooth, slightly noisy targets."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(size, INPUTS, generator=generator, dtype=torch.float64)
    y = (2 * u[:, 0]).sin() + u[:, 1] * u[:, 2] + 0.1 * torch.randn(size, generator=generator, dtype=torch.float64)
    return u.to(dtype), y.to(dtype)


def mask(critic: nn.Module, structure: str) -> Tensor:
    """Return 1 where the structure keeps a covariance, written down entry by entry."""
    place = []
    for name, parameter in critic.named_parameters():
        layer = name.rpartition(".")[0]
        for entry in range(parameter.numel()):
            unit = entry // (parameter.numel() // parameter.shape[0])
            place.append((layer, unit))
    dim = len(place)
    same = {
        "full": lambda i, j: True,
        "layer": lambda i, j: place[i][0] == place[j][0],
        "neuron": lambda i, j: place[i] == place[j],
        "diagonal": lambda i, j: i == j,
    }
    if structure.startswith("block:"):
        size = int(structure.removeprefix("block:"))
        keep = lambda i, j: i // size == j // size  # noqa: E731
    else:
        keep = same[structure]
    return torch.tensor([[float(keep(i, j)) for j in range(dim)] for i in range(dim)], dtype=torch.float64)


def theta(critic: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(critic.parameters()).detach().clone()


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def snapshot(optimizer: kova.KOVA) -> list[Tensor]:
    """Every number that a failed call must leave alone, as bits."""
    state = optimizer.state_dict()
    found = [theta(optimizer.observation.module), torch.tensor(float(state["steps"]))]
    pending: list[object] = [state["covariance"]]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, Tensor):
            found.append(item.clone())
        elif isinstance(item, float | int):
            found.append(torch.tensor(float(item), dtype=torch.float64))
    return found


def same_bits(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
