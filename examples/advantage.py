"""A(s, a): an advantage function learned directly, with the policy's average taken out inside h.

h(u; θ) = f(s, a; θ) - Σ_b π(b|s) f(s, b; θ) has mean zero under the policy by construction, as an advantage must.
"""

import torch
from torch import nn

import kova


def advantage(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """h(u; θ) = A(s, a; θ)."""
    scores = module(inputs["state"])
    taken = scores.gather(1, inputs["action"][:, None]).squeeze(1)
    return taken - (inputs["policy"] * scores).sum(1)


def action_values(state: torch.Tensor) -> torch.Tensor:
    """The truth: Q(s, ·) of three actions."""
    x = state[:, 0]
    return 5.0 + torch.stack([x, -x, 0.5 * x.square()], dim=1)


def main(updates: int = 150) -> float:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = kova.KOVA(critic, advantage, evolution=kova.Static(), noise=kova.ConstantNoise(0.25))
    for _ in range(updates):
        state = 4 * torch.rand(64, 1) - 2
        policy = torch.softmax(torch.cat([state, -state, torch.zeros_like(state)], 1), 1)
        action = torch.multinomial(policy, 1).squeeze(1)
        values = action_values(state)
        exact = values.gather(1, action[:, None]).squeeze(1) - (policy * values).sum(1)
        labels = exact + 0.5 * torch.randn(64)
        optimizer.step({"state": state, "action": action, "policy": policy}, labels)

    state = torch.linspace(-2, 2, 9)[:, None]
    policy = torch.softmax(torch.cat([state, -state, torch.zeros_like(state)], 1), 1)
    values = action_values(state)
    worst = 0.0
    print("    s    a    A(s, a)    learned ± 2σ")
    for action in range(3):
        chosen = torch.full((9,), action)
        exact = values[:, action] - (policy * values).sum(1)
        # P_n is a share of the labels' variance; how far they scattered puts σ on their scale.
        found = optimizer.predict({"state": state, "action": chosen, "policy": policy}, calibrated=True)
        worst = max(worst, float((found.mean - exact).abs().max()))
        for row in (0, 4, 8):
            learned = f"{found.mean[row]:10.2f} ± {2 * found.stddev[row]:.2f}"
            print(f"{state[row, 0]:5.1f}    {action}    {exact[row]:7.2f} {learned}")
    print(f"largest error {worst:.3f} after {updates} updates")
    return worst


if __name__ == "__main__":
    main()
