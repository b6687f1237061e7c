"""Q(s, a): optimal action values of a corridor by Q-learning with a target network, beside the exact answer.

Ten cells; action 1 goes right, action 0 left; reaching the right end earns 1 and ends the episode. The observation
function picks the value of the action taken, so one network serves all actions.
"""

import copy

import torch
from torch import nn

import kova

CELLS, GAMMA = 10, 0.9


def taken(module: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """h(u; θ) = Q(s, a; θ)."""
    state, action = inputs
    return module(state).gather(1, action[:, None]).squeeze(1)


def features(cells: torch.Tensor) -> torch.Tensor:
    """A bump around the cell, so that neighbours share what they learn."""
    return torch.exp(-((cells[:, None] - torch.arange(CELLS)) ** 2) / 2.0)


def main(updates: int = 400) -> float:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(CELLS, 32), nn.Tanh(), nn.Linear(32, 2))
    target = copy.deepcopy(critic)
    optimizer = kova.KOVA(critic, taken, evolution=kova.FadingMemory(eta=0.02), noise=kova.ConstantNoise(0.1))
    for update in range(updates):
        cells = torch.randint(CELLS - 1, (32,), generator=generator)
        actions = torch.randint(2, (32,), generator=generator)
        following = (cells + 2 * actions - 1).clamp(min=0)
        terminated = following == CELLS - 1
        labels = kova.targets.q_targets(
            terminated.float(),
            target(features(following)).detach(),
            terminated,
            torch.zeros_like(terminated),
            gamma=GAMMA,
        )
        optimizer.step((features(cells), actions), labels)
        if update % 10 == 9:
            target.load_state_dict(critic.state_dict())

    cells = torch.arange(CELLS - 1)
    right = torch.ones(CELLS - 1, dtype=torch.long)
    exact = GAMMA ** (CELLS - 2.0 - cells)
    value = optimizer.predict((features(cells), right)).mean
    # Without a bar: the labels have no noise, and P_n only weighs them against the prior.
    print("cell   Q*(s, right)   Q(s, right)     error")
    for cell in range(CELLS - 1):
        print(f"{cell:4d}   {exact[cell]:12.2f}   {value[cell]:11.2f}   {value[cell] - exact[cell]:7.0e}")
    error = float((value - exact).abs().max())
    print(f"largest error {error:.0e} after {updates} updates")
    return error


if __name__ == "__main__":
    main()
