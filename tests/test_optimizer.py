"""The filter against closed forms and against Algorithm 1 transcribed literally."""

from __future__ import annotations

import math

import pytest
import torch
from cases import EVOLUTION_IDS, EVOLUTIONS, INPUTS, batch, linear, mlp, paper_filter, relative, theta
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Algorithm1
from torch import Tensor, nn
from torch.func import functional_call

import kova


def bayesian_regression(
    features: Tensor, y: Tensor, variances: Tensor, theta0: Tensor, p0: float
) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance of θ ~ N(theta0, p0 I), y = features θ + N(0, variances)."""
    precision = torch.eye(len(theta0), dtype=theta0.dtype) / p0 + features.T @ (features / variances[:, None])
    P = torch.linalg.inv(precision)
    return P @ (theta0 / p0 + features.T @ (y / variances)), P


def with_bias(u: Tensor) -> Tensor:
    return torch.cat([u, torch.ones(len(u), 1, dtype=u.dtype)], dim=1)


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    p0=st.floats(0.05, 20.0),
    variance=st.floats(0.05, 20.0),
    seed=st.integers(0, 10_000),
    fading=st.booleans(),
)
def test_a_linear_critic_is_bayesian_regression(inputs, sizes, p0, variance, seed, fading):
    critic = linear(inputs, seed)
    theta0 = theta(critic)
    generator = torch.Generator().manual_seed(seed)
    evolution = kova.FadingMemory(0.0) if fading else kova.Static()
    noise = kova.ConstantNoise(variance)
    optimizer = paper_filter(
        critic, covariance="full", prior_variance=p0, evolution=evolution, noise=noise, dtype=torch.float64
    )
    us = [torch.randn(size, inputs, generator=generator, dtype=torch.float64) for size in sizes]
    ys = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    for u, y in zip(us, ys, strict=True):
        optimizer.step(u, y)
    u, y = torch.cat(us), torch.cat(ys)
    mean, P = bayesian_regression(with_bias(u), y, torch.full_like(y, variance), theta0, p0)
    torch.testing.assert_close(theta(critic), mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.covariance.dense(), P, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.covariance.diagonal(), P.diagonal(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.covariance.trace(), P.trace(), rtol=1e-10, atol=1e-10)


def run_static(order: list[int], pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    critic = linear()
    optimizer = paper_filter(critic, evolution=kova.Static(), noise=kova.ConstantNoise(0.3), dtype=torch.float64)
    for index in order:
        optimizer.step(*pieces[index])
    return theta(critic), optimizer.covariance.dense()


def test_one_batch_equals_single_steps():
    u, y = batch(300)
    one = run_static([0], [(u, y)])
    many = run_static(list(range(300)), [(u[i : i + 1], y[i : i + 1]) for i in range(300)])
    torch.testing.assert_close(one, many, rtol=1e-10, atol=1e-10)


def test_the_order_of_batches_does_not_matter():
    pieces = [batch(size, seed=size) for size in (1, 5, 17, 64, 2)]
    torch.testing.assert_close(
        run_static([0, 1, 2, 3, 4], pieces), run_static([3, 4, 0, 2, 1], pieces), rtol=1e-10, atol=1e-10
    )


def test_fading_memory_is_least_squares_with_a_forgetting_factor():
    eta, steps = 0.05, 120
    critic = linear()
    theta0 = theta(critic)
    evolution = kova.FadingMemory(eta, max_variance=math.inf)
    optimizer = paper_filter(critic, evolution=evolution, noise=kova.ConstantNoise(1.0), dtype=torch.float64)
    u, y = batch(steps)
    for index in range(steps):
        optimizer.step(u[index : index + 1], y[index : index + 1])
    # Minimise Σ λ^(T-i) (y_i - x_i θ)² + λ^T |θ - θ₀|².
    weights = (1 - eta) ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
    features = with_bias(u)
    information = (1 - eta) ** steps * torch.eye(INPUTS + 1, dtype=torch.float64)
    precision = information + features.T @ (weights[:, None] * features)
    solution = torch.linalg.solve(precision, information @ theta0 + features.T @ (weights * y))
    torch.testing.assert_close(theta(critic), solution, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.covariance.dense(), torch.linalg.inv(precision), rtol=1e-10, atol=1e-10)


# A variance well below P₀ makes the nonlinear filter chaotic: rounding of the literal algorithm alone grows to 1e-8.
NOISES = {
    "BatchSize": (kova.BatchSize(0.5), lambda n, ratio: torch.full((n,), 0.5 * n, dtype=torch.float64)),
    "MaxRatio": (kova.MaxRatio(), lambda n, ratio: n * torch.maximum(torch.ones(n).double(), 1 / (ratio + 1e-5))),
    "MaxRatio-code": (
        kova.MaxRatio(0.5, orientation="code"),
        lambda n, ratio: 0.5 * n * torch.maximum(torch.ones(n).double(), 1 / (1 / ratio + 1e-5)),
    ),
    "Constant": (kova.ConstantNoise(1.0), lambda n, ratio: torch.full((n,), 1.0, dtype=torch.float64)),
}


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("evolution", "rule"), EVOLUTIONS, ids=EVOLUTION_IDS)
def test_fifty_steps_equal_algorithm_1(evolution, rule, noise, alpha):
    model, variances = NOISES[noise]
    critic = mlp()
    literal = Algorithm1(mlp(), rule)
    optimizer = paper_filter(critic, evolution=evolution, noise=model, step_size=alpha, dtype=torch.float64)
    for step in range(50):
        u, y = batch(6, seed=step)
        ratio = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(step)) * 2 + 0.1
        literal.step(u, y, torch.diag(variances(6, ratio)), alpha)
        optimizer.step(u, y, ratio=ratio)
    assert relative(theta(critic), literal.theta) < 1e-8
    if evolution.keeps_memory:
        assert relative(optimizer.covariance.dense(), literal.P) < 1e-8
        assert relative(optimizer.covariance.diagonal(), literal.P.diagonal()) < 1e-8
    else:
        expected = torch.eye(optimizer.covariance.dim, dtype=torch.float64) / (1 - evolution.eta)
        torch.testing.assert_close(optimizer.covariance.dense(), expected)
        assert optimizer.covariance.nbytes == 0


@pytest.mark.parametrize("kind", ["scalar", "vector", "matrix"])
def test_noise_given_to_a_step_replaces_the_model(kind):
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = {
        "scalar": 0.7 * torch.eye(6, dtype=torch.float64),
        "vector": torch.diag(torch.linspace(0.1, 2.0, 6, dtype=torch.float64)),
        "matrix": root @ root.T + torch.eye(6, dtype=torch.float64),
    }[kind]
    given = {"scalar": 0.7, "vector": matrix.diagonal(), "matrix": matrix}[kind]
    critic = mlp()
    literal = Algorithm1(mlp(), EVOLUTIONS[0][1])
    optimizer = paper_filter(critic, evolution=kova.Static(), dtype=torch.float64)
    for step in range(5):
        u, y = batch(6, seed=step)
        literal.step(u, y, matrix, 1.0)
        report = optimizer.step(u, y, noise=given)
        assert float(report.information_gain) > 0
    assert relative(theta(critic), literal.theta) < 1e-8
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-8


@pytest.mark.parametrize(("evolution", "rule"), EVOLUTIONS, ids=EVOLUTION_IDS)
def test_float32_stays_near_float64(evolution, rule):
    runs = []
    for dtype in (torch.float32, torch.float64):
        critic = mlp(dtype=dtype)
        optimizer = paper_filter(critic, evolution=evolution, noise=kova.BatchSize(), dtype=dtype)
        for step in range(500):
            optimizer.step(*batch(16, seed=step, dtype=dtype))
        u, _ = batch(200, seed=-1, dtype=dtype)
        runs.append((theta(critic), optimizer.covariance.dense(), optimizer.predict(u).mean))
    for narrow, wide in zip(*runs, strict=True):
        assert relative(narrow, wide) < 1e-3


def test_the_report_says_what_its_docstring_says():
    critic, alpha, variance = mlp(), 0.6, 0.4
    optimizer = paper_filter(
        critic, evolution=kova.Static(), noise=kova.ConstantNoise(variance), step_size=alpha, dtype=torch.float64
    )
    literal = Algorithm1(mlp(), EVOLUTIONS[0][1])
    for step in range(3):
        u, y = batch(6, seed=step)
        P, J = literal.P, literal.jacobian(u)
        S = J @ P @ J.T + variance * torch.eye(6, dtype=torch.float64)
        delta = y - literal.h(literal.theta, u)
        before = literal.theta
        literal.step(u, y, variance * torch.eye(6, dtype=torch.float64), alpha)
        moved = literal.theta - before
        report = optimizer.step(u, y)
    gaussian = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=torch.float64), S)
    expected = {
        "loss": delta.square().sum() / 12,
        "nis": delta @ torch.linalg.solve(S, delta) / 6,
        "log_likelihood": gaussian.log_prob(delta),
        "information_gain": 0.5 * torch.logdet(torch.eye(6, dtype=torch.float64) + J @ P @ J.T / variance),
        "trust_region": 0.5 * moved @ torch.linalg.solve(P, moved),
        "update_norm": moved.norm(),
        "mean_variance": literal.P.trace() / len(moved),
        "innovation": delta,
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(report, name), value, rtol=1e-8, atol=1e-10, msg=name)
        assert getattr(report, name).shape == value.shape
    with pytest.raises(AttributeError):
        report.loss = torch.zeros(())


@pytest.mark.parametrize("size", [64, 512])
def test_a_small_information_gain_is_not_lost_in_rounding(size):
    critic = linear().float()
    u, y = (part.float() for part in batch(size))
    optimizer = paper_filter(critic, prior_variance=1e-4, evolution=kova.Static())
    exact = 0.5 * torch.logdet(torch.eye(4).double() + 1e-4 / size * with_bias(u.double()).T @ with_bias(u.double()))
    assert float(optimizer.step(u, y).information_gain) == pytest.approx(float(exact), rel=0.05)


def test_a_small_innovation_survives_a_large_value():
    critic = linear()
    torch.nn.init.constant_(critic.bias, 1e6)
    u, _ = batch(4)
    y = critic(u).detach().squeeze(1) + 0.01
    report = paper_filter(critic).step(u, y)
    torch.testing.assert_close(report.innovation, torch.full((4,), 0.01), rtol=1e-5, atol=0)


def test_noise_may_differ_by_orders_of_magnitude_between_labels():
    u, y = batch(8, dtype=torch.float32)
    variances = torch.logspace(-4, 3, 8)
    reports = [
        paper_filter(mlp(dtype=torch.float32)).step(u, y, noise=noise) for noise in (variances, variances.diag())
    ]
    torch.testing.assert_close(reports[0].update_norm, reports[1].update_norm)
    torch.testing.assert_close(reports[0].information_gain, reports[1].information_gain)


def test_predict_has_the_exact_predictive_variance():
    critic = linear()
    theta0 = theta(critic)
    optimizer = paper_filter(critic, evolution=kova.Static(), noise=kova.ConstantNoise(0.5), dtype=torch.float64)
    u, y = batch(1500)
    optimizer.step(u, y)
    mean, P = bayesian_regression(with_bias(u), y, torch.full_like(y, 0.5), theta0, 1.0)
    fresh, _ = batch(1100, seed=9)
    features = with_bias(fresh)
    variance = (features @ P * features).sum(1)
    value = optimizer.predict(fresh)
    torch.testing.assert_close(value.mean, features @ mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(value.variance, variance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(optimizer.predict(fresh, observation_noise=0.5).variance, variance + 0.5)
    each = torch.rand(1100, dtype=torch.float64)
    torch.testing.assert_close(optimizer.predict(fresh, observation_noise=each).variance, variance + each)
    torch.testing.assert_close(optimizer.predict(fresh, torch.tensor(0.5)).variance, variance + 0.5)


@pytest.mark.parametrize("evolution", [kova.Static(), kova.Memoryless(0.2)], ids=repr)
def test_samples_have_the_posteriors_mean_and_covariance(evolution):
    critic = mlp(hidden=3)
    optimizer = paper_filter(critic, evolution=evolution, noise=kova.ConstantNoise(0.1), dtype=torch.float64)
    for step in range(20):
        optimizer.step(*batch(8, seed=step))
    count = 20_000
    draws = optimizer.sample(count, generator=torch.Generator().manual_seed(3))
    assert {name: value.shape[1:] for name, value in draws.items()} == {
        n: p.shape for n, p in critic.named_parameters()
    }
    flat = torch.cat([value.flatten(1) for value in draws.values()], dim=1)
    P = optimizer.covariance.dense()
    deviations = (flat.mean(0) - theta(critic)) / (P.diagonal() / count).sqrt()
    assert float(deviations.abs().max()) < 5.0
    spread = (P.diagonal()[:, None] * P.diagonal()[None, :] + P.square()).div(count).sqrt()
    assert float(((flat.T.cov() - P) / spread).abs().max()) < 5.5
    u, _ = batch(4)
    value = torch.vmap(lambda drawn: functional_call(critic, drawn, (u,)))(draws)
    assert value.shape == (count, 4, 1)


def test_step_size_follows_a_schedule_of_the_step_number():
    seen = []

    def schedule(step: int) -> float:
        seen.append(step)
        return 1.0 / step

    scheduled, constant = mlp(), mlp()
    first = paper_filter(scheduled, evolution=kova.Static(), step_size=schedule, dtype=torch.float64)
    second = paper_filter(constant, evolution=kova.Static(), dtype=torch.float64)
    for step in range(3):
        second.step_size = 1.0 / (step + 1)
        first.step(*batch(seed=step))
        second.step(*batch(seed=step))
    assert seen == [1, 2, 3]
    assert torch.equal(theta(scheduled), theta(constant))


class ActionValue(nn.Module):
    """Q(s, ·) for a few actions."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.net = mlp()
        self.net[-1] = nn.Linear(5, actions).double()

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)


