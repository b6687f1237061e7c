# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A2C and PPO by one changed import
#
# The algorithms of `kova.sb3` are those of Stable-Baselines3 with a Kalman critic. The import line is the whole
# migration. What is new are two questions: how well is a value known, and where will the return fall?

# %%
import matplotlib.pyplot as plt
import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import kova.sb3

TASK, FRAMES = "Pendulum-v1", 20_480
SETTINGS = {"A2C": {}, "PPO": {"n_steps": 256}}

# %% [markdown]
# ## Train both
#
# Same task, same settings, same seed. The pendulum pays down to -16 a frame, and nothing is normalised. One seed is a
# picture and no result: the results are on the site, with intervals.


# %%
class Episodes(BaseCallback):
    """Keeps the frame at which every training episode ended, and its return."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        self.ended += [(self.num_timesteps, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return True


def train(module, name: str):
    """Return a model of ``module.name`` and its training episodes."""
    env = make_vec_env(TASK, n_envs=8, seed=0)
    episodes = Episodes()
    model = getattr(module, name)("MlpPolicy", env, seed=0, device="cpu", **SETTINGS[name])
    return model.learn(FRAMES, callback=episodes), np.array(episodes.ended)


runs = {
    (name, label): train(module, name)
    for name in ("A2C", "PPO")
    for label, module in (("Stable-Baselines3", stable_baselines3), ("kova", kova.sb3))
}

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 3.2), sharey=True)
for axis, name in zip(axes, ("A2C", "PPO"), strict=True):
    for label in ("Stable-Baselines3", "kova"):
        frames, returns = runs[name, label][1].T
        mean = np.convolve(returns, np.ones(20) / 20, mode="valid")
        axis.plot(frames[-len(mean) :], mean, label=label)
    axis.set(title=name, xlabel="frames")
axes[0].set_ylabel("return, mean of 20 episodes")
axes[0].legend()
figure.tight_layout()

# %% [markdown]
# ## How well is the value known?
#
# `predict_value` is a `torch.distributions.Normal`. `calibrated=True` puts its deviation on the scale on which labels
# were seen to scatter.

# %%
model, _ = runs["PPO", "kova"]
observation = model.get_env().reset()
value = model.predict_value(observation, calibrated=True)
for mean, deviation in zip(value.mean[:3], value.stddev[:3], strict=True):
    print(f"value {mean:.1f} ± {2 * deviation:.1f}")

# %% [markdown]
# ## Where will the return fall?
#
# A return scatters more than a value is unknown: the policy draws its actions. `predict_return` is a band that holds
# nine returns of ten over the frames of the training. It is corrected while the agent learns, by the returns that
# followed, and it is infinite as long as too few are known.
#
# Below are forty episodes that were not trained on, played as in training. A time limit cuts them after 200 frames, and
# the critic's value stands for what would have followed.

# %%
GAMMA, EPISODES = 0.99, 40
env = make_vec_env(TASK, n_envs=1, seed=1000)
followed, lows, highs = [], [], []
for _ in range(EPISODES):
    state, done, rewards = env.reset(), False, []
    band = model.predict_return(state, level=0.9)
    while not done:
        action, _ = model.predict(state)
        state, reward, ended, infos = env.step(action)
        rewards.append(float(reward[0]))
        done = bool(ended[0])
    if infos[0]["TimeLimit.truncated"]:
        rewards.append(model.predict_value(infos[0]["terminal_observation"]).mean.item())
    followed.append(sum(GAMMA**step * reward for step, reward in enumerate(rewards)))
    lows.append(band.low.item())
    highs.append(band.high.item())

inside = np.mean([low <= found <= high for low, found, high in zip(lows, followed, highs, strict=True)])
print(f"{inside:.0%} of {EPISODES} returns were inside")

# %%
figure, axis = plt.subplots(figsize=(11, 3))
axis.vlines(range(EPISODES), lows, highs, linewidth=6, alpha=0.3, label="band, 90 %")
axis.plot(followed, "k.", label="return that followed")
axis.set(xlabel="episode", ylabel="discounted return")
axis.legend()
figure.tight_layout()

# %% [markdown]
# The level is a share over all frames of the training, not of first states alone. And the band looks back: a return is
# known some 460 frames late, so an agent that learns a task within a few thousand frames is ahead of its band. Try
# `TASK = "CartPole-v1"`. What the training saw:

# %%
print(f"share inside, of the last {len(model.return_band)} returns of the training: {model.return_band.coverage:.0%}")
