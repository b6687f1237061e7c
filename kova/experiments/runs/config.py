"""What a run is: algorithm, environment and every hyper-parameter, from a preset, overrides, or a saved file."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm

import kova
import kova.sb3
from kova.experiments.errors import UsageError
from kova.experiments.runs import ranges
from kova.experiments.runs.expressions import resolve, suggestion
from kova.experiments.runs.yaml_file import read_fields
from kova.sb3.on_policy import OnPolicyCritic
from kova.sb3.upstream import plain_class

ALGORITHMS: Mapping[str, type[kova.sb3.critic.CriticMixin]] = {
    "a2c": kova.sb3.A2C,
    "ddpg": kova.sb3.DDPG,
    "dqn": kova.sb3.DQN,
    "ppo": kova.sb3.PPO,
    "sac": kova.sb3.SAC,
    "td3": kova.sb3.TD3,
    "trpo": kova.sb3.TRPO,
}

#: Parameters of upstream's constructors that cannot be set: a run decides them itself.
NOT_SETTABLE = {
    *("self", "policy", "env", "seed", "verbose", "tensorboard_log", "policy_kwargs", "_init_setup_model"),
    *("replay_buffer_class", "replay_buffer_kwargs", "rollout_buffer_class", "rollout_buffer_kwargs"),
    *("observation_space", "action_space", "lr_schedule", "critic", "observation_fn"),
    # Classes cannot be written as text, and a replay buffer that saves memory cannot handle time limits.
    *("features_extractor_class", "optimizer_class", "optimize_memory_usage"),
}

#: What each optimizer of the critic takes of its settings; ``None`` is everything. "adam" is the control arm, whose
#: critic has an optimizer and a gradient clip of its own; "upstream" is upstream's class unchanged, clip joint.
CRITICS: Mapping[str, tuple[str, ...] | None] = {
    "kova": None,
    "adam": ("optimizer", "epochs", "batch_size", "learning_rate"),
    "upstream": ("optimizer",),
}


#: A larger number is taken for a typing error.
LARGEST = {"steps": 10**15, "n_envs": 10_000, "checkpoint_every": 10**15}


@dataclass(frozen=True)
class RunConfig:
    """A run, as it is written to ``config.yaml``.

    Attributes:
        algo: Name of the algorithm.
        env: Gymnasium id.
        preset: Where the values came from.
        steps: Frames in all.
        seed: Of everything random.
        n_envs: Copies of the environment.
        normalize_observations: By a running mean and variance.
        normalize_rewards: By a running scale of the return.
        time_limit_bootstrap: Whether a time limit is distinguished from an end of the task.
        checkpoint_every: Frames between checkpoints. The environment is reset at each, so that a run resumed from it
            continues exactly as one that was never stopped.
        algorithm: Arguments of upstream's constructor.
        policy: Arguments of upstream's policy.
        critic: ``optimizer`` (one of :data:`CRITICS`), ``epochs``, ``batch_size``, and arguments of :class:`kova.KOVA`.
    """

    algo: str
    env: str
    preset: str = "default"
    steps: int = 100_000
    seed: int = 0
    n_envs: int = 1
    normalize_observations: bool = False
    normalize_rewards: bool = False
    time_limit_bootstrap: bool = True
    checkpoint_every: int = 50_000
    algorithm: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    critic: dict[str, Any] = field(default_factory=lambda: {"optimizer": "kova"})

    def __post_init__(self) -> None:
        """Check every name and range that does not need the environment."""
        for name in ("algo", "env", "preset"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UsageError(f"{name} must be a name, got {getattr(self, name)!r}")
        if self.algo not in ALGORITHMS:
            raise UsageError(f"algorithm {self.algo!r} is unknown{suggestion(self.algo, ALGORITHMS)}")
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be an integer >= 1, got {value!r}")
            if value > most:
                raise UsageError(f"{name} must be at most {most:,}, got {value}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise UsageError(f"seed must be an integer from 0 to 2^32 - 1, got {self.seed!r}")
        for name in ("normalize_observations", "normalize_rewards", "time_limit_bootstrap"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, got {getattr(self, name)!r}")
        self._check_sections()

    def _check_sections(self) -> None:
        known = settable(self.algo)
        for section in ("algorithm", "policy", "critic"):
            values = getattr(self, section)
            if not isinstance(values, dict):
                raise UsageError(f"{section} must be a mapping of settings, got {values!r}")
            for name, value in values.items():
                _known(f"{section}.{name}", known)
                try:
                    ranges.check(f"{section}.{name}", value, self.algo)
                except ValueError as error:
                    raise UsageError(str(error)) from None
        optimizer = self.critic.get("optimizer")
        if not isinstance(optimizer, str) or optimizer not in CRITICS:
            raise UsageError(f"the critic must be one of {', '.join(CRITICS)}, got {optimizer!r}")
        taken = CRITICS[optimizer]
        unused = [name for name in self.critic if taken is not None and name not in taken]
        if unused:
            raise UsageError(
                f"critic.{unused[0]} is a setting of the Kalman critic; leave it out, or use --critic kova"
            )
        if optimizer == "kova" and "learning_rate" in self.critic:
            raise UsageError("critic.learning_rate is for --critic adam; a Kalman critic has no learning rate")
        if "noise" in self.critic:
            try:
                ALGORITHMS[self.algo].check_noise("critic.noise", resolve(self.critic["noise"]))
            except ValueError as error:
                raise UsageError(str(error)) from None

    @classmethod
    def from_preset(cls, algo: str, env: str, preset: str = "default") -> RunConfig:
        """Return the preset's run.

        Raises:
            UsageError: There is no such algorithm or preset, or the preset does not have the algorithm.
        """
        if algo not in ALGORITHMS:
            raise UsageError(f"algorithm {algo!r} is unknown{suggestion(algo, ALGORITHMS)}")
        found = _presets()
        if preset not in found:
            raise UsageError(f"preset {preset!r} is unknown{suggestion(preset, found)}")
        content: dict[str, Any] = yaml.safe_load(found[preset].read_text())
        # Upstream's own settings need no entry.
        if algo not in content and preset != RunConfig.preset:
            others = ", ".join(name for name in content if name != "all")
            raise UsageError(f"preset {preset!r} has no {algo}; it has {others}")
        values = _merged(content.get("all", {}), content.get(algo) or {})
        environments = values.pop("environments", None)
        if environments is not None:
            if env not in environments:
                raise UsageError(f"preset {preset!r} has no {env!r} for {algo}{suggestion(env, environments)}")
            values = _merged(values, environments[env] or {})
        values["critic"] = {"optimizer": "kova", **values.get("critic", {})}
        return cls(algo=algo, env=env, preset=preset, **values)

    def with_overrides(self, assignments: Sequence[str]) -> RunConfig:
        """Return this run with ``key=value`` texts applied.

        Raises:
            UsageError: A key is unknown or a value unreadable.
        """
        for assignment in assignments:
            check_key(assigned_key(assignment), self.algo)
        return self.with_values(parsed(assignments))

    def with_values(self, settings: Mapping[str, Any]) -> RunConfig:
        """Return this run with {key: value} applied, all at once.

        Raises:
            UsageError: A key is unknown or a value does not fit.
        """
        values = asdict(self)
        for key, value in settings.items():
            check_key(key, self.algo)
            section, _, name = key.rpartition(".")
            if key == "critic.optimizer":
                values["critic"] = _critic(values["critic"], value)
            (values[section] if section else values)[name] = value
        return RunConfig(**values)

    def changed(self, **values: Any) -> RunConfig:
        """Return this run with the fields that are not ``None`` replaced."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def with_critic(self, optimizer: str) -> RunConfig:
        """Return this run with the other optimizer of the critic; the control arm keeps upstream's passes."""
        return replace(self, critic=_critic(self.critic, optimizer))

    def to_yaml(self) -> str:
        """Return the content of ``config.yaml``."""
        text: str = yaml.safe_dump(asdict(self), sort_keys=False)
        return text

    @classmethod
    def from_yaml(cls, path: Path) -> RunConfig:
        """Read what :meth:`to_yaml` wrote.

        Raises:
            UsageError: It is not a configuration.
        """
        try:
            content = read_fields(path, cls, ("algo", "env"))
        except UsageError as error:
            raise UsageError(f"{error}; repair it, or start a new run in another --run-dir") from None
        try:
            return cls(**content)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def assigned_key(assignment: str) -> str:
    """Return the key of a ``key=value`` text.

    Raises:
        UsageError: It is not one.
    """
    key, equals, _ = assignment.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{assignment!r} is not key=value, as in critic.evolution=PriorRelaxation(0.02)")
    return key.strip()