def chosen(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    state, action = inputs
    return module(state).gather(1, action[:, None]).squeeze(1)


def advantage(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """A(s, a) = f(s, a) - E_π f(s, ·): zero on average under the policy by construction."""
    scores = module(inputs["state"])
    return (scores * (inputs["one_hot"] - inputs["policy"])).sum(1)


def test_h_may_be_an_action_value():
    torch.manual_seed(0)
    critic = ActionValue(4)
    optimizer = paper_filter(critic, observation_fn=chosen, evolution=kova.Static(), noise=kova.ConstantNoise(0.1))
    true = torch.randn(4, INPUTS, dtype=torch.float64)
    for _ in range(150):
        state, action = torch.randn(32, INPUTS, dtype=torch.float64), torch.randint(4, (32,))
        report = optimizer.step((state, action), (true[action] * state).sum(1))
    assert float(report.loss) < 0.05
    assert optimizer.predict((state, action)).mean.shape == (32,)


def test_h_may_be_an_advantage():
    torch.manual_seed(0)
    critic = ActionValue(3)
    optimizer = paper_filter(critic, observation_fn=advantage, evolution=kova.Static(), noise=kova.ConstantNoise(0.01))
    policy = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = torch.randn(3, INPUTS, dtype=torch.float64)
    for _ in range(60):
        state = torch.randn(32, INPUTS, dtype=torch.float64)
        one_hot = nn.functional.one_hot(torch.randint(3, (32,)), 3).double()
        values = state @ q.T
        labels = (values * (one_hot - policy)).sum(1)
        report = optimizer.step({"state": state, "one_hot": one_hot, "policy": policy.expand(32, 3)}, labels)
    assert float(report.loss) < 0.02


def test_frozen_parameters_are_left_alone():
    critic = mlp()
    critic[0].requires_grad_(False)
    before = critic[0].weight.clone()
    optimizer = paper_filter(critic)
    optimizer.step(*batch())
    assert torch.equal(critic[0].weight, before)
    assert optimizer.covariance.dim == sum(p.numel() for p in critic.parameters() if p.requires_grad)


def test_it_is_a_torch_optimizer():
    critic = mlp()
    optimizer = paper_filter(critic)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert all("lr" not in group for group in optimizer.param_groups)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in critic.parameters()]
    optimizer.zero_grad()
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    optimizer.step(*batch())
    assert called == [1]
    with pytest.raises(ValueError, match="cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert "FadingMemory(eta=0.01" in repr(optimizer)


def test_a_wider_covariance_serves_a_narrower_network():
    critic = mlp(dtype=torch.float32)
    optimizer = paper_filter(critic, evolution=kova.Static(), dtype=torch.float64)
    literal = Algorithm1(mlp(), EVOLUTIONS[0][1])
    for step in range(10):
        u, y = batch(6, seed=step)
        optimizer.step(u.float(), y)
        literal.step(u, y, 6 * torch.eye(6, dtype=torch.float64), 1.0)
    assert optimizer.covariance.dense().dtype == torch.float64
    assert relative(theta(critic), literal.theta) < 1e-4
    half = paper_filter(mlp(dtype=torch.bfloat16))
    report = half.step(u.bfloat16(), y.bfloat16())
    assert report.loss.dtype == torch.float32


def test_it_works_where_gradients_are_off():
    with torch.no_grad():
        optimizer = paper_filter(mlp())
        assert float(optimizer.step(*batch()).update_norm) > 0
