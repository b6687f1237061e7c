"""The problems against truth: closed forms, Gymnasium's dynamics, and the martingale that exact values make."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("gymnasium")
pytest.importorskip("scipy")

import gymnasium

from kova.experiments.problems import (
    PROBLEMS,
    BairdStar,
    BoyanChain,
    Evaluation,
    Garnet,
    LinearGaussian,
    LinearQuadratic,
    MountainCar,
    Problem,
    PuddleWorld,
    RandomWalkChain,
    Trajectory,
    joined,
    mountain_car,
    puddle_world,
)
from kova.experiments.problems.finite import Chain, stationary_distribution, visiting_distribution

#: The standard instances, made once: two of them simulate their truth.
INSTANCES = {name: make() for name, make in PROBLEMS.items()} | {"linear-gaussian 0.9": LinearGaussian(gamma=0.9)}
EACH = pytest.mark.parametrize("problem", INSTANCES.values(), ids=INSTANCES.keys())


def sampled(problem: Problem, steps: int, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    parts: list[Trajectory] = []
    seen = 0
    while seen < steps:
        parts.append(problem.roll_out(rng))
        seen += len(parts[-1])
    return joined(parts)


@EACH
def test_interface(problem: Problem) -> None:
    evaluation = problem.evaluation
    count = len(evaluation.states)
    assert problem.evaluation is evaluation
    assert problem.features(evaluation.states).shape == (count, problem.dimension)
    assert problem.observations(evaluation.states).abs().max() < 6.0
    assert evaluation.values.shape == evaluation.weights.shape == evaluation.standard_error.shape == (count,)
    assert float(evaluation.weights.sum()) == pytest.approx(1.0)
    assert evaluation.rmse(evaluation.values) == 0.0
    assert evaluation.rmse(evaluation.values + 2.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="estimates"):
        evaluation.rmse(evaluation.values[:, None])


@EACH
def test_episodes_are_in_order_and_repeatable(problem: Problem) -> None:
    episode, again = (problem.roll_out(np.random.default_rng(7)) for _ in range(2))
    others = {tuple(problem.roll_out(np.random.default_rng(seed)).inputs.flatten().tolist()) for seed in range(20)}
    assert torch.equal(episode.inputs, again.inputs)
    assert torch.equal(episode.rewards, again.rewards)
    assert len(others) > 4
    assert torch.equal(episode.inputs[1:], episode.next_inputs[:-1])
    assert episode.ends.tolist() == [False] * (len(episode) - 1) + [True]
    assert bool(torch.isfinite(problem.features(episode.next_inputs)).all())
    shown = problem.episode(np.random.default_rng(7))
    assert torch.equal(shown.inputs, problem.features(episode.inputs))
    assert torch.equal(shown.next_inputs, problem.features(episode.next_inputs))


@EACH
def test_temporal_differences_of_the_exact_values_average_to_zero(problem: Problem) -> None:
    """r + γV(s') - V(s) is a martingale difference: any error in V, P, r or the sampler shows as a drift."""
    simulated = isinstance(problem, MountainCar | PuddleWorld)
    if isinstance(problem, MountainCar | PuddleWorld):
        # Simulated values of successive states are drawn independently, so their errors average out as well.
        problem = replace(problem, rollouts=200)
    batch = sampled(problem, 400 if simulated else 8_000)
    following = problem.values(batch.next_inputs).masked_fill(batch.terminated, 0.0)
    errors = batch.rewards + problem.gamma * following - problem.values(batch.inputs)
    allowed = 5.0 * float(errors.std()) / math.sqrt(len(errors)) + 1e-12
    assert abs(float(errors.mean())) < allowed
    if not simulated:
        # In every direction of the observations, not only on average.
        signs = problem.observations(batch.inputs)
        drift = (errors[:, None] * signs).mean(0)
        spread = (errors[:, None] * signs).std(0) / math.sqrt(len(errors))
        assert bool((drift.abs() < 5.0 * spread + 1e-12).all())


def test_random_walk_values_are_a_straight_line() -> None:
    expected = torch.arange(-9, 10, dtype=torch.float64) / 10.0
    torch.testing.assert_close(INSTANCES["random walk"].evaluation.values, expected)


def test_boyan_chain_values_are_linear_in_its_features() -> None:
    problem = BoyanChain()
    states = problem.evaluation.states
    torch.testing.assert_close(problem.values(states), -2.0 * states.squeeze(1))
    theta = torch.tensor([-24.0, -16.0, -8.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(problem.features(states) @ theta, problem.values(states))
    # Every episode visits the start and the last state.
    visits = problem.evaluation.weights
    assert float(visits[12]) == pytest.approx(float(visits[0])) == pytest.approx(float(visits.max()))


def test_baird_star_has_more_weights_than_states_and_no_value() -> None:
    problem = BairdStar()
    assert problem.features(problem.evaluation.states).shape == (7, 8)
    assert not problem.evaluation.values.any()
    batch = sampled(problem, 700)
    assert bool(batch.truncated.all())
    assert set(batch.next_inputs.squeeze(1).tolist()) == {6.0}
    assert len(batch.inputs.unique()) == 7


def test_garnet_follows_its_seed_and_branching() -> None:
    first, again, other = Garnet(seed=1).chain, Garnet(seed=1).chain, Garnet(seed=2).chain
    assert np.array_equal(first.transitions, again.transitions)
    assert not np.array_equal(first.transitions, other.transitions)
    single = Garnet(states=8, actions=1, branching=8, seed=3)
    assert ((single.chain.transitions > 0).sum(1) == 8).all()
    assert Garnet(random_features=5).dimension == 5
    with pytest.raises(ValueError, match="branching"):
        Garnet(states=3, branching=4)


def test_garnet_values_satisfy_the_bellman_equation_of_its_decisions() -> None:
    problem = Garnet(seed=5)
    policy, transitions, rewards = problem.decisions
    assert ((transitions > 0).sum(2) == problem.branching).all()
    values = problem.evaluation.values.numpy()
    action_values = rewards + problem.gamma * transitions @ values
    np.testing.assert_allclose((policy * action_values).sum(1), values, atol=1e-12)


def test_visits_match_their_frequencies() -> None:
    problem = Garnet(seed=4)
    batch = sampled(problem, 30_000)
    frequency = torch.bincount(batch.inputs.long().squeeze(1), minlength=30) / len(batch)
    assert float((frequency - problem.evaluation.weights).abs().max()) < 0.01
    walk = RandomWalkChain(states=5)
    share = visiting_distribution(walk.chain.transitions, walk.chain.start)
    np.testing.assert_allclose(share, np.array([1, 2, 3, 2, 1]) / 9)


def test_lqr_values_satisfy_the_bellman_equation() -> None:
    problem = LinearQuadratic()
    states = problem.evaluation.states
    M = torch.from_numpy(problem.closed_loop)
    # V is quadratic: four points at ±√2 of the noise's deviation integrate it exactly.
    shifts = math.sqrt(2.0 * problem.noise) * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
    following = torch.stack([problem.values(states @ M.T + shift) for shift in shifts]).mean(0)
    gain = torch.tensor(problem.K, dtype=torch.float64)
    rewards = -states.square().sum(1) - (states @ gain.T).square().sum(1)
    torch.testing.assert_close(rewards + problem.gamma * following, problem.values(states))
    phi = problem.features(states)
    theta = torch.linalg.lstsq(phi, problem.values(states)[:, None]).solution
    torch.testing.assert_close((phi @ theta).squeeze(1), problem.values(states))
    with pytest.raises(ValueError, match="stable"):
        LinearQuadratic(K=((-1.0, 0.0),))


@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_linear_gaussian_posterior_is_calibrated_over_draws_of_theta(gamma: float) -> None:
    """(θ* - m)ᵀC⁻¹(θ* - m) is χ² with d degrees of freedom, if and only if the posterior is the right one."""
    draws, d = 400, 6
    distances = []
    for seed in range(draws):
        problem = LinearGaussian(gamma=gamma, count=d, noise_variance=0.01, length=20, seed=seed)
        posterior = problem.posterior(problem.episode(np.random.default_rng(seed)))
        error = problem.weights - posterior.mean
        distances.append(float(error @ torch.linalg.solve(posterior.covariance, error)))
    standard_error = math.sqrt(2.0 * d / draws)
    assert abs(np.mean(distances) - d) < 4.0 * standard_error
    assert abs(np.var(distances) - 2.0 * d) < 6.0


def test_mountain_car_rolls_like_gymnasium() -> None:
    environment = gymnasium.make("MountainCar-v0").unwrapped
    environment.reset(seed=0)
    rng = np.random.default_rng(0)
    states = rng.uniform((-1.2, -0.07), (0.6, 0.07), size=(300, 2))
    pushes = rng.integers(-1, 2, 300).astype(float)
    step = mountain_car.roll(states, pushes)
    for state, push, after, terminated in zip(states, pushes, step.states, step.terminated, strict=True):
        environment.state = tuple(state)
        observation, reward, over, _, _ = environment.step(int(push) + 1)
        np.testing.assert_allclose(after, observation, atol=1e-6)
        assert (reward, over) == (-1.0, terminated)


def test_puddles_are_where_they_should_be() -> None:
    points = np.array([[0.3, 0.75], [0.3, 0.85], [0.45, 0.4], [0.45, 0.3], [0.5, 0.6], [0.05, 0.75], [0.9, 0.1]])
    np.testing.assert_allclose(puddle_world.depth(points), [0.1, 0.0, 0.1, 0.0, 0.05, 0.05, 0.0], atol=1e-12)


def test_a_step_through_water_is_paid_for_where_it_leads() -> None:
    states = np.full((20, 2), (0.3, 0.62))
    step = PuddleWorld(noise=0.0).step(states, np.random.default_rng(0))
    up, right = step.states[:, 1] > 0.65, step.states[:, 0] > 0.32
    assert 0 < up.sum() < 20
    assert (up ^ right).all()
    np.testing.assert_allclose(step.rewards, np.where(up, -1.0 - 400.0 * 0.02, -1.0))


def test_simulated_value_of_a_certain_path() -> None:
    """Without chance there is one return, and it can be counted by hand."""
    car = MountainCar(randomness=0.0, rollouts=3, cells=4)
    states = torch.tensor([[-0.5, 0.0], [0.45, 0.06]], dtype=torch.float64)
    returns = car.returns(states, np.random.default_rng(0))
    for state, found in zip(states.numpy(), returns, strict=True):
        steps, current, terminated = 0, state[None], False
        while not terminated:
            step = mountain_car.roll(current, np.where(current[:, 1] < 0.0, -1.0, 1.0))
            current, terminated, steps = step.states, bool(step.terminated[0]), steps + 1
        expected = -(1.0 - car.gamma**steps) / (1.0 - car.gamma)
        torch.testing.assert_close(found, torch.full((3,), expected, dtype=torch.float64))
    assert not car.evaluation.standard_error.any()


@pytest.mark.parametrize("name", ["mountain car", "puddle world"])
def test_truth_agrees_with_another_simulation(name: str) -> None:
    problem = INSTANCES[name]
    assert isinstance(problem, MountainCar | PuddleWorld)
    chosen = slice(5, None, 20)
    evaluation = problem.evaluation
    returns = problem.returns(evaluation.states[chosen], np.random.default_rng(99))
    both = evaluation.standard_error[chosen] * math.sqrt(2.0)
    assert bool(((returns.mean(1) - evaluation.values[chosen]).abs() <= 4.5 * both + 1e-9).all())


def test_simulation_that_does_not_end_is_refused() -> None:
    with pytest.raises(RuntimeError, match="did not end within 5 steps"):
        _ = MountainCar(length=5, rollouts=2).evaluation


def tensors(size: int = 3) -> dict[str, Tensor]:
    flags = torch.zeros(size, dtype=torch.bool)
    return {
        "inputs": torch.zeros(size, 2),
        "rewards": torch.zeros(size),
        "next_inputs": torch.zeros(size, 2),
        "terminated": flags,
        "truncated": flags,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inputs", torch.zeros(3)),
        ("next_inputs", torch.zeros(3, 1)),
        ("rewards", torch.zeros(3, 1)),
        ("terminated", torch.zeros(2, dtype=torch.bool)),
        ("truncated", torch.zeros(3)),
    ],
)
def test_misshapen_trajectory_is_refused(name: str, value: Tensor) -> None:
    with pytest.raises(ValueError, match=name):
        Trajectory(**{**tensors(), name: value})


def test_trajectory_in_another_dtype() -> None:
    batch = RandomWalkChain().episode(np.random.default_rng(0)).to(torch.float32)
    assert batch.inputs.dtype == batch.next_inputs.dtype == batch.rewards.dtype == torch.float32
    assert batch.terminated.dtype == torch.bool


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="at least one"):
        joined([])
    with pytest.raises(ValueError, match="states must be odd"):
        RandomWalkChain(states=4)
    with pytest.raises(ValueError, match="separate classes"):
        stationary_distribution(np.eye(2, 3))
    half = np.full(2, 0.5)
    with pytest.raises(ValueError, match="transitions must sum"):
        Chain(np.zeros((2, 3)), np.zeros((2, 3)), half, np.eye(2), half)
    assert isinstance(RandomWalkChain().evaluation, Evaluation)
