"""The models of a filter whose user names none, and those of 0.1.0, with which what it saved goes on."""

from __future__ import annotations

from kova.evolution import Evolution, FadingMemory, PriorRelaxation
from kova.noise import BatchSize, ConstantNoise, Noise

#: Chosen by ``kova bench streams``; see docs/defaults.md. In units of the labels: a label's noise is a tenth of the
#: variance that labels have.
EVOLUTION: Evolution = PriorRelaxation(0.001)
NOISE: Noise = ConstantNoise(0.1)

#: Of 0.1.0, which had no units.
EVOLUTION_010: Evolution = FadingMemory(0.01)
NOISE_010: Noise = BatchSize()
