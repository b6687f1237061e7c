"""``kova train --resume``: which run goes on, and whether what was typed fits it; a finished one may be extended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kova.experiments.errors import UsageError
from kova.experiments.files import is_folder
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps.grid import PlannedRun

if TYPE_CHECKING:
    from kova.experiments.commands.train import TrainRequest

#: Fields that a resumed run keeps.
KEPT: Sequence[str] = (
    *("algo", "env", "preset", "seed", "env_kwargs", "wrappers", "vec"),
    *("eval_every", "eval_episodes", "stop_at", "patience", "track"),
)


def resumed(request: TrainRequest) -> tuple[RunConfig, RunDirectory]:
    """Return the run that goes on, with more frames if it is to be extended; nothing is written.

    Raises:
        UsageError: There is no such run, or what was typed does not fit it.
    """
    directory = RunDirectory(_path(request))
    if not is_folder(directory.path):
        raise UsageError(f"{directory.path} does not exist: there is nothing to resume; leave --resume out to start it")
    config = directory.config()
    directory.check_not_packed()
    for name, value in request.fields().items():
        if name in KEPT and value != getattr(config, name):
            raise UsageError(
                f"{directory.path} was started with {name} = {_shown(getattr(config, name))}, not {_shown(value)}; "
                "leave it out"
            )
    if request.critic not in (None, config.critic["optimizer"]):
        raise UsageError(
            f"{directory.path} was started with the critic {config.critic['optimizer']}, not {request.critic}; "
            "leave it out"
        )
    if request.settings and config.with_overrides(request.settings) != config:
        raise UsageError(
            f"{directory.path} was started with other settings, and a resumed run keeps its own; leave --set out"
        )
    return _extended(config, directory, request.steps), directory


def _path(request: TrainRequest) -> Path:
    if request.run_dir is not None:
        return request.run_dir
    if request.algo is None:
        raise UsageError(
            "say which run to resume, as in: kova train --resume --run-dir runs/ppo-HalfCheetah-v5-kova-seed0"
        )
    return request.directory(request.config()).path


def _shown(value: Any) -> str:
    return str(value) if value not in (None, {}, []) else "none"


def _extended(config: RunConfig, directory: RunDirectory, steps: int | None) -> RunConfig:
    """Return the run with more frames.

    Raises:
        UsageError: They are not more, or it cannot be extended.
    """
    path, finished = directory.path, directory.is_finished()
    if steps is None or (steps == config.steps and not finished):
        return config
    checkpoint = directory.latest_checkpoint()
    done = max(config.steps, int(checkpoint.name) if checkpoint is not None else 0)
    if steps <= done:
        raise UsageError(f"{path} has {done:,} frames, and --steps {steps} is not more; give it more, or leave it out")
    if not finished:
        # The schedules of what is left to do depend on the number of frames.
        raise UsageError(
            f"{path} was started with steps = {config.steps} and is not finished; resume it without --steps, and "
            "extend it then"
        )
    early = directory.status().get("stopped_early")
    if early:
        raise UsageError(
            f"{path} ended early because {early}; more frames would not change that: start a new run without "
            "--stop-at and --patience in another --run-dir"
        )
    if PlannedRun("", config).name == path.name:
        raise UsageError(
            f"{path} is a run of a sweep, which knows it by its frames; copy it to another name and extend the copy"
        )
    return config.changed(steps=steps)