def parsed(assignments: Sequence[str]) -> dict[str, Any]:
    """Return {key: value} of ``key=value`` texts.

    Raises:
        UsageError: One of them cannot be read.
    """
    return {(key := assigned_key(text)): _parsed(text.partition("=")[2], key) for text in assignments}


@cache
def settable(algo: str) -> tuple[str, ...]:
    """Return every key that ``--set`` takes for an algorithm."""
    algorithm, upstream = ALGORITHMS[algo], upstream_of(algo)
    policy = algorithm.policy_aliases["MlpPolicy"]
    passes = ["epochs", "batch_size"] if issubclass(algorithm, OnPolicyCritic) else []
    # N of the filter's steps is the algorithm's to say.
    critic = ["optimizer", "learning_rate", *passes, *(name for name in _parameters(kova.KOVA) if name != "batch_size")]
    single = [entry.name for entry in fields(RunConfig) if entry.name not in ("algo", "env", "preset")]
    return (
        *(name for name in single if name not in ("algorithm", "policy", "critic")),
        *(f"algorithm.{name}" for name in _parameters(upstream)),
        *(f"policy.{name}" for name in _parameters(policy)),
        *(f"critic.{name}" for name in critic),
    )


def upstream_of(algo: str) -> type[BaseAlgorithm]:
    """Return the class of Stable-Baselines3 or sb3-contrib that an algorithm is made of."""
    return plain_class(ALGORITHMS[algo])


