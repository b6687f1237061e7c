"""The value of a policy in twenty lines: Pendulum under random torques, as its rewards are paid.

Exact, by rollouts, are -9.6 upright and -95.1 hanging. Random torques soon leave the upright state, and the network
fills in from its neighbours. σ would not tell: the labels of an episode share their rewards, which P takes for
independent. So no bar is printed.
"""

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import kova


def main(episodes: int = 20, gamma: float = 0.9) -> float:
    torch.manual_seed(0)
    env, critic = gym.make("Pendulum-v1"), nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    env.action_space.seed(0)
    optimizer = kova.KOVA(critic, evolution=kova.Static())
    for seed in range(episodes):
        (state, _), over, states, rewards = env.reset(seed=seed), False, [], []
        while not over:
            states.append(state)
            state, reward, _, over, _ = env.step(env.action_space.sample())
            rewards.append(torch.tensor(reward))
        ended = torch.tensor([False] * len(rewards))
        values = critic(torch.as_tensor(np.array([*states[1:], state]))).detach().squeeze(1)
        labels = kova.targets.n_step_targets(torch.stack(rewards).float(), values, ended, ended, gamma=gamma)
        error = optimizer.step(torch.as_tensor(np.array(states)), labels).innovation.square().mean().sqrt().item()
    upright, hanging = optimizer.predict(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])).mean.tolist()
    print(f"upright {upright:.1f}, hanging {hanging:.1f}; root-mean-square error of the last episode {error:.1f}")
    return upright - hanging


if __name__ == "__main__":
    main()
