"""Saving, loading and continuing: every form upstream has, and checkpoints of upstream's own classes."""

import copy
import io
import pathlib
import warnings

import numpy as np
import pytest
import torch
from sb3_cases import (
    ALL,
    CONTINUOUS,
    DISCRETE,
    DQN,
    ENOUGH,
    OFF_POLICY,
    ON_POLICY,
    SMALL_CNN,
    TRPO,
    filters,
    images,
    make,
    observations,
    same,
    snapshot,
    value_arguments,
    vectorised,
)
from stable_baselines3.common.save_util import load_from_zip_file

import kova

PLAIN = "holds no filter: the covariance of the critic starts fresh"


# Upstream says so when it makes a directory.
makes_directories = pytest.mark.filterwarnings("ignore:Path .* does not exist. Will create it:UserWarning")


def restart(model, seed=3):
    """Bring everything random to the same point, as a new process would."""
    model.set_random_seed(seed)
    model._last_obs = None
    return model


def agree(first, second, count=10):
    observation = observations(first, count)
    given = value_arguments(first, observation, count)
    one, other = first.predict_value(*given), second.predict_value(*given)
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.stddev, other.stddev)
    chosen = (model.predict(observation, deterministic=True)[0] for model in (first, second))
    assert np.array_equal(*chosen)


@pytest.mark.parametrize("algorithm", ALL)
def test_load_restores_everything(algorithm, tmp_path):
    model = make(algorithm).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model.zip", env=vectorised(algorithm))
    assert same(snapshot(model), snapshot(loaded))
    assert loaded.num_timesteps == model.num_timesteps
    assert loaded.critic_optimizer.steps == model.critic_optimizer.steps > 0
    agree(model, loaded)


@pytest.mark.parametrize("algorithm", ALL)
def test_load_keeps_the_critic_that_was_saved(algorithm, tmp_path):
    make(algorithm).save(tmp_path / "model")
    with pytest.raises(ValueError, match="keeps the critic that was saved"):
        algorithm.load(tmp_path / "model.zip", critic="adam")


@pytest.mark.parametrize("algorithm", ALL)
def test_load_says_that_another_covariance_does_not_fit(algorithm, tmp_path):
    make(algorithm, critic_kwargs={"covariance": "diagonal", "evolution": kova.Static()}).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"checkpoint's covariance is .*diagonal.* this optimizer's is .*neuron"):
        algorithm.load(tmp_path / "model.zip", critic_kwargs={"covariance": "neuron", "evolution": kova.Static()})


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("algorithm", ALL)
def test_a_loaded_model_continues_bit_for_bit(algorithm, critic, tmp_path):
    model = make(algorithm, critic=critic).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=vectorised(algorithm))
    if algorithm in OFF_POLICY:
        model.save_replay_buffer(tmp_path / "buffer")
        loaded.load_replay_buffer(tmp_path / "buffer")
    # Upstream starts the random numbers anew on load; here both do.
    for one in (model, loaded):
        restart(one).learn(ENOUGH, reset_num_timesteps=False)
    assert same(snapshot(model), snapshot(loaded))
    assert model.num_timesteps == loaded.num_timesteps == 2 * ENOUGH


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_without_a_seed_the_order_of_the_minibatches_continues(algorithm, tmp_path):
    model = make(algorithm, seed=None, critic_batch_size=8).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert loaded._critic_rng.bit_generator.state == model._critic_rng.bit_generator.state


