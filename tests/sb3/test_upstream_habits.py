"""What upstream's users do every day works with our classes in the place of theirs."""

import inspect

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
    TD3,
    TRPO,
    UPSTREAM,
    environment,
    make,
    observations,
    same,
    snapshot,
    value_arguments,
    vectorised,
)
from stable_baselines3.common import callbacks
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

import kova


def short(algorithm, count=1):
    """Return environments with episodes of ten steps at most."""
    name = environment(algorithm)
    return DummyVecEnv([lambda: Monitor(gymnasium.make(name, max_episode_steps=10))] * count)


@pytest.mark.parametrize("algorithm", ALL)
def test_it_is_upstreams_class(algorithm):
    assert issubclass(algorithm, UPSTREAM[algorithm])
    assert algorithm.__name__ == UPSTREAM[algorithm].__name__
    assert algorithm.policy_aliases == UPSTREAM[algorithm].policy_aliases


@pytest.mark.filterwarnings("ignore:no effect on a Kalman critic")
@pytest.mark.parametrize("algorithm", ALL)
def test_every_argument_of_upstreams_is_taken(algorithm):
    parameters = inspect.signature(UPSTREAM[algorithm].__init__).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    defaults |= {"device": "cpu", "seed": 0}
    if algorithm in OFF_POLICY:
        defaults["buffer_size"] = 100
    if algorithm not in CONTINUOUS:
        defaults["policy_kwargs"] = {"net_arch": [8]}
    model = algorithm("MlpPolicy", environment(algorithm), **defaults)
    theirs = UPSTREAM[algorithm]("MlpPolicy", model.env, **defaults)
    for name in ("learning_rate", "gamma", "seed", "batch_size", "n_steps", "tau", "max_grad_norm", "vf_coef"):
        assert getattr(model, name, None) == getattr(theirs, name, None)


@pytest.mark.parametrize("algorithm", ALL)
def test_arguments_by_position(algorithm):
    model = algorithm("MlpPolicy", vectorised(algorithm), 0.01, device="cpu")
    assert model.learning_rate == 0.01


@pytest.mark.parametrize("algorithm", ALL)
def test_learn_returns_the_model_and_counts(algorithm):
    model = make(algorithm)
    assert model.learn(ENOUGH) is model
    assert model.num_timesteps == ENOUGH
    model.learn(ENOUGH, reset_num_timesteps=False)
    assert model.num_timesteps == 2 * ENOUGH
    steps = model.critic_optimizer.steps
    model.learn(ENOUGH)
    assert model.num_timesteps == ENOUGH
    assert model.critic_optimizer.steps > steps


@pytest.mark.parametrize("algorithm", ALL)
def test_predictions_have_upstreams_shapes(algorithm):
    ours, theirs = make(algorithm), make(algorithm, upstream=True)
    for given in (ours.observation_space.sample(), observations(ours, 3)):
        for deterministic in (True, False):
            one, state = ours.predict(given, deterministic=deterministic)
            other, _ = theirs.predict(given, deterministic=deterministic)
            assert state is None
            assert type(one) is type(other)
            assert one.shape == other.shape
            assert one.dtype == other.dtype
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        ours.predict(np.zeros((2, 17)))


@pytest.mark.parametrize("algorithm", ALL)
def test_the_value_of_one_and_of_many(algorithm):
    model = make(algorithm).learn(ENOUGH)
    one, many = model.observation_space.sample(), observations(model, 5)
    for given, count in ((one, 1), (many, 5)):
        value = model.predict_value(*value_arguments(model, given, count))
        assert isinstance(value, torch.distributions.Normal)
        assert value.mean.shape == (count,)
        assert (value.stddev > 0).all()
        assert not value.mean.requires_grad


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_the_value_takes_what_predict_returns(algorithm):
    model = make(algorithm).learn(ENOUGH)
    for given in (model.observation_space.sample(), observations(model, 4)):
        action, _ = model.predict(given, deterministic=True)
        value = model.predict_value(given, action)
        given_tensor = model.policy.obs_to_tensor(given)[0]
        with torch.no_grad():
            if algorithm is DQN:
                expected = model.q_net(given_tensor).amax(1)
            else:
                greedy = model.policy(given_tensor, deterministic=True)
                expected = model.critic(given_tensor, greedy)[0].flatten()
        torch.testing.assert_close(value.mean, expected)


