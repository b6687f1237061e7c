"""Exploration by the filter's posterior: Thompson sampling and upper confidence bounds for DQN.

Both replace Q by an uncertain value Q̃, a draw or an upper bound, in the action *and* in the label:

    a = argmax_a Q̃(s, a),    y = r + γ max_a' Q̃(s', a').

If Q̃ only chose actions, exploration would be myopic: the filter would learn that the first step towards an unknown
state is worth nothing, and soon be certain of it. Because the labels bootstrap from Q̃ too, the uncertain value of a
state that was never tried reaches the states before it, through all transitions in the replay buffer. Thompson
sampling keeps one draw for a whole episode, long enough to get there.

The labels of a state and action move with Q̃, so the filter must not become certain of them: its default evolution
returns slowly to the prior. A pair that is never tried keeps the prior's variance; one that is replayed follows its
label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.type_aliases import PyTorchObs, ReplayBufferSamples, TrainFrequencyUnit
from torch import Tensor

from kova.evolution import PriorRelaxation
from kova.noise import ConstantNoise
from kova.sb3 import upstream
from kova.sb3.dqn import DQN
from kova.sb3.signature import with_upstreams_arguments
from kova.units import RawUnits

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.dqn.policies import DQNPolicy

    from kova.sb3.critic import Critic


class PosteriorDQN(DQN):
    """DQN that acts greedily on, and bootstraps from, values that carry their uncertainty; ε has no effect.

    The filter's defaults are cautious. How much it explores depends on three scales. ``prior_variance`` sets σ of a
    value that was never tried; it should be as large as the values to be expected. The noise should be that of a
    label, small where the task is deterministic. Forgetting should leave σ of what was tried far below both.

    Args:
        args: As upstream.
        learning_starts: As upstream; nothing has to be tried at random first.
        train_freq: As upstream.
        gradient_steps: As upstream; N of them carry a value about N transitions far.
        target_update_interval: In Kalman steps, not in steps of the environment.
        kwargs: As upstream, and :class:`~kova.sb3.DQN`'s.
    """

    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {
        "covariance": "neuron",
        "prior_variance": 0.1,
        "evolution": PriorRelaxation(1e-4),
        "noise": ConstantNoise(1.0),
        # The prior says how large values may be before any was seen, so it cannot be in units of those seen.
        "units": RawUnits(),
    }

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[DQNPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.0001,
            buffer_size: int = 1000000,
            learning_starts: int = 0,
            batch_size: int = 32,
            tau: float = 1.0,
            gamma: float = 0.99,
            train_freq: int | tuple[int, str] = (1, "episode"),
            gradient_steps: int = -1,
            replay_buffer_class: type[ReplayBuffer] | None = None,
            replay_buffer_kwargs: dict[str, Any] | None = None,
            optimize_memory_usage: bool = False,
            n_steps: int = 1,
            target_update_interval: int = 1,
            exploration_fraction: float = 0.1,
            exploration_initial_eps: float = 1.0,
            exploration_final_eps: float = 0.05,
            max_grad_norm: float = 10,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: torch.device | str = "auto",
            _init_setup_model: bool = True,
            *,
            critic: Critic = "kova",
            critic_kwargs: dict[str, Any] | None = None,
            critic_learning_rate: float | None = None,
        ) -> None: ...

    else:

        def __init__(
            self,
            *args: Any,
            learning_starts: int = 0,
            train_freq: int | tuple[int, str] = (1, "episode"),
            gradient_steps: int = -1,
            target_update_interval: int = 1,
            **kwargs: Any,
        ) -> None:
            super().__init__(
                *args,
                learning_starts=learning_starts,
                train_freq=train_freq,
                gradient_steps=gradient_steps,
                target_update_interval=target_update_interval,
                **kwargs,
            )

    @abstractmethod
    def _uncertain_values(self, observations: PyTorchObs) -> Tensor:
        """Return Q̃(s, ·), (N, actions)."""

    @torch.no_grad()
    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return argmax_a Q̃(s, a), or with ``deterministic`` argmax_a Q(s, a; θ)."""
        if deterministic:
            return self.policy.predict(observation, state, episode_start, deterministic=True)
        self.policy.set_training_mode(False)
        observations, vectorised = self.policy.obs_to_tensor(observation)
        actions = self._uncertain_values(observations).argmax(dim=1).cpu().numpy()
        return (actions if vectorised else actions.squeeze(axis=0)), state

    def _next_values(self, batch: ReplayBufferSamples) -> Tensor:
        return self._uncertain_values(batch.next_observations)

    def _on_step(self) -> None:
        """Leave out upstream's ε, and its update of the target network: ``_follow`` does that."""

    def _follow(self, batch: ReplayBufferSamples) -> None:
        if upstream.updates(self) % self.target_update_interval == 0:
            self._update_target()

    @abstractmethod
    def _update_target(self) -> None:
        """Let the target network follow θ."""