@makes_directories
@pytest.mark.parametrize("algorithm", ALL)
def test_every_place_a_model_can_be_saved_to(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make(algorithm).learn(ENOUGH)
    memory = io.BytesIO()
    model.save(memory)
    memory.seek(0)
    agree(model, algorithm.load(memory))
    for path in ("plain", "with.zip", pathlib.Path("made/on/the/way/model")):
        model.save(path)
        agree(model, algorithm.load(path))
    with pathlib.Path("open.zip").open("wb") as file:
        model.save(file)
    with pathlib.Path("open.zip").open("rb") as file:
        agree(model, algorithm.load(file))


@pytest.mark.parametrize("algorithm", ALL)
def test_set_parameters(algorithm):
    model = make(algorithm).learn(ENOUGH)
    original = snapshot(model)

    with pytest.raises(ValueError, match="invalid object name"):
        model.set_parameters({**original, "no_such_object": {}})
    with pytest.raises(ValueError, match="invalid object name"):
        model.set_parameters({**original, "no_such_object": {}}, exact_match=False)
    for name in original.keys() - ({"critic_optimizer"} if len(filters(algorithm)) == 1 else set()):
        with pytest.raises(ValueError, match="do not match"):
            model.set_parameters({key: original[key] for key in original if key != name})
    incomplete = {**original, "policy": dict(list(original["policy"].items())[:-1])}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.set_parameters(incomplete)

    random = {**original, "policy": {name: torch.rand_like(w) for name, w in original["policy"].items()}}
    model.set_parameters(random)
    assert same(snapshot(model), random)
    model.set_parameters({"policy": original["policy"]}, exact_match=False)
    assert same(snapshot(model), original)
    model.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", ALL)
def test_set_parameters_between_models_and_from_a_file(algorithm, tmp_path):
    source, target = make(algorithm).learn(ENOUGH), make(algorithm, seed=7)
    target.set_parameters(source.get_parameters())
    assert same(snapshot(source), snapshot(target))
    agree(source, target)
    source.learn(ENOUGH).save(tmp_path / "model")
    target.set_parameters(str(tmp_path / "model"))
    assert same(snapshot(source), snapshot(target))
    target.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", ALL)
def test_get_parameters_is_upstreams_plus_the_filter(algorithm):
    ours, theirs = make(algorithm).get_parameters(), make(algorithm, upstream=True).get_parameters()
    assert ours.keys() == theirs.keys() | filters(algorithm)
    assert ours["policy"].keys() == theirs["policy"].keys()


@pytest.mark.parametrize("algorithm", ALL)
def test_parameters_of_another_network_are_refused(algorithm):
    other = make(algorithm, policy_kwargs={"net_arch": [9]}).get_parameters()
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(algorithm).set_parameters(other)


@pytest.mark.parametrize("algorithm", ALL)
def test_custom_objects_and_changed_attributes(algorithm, tmp_path):
    model = make(algorithm, learning_rate=lambda remaining: 1e-3 * remaining).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", custom_objects={"learning_rate": 0.5}, gamma=0.5)
    assert loaded.learning_rate == 0.5
    assert loaded.gamma == 0.5
    loaded.set_env(vectorised(algorithm))
    loaded.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", ALL)
def test_excluded_and_included_attributes(algorithm, tmp_path):
    model = make(algorithm)
    model.save(tmp_path / "model", exclude=["stats_window_size"], include=["device"])
    data, parameters, _ = load_from_zip_file(tmp_path / "model")
    assert "stats_window_size" not in data
    assert "device" in data
    assert not {"policy", "value_function", "critic", "q_net", *filters(algorithm)} & data.keys()
    assert filters(algorithm) <= parameters.keys()


@pytest.mark.parametrize("algorithm", ALL)
def test_a_different_number_of_environments(algorithm, tmp_path):
    make(algorithm).learn(ENOUGH).save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=vectorised(algorithm, 2))
    if algorithm in ON_POLICY:
        loaded.learn(ENOUGH)
        assert loaded.rollout_buffer.n_envs == 2
    else:
        loaded.gradient_steps = -1
        loaded.learn(ENOUGH)
    assert loaded.n_envs == 2


@pytest.mark.parametrize("algorithm", ALL)
def test_the_critics_settings_are_kept(algorithm, tmp_path):
    options = {"covariance": "diagonal", "prior_variance": 0.3, "evolution": kova.FadingMemory(0.1)}
    model = make(algorithm, critic_kwargs=options).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert loaded.critic_optimizer.covariance.name == "diagonal"
    assert loaded.critic_optimizer.evolution == kova.FadingMemory(0.1)
    agree(model, loaded)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_passes_are_kept(algorithm, tmp_path):
    make(algorithm, critic_epochs=0, critic_batch_size=9).save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert (loaded.critic_epochs, loaded.critic_batch_size) == (0, 9)


