"""Parameters go to and from upstream's models without a loss, or with a word about it; what fails changes nothing."""

import copy
import operator
import warnings

import numpy as np
import pytest
import stable_baselines3
import torch
from sb3_cases import (
    ALL,
    CONTINUOUS,
    DQN,
    ENOUGH,
    ON_POLICY,
    SMALL_CNN,
    UPSTREAM,
    images,
    make,
    observations,
    same,
    snapshot,
)
from stable_baselines3.common.policies import ActorCriticCnnPolicy

from kova.sb3 import extractors

PLAIN = "holds no filter: the covariance of the critic starts fresh"
SHARED = {**SMALL_CNN, "share_features_extractor": True}
SEPARATE = {**SMALL_CNN, "share_features_extractor": False}


def with_images(algorithm, upstream=False, policy_kwargs=SMALL_CNN, **kwargs):
    return make(algorithm, images(algorithm), "CnnPolicy", upstream, policy_kwargs=policy_kwargs, **kwargs)


@torch.no_grad()
def logits(policy, pictures):
    """Return the logits of a policy with a choice of actions."""
    return policy.get_distribution(policy.obs_to_tensor(pictures)[0]).distribution.logits


@torch.no_grad()
def values(policy, pictures):
    return policy.predict_values(policy.obs_to_tensor(pictures)[0])


@pytest.mark.parametrize("algorithm", ALL)
def test_parameters_of_a_plain_model_as_a_dict(algorithm):
    plain, model = make(algorithm, upstream=True).learn(ENOUGH), make(algorithm, seed=5).learn(ENOUGH)
    with pytest.warns(UserWarning, match=PLAIN):
        model.set_parameters(plain.get_parameters())
    assert same(model.policy.state_dict(), plain.policy.state_dict())
    assert all(kalman.steps == 0 for kalman in model.critic_optimizers)
    for kalman, new in zip(model.critic_optimizers, make(algorithm).critic_optimizers, strict=True):
        assert same(kalman.state_dict(), new.state_dict())
    model.learn(ENOUGH)
    assert model.critic_optimizer.steps > 0


def spoilt(params):
    """Return parameters each of which fails at another point."""
    first = next(iter(params["policy"]))
    narrow = {**params["policy"], first: params["policy"][first][:1]}
    optimizer = next(name for name in params if name.endswith("r.optimizer") or name == "policy.optimizer")
    groups = {**params[optimizer], "param_groups": []}
    yield {**params, "policy": narrow}
    yield {**params, optimizer: groups}
    yield {**params, "nothing": {}}
    yield {**params, "gamma": {}}
    yield {name: params[name] for name in params if name != "policy"}
    for name in [name for name in params if name.startswith("critic_optimizer")]:
        yield {name: params[name], **params, "policy": narrow}
        yield {**params, name: {}}


@pytest.mark.parametrize("upstream", [False, True], ids=["ours", "plain"])
@pytest.mark.parametrize("algorithm", ALL)
def test_parameters_that_do_not_fit_change_nothing(algorithm, upstream):
    model, other = make(algorithm).learn(ENOUGH), make(algorithm, upstream=upstream, seed=5).learn(ENOUGH)
    before, kalman = snapshot(model), model.critic_optimizers
    for params in spoilt(other.get_parameters()):
        with pytest.raises((ValueError, RuntimeError)):
            model.set_parameters(params)
        assert same(snapshot(model), before)
        assert all(map(operator.is_, model.critic_optimizers, kalman))
    model.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", [*ON_POLICY, *CONTINUOUS])
