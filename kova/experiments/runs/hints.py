"""What to write instead of settings that do not exist and are looked for all the same."""

from __future__ import annotations

from collections.abc import Mapping

ETA = "it belongs to the evolution model: --set 'critic.evolution=PriorRelaxation(0.001)'"
NOISE = "it belongs to the noise model: --set 'critic.noise=ConstantNoise(0.05)'"
RATE = "a Kalman critic has no learning rate; critic.learning_rate is the control arm's (--critic adam)"
STEPS = "write --steps N, or --set steps=N"
PRIOR = "write --set 'critic.prior=Isotropic(1.0)', or FanIn()"

#: {setting: advice}; a name without its section stands for any section that does not have it.
ADVICE: Mapping[str, str] = {
    "eta": ETA,
    "critic.forgetting": ETA,
    "critic.decay": ETA,
    "max_variance": "it belongs to the evolution model: --set 'critic.evolution=FadingMemory(0.01, max_variance=10)'",
    "variance": NOISE,
    "critic.R": NOISE,
    "critic.observation_noise": NOISE,
    "critic.lr": RATE,
    "critic.P0": PRIOR,
    "critic.alpha": "α is critic.step_size",
    "critic.rank": "write --set critic.covariance=low_rank:64",
    "critic.n_epochs": "passes of the filter over a rollout are critic.epochs",
    "critic.clip_range_vf": "a Kalman critic takes no clip: its trust region is P",
    "critic.vf_coef": "a Kalman critic takes no weight of its loss: it does not share one with the policy",
    "lr": "the policy's learning rate is algorithm.learning_rate",
    "total_timesteps": STEPS,
    "n_timesteps": STEPS,
    "timesteps": STEPS,
    "normalize": "write normalize_observations=true and normalize_rewards=true",
    "eval_freq": "write --eval-every N",
    "n_eval_episodes": "write --eval-episodes K",
    "vec_env": "write --vec subproc",
    "env_wrapper": "write --wrapper package.Name",
}


def of(key: str) -> str | None:
    """Return what to write instead of an unknown setting, if it is one of the usual mistakes."""
    if key.startswith("env_kwargs."):
        return f"write --env-kwargs {key.removeprefix('env_kwargs.')}=VALUE, or --set 'env_kwargs={{…}}'"
    return ADVICE.get(key) or ADVICE.get(key.rpartition(".")[2])