@makes_directories
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_the_replay_buffer(algorithm, tmp_path):
    model = make(algorithm).learn(ENOUGH)
    model.save_replay_buffer(tmp_path / "deep" / "buffer.pkl")
    other = make(algorithm, seed=1)
    other.load_replay_buffer(tmp_path / "deep" / "buffer.pkl")
    assert other.replay_buffer.pos == model.replay_buffer.pos == ENOUGH
    assert np.array_equal(other.replay_buffer.observations, model.replay_buffer.observations)
    other.learn(ENOUGH)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("algorithm", ALL)
def test_a_plain_checkpoint_starts_the_filter(algorithm, tmp_path):
    plain = make(algorithm, upstream=True).learn(ENOUGH)
    plain.save(tmp_path / "plain")
    with pytest.warns(UserWarning, match=PLAIN):
        loaded = algorithm.load(tmp_path / "plain", env=vectorised(algorithm))
    assert same(loaded.policy.state_dict(), plain.policy.state_dict())
    assert loaded.critic_optimizer.steps == 0
    assert same(loaded.critic_optimizer.state_dict(), make(algorithm).critic_optimizer.state_dict())
    assert loaded.num_timesteps == plain.num_timesteps
    # From here on it is a model of ours.
    before = snapshot(loaded)
    loaded.learn(ENOUGH)
    assert not same(before["critic_optimizer"], snapshot(loaded)["critic_optimizer"])
    loaded.save(tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = algorithm.load(tmp_path / "ours")
    assert same(snapshot(again), snapshot(loaded))


@pytest.mark.parametrize("algorithm", ALL)
def test_parameters_of_a_plain_checkpoint(algorithm, tmp_path):
    plain = make(algorithm, upstream=True).learn(ENOUGH)
    plain.save(tmp_path / "plain")
    model = make(algorithm, seed=5).learn(ENOUGH)
    with pytest.warns(UserWarning, match=PLAIN):
        model.set_parameters(tmp_path / "plain")
    assert same(model.policy.state_dict(), plain.policy.state_dict())
    assert model.critic_optimizer.steps == 0
    model.learn(ENOUGH)
    assert model.critic_optimizer.steps > 0


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_momentum_of_a_plain_policy_is_kept(algorithm, tmp_path):
    plain = make(algorithm, upstream=True).learn(ENOUGH)
    plain.save(tmp_path / "plain")
    with pytest.warns(UserWarning, match=PLAIN):
        loaded = algorithm.load(tmp_path / "plain")
    critic = {id(p) for p in loaded.value_function.parameters()}
    theirs, ours = plain.policy.optimizer.state, loaded.policy.optimizer.state
    pairs = zip(plain.policy.parameters(), loaded.policy.parameters(), strict=True)
    expected = {own: theirs[their] for their, own in pairs if their in theirs and id(own) not in critic}
    # TRPO moves its policy without the optimizer.
    assert bool(expected) == (algorithm is not TRPO)
    assert ours.keys() == expected.keys()
    assert all(same(ours[parameter], expected[parameter]) for parameter in expected)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_plain_checkpoint_with_images(algorithm, tmp_path):
    env = images(algorithm)
    plain = make(algorithm, env, "CnnPolicy", upstream=True, policy_kwargs=SMALL_CNN).learn(ENOUGH)
    plain.save(tmp_path / "plain")
    with pytest.warns(UserWarning, match=PLAIN):
        loaded = algorithm.load(tmp_path / "plain", env=env)
    pictures = observations(plain, 20)
    chosen = (model.predict(pictures, deterministic=True)[0] for model in (plain, loaded))
    assert np.array_equal(*chosen)
    if algorithm in ON_POLICY:
        with torch.no_grad():
            given = plain.policy.obs_to_tensor(pictures)[0]
            assert torch.equal(plain.policy.predict_values(given), loaded.policy.predict_values(given))
        shared = {id(p) for p in loaded.policy.pi_features_extractor.parameters()}
        assert not shared & {id(p) for p in loaded.policy.vf_features_extractor.parameters()}
    loaded.learn(ENOUGH)
    assert loaded.critic_optimizer.steps > 0


@pytest.mark.parametrize("algorithm", ALL)
def test_a_checkpoint_with_images(algorithm, tmp_path):
    env = images(algorithm)
    model = make(algorithm, env, "CnnPolicy", policy_kwargs=SMALL_CNN).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=env)
    assert same(snapshot(loaded), snapshot(model))
    agree(model, loaded)
    # As upstream: the policy's arguments may be given again, if they are the same.
    algorithm.load(tmp_path / "model", policy_kwargs=model.policy_kwargs)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_policys_arguments_are_those_given(algorithm, tmp_path):
    model = make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=SMALL_CNN)
    theirs = make(algorithm, images(algorithm), "CnnPolicy", upstream=True, policy_kwargs=SMALL_CNN)
    assert model.policy_kwargs == theirs.policy_kwargs
    model.save(tmp_path / "model")
    algorithm.load(tmp_path / "model", policy_kwargs=theirs.policy_kwargs)


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
@pytest.mark.parametrize("algorithm", ALL)
def test_the_policy_alone(algorithm, policy, tmp_path):
    with_images = policy == "CnnPolicy"
    env = images(algorithm) if with_images else None
    model = make(algorithm, env, policy, policy_kwargs=SMALL_CNN if with_images else {"net_arch": [8]}).learn(ENOUGH)
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy")
    assert same(loaded.state_dict(), model.policy.state_dict())
    given = observations(model, 20)
    assert np.array_equal(loaded.predict(given, deterministic=True)[0], model.predict(given, deterministic=True)[0])


