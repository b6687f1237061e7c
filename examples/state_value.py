"""V(s): the value of a random walk from whole episodes, with its error bar, beside the exact answer.

A walker starts in the middle of 19 states, steps left or right with equal chance, and earns 1 for leaving on the right.
"""

import random

import torch
from torch import nn

import kova

STATES = 19


def episode(rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states visited and the return from each."""
    state, visited = STATES // 2, []
    while 0 <= state < STATES:
        visited.append(state)
        state += 1 if rng.random() < 0.5 else -1
    return torch.tensor(visited), torch.full((len(visited),), float(state == STATES))


def features(states: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(states, STATES).float()


def main(episodes: int = 200) -> float:
    rng = random.Random(0)
    critic = nn.Linear(STATES, 1)
    nn.init.constant_(critic.weight, 0.5)
    # A return is 0 or 1: its variance is at most 1/4, and samples of one episode repeat each other. Ten times as much
    # noise makes up for that, and σ is meant as it is.
    optimizer = kova.KOVA(critic, evolution=kova.Static(), noise=kova.ConstantNoise(2.5), prior_variance=0.25)
    for _ in range(episodes):
        states, returns = episode(rng)
        optimizer.step(features(states), returns)

    exact = torch.arange(1, STATES + 1) / (STATES + 1)
    value = optimizer.predict(features(torch.arange(STATES)))
    print("state   exact   value ± 2σ")
    for state in range(0, STATES, 3):
        print(f"{state:5d}   {exact[state]:5.2f}   {value.mean[state]:5.2f} ± {2 * value.stddev[state]:.2f}")
    error = float((value.mean - exact).square().mean().sqrt())
    print(f"root-mean-square error {error:.3f} after {episodes} episodes")
    return error


if __name__ == "__main__":
    main()
