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
# # A Kalman critic in your own loop
#
# An actor-critic in one page, without Stable-Baselines3. The actor is trained by RMSprop, as in A2C. The critic is
# trained by `kova.KOVA`: it takes states and labels, and needs no loss, no `backward` and no learning rate.

# %%
import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import kova

torch.manual_seed(0)
ENVS, STEPS, GAMMA = 8, 5, 0.99
FRAMES = 20_000

# %% [markdown]
# ## Two networks, two optimizers


# %%
def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


actor, critic = network(2), network(1)
actor_optimizer = torch.optim.RMSprop(actor.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
critic_optimizer = kova.KOVA(critic, batch_size=ENVS * STEPS)
print(critic_optimizer)

# %% [markdown]
# It says which structure of the covariance P it took, and why. P is over all weights of the critic.
#
# ## A rollout
#
# Eight carts, five steps. Where an episode ends, the next observation is of a new one already. `kova.targets` wants the
# true successor, and to know whether the task ended (`terminated`: worth nothing more) or only the clock ran out
# (`truncated`: worth what the critic says).

# %%
envs = gym.make_vec(
    "CartPole-v1",
    num_envs=ENVS,
    vectorization_mode="sync",
    vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
)
lengths, finished = np.zeros(ENVS), []


def rollout(state: np.ndarray) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Play five steps; return what was seen, (steps, envs, ...), and the state to go on from."""
    seen: dict[str, list] = {key: [] for key in ("state", "action", "reward", "terminated", "truncated", "successor")}
    for _ in range(STEPS):
        with torch.no_grad():
            action = Categorical(logits=actor(torch.as_tensor(state))).sample()
        following, reward, terminated, truncated, info = envs.step(action.numpy())
        successor = following.copy()
        for index in np.flatnonzero(terminated | truncated):
            successor[index] = info["final_obs"][index]
        step = (state.copy(), action, reward.astype(np.float32), terminated, truncated, successor)
        for values, value in zip(seen.values(), step, strict=True):
            values.append(torch.as_tensor(value))
        count(terminated | truncated)
        state = following
    return {key: torch.stack(values) for key, values in seen.items()}, state


def count(ended: np.ndarray) -> None:
    """Keep the lengths of the episodes: the return of CartPole, which pays 1 a frame."""
    lengths[:] += 1
    finished.extend(lengths[ended])
    lengths[ended] = 0


# %% [markdown]
# ## The loop
#
# The critic's part is two lines: make the labels, take a step. One is enough for a rollout. More would count the same
# labels again.

# %%
state, _ = envs.reset(seed=0)
reports = []
for _ in range(FRAMES // (ENVS * STEPS)):
    seen, state = rollout(state)
    with torch.no_grad():
        values, next_values = critic(seen["state"]).squeeze(-1), critic(seen["successor"]).squeeze(-1)
    labels = kova.targets.n_step_targets(
        seen["reward"], next_values, seen["terminated"], seen["truncated"], gamma=GAMMA
    )

    advantage = labels - values
    policy = Categorical(logits=actor(seen["state"]))
    loss = -(policy.log_prob(seen["action"]) * advantage).mean()
    actor_optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    actor_optimizer.step()

    reports.append(critic_optimizer.step(seen["state"].flatten(0, 1), labels.flatten()))

print(f"the first 50 episodes lasted {np.mean(finished[:50]):.0f} frames, the last 50 {np.mean(finished[-50:]):.0f}")

# %% [markdown]
# ## What the steps measured
#
# Every step returns a report. `nis` is 1 when labels scatter as the filter expects; `information_gain` is what a batch
# taught, in nats. `nis` ends far below 1 here: labels scatter less than the filter expects. So ask for a calibrated
# deviation, as below.

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3))
axes[0].plot(np.convolve(finished, np.ones(20) / 20, mode="valid"))
axes[0].set(title="length of an episode, mean of 20", xlabel="episode")
axes[1].plot([report.nis.item() for report in reports])
axes[1].set(title="normalised innovation squared", xlabel="step", yscale="log")
axes[2].plot([report.information_gain.item() for report in reports])
axes[2].set(title="information gain, nats", xlabel="step")
figure.tight_layout()

# %% [markdown]
# ## How sure is it?
#
# Ask in the states of the last rollout, and where nothing was ever seen: with the pole turning twenty times as fast.
# The filter knows that it does not know.

# %%
familiar = seen["state"].flatten(0, 1)
strange = familiar * torch.tensor([1.0, 1.0, 1.0, 20.0])
inside = critic_optimizer.predict(familiar, calibrated=True).stddev.mean().item()
outside = critic_optimizer.predict(strange, calibrated=True).stddev.mean().item()
print(f"deviation of the value: {inside:.2f} where it has been, {outside:.2f} where it has not")

# %% [markdown]
# ## Save it
#
# The state of the filter is θ's companion: with both, training goes on bit for bit.

# %%
saved = {"critic": critic.state_dict(), "optimizer": critic_optimizer.state_dict()}
other = network(1)
other_optimizer = kova.KOVA(other, batch_size=ENVS * STEPS)
other.load_state_dict(saved["critic"])
other_optimizer.load_state_dict(saved["optimizer"])
assert torch.equal(other_optimizer.predict(familiar).stddev, critic_optimizer.predict(familiar).stddev)