@pytest.mark.parametrize("algorithm", ALL)
def test_data_makes_the_filter_surer(algorithm):
    model = make(algorithm, critic_kwargs={"prior_variance": 2.0, "evolution": kova.FadingMemory(1e-6)})
    model.learn(2 * ENOUGH)
    assert model.critic_optimizer.covariance.mean_variance() < 2.0
    assert model.logger.name_to_value["kova/information_gain"] > 0


@pytest.mark.parametrize("algorithm", ALL)
def test_the_control_arm_has_no_uncertainty(algorithm):
    model = make(algorithm, critic="adam").learn(ENOUGH)
    with pytest.raises(TypeError, match='critic="adam" keeps no uncertainty'):
        model.predict_value(*value_arguments(model, model.observation_space.sample(), 1))


@pytest.mark.parametrize("algorithm", ALL)
def test_the_control_arm_learns(algorithm):
    model = make(algorithm, critic="adam")
    before = snapshot(model)
    model.learn(ENOUGH)
    assert model.critic_optimizer.state
    assert not same(before["policy"], snapshot(model)["policy"])


@pytest.mark.parametrize("algorithm", ALL)
def test_bad_critics(algorithm):
    with pytest.raises(ValueError, match='critic must be "kova" or "adam"'):
        make(algorithm, critic="sgd")
    with pytest.raises(ValueError, match="did you mean 'prior_variance'"):
        make(algorithm, critic_kwargs={"prior_varience": 1.0})
    with pytest.raises(ValueError, match=r"critic_kwargs has 'zzz'.*there are batch_size, covariance, "):
        make(algorithm, critic_kwargs={"zzz": 1.0})
    with pytest.raises(ValueError, match="prior_variance"):
        make(algorithm, critic_kwargs={"prior_variance": -1.0})


@pytest.mark.parametrize("algorithm", ALL)
def test_the_filter_never_gets_a_learning_rate(algorithm, tmp_path):
    model = make(algorithm)

    def free():
        return all("lr" not in group for group in model.critic_optimizer.param_groups)

    assert free()
    model.learn(ENOUGH)
    assert free()
    model.save(tmp_path / "model")
    model = algorithm.load(tmp_path / "model", env=vectorised(algorithm)).learn(ENOUGH)
    assert free()


@pytest.mark.parametrize("structure", ["full", "layer", "neuron", "diagonal", "last_layer", "block:20", "low_rank:5"])
def test_every_structure_of_p(structure):
    model = make(PPO, critic_kwargs={"covariance": structure}).learn(32)
    assert model.critic_optimizer.steps > 0


@pytest.mark.parametrize("algorithm", ALL)
def test_evaluate_policy(algorithm):
    model = make(algorithm).learn(ENOUGH)
    env = short(algorithm)
    mean, spread = evaluate_policy(model, env, n_eval_episodes=2)
    assert np.isfinite(mean)
    assert spread >= 0
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=3, return_episode_rewards=True)
    assert len(rewards) == len(lengths) == 3


class Events(callbacks.BaseCallback):
    """Counts what is called."""

    def __init__(self):
        super().__init__()
        self.counts = dict.fromkeys(("steps", "starts", "ends", "rollouts"), 0)

    def _on_training_start(self):
        self.counts["starts"] += 1

    def _on_rollout_start(self):
        self.counts["rollouts"] += 1

    def _on_step(self):
        self.counts["steps"] += 1
        return True

    def _on_training_end(self):
        self.counts["ends"] += 1


