"""Where the copies of an environment run: one after the other in this process, or each in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

Maker = Callable[[], gym.Env[Any, Any]]

#: Seconds that a process has to close its environment before it is ended.
PATIENCE = 5.0


class Environments(DummyVecEnv):
    """Environments one after the other, whose infos are handed out as they are.

    Upstream copies them deeply: 8 % of a run of A2C on Ant. An environment makes new ones in every step.
    """

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment, and begin again where an episode ended."""
        for index, env in enumerate(self.envs):
            observation, reward, terminated, truncated, info = env.step(self.actions[index])
            self.buf_rews[index], self.buf_dones[index] = float(reward), terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if self.buf_dones[index]:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            self.buf_infos[index] = info
            self._save_obs(index, observation)
        return self._obs_from_buf(), self.buf_rews.copy(), self.buf_dones.copy(), list(self.buf_infos)


class Processes(SubprocVecEnv):
    """Environments in processes of their own that leave Ctrl-C to this one, and can be closed at any moment.

    Args:
        makers: Each makes one environment.
    """

    def __init__(self, makers: Sequence[Maker]) -> None:
        # What cannot be made is refused here: in a process of its own it would be a traceback.
        makers[0]().close()
        if "forkserver" in multiprocessing.get_all_start_methods():
            # Imported once, not by every process.
            multiprocessing.get_context("forkserver").set_forkserver_preload(
                [__name__, "kova.experiments.runs.environments"]
            )
        super().__init__([partial(_deaf_to_ctrl_c, maker) for maker in makers])

    def reset(self) -> VecEnvObs:
        """Reset every environment."""
        with _explained():
            return super().reset()

    def step_async(self, actions: Any) -> None:
        """Send every environment its action."""
        with _explained():
            super().step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return what the environments answer, with rewards of the type that they have in one process."""
        with _explained():
            observations, rewards, dones, infos = super().step_wait()
        return observations, rewards.astype("float32"), dones, list(infos)

    def close(self) -> None:
        """End the processes; upstream would wait for answers that a second Ctrl-C has already taken."""
        if self.closed:
            return
        for remote in self.remotes:
            with contextlib.suppress(OSError):
                remote.send(("close", None))
        for process in self.processes:
            process.join(PATIENCE)
            if process.is_alive():
                process.terminate()
                process.join()
        self.closed = True


@contextlib.contextmanager
def _explained() -> Any:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RuntimeError("the process of an environment ended; --vec dummy shows its error") from error


def _deaf_to_ctrl_c(maker: Maker) -> gym.Env[Any, Any]:
    """Make an environment in a process that ignores Ctrl-C: the one that trains says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return maker()


#: By the names that ``--vec`` takes.
VECTORS: Mapping[str, Callable[[Sequence[Maker]], VecEnv]] = {
    "dummy": lambda makers: Environments(list(makers)),
    "subproc": Processes,
}
