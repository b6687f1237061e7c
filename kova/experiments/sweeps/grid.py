"""What a sweep is: algorithms × environments × arms × seeds, from a YAML file, as a list of runs.

A run is named by its content: the same configuration has the same name in every sweep, so it is never run twice in one
place. A name, once given, must not change with the version of this file.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.utils import LinearSchedule

from kova.experiments.errors import UsageError
from kova.experiments.runs.config import RunConfig, check_key
from kova.experiments.runs.expressions import resolve, suggestion
from kova.experiments.runs.yaml_file import as_number, read_fields

#: Files that say which sweeps were run in a directory: sweep.yaml, sweep-2.yaml, …
MANIFEST = "sweep"
#: A larger number of seeds is taken for a typing error.
MAX_SEEDS = 10_000
#: What does not make another run: where its settings came from, and who else gets its logs.
NOT_IDENTIFYING = ("preset", "track")
#: Fields that are not settings of kova's: an id or an argument with brackets in it is not an expression.
OF_THE_ENVIRONMENT = ("env", "env_kwargs", "wrappers")
#: The keys of an arm.
ARM_KEYS = ("algorithm", "critic", "set", "environments")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        arm: What the sweep calls this way of training the critic.
        config: All its settings.
        task: What it has in common with the runs that it is compared with.
    """

    arm: str
    config: RunConfig
    task: str = ""

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that identify the configuration; the preset it came from does not count."""
        content = {name: value for name, value in self.config.content().items() if name not in NOT_IDENTIFYING}
        environment = {name: content.pop(name) for name in OF_THE_ENVIRONMENT if name in content}
        text = environment.pop("env") + json.dumps(canonical(content), sort_keys=True)
        if environment:
            text += json.dumps(environment, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The name of its directory."""
        config = self.config
        return f"{config.algo}-{config.env.replace('/', '-')}-{config.critic['optimizer']}-seed{config.seed}-{self.key}"


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, as it is written in YAML.

    Attributes:
        name: Of the sweep; its directory.
        algorithms: Names of algorithms.
        environments: Gymnasium ids.
        arms: {arm: {"critic": …, "set": {key: value}, "environments": {id: {key: value}}}}, each part optional. With
            "algorithm" an arm is of another algorithm than the sweep's, and is compared with the others on the same
            environments.
        seeds: How many, from 0, or which.
        preset: Where every run begins.
        set: {key: value} for every run.
        description: What it is for.
    """

    name: str
    algorithms: Sequence[str]
    environments: Sequence[str]
    arms: Mapping[str, Mapping[str, Any]]
    seeds: int | Sequence[int] = 3
    preset: str = "default"
    set: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        """Check the shape of the file; the runs check their own values."""
        for name in ("algorithms", "environments"):
            values = getattr(self, name)
            if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
                raise UsageError(f"{name} must be a list of names, got {values!r}")
            if len(set(values)) < len(values):
                raise UsageError(f"{name} has a name twice: {', '.join(values)}")
        if not isinstance(self.name, str) or self.name in ("", "..") or Path(self.name).name != self.name:
            raise UsageError(f"name must be a word without slashes, got {self.name!r}")
        if not isinstance(self.preset, str):
            raise UsageError(f"preset must be a name, got {self.preset!r}")
        _mapping("arms", self.arms)
        if not self.arms:
            raise UsageError("arms must name at least one way to train the critic, as in: arms: {Adam: {critic: adam}}")
        for arm, content in self.arms.items():
            for key in _mapping(f"arms.{arm}", content):
                if key not in ARM_KEYS:
                    raise UsageError(f"arms.{arm} has {key!r}, which is unknown{suggestion(str(key), ARM_KEYS)}")
            if not isinstance(content.get("algorithm", ""), str):
                raise UsageError(f"arms.{arm}.algorithm must be a name, got {content['algorithm']!r}")
            _check_settings(f"arms.{arm}.set", content.get("set", {}))
            for env, values in _mapping(f"arms.{arm}.environments", content.get("environments", {})).items():
                if env not in self.environments:
                    raise UsageError(f"arms.{arm}.environments has {env!r}{suggestion(env, self.environments)}")
                _check_settings(f"arms.{arm}.environments.{env}", values)
            if "algorithm" in content and len(self.algorithms) > 1:
                raise UsageError(f"arms.{arm} has an algorithm, so that the sweep must have one only")
        _check_settings("set", self.set)
        self._seeds()

    @classmethod
    def from_file(cls, path: Path) -> Sweep:
        """Read a sweep.

        Raises:
            UsageError: It cannot be read or is not a sweep.
        """
        content = read_fields(path, cls, ("algorithms", "environments", "arms"))
        try:
            return cls(**{"name": path.stem, **content})
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def find(cls, name: str) -> Sweep:
        """Return the sweep of a file, or one that comes with the package.

        Raises:
            UsageError: There is none, or its content is wrong.
        """
        shipped = shipped_sweeps()
        if name in shipped:
            return cls.from_file(shipped[name])
        path = Path(name)
        # OSError: too long to be the name of anything.
        with suppress(OSError):
            if path.suffix in (".yaml", ".yml") or path.exists():
                return cls.from_file(path)
        raise UsageError(f"sweep {name!r} is neither a file nor one that comes with kova{suggestion(name, shipped)}")

    def changed(self, seeds: int | None, settings: Mapping[str, Any]) -> Sweep:
        """Return this sweep with another number of seeds and further settings for every run."""
        return replace(self, seeds=self.seeds if seeds is None else seeds, set={**self.set, **settings})

    def runs(self) -> list[PlannedRun]:
        """Return every run, seed by seed: a sweep that is stopped half-way has all arms on some seeds.

        Raises:
            UsageError: A run's settings are wrong, or two arms are the same.
        """
        found: dict[str, PlannedRun] = {}
        for run in self._grid():
            other = found.setdefault(run.key, run)
            if other is not run:
                raise UsageError(
                    f"arms {other.arm!r} and {run.arm!r} are the same run on {run.config.env}; leave one out"
                )
        return list(found.values())

    def to_yaml(self) -> str:
        """Return the text that :meth:`from_file` reads."""
        text: str = yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)
        return text

    def _grid(self) -> Iterator[PlannedRun]:
        for seed in self._seeds():
            for algo in self.algorithms:
                for env in self.environments:
                    for arm, content in self.arms.items():
                        own = content.get("algorithm", algo)
                        try:
                            config = self._config(own, env, content, seed)
                        except UsageError as error:
                            raise UsageError(f"arm {arm!r}, {own} on {env}: {error}") from None
                        # An arm of another algorithm is compared with those of the sweep's, under its name.
                        yield PlannedRun(arm, config, f"{algo.upper()} {env}")

    def _config(self, algo: str, env: str, arm: Mapping[str, Any], seed: int) -> RunConfig:
        config = RunConfig.from_preset(algo, env, self.preset)
        if "critic" in arm:
            config = config.with_critic(arm["critic"])
        own = {**arm.get("set", {}), **arm.get("environments", {}).get(env, {})}
        common = dict(self.set)
        for key in common:
            check_key(key, algo)
        # Settings of the filter that are given for all arms apply only to those that have one.
        if config.critic["optimizer"] != "kova":
            common = {key: value for key, value in common.items() if not key.startswith("critic.")}
        settings = {key: as_number(value) for key, value in {**common, **own}.items()}
        return config.changed(seed=seed).with_values(settings)

    def _seeds(self) -> Sequence[int]:
        seeds = self.seeds
        if isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= MAX_SEEDS:
            return range(seeds)
        whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
        if whole and seeds and len(set(seeds)) == len(seeds):  # type: ignore[arg-type]
            return list(seeds)  # type: ignore[arg-type]
        raise UsageError(
            f"seeds must be a number from 1 to {MAX_SEEDS:,} or a list of different whole numbers, got {seeds!r}"
        )


def resume_command(manifest: Path, words: Sequence[str] = ()) -> str:
    """Return the command that continues the sweep of a manifest, with further options."""
    return shlex.join(["kova", "sweep", str(manifest), "--out", str(manifest.parent), *words])


def shipped_sweeps() -> dict[str, Path]:
    """Return the sweeps that come with the package, by name."""
    folder = Path(str(resources.files("kova.experiments.sweeps") / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a mapping, got {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{name} has {key!r}, which is not a name; put it in quotes")
    return value


def _check_settings(name: str, value: Any) -> None:
    if "seed" in _mapping(name, value):
        raise UsageError(f"{name} has a seed; a sweep's seeds are its seeds: a number or a list")


def canonical(value: Any) -> Any:
    """Return a value that is equal for equal settings: FadingMemory(0.10) is FadingMemory(eta=0.1), and 1 is 1.0."""
    if isinstance(value, dict):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and "(" in value:
        found = resolve(value)
        # The repr of upstream's schedule is its address.
        return f"linear({found.start}, {found.end})" if isinstance(found, LinearSchedule) else repr(found)
    return value