@pytest.mark.parametrize("algorithm", ALL)
def test_callbacks_are_called_as_often_as_upstreams(algorithm):
    ours, theirs = Events(), Events()
    make(algorithm).learn(ENOUGH, callback=ours)
    make(algorithm, upstream=True).learn(ENOUGH, callback=theirs)
    assert ours.counts == theirs.counts
    assert ours.counts["steps"] == ENOUGH


@pytest.mark.filterwarnings("ignore:Path .* does not exist. Will create it:UserWarning")
@pytest.mark.parametrize("algorithm", ALL)
def test_evaluation_and_checkpoints(algorithm, tmp_path):
    model = make(algorithm, short(algorithm))
    evaluation = callbacks.EvalCallback(
        short(algorithm),
        eval_freq=16,
        n_eval_episodes=2,
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path / "log"),
        verbose=0,
        callback_on_new_best=callbacks.StopTrainingOnRewardThreshold(reward_threshold=1e9, verbose=0),
        callback_after_eval=callbacks.StopTrainingOnNoModelImprovement(max_no_improvement_evals=9),
    )
    checkpoints = callbacks.CheckpointCallback(16, str(tmp_path / "points"), save_replay_buffer=algorithm in OFF_POLICY)
    events = Events()
    every = callbacks.EveryNTimesteps(n_steps=8, callback=events)
    model.learn(ENOUGH, callback=[evaluation, checkpoints, every])
    with np.load(tmp_path / "log" / "evaluations.npz") as log:
        assert log["timesteps"].tolist() == [16, 32]
        assert log["results"].shape == (2, 2)
    best = algorithm.load(tmp_path / "best" / "best_model")
    assert best.num_timesteps in (16, 32)
    saved = sorted(path.name for path in (tmp_path / "points").iterdir())
    assert "rl_model_16_steps.zip" in saved
    assert ("rl_model_replay_buffer_16_steps.pkl" in saved) == (algorithm in OFF_POLICY)
    assert algorithm.load(tmp_path / "points" / "rl_model_32_steps").num_timesteps == 32
    assert events.counts["steps"] == 4


@pytest.mark.parametrize("algorithm", ALL)
def test_stopping(algorithm):
    model = make(algorithm, short(algorithm))
    model.learn(500, callback=callbacks.StopTrainingOnMaxEpisodes(max_episodes=3, verbose=0))
    assert model.num_timesteps <= 30
    model = make(algorithm, short(algorithm))
    model.learn(500, callback=lambda seen, _: seen["self"].num_timesteps < 40)
    assert model.num_timesteps == 40
    # And on.
    model.learn(ENOUGH)
    assert model.num_timesteps == ENOUGH


@pytest.mark.parametrize("algorithm", ALL)
def test_normalised_environments(algorithm, tmp_path):
    env = VecNormalize(short(algorithm, 2))
    options = {"gradient_steps": -1} if algorithm in OFF_POLICY else {}
    model = make(algorithm, env, **options).learn(2 * ENOUGH)
    assert model.get_vec_normalize_env() is env
    assert model.critic_optimizer.steps > 0
    assert env.obs_rms.count > 2 * ENOUGH
    env.save(tmp_path / "statistics.pkl")
    model.save(tmp_path / "model")
    again = VecNormalize.load(tmp_path / "statistics.pkl", short(algorithm, 2))
    loaded = algorithm.load(tmp_path / "model", env=again).learn(ENOUGH)
    assert loaded.get_vec_normalize_env() is again


# Python 3.12 and later warn of a fork beside torch's threads; other ways to start take seconds of imports.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("algorithm", [PPO, DDPG])
def test_environments_in_processes(algorithm):
    name = environment(algorithm)
    env = SubprocVecEnv([lambda: gymnasium.make(name)] * 2, start_method="fork")
    model = make(algorithm, env).learn(ENOUGH + 16)
    assert model.critic_optimizer.steps > 0
    env.close()


