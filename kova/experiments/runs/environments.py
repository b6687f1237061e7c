"""The environment of a run: vectorised, monitored, normalised."""

from __future__ import annotations

import contextlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn, VecEnvWrapper

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs import env_kwargs
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import suggestion
from kova.experiments.runs.vectors import VECTORS
from kova.experiments.runs.wrappers import wrapped


class WithoutTimeLimitBootstrap(VecEnvWrapper):
    """Treats the end of the time limit as an end of the task, as OpenAI baselines did."""

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Remove the mark of an episode that the time limit ended."""
        observations, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            info["TimeLimit.truncated"] = False
        return observations, rewards, dones, infos


def make(config: RunConfig, render_mode: str | None = None) -> VecEnv:
    """Return the environments of a run, without the normalisation.

    Raises:
        UsageError: The environment does not exist or cannot be made.
    """
    maker = _Maker(config.env, config.env_kwargs, tuple(config.wrappers), render_mode)
    env = VECTORS[config.vec]([maker] * config.n_envs)
    if is_image_space(env.observation_space):
        env = VecTransposeImage(env)
    return env if config.time_limit_bootstrap else WithoutTimeLimitBootstrap(env)


def normalized(env: VecEnv, config: RunConfig, saved: Path | None = None) -> VecEnv:
    """Return the environments with the running normalisation of the run, continued from ``saved``."""
    if not (config.normalize_observations or config.normalize_rewards):
        return env
    if saved is not None:
        return VecNormalize.load(str(saved), env)
    images_or_choices = is_image_space(env.observation_space) or not isinstance(
        env.observation_space, spaces.Box | spaces.Dict
    )
    return VecNormalize(
        env,
        norm_obs=config.normalize_observations and not images_or_choices,
        norm_reward=config.normalize_rewards,
        gamma=config.algorithm.get("gamma", 0.99),
    )


def policy_for(env: VecEnv) -> str:
    """Return upstream's policy for the kind of observation."""
    if isinstance(env.observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"


@dataclass(frozen=True)
class _Maker:
    """Makes one environment of a run, in this process or in another."""

    name: str
    kwargs: dict[str, Any]
    wrappers: tuple[str, ...]
    render_mode: str | None

    def __call__(self) -> gym.Env[Any, Any]:
        try:
            made = self._make(**self.kwargs)
        except gym.error.UnregisteredEnv as error:
            raise UsageError(f"environment {self.name!r} is unknown{_closest(self.name)}") from error
        except Exception as error:
            # Its package may raise any error.
            unknown = env_kwargs.refused(self._make, self.kwargs, error)
            if unknown:
                advice = env_kwargs.hint(self.name, unknown[0])
                raise UsageError(f"environment {self.name!r} does not take {', '.join(unknown)}{advice}") from error
            raise UsageError(f"environment {self.name!r} cannot be made: {one_line(error)}") from error
        # Outermost: a wrapper may end episodes or change rewards, and what is learnt from is what is reported.
        return Monitor(wrapped(made, self.wrappers))

    def _make(self, **kwargs: Any) -> gym.Env[Any, Any]:
        _quiet_mujoco(self.name)
        with warnings.catch_warnings():
            # The paper's v4 environments are out of date on purpose.
            warnings.filterwarnings("ignore", r".*is out of date.*")
            return gym.make(self.name, render_mode=self.render_mode, **kwargs)


def _quiet_mujoco(name: str) -> None:
    """Hide MuJoCo's deprecation warnings about Gymnasium's models, which it would also write to MUJOCO_LOG.TXT."""
    spec = gym.registry.get(name)
    if spec is not None and "mujoco" in str(spec.entry_point):
        with contextlib.suppress(ImportError):
            import mujoco  # type: ignore[import-untyped,unused-ignore]

            mujoco.set_mju_user_warning(_pass_on)


def _pass_on(message: str) -> None:
    if "deprecated" not in message:
        sys.stderr.write(f"MuJoCo: {message}\n")


def _closest(name: str) -> str:
    hint = suggestion(name, gym.registry)
    return hint if "did you mean" in hint else "; check its name and version, or install the package that registers it"
