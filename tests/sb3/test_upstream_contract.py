"""What this library takes for granted of upstream: a new version that breaks it is noticed here."""

import ast
import inspect
import pathlib
import textwrap

import pytest
from gymnasium import spaces
from sb3_cases import ALL, DQN, ON_POLICY, PPO, UPSTREAM, OneSpace, make
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

import kova.experiments
import kova.sb3
from kova.sb3 import UCBDQN, ThompsonDQN, upstream
from kova.sb3.exploration import PosteriorDQN

OURS = {"critic": "kova", "critic_kwargs": None, "critic_learning_rate": None}
PASSES = {"critic_epochs": None, "critic_batch_size": None}
CHANGED = {"learning_starts": 0, "train_freq": (1, "episode"), "gradient_steps": -1, "target_update_interval": 1}


def defaults(signature):
    return {name: p.default for name, p in signature.parameters.items() if name != "self"}


def upstreams(algorithm):
    return inspect.signature(UPSTREAM[algorithm])


@pytest.mark.parametrize("algorithm", ALL)
def test_the_signature_is_upstreams_and_ours(algorithm):
    shown, theirs = inspect.signature(algorithm), upstreams(algorithm)
    added = OURS | (PASSES if algorithm in ON_POLICY else {})
    assert list(shown.parameters) == [*theirs.parameters, *added]
    assert defaults(shown) == defaults(theirs) | added
    for name, parameter in theirs.parameters.items():
        assert shown.parameters[name].kind == parameter.kind
        assert shown.parameters[name].annotation == parameter.annotation
    assert all(shown.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in added)


@pytest.mark.parametrize(("algorithm", "added"), [(ThompsonDQN, {}), (UCBDQN, {"confidence": 1.0})])
def test_the_signature_of_the_explorers(algorithm, added):
    assert defaults(inspect.signature(algorithm)) == defaults(upstreams(DQN)) | OURS | CHANGED | added


def shown_to_editors(algorithm):
    """Return {name: default} of the constructor that stands under TYPE_CHECKING."""
    body = ast.parse(textwrap.dedent(inspect.getsource(algorithm))).body[0].body
    [block] = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    arguments = block.body[0].args
    names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    given = [*arguments.defaults, *arguments.kw_defaults]
    required = [inspect.Parameter.empty] * (len(names) - len(given))
    return dict(zip(names, [*required, *map(ast.literal_eval, given)], strict=True))


@pytest.mark.parametrize("algorithm", [*ALL, PosteriorDQN])
def test_editors_see_the_same_signature(algorithm):
    shown = shown_to_editors(algorithm)
    del shown["self"]
    signature = inspect.signature(ThompsonDQN if algorithm is PosteriorDQN else algorithm)
    assert shown == defaults(signature)
    assert list(shown) == list(signature.parameters)


def test_arguments_are_bound_by_name_and_by_position():
    model = ThompsonDQN("MlpPolicy", "CartPole-v1", 1e-3, 500, 7, device="cpu")
    assert (model.learning_rate, model.buffer_size, model.learning_starts) == (1e-3, 500, 7)
    with pytest.raises(TypeError, match="n_stps"):
        PPO("MlpPolicy", "CartPole-v1", n_stps=64)
    with pytest.raises(TypeError, match="policy"):
        PPO()


class Renamed(PPO):
    """A user's own class with a constructor of its own."""

    def __init__(self, env):
        super().__init__("MlpPolicy", env, n_steps=16, batch_size=8, device="cpu")


def test_a_users_subclass_keeps_its_own_signature():
    assert list(inspect.signature(Renamed).parameters) == ["env"]
    assert Renamed("CartPole-v1").n_steps == 16


@pytest.mark.parametrize("algorithm", ALL)
def test_the_declared_action_spaces_are_those_upstream_takes(algorithm):
    cases = [spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)]
    taken = []
    for space in cases:
        try:
            make(algorithm, OneSpace(spaces.Box(-1.0, 1.0, (3,)), space), upstream=True)
        except AssertionError:
            continue
        taken.append(type(space))
    assert set(algorithm.action_spaces) == set(taken)


def private_names():
    """Return every private name of upstream's models and of what hangs on them."""
    models = [make(algorithm, upstream=True) for algorithm in ALL]
    owners = [*models, *(model.policy for model in models), RolloutBuffer, ReplayBuffer]
    names = {name for owner in owners for name in dir(owner) if name.startswith("_") and not name.startswith("__")}
    return names - set(dir(make(PPO).policy.value_net))


def sources():
    for package in (kova.sb3, kova.experiments):
        folder = pathlib.Path(package.__file__).parent
        yield from (path for path in folder.rglob("*.py") if path.name != "upstream.py")


def is_super(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def test_private_names_of_upstream_are_touched_in_one_file():
    private = private_names()
    assert {"_n_updates", "_last_obs", "_get_samples", "_setup_model", "_update_learning_rate"} <= private
    touched, overridden = set(), set()
    for path in sources():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in private and not is_super(node.value):
                touched.add(f"{path.name}:{node.lineno} {node.attr}")
            if isinstance(node, ast.FunctionDef) and node.name in private and path.parent.name == "sb3":
                overridden.add(node.name)
    assert not touched
    assert overridden
    assert all(f"``{name}``" in upstream.__doc__ for name in overridden)


def test_what_has_no_effect_is_said_once():
    for options in ({"vf_coef": 0.5}, {"clip_range_vf": 0.2}):
        with pytest.warns(UserWarning, match=f"no effect on a Kalman critic: {next(iter(options))}") as told:
            make(PPO, **options)
        assert len(told) == 1
        assert told[0].filename.endswith("sb3_cases.py")
        # The control arm is trained by gradients; an error would come of a warning here.
        assert make(PPO, critic="adam", **options).critic_type == "adam"
    make(PPO, clip_range_vf=None)