@pytest.mark.parametrize("algorithm", ALL)
def test_changing_the_environment(algorithm):
    model = make(algorithm).learn(ENOUGH)
    env = vectorised(algorithm)
    model.set_env(env)
    assert model.get_env() is env
    model.learn(ENOUGH)
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(DummyVecEnv([lambda: gymnasium.make("MountainCar-v0")]))


def test_early_stopping_on_kl():
    model = make(PPO, target_kl=1e-6, n_epochs=5, learning_rate=0.01).learn(ENOUGH)
    assert model._n_updates == ENOUGH // SETTINGS[PPO]["n_steps"]
    assert model.critic_optimizer.steps > 0


@pytest.mark.parametrize("value", [0.1, lambda remaining: 0.1 * remaining])
def test_the_values_clip_range_is_taken(value):
    with pytest.warns(UserWarning, match="no effect on a Kalman critic: clip_range_vf"):
        model = make(PPO, clip_range_vf=value, clip_range=value)
    model.learn(ENOUGH)
    assert "train/clip_range_vf" in model.logger.name_to_value


@pytest.mark.parametrize("options", [{"use_rms_prop": False}, {"normalize_advantage": True}, {"gae_lambda": 0.9}])
def test_a2c_settings(options):
    assert make(A2C, **options).learn(ENOUGH).critic_optimizer.steps > 0


@pytest.mark.parametrize("options", [{"sub_sampling_factor": 2}, {"target_kl": 1e-12}])
def test_trpo_settings(options):
    assert make(TRPO, **options).learn(ENOUGH).critic_optimizer.steps > 0


@pytest.mark.parametrize(
    "options",
    [
        {"train_freq": (1, "episode"), "gradient_steps": -1},
        {"n_steps": 3},
        {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
        {"gradient_steps": 2},
    ],
)
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_off_policy_settings(algorithm, options):
    model = make(algorithm, short(algorithm), **options).learn(ENOUGH)
    assert all(kalman.steps == model._n_updates > 0 for kalman in model.critic_optimizers)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (TD3, {"policy_delay": 3}),
        (TD3, {"target_policy_noise": 0.5, "target_noise_clip": 0.1}),
        (TD3, {"policy_kwargs": {"net_arch": [8], "n_critics": 1}}),
        (SAC, {"policy_kwargs": {"net_arch": [8], "n_critics": 3}}),
        (SAC, {"ent_coef": 0.2}),
        (SAC, {"ent_coef": "auto_0.1", "target_entropy": -2.0}),
        (SAC, {"use_sde": True, "sde_sample_freq": 4, "use_sde_at_warmup": True}),
    ],
)
def test_settings_of_td3_and_sac(algorithm, options, tmp_path):
    model = make(algorithm, **options).learn(ENOUGH)
    assert len(model.critic_optimizers) == len(model.critic.q_networks)
    assert all(kalman.steps == model._n_updates > 0 for kalman in model.critic_optimizers)
    model.save(tmp_path / "model")
    assert same(snapshot(algorithm.load(tmp_path / "model")), snapshot(model))


def test_ddpg_noise_and_a_second_critic():
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1))
    assert make(DDPG, vectorised(DDPG, 2), action_noise=noise).learn(ENOUGH).critic_optimizer.steps > 0
    model = make(DDPG, policy_kwargs={"net_arch": [8], "n_critics": 2}).learn(ENOUGH)
    assert [kalman.steps > 0 for kalman in model.critic_optimizers] == [True, True]


def test_dqn_target_network():
    model = make(DQN, target_update_interval=10**6).learn(ENOUGH)
    assert not same(model.q_net.state_dict(), model.q_net_target.state_dict())
    model.target_update_interval = 1
    model.learning_starts = 10**6
    model.learn(8, reset_num_timesteps=False)
    assert same(model.q_net.state_dict(), model.q_net_target.state_dict())


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_policy_classes_as_such(algorithm):
    model = make(algorithm, policy=algorithm.policy_aliases["MlpPolicy"]).learn(32)
    assert model.critic_optimizer.steps > 0
