"""The baselines against what defines them: normal equations, closed-form posteriors and exact fixed points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("scipy")

import kova
from kova.experiments.baselines import (
    GPTD,
    KTD,
    LSTD,
    XKTD,
    AdamLearner,
    AdaptiveDrift,
    ColouredGPTD,
    Drift,
    Learner,
    RandomWalkDrift,
    TDLambda,
    critic_value,
    lambda_labels,
)
from kova.experiments.problems import (
    BairdStar,
    BoyanChain,
    Garnet,
    LinearGaussian,
    LinearQuadratic,
    RandomWalkChain,
    Trajectory,
    joined,
)
from kova.experiments.problems.baird_star import INITIAL_WEIGHTS
from kova.experiments.problems.base import Problem
from kova.experiments.problems.finite import FiniteProblem, visiting_distribution

PRIOR, NOISE = 4.0, 0.5


def gather(problem: Problem, episodes: int, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    return joined([problem.episode(rng) for _ in range(episodes)])


def returns(batch: Trajectory, gamma: float) -> Tensor:
    """Monte-Carlo returns of episodes that terminate, by their definition."""
    result, following = [], 0.0
    for reward, ends in zip(reversed(batch.rewards.tolist()), reversed(batch.ends.tolist()), strict=True):
        following = reward if ends else reward + gamma * following
        result.append(following)
    return torch.tensor(result[::-1], dtype=torch.float64)


def posterior(H: Tensor, y: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and covariance of θ ~ N(0, PRIOR·I) given y = Hθ + N(0, noise), by default NOISE·I."""
    R = NOISE * torch.eye(len(y), dtype=torch.float64) if noise is None else noise
    covariance = torch.linalg.inv(H.T @ torch.linalg.solve(R, H) + torch.eye(H.shape[1], dtype=torch.float64) / PRIOR)
    return covariance @ H.T @ torch.linalg.solve(R, y), covariance


def bellman_rows(batch: Trajectory, gamma: float) -> Tensor:
    return batch.inputs - gamma * batch.next_inputs * (~batch.terminated)[:, None]


def differences(batch: Trajectory, gamma: float) -> Tensor:
    """Matrix of ω ↦ ω_t - γω_{t+1}; each episode has its own ω, with one more where it was cut."""
    entries: list[tuple[int, int, float]] = []
    column = 0
    for t, (terminated, ends) in enumerate(zip(batch.terminated.tolist(), batch.ends.tolist(), strict=True)):
        entries.append((t, column, 1.0))
        column += 1
        if not terminated:
            entries.append((t, column, -gamma))
        if ends and not terminated:
            column += 1
    matrix = torch.zeros(len(batch), column, dtype=torch.float64)
    for t, at, value in entries:
        matrix[t, at] = value
    return matrix


def aggregate(states: Tensor) -> Tensor:
    """Three groups of a 5-state walk: 0-1, 2, 3-4. V is outside their span, so the fixed point depends on λ."""
    groups = torch.tensor([0, 0, 1, 2, 2])[states.long().squeeze(1)]
    return nn.functional.one_hot(groups, 3).double()


def fixed_point(problem: FiniteProblem, features: Tensor, trace_decay: float) -> Tensor:
    """Solution of ΦᵀD(I-γλP)⁻¹[(I-γP)Φθ - r̄] = 0 with D the visiting distribution."""
    chain, n = problem.chain, len(problem.chain.start)
    P = torch.from_numpy(chain.transitions[:, :n])
    D = torch.diag(torch.from_numpy(visiting_distribution(chain.transitions, chain.start)))
    identity = torch.eye(n, dtype=torch.float64)
    reward = torch.from_numpy((chain.transitions * chain.rewards).sum(1))
    left = features.T @ D @ torch.linalg.inv(identity - problem.gamma * trace_decay * P)
    return torch.linalg.solve(left @ (identity - problem.gamma * P) @ features, left @ reward)


# LSTD


@pytest.mark.parametrize("trace_decay", [0.0, 0.4, 1.0])
def test_lstd_solves_the_empirical_equations(trace_decay: float) -> None:
    """A and b written as sums over pairs i <= t of one episode, without a trace."""
    problem = Garnet(length=15, random_features=4)
    parts = [problem.episode(np.random.default_rng(seed)) for seed in range(5)]
    A, b = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for part in parts:
        rows = bellman_rows(part, problem.gamma)
        for t in range(len(part)):
            for i in range(t + 1):
                factor = (problem.gamma * trace_decay) ** (t - i)
                A += factor * torch.outer(part.inputs[i], rows[t])
                b += factor * part.inputs[i] * part.rewards[t]
    learner = LSTD(4, problem.gamma, trace_decay)
    for part in parts:
        learner.update(part)
    torch.testing.assert_close(learner.weights, torch.linalg.solve(A, b), rtol=1e-6, atol=1e-9)