@pytest.mark.parametrize("algorithm", ALL)
def test_upstream_classes_can_take_the_policy(algorithm):
    model = make(algorithm).learn(ENOUGH)
    theirs = make(algorithm, upstream=True, seed=4)
    theirs.set_parameters({"policy": model.get_parameters()["policy"]}, exact_match=False)
    assert same(theirs.policy.state_dict(), model.policy.state_dict())


@pytest.mark.parametrize("algorithm", ALL)
def test_print_system_info(algorithm, tmp_path, capsys):
    make(algorithm).save(tmp_path / "model")
    algorithm.load(tmp_path / "model", print_system_info=True)
    assert "SAVED MODEL SYSTEM INFO" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ALL)
def test_a_file_that_is_not_there(algorithm, tmp_path):
    with pytest.raises(FileNotFoundError):
        algorithm.load(tmp_path / "nothing")


@pytest.mark.parametrize("steps", [0, ENOUGH])
@pytest.mark.parametrize("algorithm", ALL)
def test_a_model_and_its_deepcopy_live_apart(algorithm, steps):
    # Upstream's models can be copied as long as no environment stands in the way.
    model = make(algorithm).learn(steps)
    twin = copy.deepcopy(model)
    assert same(snapshot(twin), snapshot(model))
    before = snapshot(model)
    restart(twin).learn(ENOUGH)
    assert same(snapshot(model), before)
    assert not same(snapshot(twin)["critic_optimizer"], before["critic_optimizer"])
    restart(model).learn(ENOUGH)
    assert same(snapshot(model), snapshot(twin))


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_no_environment_is_needed_to_predict(algorithm, tmp_path):
    model = make(algorithm).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert loaded.env is None
    agree(model, loaded)
    loaded.set_env(vectorised(algorithm))
    loaded.learn(ENOUGH)


@pytest.mark.parametrize(("algorithm", "name"), [(DQN, "q_net_target"), *((a, "critic_target") for a in CONTINUOUS)])
def test_target_networks_are_saved(algorithm, name, tmp_path):
    model = make(algorithm).learn(ENOUGH)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert same(getattr(loaded, name).state_dict(), getattr(model, name).state_dict())


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_a_covariance_that_does_not_fit_the_saved_one_is_named(algorithm, tmp_path):
    make(algorithm, critic_kwargs={"covariance": "neuron"}).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"checkpoint's covariance is .*neuron.* this optimizer's is .*diagonal"):
        algorithm.load(tmp_path / "model", critic_kwargs={"covariance": "diagonal"})
