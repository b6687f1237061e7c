"""``kova train``: from the words of a command to a finished run."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kova.experiments.errors import UsageError
from kova.experiments.evaluation import curves
from kova.experiments.evaluation.play import play_as_valued
from kova.experiments.evaluation.wording import UNITS, decimals, with_error
from kova.experiments.files import is_folder
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.progress import ProgressBar
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Interrupted, Training, load
from kova.optimizer import KOVA

WITHOUT_A_FILTER = {"adam": "Adam, the control arm", "upstream": "upstream's own, unchanged"}


@dataclass(frozen=True)
class TrainRequest:
    """What the user gave; ``None`` where they gave nothing."""

    algo: str | None = None
    env: str | None = None
    critic: str | None = None
    preset: str | None = None
    steps: int | None = None
    seed: int | None = None
    settings: tuple[str, ...] = ()
    run_dir: Path | None = None

    def config(self) -> RunConfig:
        """Return the run that was asked for.

        Raises:
            UsageError: Something is missing or unknown.
        """
        if self.algo is None or self.env is None:
            raise UsageError("name an algorithm and an environment, as in: kova train ppo HalfCheetah-v4")
        config = RunConfig.from_preset(self.algo, self.env, self.preset or "default")
        if self.critic is not None:
            config = config.with_critic(self.critic)
        return config.changed(steps=self.steps, seed=self.seed).with_overrides(self.settings)

    def directory(self, config: RunConfig) -> RunDirectory:
        """Return where the run goes."""
        name = f"{config.algo}-{config.env.replace('/', '-')}-{config.critic['optimizer']}-seed{config.seed}"
        return RunDirectory(self.run_dir or Path("runs") / name)


def run(request: TrainRequest, command: str, *, resume: bool, console: Console) -> None:
    """Start or resume a run, and show the result.

    Args:
        request: What the user gave.
        command: What the user typed.
        resume: Whether the run is there already.
        console: Where to print.

    Raises:
        UsageError: It cannot be done; nothing was left behind.
        SystemExit: The user stopped it; it can be resumed.
    """
    config, directory = _resumed(request) if resume else _new(request)
    label = f"{config.algo} on {config.env}, {config.steps:,} frames, seed {config.seed}"
    with ExitStack() as held:
        if resume:
            held.enter_context(directory.locked())
            directory.discard_drafts()
        training = Training(config, directory, command, lambda: [ProgressBar(console, label, config.steps)])
        if not resume:
            directory.create(config)
            held.enter_context(directory.locked())
        _train(training, config, directory, console)
    _conclude(config, directory, console)


def _train(training: Training, config: RunConfig, directory: RunDirectory, console: Console) -> None:
    optimizer = getattr(training.model, "critic_optimizer", None)
    critic = repr(optimizer) if isinstance(optimizer, KOVA) else WITHOUT_A_FILTER[config.critic["optimizer"]]
    console.print(f"critic: {critic}", highlight=False)
    try:
        training.run()
    except Interrupted as stopped:
        last = (
            f"the last checkpoint is at {stopped.checkpoint:,}" if stopped.checkpoint else "there is no checkpoint yet"
        )
        console.print(
            f"stopped at frame {stopped.frame:,} of {config.steps:,}; {last}: "
            f"resume continues at frame {stopped.checkpoint:,}:\n"
            f"  kova train --resume --run-dir {shlex.quote(str(directory.path))}",
            highlight=False,
            soft_wrap=True,
        )
        raise SystemExit(130) from None


def _new(request: TrainRequest) -> tuple[RunConfig, RunDirectory]:
    config = request.config()
    directory = request.directory(config)
    directory.check_free()
    return config, directory


def _resumed(request: TrainRequest) -> tuple[RunConfig, RunDirectory]:
    if request.run_dir is None and request.algo is None:
        raise UsageError(
            "say which run to resume, as in: kova train --resume --run-dir runs/ppo-HalfCheetah-v4-kova-seed0"
        )
    directory = RunDirectory(request.run_dir) if request.run_dir else request.directory(request.config())
    if not is_folder(directory.path):
        raise UsageError(f"{directory.path} does not exist: there is nothing to resume; leave --resume out to start it")
    config = directory.config()
    directory.check_not_packed()
    for name in ("algo", "env", "preset", "steps", "seed"):
        value = getattr(request, name)
        # More frames would be another run: the schedules depend on their number.
        if value is not None and value != getattr(config, name):
            raise UsageError(
                f"{directory.path} was started with {name} = {getattr(config, name)}, not {value}; leave it out"
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
    return config, directory


def _conclude(config: RunConfig, directory: RunDirectory, console: Console) -> None:
    """Play one episode, draw the picture, print the table."""
    checkpoint = directory.latest_checkpoint()
    assert checkpoint is not None
    single = config.changed(n_envs=1)
    model, env = load(single, checkpoint)
    episode = play_as_valued(model, env, seed=config.seed + 10_000)
    env.close()
    picture = directory.path / "curves.png"
    curves.save(picture, {f"{config.algo}, {config.critic['optimizer']} critic": [directory.path]}, episode, config.env)
    frames, returns = curves.training_returns(directory.path)
    table = Table(show_header=False, box=None)
    table.add_row("frames", f"{config.steps:,}")
    table.add_row("training episodes", f"{len(frames):,}")
    if len(returns):
        last = returns[-min(len(returns), 100) :]
        table.add_row(f"return, last {len(last)} episodes", f"{last.mean():.1f}")
    table.add_row("return of one more episode", f"{episode.total:.1f}")
    if episode.mean is not None and episode.stddev is not None:
        value = with_error(episode.mean[0], 2 * episode.stddev[0])
        cut = "" if episode.known else ", cut off by the time limit"
        table.add_row("value of its first state", f"{value} (2σ)")
        digits = decimals(2 * episode.stddev[0])
        table.add_row("discounted return that followed", f"{episode.realised[0]:.{digits}f}{cut}")
    table.add_row("learning curve", str(picture))
    console.print(table, highlight=False)
    console.print(f" returns and values are {UNITS}", highlight=False)
    console.print(f" play it: kova eval {shlex.quote(str(directory.path))}", highlight=False, soft_wrap=True)