@with_upstreams_arguments
class ThompsonDQN(PosteriorDQN):
    """Thompson sampling: Q̃ = Q(·; θ + ε), one ε ~ N(0, P) for every episode, from any covariance structure.

    The target network holds the draw, θ + ε. Before an episode ε is drawn, and the filter is trained on the replay
    buffer with labels from θ + ε. θ moves and ε stays, until Q̃(s, a) ≈ r + γ max_a' Q̃(s', a') for the pairs that
    were tried; elsewhere Q̃ is a draw from the prior. This is RLSVI (Osband et al., 2016), with the replayed filter
    in the place of a regression from scratch. The episode is then played greedily on θ + ε.

    Arguments are those of :class:`PosteriorDQN`.

    Raises:
        ValueError: ``train_freq`` is not in episodes.
    """

    def _setup_critic(self) -> None:
        super()._setup_critic()
        if getattr(self.train_freq, "unit", None) is not TrainFrequencyUnit.EPISODE:
            raise ValueError('train_freq must be in episodes, as in (1, "episode"): a draw is for a whole episode')
        self._draw()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Draw anew and let the draw learn from the replay buffer."""
        self._draw()
        super().train(gradient_steps, batch_size)

    def _draw(self) -> None:
        kalman = self._filter()
        draw = kalman.sample(1)
        mean = kalman.observation.parameters
        self._deviation = {name: draw[name][0] - parameter.detach() for name, parameter in mean.items()}
        self._update_target()

    def _update_target(self) -> None:
        mean = self.q_net.state_dict()
        self.q_net_target.load_state_dict({**mean, **{name: mean[name] + e for name, e in self._deviation.items()}})

    def _uncertain_values(self, observations: PyTorchObs) -> Tensor:
        values: Tensor = self.q_net_target(observations)
        return values

    def _excluded_save_params(self) -> list[str]:
        # Drawn anew before it is needed; the draw itself is saved with the policy.
        return [*super()._excluded_save_params(), "_deviation"]


@with_upstreams_arguments
class UCBDQN(PosteriorDQN):
    """Optimism: Q̃(s, a) = Q(s, a; θ') + c·σ(s, a) with σ² = j P jᵀ, the variance of Q(s, a) under the posterior.

    Args:
        args: As :class:`PosteriorDQN`.
        confidence: c >= 0.
        kwargs: As :class:`PosteriorDQN`.
    """

    def __init__(self, *args: Any, confidence: float = 1.0, **kwargs: Any) -> None:
        if confidence < 0.0:
            raise ValueError(f"confidence must be >= 0, got {confidence}")
        self.confidence = confidence
        super().__init__(*args, **kwargs)

    def _update_target(self) -> None:
        self.q_net_target.load_state_dict(self.q_net.state_dict())

    def _uncertain_values(self, observations: PyTorchObs) -> Tensor:
        means: Tensor = self.q_net_target(observations)
        size, count = means.shape
        actions = torch.arange(count, device=means.device).repeat(size)[:, None]
        repeated = _repeated(observations, count)
        sigma = self._filter().predict((repeated, actions)).stddev.view(size, count)
        return means + self.confidence * sigma.to(means.dtype)


def _repeated(observations: PyTorchObs, count: int) -> Any:
    """Return every observation ``count`` times in a row."""
    if isinstance(observations, dict):
        return {key: value.repeat_interleave(count, dim=0) for key, value in observations.items()}
    return observations.repeat_interleave(count, dim=0)
