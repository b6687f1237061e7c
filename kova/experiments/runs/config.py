"""What a run is: algorithm, environment and every hyper-parameter, from a preset, overrides, or a saved file."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm

import kova
import kova.sb3
from kova.experiments.errors import UsageError
from kova.experiments.runs import env_kwargs, hints, ranges, wrappers
from kova.experiments.runs.expressions import resolve, suggestion
from kova.experiments.runs.preset_files import preset_values
from kova.experiments.runs.tracking import TRACKERS
from kova.experiments.runs.vectors import VECTORS
from kova.experiments.runs.yaml_file import as_number, read_fields
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
LARGEST = {
    "steps": 10**15,
    "n_envs": 10_000,
    "checkpoint_every": 10**15,
    "eval_every": 10**15,
    "eval_episodes": 10**6,
    "patience": 10**6,
}

#: Fields that came after 0.1.0. At their defaults they are not part of a configuration, so that its file and the name
#: of its run stay what they were.
LATER = ("env_kwargs", "wrappers", "vec", "eval_every", "eval_episodes", "stop_at", "patience", "track")

#: Fields that are names or numbers, or nothing.
OPTIONAL = ("eval_every", "patience")


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
        env_kwargs: Arguments of the environment.
        wrappers: Of the environment, the first innermost: dotted names, with arguments in brackets.
        vec: Where copies of the environment run, one of :data:`~kova.experiments.runs.vectors.VECTORS`.
        eval_every: Frames between evaluations; none without.
        eval_episodes: Of every evaluation.
        stop_at: Mean return of an evaluation that ends the run.
        patience: Evaluations without a better one that end the run.
        track: Service that gets the logs too, one of :data:`~kova.experiments.runs.tracking.TRACKERS`.
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
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    vec: str = "dummy"
    eval_every: int | None = None
    eval_episodes: int = 10
    stop_at: float | None = None
    patience: int | None = None
    track: str | None = None

    def __post_init__(self) -> None:
        """Check every name and range that does not need the environment."""
        for name in ("algo", "env", "preset"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UsageError(f"{name} must be a name, got {getattr(self, name)!r}")
        if self.algo not in ALGORITHMS:
            raise UsageError(f"algorithm {self.algo!r} is unknown{suggestion(self.algo, ALGORITHMS)}")
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be an integer >= 1, got {value!r}")
            if value > most:
                raise UsageError(f"{name} must be at most {most:,}, got {value}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise UsageError(f"seed must be an integer from 0 to 2^32 - 1, got {self.seed!r}")
        for name in ("normalize_observations", "normalize_rewards", "time_limit_bootstrap"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, got {getattr(self, name)!r}")
        self._check_environment()
        if self.stop_at is not None and not ranges.NUMBER.holds(self.stop_at):
            raise UsageError(f"stop_at must be a number, got {self.stop_at!r}")
        if self.track is not None and self.track not in TRACKERS:
            raise UsageError(f"track must be one of {', '.join(TRACKERS)}, got {self.track!r}")
        self._check_sections()

    def _check_environment(self) -> None:
        env_kwargs.check(self.env_kwargs)
        if not isinstance(self.wrappers, list):
            raise UsageError(f"wrappers must be a list, as in [gymnasium.wrappers.ClipAction], got {self.wrappers!r}")
        for wrapper in self.wrappers:
            wrappers.parsed(wrapper)
        if not isinstance(self.vec, str) or self.vec not in VECTORS:
            raise UsageError(f"vec must be one of {', '.join(VECTORS)}, got {self.vec!r}")

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
        """Return the run of a preset, which is a name or the path of a YAML file.

        Raises:
            UsageError: There is no such algorithm or preset, or the preset does not have the algorithm, or is wrong.
        """
        if algo not in ALGORITHMS:
            raise UsageError(f"algorithm {algo!r} is unknown{suggestion(algo, ALGORITHMS)}")
        values = preset_values(preset, algo, env, ALGORITHMS)
        critic = values.pop("critic", {})
        single = [entry.name for entry in fields(cls) if entry.name not in ("algo", "env", "preset")]
        for name in values:
            if name not in single:
                raise UsageError(f"preset {preset!r} has {name!r}, which is unknown{suggestion(str(name), single)}")
        try:
            critic = {"optimizer": "kova", **critic} if isinstance(critic, dict) else critic
            return cls(algo=algo, env=env, preset=preset, critic=critic, **values)
        except UsageError as error:
            raise UsageError(f"preset {preset!r}: {error}") from None

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

    def single(self) -> RunConfig:
        """Return this run with one environment, in this process: to play it."""
        return replace(self, n_envs=1, vec="dummy")

    def content(self) -> dict[str, Any]:
        """Return what makes the run, {field: value}: without the fields that came later and are at their defaults."""
        later = {entry.name: _default(entry) for entry in fields(self) if entry.name in LATER}
        return {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}

    def to_yaml(self) -> str:
        """Return the content of ``config.yaml``."""
        text: str = yaml.safe_dump(self.content(), sort_keys=False)
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


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def assigned_key(assignment: str, example: str = "critic.evolution=PriorRelaxation(0.02)") -> str:
    """Return the key of a ``key=value`` text.

    Raises:
        UsageError: It is not one.
    """
    key, equals, _ = assignment.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{assignment!r} is not key=value, as in {example}")
    return key.strip()


def parsed(assignments: Sequence[str], **example: str) -> dict[str, Any]:
    """Return {key: value} of ``key=value`` texts.

    Raises:
        UsageError: One of them cannot be read.
    """
    return {(key := assigned_key(text, **example)): _parsed(text.partition("=")[2], key) for text in assignments}


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
        if (advice := hints.of(key)) is not None:
            raise UsageError(f"setting {key!r} is unknown; {advice}")
        # A name without its section, or in the wrong one, is the usual mistake.
        last = key.rpartition(".")[2]
        elsewhere = [name for name in known if name.rpartition(".")[2] == last]
        hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else suggestion(key, known)
        if "did you mean" not in hint:
            # All of them would fill the screen.
            hint = f"; the closest are {', '.join(difflib.get_close_matches(key, known, n=3, cutoff=0.0))}"
        raise UsageError(f"setting {key!r} is unknown{hint}")


def _critic(settings: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return the critic's settings under an optimizer: another one than before takes none of them."""
    return {**(settings if optimizer == settings.get("optimizer") else {}), "optimizer": optimizer}


def _parsed(text: str, key: str) -> Any:
    if re.match(r"\s*\w+\(", text):
        # A colon inside the brackets would make it a mapping of YAML.
        return text.strip()
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"{key}={text!r} cannot be read; write a number, a name, true, false or a [list]") from None
    return as_number(value)
