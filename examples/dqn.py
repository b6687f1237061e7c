"""DQN in one file with a Kalman critic: no learning rate, no Huber loss, no gradient clip.

python examples/dqn.py --steps 20000
"""

import argparse
import copy
import random
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import kova


def chosen(q_net: nn.Module, u: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """h(u; θ) = Q(s, a; θ)."""
    states, actions = u
    return q_net(states).gather(1, actions[:, None]).squeeze(1)


def main(steps: int = 600, batch_size: int = 64, gamma: float = 0.99, seed: int = 0) -> float:
    random.seed(seed)
    torch.manual_seed(seed)
    env = gym.make("CartPole-v1")
    q_net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    target_net = copy.deepcopy(q_net)
    optimizer = kova.KOVA(q_net, observation_fn=chosen, covariance="neuron")
    memory: deque[tuple] = deque(maxlen=50_000)
    returns, total = [], 0.0
    state, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        exploration = max(0.05, 1.0 - step / (0.2 * steps))
        with torch.no_grad():
            greedy = int(q_net(torch.as_tensor(state)).argmax())
        action = random.randrange(2) if random.random() < exploration else greedy
        following, reward, terminated, truncated, _ = env.step(action)
        memory.append((state, action, float(reward), following, terminated))
        total += float(reward)
        state = following
        if terminated or truncated:
            returns.append(total)
            (state, _), total = env.reset(), 0.0
        if step % 4 == 0 and step > 200:
            s, a, r, n, over = (np.array(part) for part in zip(*random.sample(memory, batch_size), strict=True))
            ended = torch.as_tensor(over)
            with torch.no_grad():
                next_q = target_net(torch.as_tensor(n))
            labels = kova.targets.q_targets(
                torch.as_tensor(r).float(), next_q, ended, torch.zeros_like(ended), gamma=gamma
            )
            report = optimizer.step((torch.as_tensor(s), torch.as_tensor(a)), labels)
        if step % 200 == 0:
            target_net.load_state_dict(q_net.state_dict())
    print(f"return {np.mean(returns[-20:]):.1f} over the last {len(returns[-20:])} episodes")
    print(f"mean squared error of the last batch {2 * report.loss:.3f}")
    return float(np.mean(returns[-20:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    main(parser.parse_args().steps)