def test_a_plain_checkpoint_with_one_extractor_for_both(algorithm, tmp_path):
    plain = with_images(algorithm, upstream=True, policy_kwargs=SHARED).learn(ENOUGH)
    plain.save(tmp_path / "plain")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loaded = algorithm.load(tmp_path / "plain", env=images(algorithm))
    assert [sum(words in str(one.message) for one in told) for words in ("share a features extractor", PLAIN)] == [1, 1]
    pictures = observations(plain, 20)
    assert np.array_equal(*(model.predict(pictures, deterministic=True)[0] for model in (plain, loaded)))
    if algorithm in ON_POLICY:
        assert torch.equal(logits(loaded.policy, pictures), logits(plain.policy, pictures))
        assert torch.equal(values(loaded.policy, pictures), values(plain.policy, pictures))
    else:
        given = plain.policy.obs_to_tensor(pictures)[0], torch.as_tensor(plain.predict(pictures)[0])
        assert torch.equal(loaded.critic(*given)[0], plain.critic(*given)[0])
    assert loaded.policy_kwargs["share_features_extractor"] is False
    # From here on it is a model like any other.
    loaded.learn(ENOUGH).save(tmp_path / "ours")
    assert loaded.critic_optimizer.steps > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(snapshot(algorithm.load(tmp_path / "ours")), snapshot(loaded))


@pytest.mark.parametrize("policy_kwargs", [SMALL_CNN, SEPARATE], ids=["default", "separate"])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_upstreams_default_policy_takes_the_actors_features(algorithm, policy_kwargs):
    model = with_images(algorithm, policy_kwargs=policy_kwargs).learn(ENOUGH)
    theirs = with_images(algorithm, upstream=True, seed=4, policy_kwargs=policy_kwargs)
    theirs.set_parameters({"policy": model.get_parameters()["policy"]}, exact_match=False)
    pictures = observations(model, 20)
    assert not torch.equal(
        model.policy.pi_features_extractor.layers[0].weight, model.policy.vf_features_extractor.layers[0].weight
    )
    assert torch.equal(logits(theirs.policy, pictures), logits(model.policy, pictures))
    if policy_kwargs is SEPARATE:
        assert torch.equal(values(theirs.policy, pictures), values(model.policy, pictures))


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_an_exact_match_with_upstreams_default_policy_is_refused(algorithm, tmp_path):
    model = with_images(algorithm).learn(ENOUGH)
    theirs = with_images(algorithm, upstream=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*kova_features_extractor"):
        theirs.policy.load_state_dict(model.get_parameters()["policy"])
    model.save(tmp_path / "model")
    with pytest.raises((ValueError, RuntimeError)):
        UPSTREAM[algorithm].load(tmp_path / "model")


@pytest.mark.parametrize("policy_kwargs", [SMALL_CNN, SEPARATE], ids=["default", "separate"])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_saved_policy_has_the_same_logits_and_values(algorithm, policy_kwargs, tmp_path):
    model = with_images(algorithm, policy_kwargs=policy_kwargs).learn(ENOUGH)
    model.policy.save(tmp_path / "policy")
    loaded = ActorCriticCnnPolicy.load(tmp_path / "policy")
    pictures = observations(model, 20)
    assert torch.equal(logits(loaded, pictures), logits(model.policy, pictures))
    assert torch.equal(values(loaded, pictures), values(model.policy, pictures))


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_parameters_go_between_models_that_separated_their_extractors_otherwise(algorithm):
    first, second = with_images(algorithm).learn(ENOUGH), with_images(algorithm, policy_kwargs=SEPARATE, seed=3)
    second.set_parameters(first.get_parameters())
    assert same(second.policy.state_dict(), first.policy.state_dict())
    first.learn(ENOUGH)
    second.learn(ENOUGH)
    second.policy.load_state_dict(first.get_parameters()["policy"])
    assert same(second.policy.state_dict(), first.policy.state_dict())


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_names_of_010_are_taken(algorithm):
    source, target = with_images(algorithm).learn(ENOUGH), with_images(algorithm, seed=3)
    params = copy.deepcopy(source.get_parameters())
    params["policy"] = copy.deepcopy(source.policy.state_dict())
    assert any(name.startswith(extractors.UPSTREAMS) for name in params["policy"])
    target.set_parameters(params)
    assert same(snapshot(target), snapshot(source))


def test_dqn_forgets_nothing_of_a_plain_model():
    plain, model = make(DQN, upstream=True).learn(ENOUGH), make(DQN)
    assert isinstance(plain, stable_baselines3.DQN)
    with pytest.warns(UserWarning, match=PLAIN):
        model.set_parameters(plain.get_parameters())
    assert same(
        model.get_parameters()["policy.optimizer"]["state"], plain.get_parameters()["policy.optimizer"]["state"]
    )