def _parameters(owner: type) -> list[str]:
    found = inspect.signature(cast(Callable[..., object], owner)).parameters
    return [name for name in found if name not in NOT_SETTABLE]


def check_key(key: str, algo: str) -> None:
    """Raise ``UsageError`` unless the key is a setting of the algorithm."""
    _known(key, settable(algo))


def _known(key: str, known: Sequence[str]) -> None:
    if key not in known:
        # A name without its section, or in the wrong one, is the usual mistake.
        last = key.rpartition(".")[2]
        elsewhere = [name for name in known if name.rpartition(".")[2] == last]
        hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else suggestion(key, known)
        if "did you mean" not in hint:
            # All of them would fill the screen.
            hint = f"; the closest are {', '.join(difflib.get_close_matches(key, known, n=3, cutoff=0.0))}"
        raise UsageError(f"setting {key!r} is unknown{hint}")


def _critic(settings: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    return {**(settings if optimizer == "kova" else {}), "optimizer": optimizer}


def _parsed(text: str, key: str) -> Any:
    if re.match(r"\s*\w+\(", text):
        # A colon inside the brackets would make it a mapping of YAML.
        return text.strip()
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"{key}={text!r} cannot be read; write a number, a name, true, false or a [list]") from None
    return as_number(value)


def as_number(value: Any) -> Any:
    """Return the number that a text of YAML stands for: in YAML 3e-4 and 1e6 are texts, because floats need a dot."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if "." not in value and number.is_integer() else number


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both and key != "net_arch" else value
    return merged


def _presets() -> dict[str, Any]:
    folder = resources.files("kova.experiments.runs") / "presets"
    return {item.name.removesuffix(".yaml"): item for item in folder.iterdir() if item.name.endswith(".yaml")}
