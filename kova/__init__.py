"""Kalman critics for reinforcement learning: value functions and their uncertainty by an extended Kalman filter."""

from kova import covariance, objectives, posterior, targets
from kova.adaptive_evolution import EvidenceForgetting
from kova.adaptive_noise import InnovationNoise, InverseVariance, Robust
from kova.covariance import Covariance
from kova.errors import CovarianceTooLarge, NumericalError
from kova.evolution import (
    DirectionalForgetting,
    Evolution,
    FadingMemory,
    Memoryless,
    PriorRelaxation,
    RandomWalk,
    Static,
)
from kova.noise import BatchSize, ConstantNoise, MaxRatio, Noise
from kova.optimizer import KOVA
from kova.overlap import Overlapping
from kova.prediction import Prediction
from kova.prior import ByName, FanIn, Isotropic, Prior
from kova.step_report import StepReport
from kova.trust import GainRatio, Trust, Unchecked
from kova.units import LabelUnits, RawUnits, Units

__version__ = "0.2.0.dev0"

__all__ = [
    "KOVA",
    "BatchSize",
    "ByName",
    "ConstantNoise",
    "Covariance",
    "CovarianceTooLarge",
    "DirectionalForgetting",
    "EvidenceForgetting",
    "Evolution",
    "FadingMemory",
    "FanIn",
    "GainRatio",
    "InnovationNoise",
    "InverseVariance",
    "Isotropic",
    "LabelUnits",
    "MaxRatio",
    "Memoryless",
    "Noise",
    "NumericalError",
    "Overlapping",
    "Prediction",
    "Prior",
    "PriorRelaxation",
    "RandomWalk",
    "RawUnits",
    "Robust",
    "Static",
    "StepReport",
    "Trust",
    "Unchecked",
    "Units",
    "covariance",
    "objectives",
    "posterior",
    "targets",
]
