"""What a reward that the critic sees is worth as the environment pays it."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch.distributions import Normal


def reward_unit(env: VecEnv | None) -> float:
    """Return by what values of the critic are multiplied to be in the environment's own units.

    Args:
        env: The environment of the agent; ``VecNormalize``, wherever among its wrappers, divides rewards by a running
            deviation of the returns.
    """
    normaliser = None if env is None else unwrap_vec_normalize(env)
    if normaliser is None or not normaliser.norm_reward:
        return 1.0
    return float(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))


def as_paid(value: Normal, unit: float) -> Normal:
    """Return a value of the critic, in the critic's units, in the environment's own."""
    return Normal(unit * value.mean, unit * value.stddev)
