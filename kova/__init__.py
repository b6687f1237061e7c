"""Kalman critics for reinforcement learning: value functions and their uncertainty by an extended Kalman filter."""

from kova import covariance, objectives, posterior, targets
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
from kova.prediction import Prediction
from kova.step_report import StepReport

__version__ = "0.1.0"

__all__ = [
    "KOVA",
    "BatchSize",
    "ConstantNoise",
    "Covariance",
    "CovarianceTooLarge",
    "DirectionalForgetting",
    "Evolution",
    "FadingMemory",
    "InnovationNoise",
    "InverseVariance",
    "MaxRatio",
    "Memoryless",
    "Noise",
    "NumericalError",
    "Prediction",
    "PriorRelaxation",
    "RandomWalk",
    "Robust",
    "Static",
    "StepReport",
    "covariance",
    "objectives",
    "posterior",
    "targets",
]
