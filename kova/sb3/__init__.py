"""Stable-Baselines3's algorithms with a Kalman critic: change the import line and keep the rest.

from kova.sb3 import PPO  # was: from stable_baselines3 import PPO
"""

from kova.installation import pip_install

try:
    import sb3_contrib
    import stable_baselines3
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is missing; kova.sb3 needs: {pip_install('sb3')}", name=error.name
    ) from None

from kova.sb3.a2c import A2C
from kova.sb3.ddpg import DDPG
from kova.sb3.dqn import DQN
from kova.sb3.exploration import UCBDQN, ThompsonDQN
from kova.sb3.ppo import PPO
from kova.sb3.sac import SAC
from kova.sb3.td3 import TD3
from kova.sb3.trpo import TRPO

__all__ = ["A2C", "DDPG", "DQN", "PPO", "SAC", "TD3", "TRPO", "UCBDQN", "ThompsonDQN"]

del sb3_contrib, stable_baselines3
