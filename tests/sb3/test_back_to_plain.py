"""``to_sb3``: the agent as a model of plain Stable-Baselines3, for whoever does not have this library."""

import copy
import inspect
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sb3_cases import (
    ALL,
    CONTINUOUS,
    DQN,
    ENOUGH,
    OFF_POLICY,
    ON_POLICY,
    PPO,
    SAC,
    SMALL_CNN,
    TD3,
    TRPO,
    UPSTREAM,
    images,
    make,
    observations,
    same,
    snapshot,
    vectorised,
)
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import VecNormalize

from kova.sb3 import ThompsonDQN

PLAIN = "holds no filter: the covariance of the critic starts fresh"


def trained(algorithm, **options):
    return make(algorithm, VecNormalize(vectorised(algorithm, seed=0)), **options).learn(ENOUGH)


def optimizer_of(model):
    return model.actor.optimizer if isinstance(model, CONTINUOUS) else model.policy.optimizer


def state_by_name(model, optimizer):
    """Return what an optimizer remembers of every parameter of the policy."""
    return {name: optimizer.state[p] for name, p in model.policy.named_parameters() if p in optimizer.state}


def settings(model):
    """Return what upstream's constructor was told, as far as it can be compared."""
    names = inspect.signature(UPSTREAM.get(type(model), type(model)).__init__).parameters
    found = {name: getattr(model, name) for name in names if hasattr(model, name) and name not in ("policy", "env")}
    return {name: value for name, value in found.items() if not callable(value)}


