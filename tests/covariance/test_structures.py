"""Every structure equals the dense filter whose P is masked to its shape after every step."""

from __future__ import annotations

import io

import pytest
import torch
from cases import EVOLUTIONS, batch, mask, mlp, paper_filter, relative, same_bits, snapshot, theta
from reference import Algorithm1, Rule
from torch import Tensor, nn

import kova
from kova.covariance import Layout

REMEMBERING = [(evolution, rule) for evolution, rule in EVOLUTIONS if evolution.keeps_memory]
MEMORY_IDS = [repr(evolution) for evolution, _ in REMEMBERING]
STRUCTURES = ["full", "layer", "neuron", "block:7", "block:20", "block:1000", "diagonal"]


def masked(rule: Rule, keep: Tensor) -> Rule:
    return lambda P, J, p0: keep * rule(P, J, p0)


@pytest.mark.parametrize(("evolution", "rule"), REMEMBERING, ids=MEMORY_IDS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_thirty_steps_equal_the_masked_dense_filter(structure, evolution, rule):
    critic = mlp()
    keep = mask(critic, structure)
    literal = Algorithm1(mlp(), masked(rule, keep))
    optimizer = paper_filter(critic, covariance=structure, evolution=evolution, step_size=0.9, dtype=torch.float64)
    for step in range(30):
        u, y = batch(6, seed=step)
        # R enters once, not once per block.
        literal.step(u, y, 6 * torch.eye(6, dtype=torch.float64), 0.9)
        literal.P = keep * literal.P
        optimizer.step(u, y)
    assert relative(theta(critic), literal.theta) < 1e-9
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-9
    assert relative(optimizer.covariance.diagonal(), literal.P.diagonal()) < 1e-9
    assert relative(optimizer.covariance.trace(), literal.P.trace()) < 1e-9
    u, _ = batch(5, seed=99)
    J = literal.jacobian(u)
    torch.testing.assert_close(optimizer.predict(u).variance, (J @ literal.P * J).sum(1), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("evolution", "rule"), REMEMBERING, ids=MEMORY_IDS)
@pytest.mark.parametrize("rank", [56, 1000])
def test_low_rank_of_full_rank_is_the_full_filter(evolution, rule, rank):
    critic = mlp()
    literal = Algorithm1(mlp(), rule)
    optimizer = paper_filter(critic, covariance=f"low_rank:{rank}", evolution=evolution, dtype=torch.float64)
    for step in range(30):
        u, y = batch(6, seed=step)
        literal.step(u, y, 6 * torch.eye(6, dtype=torch.float64), 1.0)
        optimizer.step(u, y)
    assert relative(theta(critic), literal.theta) < 1e-8
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-8


@pytest.mark.parametrize("rank", [1, 5, 12])
def test_low_rank_drops_towards_doubt(rank):
    exact, rough = (
        paper_filter(nn.Linear(40, 1).double(), covariance=name, evolution=kova.Static(), dtype=torch.float64)
        for name in ("full", f"low_rank:{rank}")
    )
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        u = torch.randn(4, 40, generator=generator, dtype=torch.float64)
        exact.step(u, u[:, 0])
        rough.step(u, u[:, 0])
    P = rough.covariance.dense()
    assert torch.linalg.matrix_rank(P - torch.eye(41, dtype=torch.float64)) == rank
    assert float(torch.linalg.eigvalsh(P)[0]) > 0
    assert float(P.trace()) > float(exact.covariance.trace())
    assert rough.covariance.nbytes == 8 * (rank * 41 + rank + 41)


def test_last_layer_is_ridge_regression_on_the_last_features():
    # LS-DQN: P = I/λ, R = 1, one step.
    critic, ridge = mlp(), 0.3
    below = [parameter.clone() for parameter in list(critic.parameters())[:-2]]
    optimizer = paper_filter(
        critic,
        covariance="last_layer",
        prior_variance=1 / ridge,
        evolution=kova.Static(),
        noise=kova.ConstantNoise(1.0),
        dtype=torch.float64,
    )
    u, y = batch(50)
    with torch.no_grad():
        features = torch.cat([critic[:-1](u), torch.ones(50, 1, dtype=torch.float64)], 1)
    start = torch.cat([critic[-1].weight.reshape(-1), critic[-1].bias]).detach().clone()
    optimizer.step(u, y)
    normal = features.T @ features + ridge * torch.eye(6, dtype=torch.float64)
    solution = start + torch.linalg.solve(normal, features.T @ (y - features @ start))
    torch.testing.assert_close(torch.cat([critic[-1].weight.reshape(-1), critic[-1].bias]).detach(), solution)
    torch.testing.assert_close(optimizer.covariance.dense(), torch.linalg.inv(normal))
    assert all(torch.equal(a, b) for a, b in zip(below, critic.parameters(), strict=False))
    assert set(optimizer.sample(2)) == {"4.weight", "4.bias"}


def test_last_layer_leaves_the_features_to_their_own_optimizer():
    critic = mlp(dtype=torch.float32)
    features = torch.optim.Adam(critic[:-1].parameters(), lr=1e-2)
    head = paper_filter(critic, covariance="last_layer", noise=kova.ConstantNoise(1.0))
    losses: list[float] = []
    for step in range(200):
        u, y = batch(32, seed=step, dtype=torch.float32)
        features.zero_grad()
        nn.functional.mse_loss(critic(u).squeeze(1), y).backward()
        features.step()
        losses.append(float(head.step(u, y).loss))
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


class Mixed(nn.Module):
    """A convolution, a LayerNorm, an Embedding, a bare parameter, a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.conv, self.norm = nn.Conv2d(1, 2, 2), nn.LayerNorm(8)
        self.embed, self.out = nn.Embedding(3, 8), nn.Linear(8, 1)
        self.conv.bias.requires_grad_(False)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        picture, word = inputs
        return self.scale * self.out((self.norm(self.conv(picture).flatten(1)) + self.embed(word)).tanh())


@pytest.mark.parametrize("structure", ["full", "layer", "neuron", "block:9", "diagonal"])
def test_structures_serve_any_module(structure):
    torch.manual_seed(0)
    critic = Mixed().double()
    names = [name for name, p in critic.named_parameters() if p.requires_grad]
    optimizer = paper_filter(critic, covariance=structure, evolution=kova.Static(), dtype=torch.float64)
    u = (torch.randn(6, 1, 3, 3).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    y = torch.randn(6).double()
    jacobian = optimizer.observation.linearise(u, 6, torch.float64)
    J = jacobian.transposed().T.clone()
    delta = y - jacobian.values
    S = J @ J.T + 6 * torch.eye(6, dtype=torch.float64)
    before = torch.cat([critic.get_parameter(name).detach().reshape(-1) for name in names])
    optimizer.step(u, y)
    after = torch.cat([critic.get_parameter(name).detach().reshape(-1) for name in names])
    torch.testing.assert_close(after, before + J.T @ torch.linalg.solve(S, delta))
    P = torch.eye(len(before), dtype=torch.float64) - J.T @ torch.linalg.solve(S, J)
    found = optimizer.covariance.dense()
    kept = found != 0
    torch.testing.assert_close(found[kept], P[kept])
    torch.testing.assert_close(found.diagonal(), P.diagonal())


@pytest.mark.parametrize("structure", ["layer", "neuron", "block:20", "diagonal", "low_rank:9", "last_layer"])
@pytest.mark.parametrize(("evolution", "rule"), REMEMBERING, ids=MEMORY_IDS)
def test_a_restored_structure_continues_bit_for_bit(structure, evolution, rule):
    critic = mlp(dtype=torch.float32)
    optimizer = paper_filter(critic, covariance=structure, evolution=evolution)
    for step in range(19):
        optimizer.step(*batch(24, seed=step, dtype=torch.float32))
    file = io.BytesIO()
    torch.save([critic.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    twin = mlp(dtype=torch.float32, seed=5)
    twin.load_state_dict(weights)
    restored = paper_filter(twin, covariance=structure, evolution=evolution)
    restored.load_state_dict(state)
    before = snapshot(restored)
    with pytest.raises(ValueError, match="non-finite"):
        restored.step(batch(24)[0].float(), torch.full((24,), torch.nan))
    assert same_bits(before, snapshot(restored))
    for step in range(19, 45):
        optimizer.step(*batch(24, seed=step, dtype=torch.float32))
        restored.step(*batch(24, seed=step, dtype=torch.float32))
    assert same_bits(snapshot(optimizer), snapshot(restored))


@pytest.mark.parametrize("structure", ["layer", "neuron", "block:20", "diagonal", "low_rank:9"])
def test_samples_follow_the_structure(structure):
    critic = mlp(hidden=3)
    optimizer = paper_filter(
        critic, covariance=structure, evolution=kova.Static(), noise=kova.ConstantNoise(0.1), dtype=torch.float64
    )
    for step in range(10):
        optimizer.step(*batch(8, seed=step))
    count = 20_000
    draws = optimizer.sample(count, generator=torch.Generator().manual_seed(3))
    flat = torch.cat([value.flatten(1) for value in draws.values()], dim=1)
    P = optimizer.covariance.dense()
    assert float(((flat.mean(0) - theta(critic)) / (P.diagonal() / count).sqrt()).abs().max()) < 5.0
    spread = (P.diagonal()[:, None] * P.diagonal()[None, :] + P.square()).div(count).sqrt()
    assert float(((flat.T.cov() - P) / spread).abs().max()) < 5.5


def test_a_snapshot_of_one_structure_does_not_load_into_another():
    saved = paper_filter(mlp(), covariance="neuron").state_dict()
    for other in ("full", "layer", "diagonal", "block:7", "low_rank:3"):
        with pytest.raises(ValueError, match="neuron"):
            paper_filter(mlp(), covariance=other).load_state_dict(saved)
    with pytest.raises(ValueError, match="size"):
        paper_filter(mlp(), covariance="block:8").load_state_dict(
            paper_filter(mlp(), covariance="block:9").state_dict()
        )


@pytest.mark.parametrize(
    ("units", "budgets", "expected"),
    [
        (16, {}, "full"),
        (32, {}, "neuron"),
        (64, {}, "neuron"),
        (64, {"batch_size": 512}, "diagonal"),
        (256, {}, "diagonal"),
        (64, {"flop_budget": 6e9}, "full"),
        (64, {"flop_budget": 4e9}, "layer"),
        (64, {"flop_budget": 1e7}, "diagonal"),
        (64, {"flop_budget": 1e12, "memory_budget": 60_000_000}, "layer"),
        (64, {"flop_budget": 1e12, "memory_budget": 2_000_000}, "neuron"),
        (64, {"flop_budget": 1e12, "memory_budget": 30_000}, "diagonal"),
    ],
)
def test_auto_takes_the_most_faithful_structure_within_the_budgets(units, budgets, expected):
    optimizer = paper_filter(mlp(inputs=17, hidden=units, dtype=torch.float32), **budgets)
    assert optimizer.covariance.name == expected
    if "memory_budget" in budgets:
        assert optimizer.covariance.nbytes <= budgets["memory_budget"]


def test_costs_are_known_before_allocating():
    layout = Layout.of(mlp(inputs=17, hidden=64))
    for name in ("full", "layer", "neuron", "diagonal", "block:512", "low_rank:16"):
        optimizer = paper_filter(mlp(inputs=17, hidden=64, dtype=torch.float32), covariance=name)
        structure = type(optimizer.covariance)
        arguments = [int(name.partition(":")[2])] if ":" in name else []
        promised = 4 * structure.cost(layout, *arguments).numbers
        assert optimizer.covariance.nbytes <= promised + 2048 * 4
        if name != "low_rank:16":
            assert optimizer.covariance.nbytes >= 0.95 * promised
    # 17-64-64-1: 0.29 M numbers by neuron, 5,377 on the diagonal.
    assert kova.covariance.Neuron.cost(layout).numbers == 64 * 18 * 19 + 64 * 65 * 66 + 65 * 66
    assert kova.covariance.Diagonal.cost(layout).numbers == 5377


def test_a_large_critic_gets_a_suggestion():
    ddpg = nn.Sequential(nn.Linear(23, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 1))
    with pytest.raises(kova.CovarianceTooLarge, match=r'needs \d+\.?\d* GB.*covariance="neuron" needs \d+ MB'):
        paper_filter(ddpg, covariance="full", memory_budget=16 * 10**9)
    optimizer = paper_filter(ddpg)
    assert optimizer.covariance.name == "diagonal"
    optimizer.step(torch.randn(100, 23), torch.randn(100))
