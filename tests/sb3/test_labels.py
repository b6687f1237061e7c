"""What reaches the filter: the label y, the value h and the ratio are Table 1's, on data seen from outside."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from sb3_cases import (
    A2C,
    ALL,
    CONTINUOUS,
    DDPG,
    DQN,
    ENOUGH,
    OFF_POLICY,
    ON_POLICY,
    PPO,
    SAC,
    SETTINGS,
    TRPO,
    make,
    same,
    snapshot,
)
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

import kova
from kova.targets import gae_targets, n_step_targets, q_targets

#: In units of the labels the first of them hold rewards only, and set the output layer: see test_reward_units.
AS_THEY_ARE = {"units": kova.RawUnits()}
#: Short enough that some episodes are cut, long enough that the pole falls in others.
LIMIT = 14


def cut_short(environment="CartPole-v1", count=1):
    return DummyVecEnv([lambda: gymnasium.make(environment, max_episode_steps=LIMIT)] * count)


class Witness(BaseCallback):
    """Notes every transition as the environment gave it, and V(s), V(s') when the rollout is complete."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def _on_step(self):
        seen = self.locals
        ends, infos = seen["dones"], seen["infos"]
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        followers = seen["new_obs"].copy()
        for index in np.flatnonzero(ends):
            followers[index] = infos[index]["terminal_observation"]
        before = self.model._last_obs.copy()
        self.steps.append((before, seen["rewards"].copy(), followers, ends & ~cut, cut))
        return True

    def _on_rollout_end(self):
        columns = [torch.as_tensor(np.stack(column)) for column in zip(*self.steps, strict=True)]
        self.observations, self.rewards, followers, self.terminated, self.truncated = columns
        with torch.no_grad():
            self.values, self.next_values = (
                self.model.policy.predict_values(x.flatten(0, 1)).reshape(self.rewards.shape)
                for x in (self.observations, followers)
            )


def listen(model, heard):
    """Let ``heard(inputs, targets, ratio)`` know of every batch before the filter sees it."""
    model.critic_optimizer.register_step_pre_hook(lambda _, args, kwargs: heard(*args[-2:], kwargs.get("ratio")))


def find(rows, table):
    """Return where each of ``rows`` stands in ``table``."""
    index = {row.tobytes(): place for place, row in enumerate(np.asarray(table))}
    assert len(index) == len(table)
    return [index[row.tobytes()] for row in np.asarray(rows)]


@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_label_of_a_state(algorithm, environments):
    witness, batches = Witness(), []
    size = {"n_steps": 96} if algorithm is A2C else {"n_steps": 96, "batch_size": 48}
    critic = {"critic_epochs": 1, "critic_batch_size": 10**6, "critic_kwargs": AS_THEY_ARE}
    model = make(algorithm, cut_short(count=environments), gamma=0.9, **critic, **size)
    listen(model, lambda *batch: batches.append(batch))
    model.learn(96 * environments, callback=witness)

    assert witness.terminated.any()
    assert witness.truncated.any()
    common = (witness.next_values, witness.terminated, witness.truncated)
    if algorithm is A2C:
        expected = n_step_targets(witness.rewards, *common, gamma=0.9)
    else:
        expected = gae_targets(witness.rewards, witness.values, *common, gamma=0.9, gae_lambda=model.gae_lambda)
    [(inputs, targets, _)] = batches
    places = find(inputs, witness.observations.flatten(0, 1))
    assert sorted(places) == list(range(96 * environments))
    torch.testing.assert_close(targets, expected.flatten()[places], rtol=1e-5, atol=1e-5)
    # h was V(s; θ') when the filter first saw the batch: the policy's update left the value alone.
    squared = (expected - witness.values).square().mean().item()
    assert model.logger.name_to_value["train/value_loss"] == pytest.approx(squared, rel=1e-4)


@pytest.mark.parametrize(("algorithm", "environment"), [(DDPG, "Pendulum-v1"), (DQN, "CartPole-v1")])
def test_the_label_of_an_action(algorithm, environment):
    model = make(algorithm, cut_short(environment), gamma=0.9, gradient_steps=2, critic_kwargs=AS_THEY_ARE)
    seen = []

    def heard(inputs, targets, ratio):
        assert ratio is None
        buffer = model.replay_buffer
        filled = buffer.observations[: buffer.pos, 0]
        places = find(inputs[0], filled)
        assert np.array_equal(np.asarray(inputs[1]), buffer.actions[places, 0])
        rewards, dones, cut = (torch.as_tensor(x[places, 0]) for x in (buffer.rewards, buffer.dones, buffer.timeouts))
        after = torch.as_tensor(buffer.next_observations[places, 0])
        with torch.no_grad():
            if algorithm is DQN:
                next_q = model.q_net_target(after)
            else:
                next_q = model.critic_target(after, model.actor_target(after))[0].flatten()
        terminated, truncated = (dones > 0) & ~(cut > 0), cut > 0
        expected = q_targets(rewards, next_q, terminated, truncated, gamma=0.9)
        torch.testing.assert_close(targets.flatten(), expected)
        seen.append((int(terminated.sum()), int(truncated.sum())))

    listen(model, heard)
    model.learn(120)
    terminated, truncated = np.sum(seen, axis=0)
    assert truncated > 0
    assert (terminated > 0) == (algorithm is DQN)


def upstreams_labels(model, batch):
    """Return what stable_baselines3.TD3 and SAC compute, in their words."""
    discounts = batch.discounts if batch.discounts is not None else model.gamma
    with torch.no_grad():
        if isinstance(model, SAC):
            next_actions, next_log_prob = model.actor.action_log_prob(batch.next_observations)
        else:
            noise = batch.actions.clone().data.normal_(0, model.target_policy_noise)
            noise = noise.clamp(-model.target_noise_clip, model.target_noise_clip)
            next_actions = (model.actor_target(batch.next_observations) + noise).clamp(-1, 1)
        next_q_values = torch.cat(model.critic_target(batch.next_observations, next_actions), dim=1)
        next_q_values, _ = torch.min(next_q_values, dim=1, keepdim=True)
        if isinstance(model, SAC):
            ent_coef = torch.exp(model.log_ent_coef.detach())
            next_q_values = next_q_values - ent_coef * next_log_prob.reshape(-1, 1)
        return batch.rewards + (1 - batch.dones) * discounts * next_q_values


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_the_labels_of_twins_are_upstreams(algorithm, steps):
    model, heard = make(algorithm, cut_short("Pendulum-v1"), gamma=0.9, n_steps=steps).learn(ENOUGH), []
    batch = model.replay_buffer.sample(16)
    with torch.no_grad():
        # The twins differ, so that their minimum is neither.
        model.critic_target.q_networks[-1][-1].bias.add_(model.critic(batch.observations, batch.actions)[0].std())
    for kalman in model.critic_optimizers:
        kalman.register_step_pre_hook(lambda _, args, kwargs: heard.append(args[-1].clone()))
    torch.manual_seed(7)
    following = model._following(batch)
    assert torch.equal(following.actions, following.actions.clamp(-1, 1))
    model._fit(batch, following)
    torch.manual_seed(7)
    expected = upstreams_labels(model, batch)
    assert len(heard) == (1 if algorithm is DDPG else 2)
    assert all(torch.equal(labels, expected) for labels in heard)


@pytest.mark.parametrize("algorithm", ALL)
def test_the_value_is_the_networks(algorithm):
    model = make(algorithm).learn(ENOUGH)
    inputs = []
    listen(model, lambda given, *_: inputs.append(given))
    model.learn(ENOUGH)
    given = inputs[-1]
    with torch.no_grad():
        if algorithm in CONTINUOUS:
            values = model.critic(*given)[0]
        elif algorithm is DQN:
            values = model.q_net(given[0])[torch.arange(len(given[1])), given[1].flatten()]
        else:
            values = model.policy.predict_values(given)
    torch.testing.assert_close(model.critic_optimizer.predict(given).mean, values.flatten())


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_ratio_is_old_over_new_at_the_policy_just_updated(algorithm, environment):
    steps = SETTINGS[algorithm]["n_steps"]
    model = make(algorithm, environment, learning_rate=0.01, critic_kwargs={**AS_THEY_ARE, "noise": kova.MaxRatio()})
    ratios = []

    def heard(inputs, targets, ratio):
        buffer = model.rollout_buffer
        places = find(inputs, buffer.observations)
        actions = torch.as_tensor(buffer.actions[places])
        with torch.no_grad():
            _, log_prob, _ = model.policy.evaluate_actions(
                inputs, actions.long().flatten() if environment == "CartPole-v1" else actions
            )
        old = torch.as_tensor(buffer.log_probs[places]).flatten()
        torch.testing.assert_close(ratio, (old - log_prob).exp(), rtol=1e-5, atol=1e-6)
        assert np.array_equal(targets, buffer.returns[places].flatten())
        ratios.append(ratio)

    listen(model, heard)
    model.learn(2 * steps)
    assert len(ratios) >= 2
    assert all((ratio - 1).abs().max() > 1e-4 for ratio in ratios)


def test_no_ratio_is_computed_for_a_noise_that_does_not_need_it():
    model, given = make(ON_POLICY[0], "CartPole-v1"), []
    listen(model, lambda inputs, targets, ratio: given.append(ratio))
    model.learn(SETTINGS[ON_POLICY[0]]["n_steps"])
    assert given
    assert all(ratio is None for ratio in given)


@pytest.mark.parametrize("orientation", ["paper", "code"])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_max_ratio_noise(algorithm, orientation):
    options = {"learning_rate": 0.01}
    model = make(algorithm, **options, critic_kwargs={"noise": kova.MaxRatio(orientation=orientation)}).learn(ENOUGH)
    plain = make(algorithm, **options).learn(ENOUGH)
    assert model.critic_optimizer.steps == plain.critic_optimizer.steps > 0
    assert not same(model.policy.value_net.state_dict(), plain.policy.value_net.state_dict())
    assert np.isfinite(model.logger.name_to_value["kova/nis"])


#: Noise models that need what only the other family of algorithms knows.
WITHOUT_RATIO = [(algorithm, "ratio", kova.MaxRatio()) for algorithm in OFF_POLICY]
WITHOUT_VARIANCE = [(algorithm, "next_variance", kova.InverseVariance()) for algorithm in ON_POLICY]


@pytest.mark.parametrize(("algorithm", "need", "noise"), WITHOUT_RATIO + WITHOUT_VARIANCE)
def test_a_noise_model_that_needs_too_much_is_refused_at_once(algorithm, need, noise):
    for model in (noise, kova.Robust(noise)):
        message = rf"critic_kwargs: noise=.* needs {need}, which {algorithm.__name__} cannot give; use .*BatchSize"
        with pytest.raises(ValueError, match=message):
            make(algorithm, critic_kwargs={"noise": model})
    assert make(algorithm, critic="adam", critic_kwargs={"noise": noise}).learn(ENOUGH)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_robust_max_ratio_gets_its_ratio(algorithm):
    model = make(algorithm, critic_kwargs={"noise": kova.Robust(kova.MaxRatio())}).learn(ENOUGH)
    assert model.critic_optimizer.steps > 0


class Legacy(kova.Noise):
    """As one would have written it for 0.1.0."""

    needs_next_variance = True

    def covariance(self, batch):
        return 1.0 + batch.next_variance


def test_a_noise_model_written_for_010():
    assert make(DQN, critic_kwargs={"noise": Legacy()}).learn(ENOUGH).critic_optimizer.steps > 0
    with pytest.raises(ValueError, match="needs next_variance"):
        make(PPO, critic_kwargs={"noise": Legacy()})


@pytest.mark.parametrize("algorithm", ALL)
def test_the_filter_carries_over_between_calls_of_learn(algorithm):
    model = make(algorithm, critic_kwargs={"evolution": kova.FadingMemory(0.01)}).learn(ENOUGH)
    optimizer, steps = model.critic_optimizer, model.critic_optimizer.steps
    assert steps > 0
    before, starts = snapshot(model)["critic_optimizer"], []
    weights = copy.deepcopy(next(iter(optimizer.observation.parameters.values())))
    listen(model, lambda *_: starts.append(copy.deepcopy(optimizer.state_dict())))
    model.learn(ENOUGH)
    assert model.critic_optimizer is optimizer
    assert optimizer.steps > steps
    assert same(starts[0], before)
    assert not same(optimizer.state_dict()["covariance"], before["covariance"])
    assert not torch.equal(next(iter(optimizer.observation.parameters.values())), weights)


@pytest.mark.parametrize(("algorithm", "passes"), [(PPO, (1, 64)), (TRPO, (1, 64)), (A2C, (1, None))])
def test_every_pass_sees_every_sample_once(algorithm, passes):
    epochs, batch = passes
    model, seen = make(algorithm, cut_short(count=2), n_steps=160), []
    listen(model, lambda inputs, *_: seen.append(np.asarray(inputs)))
    model.learn(320)
    sizes = [len(inputs) for inputs in seen]
    assert sizes == ([320] if batch is None else [64] * 5 * epochs)
    table = model.rollout_buffer.observations
    for epoch in range(epochs):
        part = np.concatenate(seen[epoch * len(seen) // epochs : (epoch + 1) * len(seen) // epochs])
        assert sorted(find(part, table)) == list(range(320))


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_epochs_and_batch_size_of_the_critic(algorithm):
    model, sizes = make(algorithm, critic_epochs=3, critic_batch_size=5), []
    listen(model, lambda inputs, *_: sizes.append(len(inputs)))
    steps = SETTINGS[algorithm]["n_steps"]
    model.learn(steps)
    one_pass = [5] * (steps // 5) + [steps % 5]
    assert sizes == one_pass * 3


@pytest.mark.parametrize("name", ["critic_epochs", "critic_batch_size"])
def test_counts_are_checked(name):
    with pytest.raises(ValueError, match=name):
        make(PPO, **{name: -1})


@pytest.mark.parametrize(("algorithm", "env"), [(DQN, "CartPole-v1"), *((one, "Pendulum-v1") for one in CONTINUOUS)])
def test_the_noise_may_know_the_variance_of_the_bootstrap(algorithm, env):
    settings = {"evolution": kova.FadingMemory(0.01), "noise": kova.InverseVariance(1.0, gamma=0.99)}
    model = algorithm(
        "MlpPolicy", env, learning_starts=50, seed=0, policy_kwargs={"net_arch": [8]}, critic_kwargs=settings
    )
    seen = []
    model.critic_optimizer.register_step_pre_hook(lambda _, args, kwargs: seen.append(kwargs["next_variance"]))
    model.learn(100)
    assert seen
    assert all(bool((variance >= 0).all()) and bool((variance > 0).any()) for variance in seen)
    assert model.critic_optimizer.steps == len(seen)
    batch = model.replay_buffer.sample(200)
    ended = batch.dones.flatten() == 1
    assert torch.equal(model._next_variance(batch, model._following(batch), model.critic_optimizer) == 0, ended)
    assert bool(ended.any()) == (algorithm is DQN)