@pytest.mark.parametrize(("algorithm", "critic"), [*((one, "kova") for one in ALL), (PPO, "adam"), (TD3, "adam")])
def test_it_is_the_same_agent(algorithm, critic):
    model = trained(algorithm, critic=critic, gamma=0.9, learning_rate=lambda remaining: 1e-3 * remaining)
    before, random = snapshot(model), (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    plain = model.to_sb3()
    assert torch.equal(torch.get_rng_state(), random[0])
    assert np.array_equal(np.random.get_state()[1], random[1])  # noqa: NPY002
    assert same(snapshot(model), before)
    assert type(plain) is UPSTREAM[algorithm]
    assert same(plain.policy.state_dict(), model.policy.state_dict())
    given = observations(model, 20)
    assert np.array_equal(*(each.predict(given, deterministic=True)[0] for each in (model, plain)))
    assert settings(plain) == settings(model)
    assert (plain.num_timesteps, plain._n_updates, plain.gamma) == (ENOUGH, model._n_updates, 0.9)
    assert plain.get_vec_normalize_env() is model.get_vec_normalize_env() is not None
    assert not [name for name in vars(plain) if name not in vars(make(algorithm, upstream=True))]


@pytest.mark.parametrize("algorithm", ALL)
def test_it_learns_on_with_upstreams_optimizer(algorithm):
    model = trained(algorithm)
    plain, optimizer = model.to_sb3(), optimizer_of(model)
    filtered = {id(p) for kalman in model.critic_optimizers for p in kalman.observation.parameters.values()}
    kept = {n: optimizer.state[p] for n, p in model.policy.named_parameters() if p in optimizer.state}
    # DQN has no policy beside its critic, and TRPO moves its policy without the optimizer.
    assert bool(kept) == (algorithm not in (DQN, TRPO))
    theirs = plain.actor.optimizer if algorithm in CONTINUOUS else plain.policy.optimizer
    assert same(state_by_name(plain, theirs), kept)
    assert not any(id(p) in filtered for n, p in model.policy.named_parameters() if n in kept)
    if algorithm in CONTINUOUS:
        assert not plain.critic.optimizer.state
    if algorithm in OFF_POLICY:
        assert plain.replay_buffer is model.replay_buffer
    before, ours = copy.deepcopy(plain.policy.state_dict()), snapshot(model)
    plain.learn(2 * ENOUGH, reset_num_timesteps=False)
    assert plain.num_timesteps == 3 * ENOUGH
    after = plain.policy.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # Those that were trained, and none that is not.
    assert moved >= {name for name, p in model.policy.named_parameters() if id(p) in filtered}
    assert same(snapshot(model), ours)


def test_the_entropys_weight_comes_along():
    model = trained(SAC)
    plain = model.to_sb3()
    assert torch.equal(plain.log_ent_coef, model.log_ent_coef)
    assert plain.log_ent_coef is not model.log_ent_coef
    assert plain.ent_coef_optimizer.param_groups[0]["params"][0] is plain.log_ent_coef
    ours, theirs = (each.ent_coef_optimizer.state_dict()["state"] for each in (model, plain))
    assert ours
    assert same(ours, theirs)
    fixed = trained(SAC, ent_coef=0.3).to_sb3()
    assert fixed.ent_coef_optimizer is None
    assert float(fixed.ent_coef_tensor) == pytest.approx(0.3)


#: Opens every model there is in a folder where importing kova is an error, and goes on.
OPEN = textwrap.dedent("""
    import pathlib, sys
    import numpy as np
    import gymnasium, sb3_contrib, stable_baselines3

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "kova":
                raise ImportError("kova is not installed here")

    sys.meta_path.insert(0, Blocked())
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*.zip")):
        kind = getattr(sb3_contrib if file.stem == "TRPO" else stable_baselines3, file.stem)
        asked = np.load(file.with_suffix(".npz"))
        model = kind.load(file, env=gymnasium.make(str(asked["env"])), device="cpu")
        assert np.array_equal(model.predict(asked["given"], deterministic=True)[0], asked["chosen"]), file
        model.learn(40, reset_num_timesteps=False)
        assert not [name for name in sys.modules if name.split(".")[0] == "kova"]
        print(file.stem)
""")


def test_what_it_saves_opens_without_this_library(tmp_path):
    for algorithm in ALL:
        model = make(algorithm).learn(ENOUGH)
        plain, name, given = model.to_sb3(), algorithm.__name__, observations(model, 10)
        plain.save(tmp_path / name)
        env = "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"
        np.savez(tmp_path / name, given=given, chosen=model.predict(given, deterministic=True)[0], env=env)
    done = subprocess.run([sys.executable, "-c", OPEN, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(algorithm.__name__ for algorithm in ALL)


@pytest.mark.parametrize("algorithm", [*ON_POLICY, SAC])
def test_images_and_a_separated_extractor(algorithm, tmp_path):
    model = make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=SMALL_CNN).learn(ENOUGH)
    model.to_sb3().save(tmp_path / "plain")
    plain = UPSTREAM[algorithm].load(tmp_path / "plain", env=images(algorithm))
    assert same(plain.policy.state_dict(), model.policy.state_dict())
    pictures = model.policy.obs_to_tensor(observations(model, 20))[0]
    with torch.no_grad():
        if algorithm in ON_POLICY:
            assert plain.policy_kwargs["share_features_extractor"] is False
            assert torch.equal(plain.policy.predict_values(pictures), model.policy.predict_values(pictures))
            logits = [each.policy.get_distribution(pictures).distribution.logits for each in (plain, model)]
            assert torch.equal(*logits)
    plain.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", ALL)
def test_there_and_back(algorithm, tmp_path):
    first = make(algorithm, upstream=True).learn(ENOUGH)
    first.save(tmp_path / "first")
    with pytest.warns(UserWarning, match=PLAIN):
        ours = algorithm.load(tmp_path / "first", env=vectorised(algorithm))
    back = ours.to_sb3()
    assert same(back.policy.state_dict(), first.policy.state_dict())
    assert settings(back) == settings(first)
    critic = {n for (n, p) in ours.policy.named_parameters() if id(p) in {id(q) for q in moved_by_the_filter(ours)}}
    for name in {"policy.optimizer", "actor.optimizer"} & first.get_parameters().keys():
        was = state_by_name(first, recursive_getattr(first, name))
        wanted = {n: state for n, state in was.items() if n not in critic}
        assert same(state_by_name(back, recursive_getattr(back, name)), wanted)
    # And again: our model's own file, and a plain one of it.
    ours.learn(ENOUGH)
    ours.to_sb3().save(tmp_path / "second")
    with pytest.warns(UserWarning, match=PLAIN):
        again = algorithm.load(tmp_path / "second", env=vectorised(algorithm))
    assert same(again.policy.state_dict(), ours.policy.state_dict())
    assert again.num_timesteps == ours.num_timesteps


def moved_by_the_filter(model):
    return [p for kalman in model.critic_optimizers for p in kalman.observation.parameters.values()]


def test_a_model_without_an_environment(tmp_path):
    model = make(PPO).learn(ENOUGH)
    model.save(tmp_path / "model")
    plain = PPO.load(tmp_path / "model").to_sb3()
    assert plain.env is None
    given = observations(model, 5)
    assert np.array_equal(*(each.predict(given, deterministic=True)[0] for each in (model, plain)))


class Mine(PPO):
    """A user's own class."""


def test_of_a_users_class_and_of_an_explorer():
    assert type(Mine("MlpPolicy", "CartPole-v1", device="cpu").to_sb3()) is UPSTREAM[PPO]
    explorer = ThompsonDQN("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [8]}).learn(ENOUGH)
    plain = explorer.to_sb3()
    assert type(plain) is UPSTREAM[DQN]
    given = observations(explorer, 10)
    assert np.array_equal(*(each.predict(given, deterministic=True)[0] for each in (explorer, plain)))
