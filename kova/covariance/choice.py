"""The choice of a covariance structure: by name, or by what a step may cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import nn

from kova import memory
from kova.covariance.base import Covariance
from kova.covariance.block import Block
from kova.covariance.cost import Cost, adam_milliseconds
from kova.covariance.diagonal import Diagonal
from kova.covariance.full import Full
from kova.covariance.last_layer import LastLayer
from kova.covariance.layer import Layer
from kova.covariance.layout import Layout
from kova.covariance.low_rank import LowRank
from kova.covariance.neuron import Neuron
from kova.covariance.spherical import Spherical, SphericalPrediction
from kova.errors import CovarianceTooLarge
from kova.evolution import Evolution

#: "auto" takes the most faithful structure whose step costs at most as much as this many steps of Adam.
ADAM_STEPS = 5.0


@dataclass(frozen=True)
class Settings:
    """What every structure is made with.

    Attributes:
        prior_variance: p₀.
        dtype: Precision.
        batch_size: Samples of a typical step.
        memory_budget: Bytes that P and a step may take; ``None`` asks the machine, and for P only.
        flop_budget: Operations that a step of ``batch_size`` samples may spend on P before "auto" takes a sparser
            structure; ``None`` compares with Adam.
    """

    prior_variance: float
    dtype: torch.dtype
    batch_size: int
    memory_budget: int | None
    flop_budget: float | None


@dataclass(frozen=True, eq=False)
class Choice:
    """A covariance, and why it was chosen.

    Attributes:
        parameters: What is optimised, in order.
        covariance: Their covariance.
        reason: Why "auto" took this structure; empty if it was asked for.
        piece: Samples that one step takes at a time.
    """

    parameters: dict[str, nn.Parameter]
    covariance: Covariance
    reason: str
    piece: int


@dataclass(frozen=True)
class _Structure:
    """A named structure, before it is allocated."""

    name: str
    parameters_of: Callable[[nn.Module], dict[str, nn.Parameter]]
    cost: Callable[[Layout], Cost]
    build: Callable[[Layout, float, torch.dtype, torch.device], Covariance]


def _sized(kind: type[Block | LowRank], size: int) -> _Structure:
    return _Structure(
        f"{kind.name}:{size}",
        kind.parameters_of,
        lambda layout: kind.cost(layout, size),
        lambda layout, *rest: kind(layout, size, *rest),
    )


_PLAIN: Mapping[str, _Structure] = {
    kind.name: _Structure(kind.name, kind.parameters_of, kind.cost, kind)
    for kind in (Full, Layer, Neuron, Diagonal, LastLayer)
}
_SIZED: Mapping[str, type[Block | LowRank]] = {kind.name: kind for kind in (Block, LowRank)}

#: The names of all structures; those with a size without it.
STRUCTURES = frozenset({*_PLAIN, *_SIZED})

#: What "auto" tries and an error suggests, the most faithful first.
_MOST_FAITHFUL_FIRST = tuple(_PLAIN[name] for name in ("full", "layer", "neuron", "diagonal"))


def choose(critic: nn.Module, covariance: str | Covariance, evolution: Evolution, settings: Settings) -> Choice:
    """Return the parameters that are optimised and their covariance.

    Args:
        critic: The module.
        covariance: A name or an instance.
        evolution: Decides whether any matrix is needed.
        settings: The rest.

    Raises:
        TypeError: ``covariance`` is neither a name nor an instance, or ``evolution`` returns no prediction.
        ValueError: Unknown name, an instance that does not fit, or one that does not go with ``evolution``.
        CovarianceTooLarge: It does not fit in memory; nothing was allocated.
    """
    if isinstance(covariance, Covariance):
        parameters = _fitting_parameters(critic, covariance, evolution)
        piece = sys.maxsize if isinstance(covariance, Spherical) else _of_instance(covariance).piece(covariance.dim)
        return Choice(parameters, covariance, "", piece)
    if not isinstance(covariance, str):
        raise TypeError(f"covariance must be a name or a kova.covariance.Covariance, got {covariance!r}")
    structure, reason = _parse(covariance), ""
    parameters = (structure or _MOST_FAITHFUL_FIRST[0]).parameters_of(critic)
    layout, device = Layout.of(parameters), next(iter(parameters.values())).device
    variance = _predicted_prior(evolution, settings.prior_variance)
    if not evolution.keeps_memory:
        spherical = Spherical(layout, settings.prior_variance, variance, settings.dtype, device)
        # Batches are taken whole: every piece would start from the prior again, and J is never formed.
        return Choice(parameters, spherical, "", sys.maxsize)
    if covariance == Spherical.name:
        raise ValueError(f'covariance="memoryless" goes with evolution=Memoryless(eta), not with {evolution!r}')
    available = memory.available_bytes(device) if settings.memory_budget is None else settings.memory_budget
    if structure is None:
        structure, reason = _affordable(layout, available, settings)
    needed = structure.cost(layout).numbers * settings.dtype.itemsize
    if needed > available:
        _refuse(structure, layout, settings.dtype, available)
    built = structure.build(layout, settings.prior_variance, settings.dtype, device)
    piece = structure.cost(layout).piece(layout.dim, settings.dtype.itemsize, settings.memory_budget)
    return Choice(parameters, built, reason, piece)


def _affordable(layout: Layout, available: int, settings: Settings) -> tuple[_Structure, str]:
    """Return the most faithful structure that is affordable, or else the cheapest, and why."""
    size, dim = settings.batch_size, layout.dim
    adam = adam_milliseconds(dim, size)
    fitting = [s for s in _MOST_FAITHFUL_FIRST if s.cost(layout).numbers * settings.dtype.itemsize <= available]
    ratios = {structure.name: structure.cost(layout).milliseconds(dim, size) / adam for structure in fitting}

    def affordable(structure: _Structure) -> bool:
        if settings.flop_budget is not None:
            return structure.cost(layout).flops * size <= settings.flop_budget
        # A matrix may be free: where the batch is what costs, a sparser structure saves nothing.
        return ratios[structure.name] <= max(ADAM_STEPS, 1.1 * min(ratios.values()))

    chosen = next((structure for structure in fitting if affordable(structure)), _MOST_FAITHFUL_FIRST[-1])
    if chosen.name not in ratios:
        return chosen, "nothing larger fits in memory"
    if settings.flop_budget is not None:
        return chosen, f"the most faithful within {settings.flop_budget:g} operations at N = {size}"
    costs = ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items())
    return chosen, f"Adam steps that a step is worth at N = {size}: {costs}"


def _of_instance(covariance: Covariance) -> Cost:
    return Cost(covariance.nbytes // covariance.dtype.itemsize, 0, exact=isinstance(covariance, Full))


def _parse(name: str) -> _Structure | None:
    """Return the structure that a name stands for; ``None`` for "auto" and "memoryless"."""
    if name in ("auto", Spherical.name):
        return None
    if name in _PLAIN:
        return _PLAIN[name]
    kind, _, size = name.partition(":")
    if kind in _SIZED and size.isdecimal() and int(size) > 0:
        return _sized(_SIZED[kind], int(size))
    known = ["auto", *_PLAIN, *(f"{kind}:SIZE" for kind in _SIZED), Spherical.name]
    raise ValueError(f"covariance must be one of {', '.join(known)}, got {name!r}")


def _predicted_prior(evolution: Evolution, prior_variance: float) -> float:
    """Return the variance that ``evolution`` predicts from the prior; a bad model fails here, before any allocation."""
    trial = evolution.predict(SphericalPrediction(prior_variance, prior_variance))
    if not isinstance(trial, SphericalPrediction):
        raise TypeError(f"evolution.predict must return the prediction it builds from P, got {type(trial).__name__}")
    return trial.variance


def _fitting_parameters(critic: nn.Module, covariance: Covariance, evolution: Evolution) -> dict[str, nn.Parameter]:
    """Return the parameters that an instance is over, after checking that it goes with critic and evolution."""
    parameters = covariance.parameters_of(critic)
    device = next(iter(parameters.values())).device
    variance = _predicted_prior(evolution, covariance.prior_variance)
    if covariance.dim != Layout.of(parameters).dim:
        raise ValueError(f"covariance is over {covariance.dim} parameters, the critic has {Layout.of(parameters).dim}")
    if covariance.device != device:
        raise ValueError(f"covariance is on {covariance.device}, the critic on {device}")
    if evolution.keeps_memory == isinstance(covariance, Spherical):
        raise ValueError(f"covariance {type(covariance).__name__} does not go with evolution {evolution!r}")
    if isinstance(covariance, Spherical) and covariance.variance != variance:
        raise ValueError(f"covariance has variance {covariance.variance:g}, {evolution!r} makes it {variance:g}")
    return parameters


def _refuse(structure: _Structure, layout: Layout, dtype: torch.dtype, available: int) -> NoReturn:
    wanted = structure.cost(layout).numbers * dtype.itemsize
    fitting = [s for s in _MOST_FAITHFUL_FIRST if s.cost(layout).numbers * dtype.itemsize <= available]
    advice = "evolution=kova.Memoryless(eta) needs no matrix"
    if fitting:
        smaller = memory.human(fitting[0].cost(layout).numbers * dtype.itemsize)
        advice = f'covariance="{fitting[0].name}" needs {smaller} and would fit; {advice}'
    raise CovarianceTooLarge(
        f'covariance="{structure.name}" of {layout.dim:,} parameters needs {memory.human(wanted)}, '
        f"{memory.human(available)} may be used; {advice}",
        wanted=wanted,
        available=available,
    )
