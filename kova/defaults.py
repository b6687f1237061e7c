"""The models of a filter whose user names none."""

from __future__ import annotations

from dataclasses import dataclass

from kova.evolution import Evolution, FadingMemory, PriorRelaxation
from kova.noise import BatchSize, ConstantNoise, Noise
from kova.prior import FanIn, Isotropic, Prior
from kova.units import Units


@dataclass(frozen=True)
class Defaults:
    """One model of each kind.

    Attributes:
        evolution: P_v.
        noise: P_n.
        prior: P_{0|0}.
    """

    evolution: Evolution
    noise: Noise
    prior: Prior


#: In units of the labels, chosen by ``kova bench streams`` (docs/defaults.md): a label's noise is a twentieth of the
#: variance that labels have.
IN_UNITS = Defaults(PriorRelaxation(0.0003), ConstantNoise(0.05), FanIn())

#: For labels as they are: the paper's models, and those of 0.1.0, so that what it saved goes on as it was.
RAW = Defaults(FadingMemory(0.01), BatchSize(), Isotropic())


def of(units: Units) -> Defaults:
    """Return the defaults of a filter with these units."""
    return IN_UNITS if units.active else RAW
