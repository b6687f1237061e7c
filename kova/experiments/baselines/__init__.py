"""Methods that evaluate a policy, behind one interface, to compare KOVA with."""

from kova.experiments.baselines.adam import AdamLearner
from kova.experiments.baselines.base import Learner, ValueEstimate
from kova.experiments.baselines.coloured_gptd import ColouredGPTD
from kova.experiments.baselines.drift import AdaptiveDrift, Drift, RandomWalkDrift
from kova.experiments.baselines.gptd import GPTD
from kova.experiments.baselines.ktd import KTD
from kova.experiments.baselines.labels import lambda_labels
from kova.experiments.baselines.lstd import LSTD
from kova.experiments.baselines.td_lambda import TDLambda
from kova.experiments.baselines.unscented import ValueFunction, critic_value, linear_value
from kova.experiments.baselines.xktd import XKTD

__all__ = [
    "GPTD",
    "KTD",
    "LSTD",
    "XKTD",
    "AdamLearner",
    "AdaptiveDrift",
    "ColouredGPTD",
    "Drift",
    "Learner",
    "RandomWalkDrift",
    "TDLambda",
    "ValueEstimate",
    "ValueFunction",
    "critic_value",
    "lambda_labels",
    "linear_value",
]