def test_lstd_0_of_a_table_is_the_value_of_the_empirical_chain() -> None:
    """With one-hot features the fixed point is (I - γP̂)⁻¹ r̂ of the transition counts; cut steps still bootstrap."""
    problem = Garnet(states=6, actions=2, length=40)
    parts = [problem.roll_out(np.random.default_rng(seed)) for seed in range(10)]
    batch = joined(parts)
    counts, total = np.zeros((6, 6)), np.zeros(6)
    steps = zip(batch.inputs.long().flatten(), batch.next_inputs.long().flatten(), batch.rewards.tolist(), strict=True)
    for state, successor, reward in steps:
        counts[state, successor] += 1
        total[state] += reward
    visits = counts.sum(1)
    expected = np.linalg.solve(np.eye(6) - problem.gamma * counts / visits[:, None], total / visits)
    learner = LSTD(6, problem.gamma, 0.0)
    learner.update(batch.through(problem.features))
    np.testing.assert_allclose(learner.predict(torch.eye(6)).mean, expected, rtol=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize(("problem", "gamma"), [(BoyanChain(), 1.0), (RandomWalkChain(states=7, gamma=0.9), 0.9)])
def test_lstd_1_is_ridge_regression_on_returns(problem: Problem, gamma: float, ridge: float) -> None:
    batch = gather(problem, 30)
    learner = LSTD(problem.dimension, gamma, 1.0, ridge)
    learner.update(batch)
    phi = batch.inputs
    system = phi.T @ phi + ridge * torch.eye(problem.dimension, dtype=torch.float64)
    expected = torch.linalg.solve(system, phi.T @ returns(batch, gamma))
    torch.testing.assert_close(learner.weights, expected, rtol=1e-6, atol=1e-9)


def test_lstd_does_not_care_how_the_stream_is_cut_into_updates() -> None:
    episode = RandomWalkChain().episode(np.random.default_rng(0))
    whole, pieces = LSTD(19, 1.0, 0.7), LSTD(19, 1.0, 0.7)
    whole.update(episode)
    for start in range(0, len(episode), 10):
        part = slice(start, start + 10)
        pieces.update(
            Trajectory(
                episode.inputs[part],
                episode.rewards[part],
                episode.next_inputs[part],
                episode.terminated[part],
                episode.truncated[part],
            )
        )
    torch.testing.assert_close(pieces.A, whole.A)
    torch.testing.assert_close(pieces.b, whole.b)


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_lstd_finds_the_exact_fixed_point(trace_decay: float) -> None:
    problem = RandomWalkChain(states=5)
    rng = np.random.default_rng(1)
    learner = LSTD(3, 1.0, trace_decay)
    learner.update(joined([problem.roll_out(rng) for _ in range(3000)]).through(aggregate))
    expected = fixed_point(problem, aggregate(problem.evaluation.states), trace_decay)
    assert float((learner.weights - expected).abs().max()) < 0.06


@pytest.mark.parametrize("trace_decay", [0.0, 0.6, 1.0])
def test_lstd_error_on_boyan_chain_is_small(trace_decay: float) -> None:
    problem = BoyanChain()
    learner = LSTD(4, 1.0, trace_decay)
    learner.update(gather(problem, 300))
    assert problem.evaluation.rmse(learner.predict(problem.features(problem.evaluation.states)).mean) < 0.3


def test_lstd_recovers_the_quadratic_value_of_lqr() -> None:
    """Successor features replaced by their mean, E[x'x'ᵀ] = Mx xᵀMᵀ + W: no sampling error is left."""
    problem = LinearQuadratic()
    batch = problem.roll_out(np.random.default_rng(0))
    expected = problem.features(batch.inputs @ torch.from_numpy(problem.closed_loop).T)
    expected[:, [0, 2]] += problem.noise
    learner = LSTD(problem.dimension, problem.gamma, 0.0)
    learner.update(replace(batch, inputs=problem.features(batch.inputs), next_inputs=expected))
    estimate = learner.predict(problem.features(problem.evaluation.states))
    torch.testing.assert_close(estimate.mean, problem.evaluation.values, rtol=1e-6, atol=1e-9)


# TD


@pytest.mark.parametrize("trace_decay", [0.0, 0.6])
def test_td_converges_to_its_fixed_point(trace_decay: float) -> None:
    problem = RandomWalkChain(states=5)
    rng = np.random.default_rng(2)
    batch = joined([problem.roll_out(rng) for _ in range(2000)]).through(aggregate)
    learner = TDLambda(3, 1.0, trace_decay, lambda step: 10.0 / (200.0 + step))
    learner.update(batch)
    expected = fixed_point(problem, aggregate(problem.evaluation.states), trace_decay)
    of_another = fixed_point(problem, aggregate(problem.evaluation.states), 1.0 if trace_decay == 0.0 else 0.0)
    error = float((learner.weights - expected).abs().max())
    assert error < min(0.05, 0.7 * float((learner.weights - of_another).abs().max()))


def test_td_of_a_table_converges_to_the_values() -> None:
    problem = RandomWalkChain(states=5)
    learner = TDLambda(5, 1.0, 0.3, lambda step: 20.0 / (200.0 + step))
    learner.update(gather(problem, 2000))
    assert problem.evaluation.rmse(learner.predict(torch.eye(5)).mean) < 0.05


def test_td_by_hand() -> None:
    phi = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    no, last = torch.tensor([False, False]), torch.tensor([False, True])
    learner = TDLambda(2, 0.5, 0.8, 0.1)
    learner.update(Trajectory(phi, torch.tensor([1.0, 2.0]), phi.roll(-1, 0), last, no))
    # δ_1 = 1, θ = (0.1, 0); then z = (0.4, 1), δ_2 = 2, and the end has no value.
    assert learner.weights.tolist() == pytest.approx([0.18, 0.2])
    # A new episode has a new trace: only the second weight moves.
    learner.update(Trajectory(phi[1:], torch.tensor([1.2]), phi[1:], last[1:], no[1:]))
    assert learner.weights.tolist() == pytest.approx([0.18, 0.3])


def test_baird_td_diverges_and_lstd_does_not() -> None:
    problem = BairdStar()
    batch = gather(problem, 2000)
    initial = torch.tensor(INITIAL_WEIGHTS, dtype=torch.float64)
    phi = problem.features(problem.evaluation.states)
    td = TDLambda(8, problem.gamma, 0.0, 0.01, initial)
    before = problem.evaluation.rmse(td.predict(phi).mean)
    td.update(batch)
    assert problem.evaluation.rmse(td.predict(phi).mean) > 10.0 * before
    lstd = LSTD(8, problem.gamma, 0.0)
    lstd.update(batch)
    assert problem.evaluation.rmse(lstd.predict(phi).mean) < 1e-9


# GPTD


@pytest.mark.parametrize(
    ("problem", "episodes"), [(RandomWalkChain(states=5, gamma=0.9), 15), (LinearGaussian(gamma=0.9), 3)]
)
def test_white_gptd_is_its_batch_posterior(problem: Problem, episodes: int) -> None:
    batch = gather(problem, episodes)
    learner = GPTD(problem.dimension, problem.gamma, NOISE, PRIOR)
    learner.update(batch)
    mean, covariance = posterior(bellman_rows(batch, problem.gamma), batch.rewards)
    torch.testing.assert_close(learner.weights, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(learner.covariance, covariance, rtol=1e-6, atol=1e-9)
    phi = problem.features(problem.evaluation.states)
    estimate = learner.predict(phi)
    assert estimate.variance is not None
    torch.testing.assert_close(estimate.variance, (phi @ covariance @ phi.T).diagonal(), rtol=1e-6, atol=1e-9)


def test_white_gptd_is_the_exact_posterior_of_a_draw_from_its_prior() -> None:
    problem = LinearGaussian(gamma=0.8)
    batch = gather(problem, 4)
    learner = GPTD(problem.dimension, 0.8, problem.noise_variance, problem.prior_variance)
    learner.update(batch)
    exact = problem.posterior(batch)
    torch.testing.assert_close(learner.weights, exact.mean)
    torch.testing.assert_close(learner.covariance, exact.covariance)


@pytest.mark.parametrize("problem", [BoyanChain(), RandomWalkChain(states=7, gamma=0.9)])
def test_coloured_gptd_is_bayesian_regression_on_returns(problem: Problem) -> None:
    batch = gather(problem, 20)
    learner = ColouredGPTD(problem.dimension, problem.gamma, NOISE, PRIOR)
    learner.update(batch)
    mean, covariance = posterior(batch.inputs, returns(batch, problem.gamma))
    torch.testing.assert_close(learner.weights, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(learner.covariance, covariance, rtol=1e-6, atol=1e-9)

    ridge = LSTD(problem.dimension, problem.gamma, 1.0, ridge=NOISE / PRIOR)
    ridge.update(batch)
    torch.testing.assert_close(learner.weights, ridge.weights, rtol=1e-6, atol=1e-9)


def test_coloured_gptd_of_cut_episodes_is_its_batch_posterior() -> None:
    """Correlated noise with covariance σ²HHᵀ, H being T by T + 1 where an episode was cut."""
    problem = Garnet(length=12, random_features=4)
    batch = joined([gather(problem, 3), RandomWalkChain(states=3).roll_out(np.random.default_rng(0)).through(_four)])
    learner = ColouredGPTD(4, problem.gamma, NOISE, PRIOR)
    learner.update(batch)
    H = differences(batch, problem.gamma)
    assert H.shape == (len(batch), len(batch) + 3)
    mean, covariance = posterior(bellman_rows(batch, problem.gamma), batch.rewards, NOISE * H @ H.T)
    torch.testing.assert_close(learner.weights, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(learner.covariance, covariance, rtol=1e-6, atol=1e-9)


def _four(states: Tensor) -> Tensor:
    return torch.cat([states, states.square(), states.sin(), torch.ones_like(states)], dim=1)


def linear_kova(noise: kova.Noise) -> kova.KOVA:
    """Return the filter of four linear features that forgets nothing."""
    critic = nn.Linear(4, 1, bias=False).double()
    nn.init.zeros_(critic.weight)
    models = {"prior_variance": PRIOR, "evolution": kova.Static(), "noise": noise}
    return kova.KOVA(critic, covariance="full", dtype=torch.float64, **models)


def test_kova_on_returns_is_coloured_gptd() -> None:
    """With linear features, no forgetting and Monte-Carlo labels the two are the same posterior."""
    problem = BoyanChain()
    optimizer, learner = linear_kova(kova.ConstantNoise(NOISE)), ColouredGPTD(4, 1.0, NOISE, PRIOR)
    rng = np.random.default_rng(0)
    for _ in range(15):
        episode = problem.episode(rng)
        optimizer.step(episode.inputs, lambda_labels(optimizer.observation.module, episode, 1.0, 1.0))
        learner.update(episode)
    phi = problem.features(problem.evaluation.states)
    value, estimate = optimizer.predict(phi), learner.predict(phi)
    assert estimate.variance is not None
    torch.testing.assert_close(value.mean, estimate.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(value.variance, estimate.variance, rtol=1e-6, atol=1e-9)


def test_kova_on_returns_that_overlap_is_white_gptd() -> None:
    """Rewards of independent noise make returns of correlated noise: the same posterior from either."""
    problem = BoyanChain()
    optimizer = linear_kova(kova.Overlapping(1.0, kova.ConstantNoise(NOISE)))
    critic, learner = optimizer.observation.module, GPTD(4, 1.0, NOISE, PRIOR)
    rng = np.random.default_rng(0)
    for _ in range(15):
        episode = problem.episode(rng)
        remaining = torch.arange(len(episode), 0, -1)
        labels = lambda_labels(critic, episode, 1.0, 1.0)
        optimizer.step(episode.inputs, labels, trajectory=torch.zeros_like(remaining), remaining=remaining)
        learner.update(episode)
    torch.testing.assert_close(critic.weight[0], learner.weights, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.covariance.dense(), learner.covariance, rtol=1e-10, atol=1e-10)


# KTD


def deterministic_ring(length: int = 40) -> tuple[Trajectory, Tensor]:
    """Six states in a ring with rewards such that V = φᵀθ*, γ = 0.9."""
    rng = np.random.default_rng(0)
    phi, theta = torch.from_numpy(rng.normal(size=(6, 4))), torch.from_numpy(rng.normal(size=4))
    states = torch.arange(length + 1) % 6
    values = phi[states] @ theta
    no = torch.zeros(length, dtype=torch.bool)
    cut = no.clone()
    cut[-1] = True
    return Trajectory(phi[states[:-1]], values[:-1] - 0.9 * values[1:], phi[states[1:]], no, cut), theta


@pytest.mark.parametrize("kappa", [0.0, 1.0, 3.0])
def test_ktd_is_recursive_least_squares_on_the_bellman_residual(kappa: float) -> None:
    batch, theta = deterministic_ring()
    learner = KTD(torch.zeros(4), 0.9, NOISE, PRIOR, kappa=kappa)
    learner.update(batch)
    mean, covariance = posterior(bellman_rows(batch, 0.9), batch.rewards)
    torch.testing.assert_close(learner.weights, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(learner.covariance, covariance, rtol=1e-6, atol=1e-9)
    certain = KTD(torch.zeros(4), 0.9, 1e-8, PRIOR, kappa=kappa)
    certain.update(batch)
    torch.testing.assert_close(certain.weights, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("drift", [RandomWalkDrift(0.01), AdaptiveDrift(0.02)])
def test_ktd_drifts_like_a_kalman_filter(drift: Drift) -> None:
    batch, _ = deterministic_ring()
    theta, P = torch.zeros(4, dtype=torch.float64), PRIOR * torch.eye(4, dtype=torch.float64)
    for h, reward in zip(bellman_rows(batch, 0.9), batch.rewards, strict=True):
        P = P + 0.01 * torch.eye(4) if isinstance(drift, RandomWalkDrift) else 1.02 * P
        gain = P @ h / (h @ P @ h + NOISE)
        theta = theta + gain * (reward - h @ theta)
        P = P - torch.outer(gain, h @ P)
    learner = KTD(torch.zeros(4), 0.9, NOISE, PRIOR, drift)
    learner.update(batch)
    torch.testing.assert_close(learner.weights, theta, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(learner.covariance, P, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("problem", "episodes"), [(BoyanChain(), 20), (Garnet(length=15, random_features=4), 3)])
def test_xktd_of_linear_values_is_coloured_gptd(problem: Problem, episodes: int) -> None:
    batch = gather(problem, episodes)
    learner, other = XKTD(torch.zeros(4), problem.gamma, NOISE, PRIOR), ColouredGPTD(4, problem.gamma, NOISE, PRIOR)
    learner.update(batch)
    other.update(batch)
    torch.testing.assert_close(learner.weights, other.weights, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(learner.covariance, other.covariance, rtol=1e-6, atol=1e-8)


def test_ktd_is_biased_on_a_stochastic_chain_and_xktd_is_not() -> None:
    """Over 3 streams of 120 episodes of Boyan's chain the mean error of XKTD is noise, that of KTD its known bias."""
    problem = BoyanChain()
    phi = problem.features(problem.evaluation.states)
    errors: dict[type[Learner], list[Tensor]] = {KTD: [], XKTD: []}
    for seed in range(3):
        batch = gather(problem, 120, seed)
        for kind in (KTD, XKTD):
            learner = kind(torch.zeros(4), 1.0, 1.0, 1e4)
            learner.update(batch)
            errors[kind].append(learner.predict(phi).mean - problem.evaluation.values)
    bias = {kind: torch.stack(found).mean(0) for kind, found in errors.items()}
    # The minimiser of E[(r - hᵀθ)²] over the chain's own transitions.
    chain = problem.chain
    joint = torch.from_numpy(visiting_distribution(chain.transitions, chain.start)[:, None] * chain.transitions)
    padded = torch.cat([phi, torch.zeros(1, 4, dtype=torch.float64)])
    h = phi[:, None] - padded[None]
    normal = torch.einsum("st,sti,stj->ij", joint, h, h)
    limit = torch.linalg.solve(normal, torch.einsum("st,sti,st->i", joint, h, torch.from_numpy(chain.rewards)))
    known = phi @ limit - problem.evaluation.values
    assert float(known.abs().max()) > 1.0
    assert float((bias[KTD] - known).abs().max()) < 0.25
    assert float(bias[XKTD].abs().max()) < 0.25


def small_network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def test_ktd_of_a_network_with_a_narrow_prior_is_the_extended_filter() -> None:
    """Where P is small V is linear in θ over the sigma points; at γ = 0 the filter is then KOVA's, sample by sample."""
    critic = small_network()
    initial = nn.utils.parameters_to_vector(critic.parameters())
    u = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)[:, None]
    torch.testing.assert_close(critic_value(critic)(initial[None].detach(), u)[0], critic(u).squeeze(1).detach())
    y, last = u.squeeze(1).sin(), torch.ones(12, dtype=torch.bool)
    learner = KTD(initial, 0.0, 1e-6, 1e-6, value=critic_value(critic))
    learner.update(Trajectory(u, y, u, last, ~last))
    optimizer = kova.KOVA(critic, None, "full", 1e-6, kova.Static(), kova.ConstantNoise(1e-6), 1.0, torch.float64)
    for state, label in zip(u.split(1), y.split(1), strict=True):
        optimizer.step(state, label)
    found, wanted = learner.predict(u), optimizer.predict(u)
    assert found.variance is not None
    torch.testing.assert_close(found.mean, wanted.mean, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-3, atol=0.0)


def test_xktd_learns_a_network() -> None:
    problem, critic = RandomWalkChain(states=5), small_network()
    initial = nn.utils.parameters_to_vector(critic.parameters())
    learner = XKTD(initial, 1.0, 0.3, 0.05, AdaptiveDrift(1e-4), critic_value(critic))
    rng = np.random.default_rng(0)
    learner.update(joined([problem.roll_out(rng) for _ in range(100)]).through(lambda states: (states - 2.0) / 2.0))
    scaled = (problem.evaluation.states - 2.0) / 2.0
    before = problem.evaluation.rmse(critic(scaled).squeeze(1).detach())
    assert problem.evaluation.rmse(learner.predict(scaled).mean) < 0.4 * before


# Adam


@pytest.mark.parametrize("trace_decay", [0.0, 1.0])
def test_adam_reaches_the_values(trace_decay: float) -> None:
    problem = RandomWalkChain(states=5)
    critic = nn.Linear(5, 1, bias=False).double()
    nn.init.zeros_(critic.weight)
    learner = AdamLearner(critic, 1.0, trace_decay, learning_rate=0.01)
    rng = np.random.default_rng(0)
    for _ in range(200):
        learner.update(joined([problem.episode(rng) for _ in range(5)]))
    estimate = learner.predict(torch.eye(5, dtype=torch.float64))
    assert estimate.variance is None
    assert problem.evaluation.rmse(estimate.mean) < 0.12


def test_labels_are_returns_at_lambda_1_and_bootstrapped_rewards_at_0() -> None:
    problem = RandomWalkChain(states=5, gamma=0.9)
    batch = gather(problem, 3)
    critic = nn.Linear(5, 1).double()
    torch.testing.assert_close(lambda_labels(critic, batch, 0.9, 1.0), returns(batch, 0.9))
    following = critic(batch.next_inputs).squeeze(1).detach() * (~batch.terminated)
    torch.testing.assert_close(lambda_labels(critic, batch, 0.9, 0.0), batch.rewards + 0.9 * following)


# All of them

LEARNERS: dict[str, Callable[[], Learner]] = {
    "TD": lambda: TDLambda(5, 1.0, 0.5, 0.05),
    "LSTD": lambda: LSTD(5, 1.0, 0.5, 1e-3),
    "GPTD": lambda: GPTD(5, 1.0, NOISE),
    "coloured GPTD": lambda: ColouredGPTD(5, 1.0, NOISE),
    "KTD": lambda: KTD(torch.zeros(5), 1.0, NOISE),
    "XKTD": lambda: XKTD(torch.zeros(5), 1.0, NOISE),
    "Adam": lambda: AdamLearner(nn.Linear(5, 1), 1.0, 1.0),
}


@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_interface(make: Callable[[], Learner], dtype: torch.dtype) -> None:
    learner = make()
    if isinstance(learner, AdamLearner):
        learner.critic.to(dtype)
    episode = RandomWalkChain(states=5).episode(np.random.default_rng(0)).to(dtype)
    before = episode.inputs.clone(), episode.rewards.clone()
    learner.update(episode)
    estimate = learner.predict(torch.eye(5, dtype=dtype))
    assert estimate.mean.shape == (5,)
    assert bool(torch.isfinite(estimate.mean).all())
    assert not estimate.mean.requires_grad
    if estimate.variance is not None:
        assert estimate.variance.shape == (5,)
        assert 0.0 < float(estimate.variance.min()) <= float(estimate.variance.max()) < 1.0 + math.ulp(1.0) * 1e3
    assert torch.equal(episode.inputs, before[0])
    assert torch.equal(episode.rewards, before[1])
