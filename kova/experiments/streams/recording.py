"""Recording: an agent of upstream learns, and every frame that it sees is kept."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn, VecEnvWrapper

from kova.experiments.errors import UsageError
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.experiments.streams.stream import Stream


class Recorder(VecEnvWrapper):
    """Keeps what passes between agent and environment.

    Args:
        venv: The environments, as the agent sees them.
        as_paid: Keep rewards as the environment pays them, not as VecNormalize shows them.
    """

    def __init__(self, venv: VecEnv, *, as_paid: bool = True) -> None:
        super().__init__(venv)
        self._as_paid = as_paid and isinstance(venv, VecNormalize)
        self._steps: list[dict[str, np.ndarray]] = []
        self._observations: np.ndarray = np.empty(0)
        self._actions: np.ndarray = np.empty(0)

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        observations = self.venv.reset()
        self._observations = np.array(observations, dtype=np.float32)
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions."""
        self._actions = np.array(actions, dtype=np.float32).reshape(self.num_envs, -1)
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Keep the step."""
        observations, rewards, dones, infos = self.venv.step_wait()
        after = np.array(observations, dtype=np.float32)
        for number, info in enumerate(infos):
            if dones[number]:
                after[number] = info["terminal_observation"]
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos]) & dones
        paid = self.venv.get_original_reward() if self._as_paid else rewards  # type: ignore[attr-defined]
        self._steps.append(
            {
                "observations": self._observations,
                "next_observations": after,
                "actions": self._actions,
                "rewards": np.array(paid, dtype=np.float32),
                "terminated": dones & ~truncated,
                "truncated": truncated,
            }
        )
        self._observations = np.array(observations, dtype=np.float32)
        return observations, rewards, dones, infos

    def stream(self) -> Stream:
        """Return what was kept."""
        columns = {name: torch.from_numpy(np.stack([step[name] for step in self._steps])) for name in self._steps[0]}
        space = self.action_space
        return Stream(**columns, choices=int(space.n) if isinstance(space, spaces.Discrete) else 0)


def record(config: RunConfig) -> Stream:
    """Train an agent and return its frames.

    Raises:
        UsageError: The environment does not exist or does not fit, or its observations are not vectors.
    """
    env = environments.normalized(environments.make(config), config)
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UsageError(f"{config.env} has observations of the kind {space}; choose one with vectors")
    recorder = Recorder(env)
    try:
        build(config, recorder).learn(config.steps)
    finally:
        env.close()
    return recorder.stream()
