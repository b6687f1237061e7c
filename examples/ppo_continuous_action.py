"""PPO in one file, after CleanRL's, with a Kalman critic: the value loss and its learning rate are gone.

python examples/ppo_continuous_action.py --env InvertedPendulum-v5 --steps 60000
"""

import argparse
import itertools

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

import kova


def network(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    sizes, layers = [inputs, 64, 64, outputs], []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if index == 2 else np.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def make_env(name: str, gamma: float) -> gym.Env:
    env = gym.wrappers.ClipAction(gym.wrappers.RecordEpisodeStatistics(gym.make(name)))
    env = gym.wrappers.NormalizeObservation(env)
    return gym.wrappers.NormalizeReward(env, gamma=gamma)


def main(env_name: str = "InvertedPendulum-v5", steps: int = 512, horizon: int = 256, seed: int = 0) -> float:
    gamma, gae_lambda, clip, epochs, minibatch = 0.99, 0.95, 0.2, 10, 64
    torch.manual_seed(seed)
    env = make_env(env_name, gamma)
    observations, actions = env.observation_space.shape[0], env.action_space.shape[0]
    actor, log_std = network(observations, actions, 0.01), nn.Parameter(torch.zeros(actions))
    critic = network(observations, 1, 1.0)
    actor_optimizer = torch.optim.Adam([*actor.parameters(), log_std], lr=3e-4, eps=1e-5)
    critic_optimizer = kova.KOVA(critic, covariance="neuron", noise=kova.MaxRatio())  # the one change

    state, _ = env.reset(seed=seed)
    returns_seen: list[float] = []
    for _ in range(max(1, steps // horizon)):
        rollout = {key: [] for key in ("state", "action", "log_prob", "reward", "terminated", "truncated", "next")}
        for _ in range(horizon):
            s = torch.as_tensor(state, dtype=torch.float32)
            with torch.no_grad():
                policy = Normal(actor(s), log_std.exp())
                action = policy.sample()
            following, reward, terminated, truncated, info = env.step(action.numpy())
            step = (s, action, policy.log_prob(action).sum(), float(reward), terminated, truncated, following)
            for key, value in zip(rollout, step, strict=True):
                rollout[key].append(torch.as_tensor(value, dtype=None if isinstance(value, bool) else torch.float32))
            if terminated or truncated:
                returns_seen.append(float(info["episode"]["r"]))
                following, _ = env.reset()
            state = following
        u, a, log_prob, reward, terminated, truncated, following = (torch.stack(items) for items in rollout.values())

        with torch.no_grad():
            values, next_values = critic(u).squeeze(1), critic(following).squeeze(1)
        labels = kova.targets.gae_targets(
            reward, values, next_values, terminated, truncated, gamma=gamma, gae_lambda=gae_lambda
        )
        advantages = labels - values

        for _ in range(epochs):
            for batch in torch.randperm(horizon).split(minibatch):
                new = Normal(actor(u[batch]), log_std.exp()).log_prob(a[batch]).sum(1)
                ratio = (new - log_prob[batch]).exp()
                advantage = (advantages[batch] - advantages[batch].mean()) / (advantages[batch].std() + 1e-8)
                loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
                actor_optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
                actor_optimizer.step()

        with torch.no_grad():
            new = Normal(actor(u), log_std.exp()).log_prob(a).sum(1)
        for batch in torch.randperm(horizon).split(256):
            report = critic_optimizer.step(u[batch], labels[batch], ratio=(log_prob[batch] - new[batch]).exp())

    # Rewards are normalised, and MaxRatio's noise is a weight: both value and σ are put on the scale of what is paid.
    unit = np.sqrt(env.return_rms.var + env.epsilon)
    value = critic_optimizer.predict(u[:1], calibrated=True)
    mean, deviation, error = (
        unit * value.mean.item(),
        unit * value.stddev.item(),
        unit * (2 * report.loss.item()) ** 0.5,
    )
    mean_return = float(np.mean(returns_seen[-20:]))
    print(f"return {mean_return:.1f} over the last {len(returns_seen[-20:])} episodes")
    print(f"value {mean:.1f} ± {2 * deviation:.1f} (2σ), root-mean-square error of the last batch {error:.1f}")
    print("returns, value and error are in the environment's reward units")
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="InvertedPendulum-v5")
    parser.add_argument("--steps", type=int, default=512)
    arguments = parser.parse_args()
    main(arguments.env, arguments.steps)
