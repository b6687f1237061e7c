"""What a reward that the critic sees is worth as the environment pays it."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize


def reward_unit(env: VecEnv | None) -> float:
    """Return by what values of the critic are multiplied to be in the environment's own units.

    Args:
        env: The environment of the agent; ``VecNormalize`` divides rewards by a running deviation of the returns.
    """
    if not isinstance(env, VecNormalize) or not env.norm_reward:
        return 1.0
    return float(np.sqrt(env.ret_rms.var + env.epsilon))
