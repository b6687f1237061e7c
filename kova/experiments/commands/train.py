"""``kova train``: from the words of a command to a finished run."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kova.experiments.commands.resume import resumed
from kova.experiments.errors import UsageError
from kova.experiments.evaluation import curves
from kova.experiments.evaluation.play import play_as_valued
from kova.experiments.evaluation.wording import UNITS, decimals, with_error
from kova.experiments.runs.config import ALGORITHMS, RunConfig, assigned_key, parsed
from kova.experiments.runs.evaluation import Evaluations
from kova.experiments.runs.model import load
from kova.experiments.runs.progress import ProgressBar
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Interrupted, Training
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
    env_kwargs: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    vec: str | None = None
    eval_every: int | None = None
    eval_episodes: int | None = None
    stop_at: float | None = None
    patience: int | None = None
    track: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the configuration that have an option of their own, those that were given.

        Raises:
            UsageError: An argument of the environment is not one.
        """
        names = ("algo", "env", "preset", "steps", "seed", "vec", "eval_every", "eval_episodes", "stop_at", "patience")
        given = {name: getattr(self, name) for name in (*names, "track")}
        given["env_kwargs"] = parsed(self.env_kwargs, example="forward_reward_weight=2.0") or None
        given["wrappers"] = list(self.wrappers) or None
        return {name: value for name, value in given.items() if value is not None}

    def config(self) -> RunConfig:
        """Return the run that was asked for.

        Raises:
            UsageError: Something is missing or unknown.
        """
        if self.algo is None or self.env is None:
            raise UsageError("name an algorithm and an environment, as in: kova train ppo HalfCheetah-v5")
        config = RunConfig.from_preset(self.algo, self.env, self.preset or "default")
        if self.critic is not None:
            config = config.with_critic(self.critic)
        return config.changed(**self.fields()).with_overrides(self.settings)

    def directory(self, config: RunConfig) -> RunDirectory:
        """Return where the run goes."""
        name = f"{config.algo}-{config.env.replace('/', '-')}-{config.critic['optimizer']}-seed{config.seed}"
        return RunDirectory(self.run_dir or Path("runs") / name)

    def without_effect(self, config: RunConfig) -> list[str]:
        """Return the settings that were typed and change nothing; a preset may have them for other critics."""
        if config.critic["optimizer"] != "kova":
            return []
        only_for_adam = [f"algorithm.{name}" for name in ALGORITHMS[config.algo].only_for_adam]
        return [key for key in dict.fromkeys(map(assigned_key, self.settings)) if key in only_for_adam]


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
    config, directory = resumed(request) if resume else _new(request)
    if unused := request.without_effect(config):
        console.print(
            f"no effect on a Kalman critic: {', '.join(unused)}; its trust region is P", highlight=False, soft_wrap=True
        )
    if resume and directory.is_finished() and config == directory.config():
        console.print(
            f"{directory.path} is finished; to train it on, give --steps a number above {config.steps}",
            highlight=False,
            soft_wrap=True,
        )
    label = f"{config.algo} on {config.env}, {config.steps:,} frames, seed {config.seed}"
    with ExitStack() as held:
        if resume:
            held.enter_context(directory.locked())
            directory.discard_drafts()
        training = Training(
            config,
            directory,
            command,
            lambda: [ProgressBar(console, label, config.steps, lambda: training.best_return)],
        )
        if resume and config != directory.config():
            directory.extend(config, training.model.num_timesteps)
        if not resume:
            held.enter_context(directory.created(config))
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


def _conclude(config: RunConfig, directory: RunDirectory, console: Console) -> None:
    """Play one episode, draw the picture, print the table."""
    checkpoint = directory.latest_checkpoint()
    assert checkpoint is not None
    model, env = load(config.single(), checkpoint)
    episode = play_as_valued(model, env, seed=config.seed + 10_000)
    env.close()
    picture = directory.path / "curves.png"
    curves.save(picture, {f"{config.algo}, {config.critic['optimizer']} critic": [directory.path]}, episode, config.env)
    frames, returns = curves.training_returns(directory.path)
    table = Table(show_header=False, box=None)
    early, best = directory.status().get("stopped_early"), Evaluations(directory.evaluations_file, config).best
    trained = f"{model.num_timesteps:,}"
    if early:
        trained += f" of {config.steps:,}"
    elif model.num_timesteps != config.steps:
        trained += f": whole rollouts, after the {config.steps:,} asked for"
    table.add_row("frames", trained)
    if early:
        table.add_row("ended early", early)
    table.add_row("training episodes", f"{len(frames):,}")
    if len(returns):
        last = returns[-min(len(returns), 100) :]
        table.add_row(f"return, last {len(last)} episodes", f"{last.mean():.1f}")
    if best is not None:
        table.add_row("best evaluation", f"{best.mean:.1f} at frame {best.step:,}")
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
    words = f"kova eval {shlex.quote(str(directory.path))}"
    console.print(f" play it: {words}", highlight=False, soft_wrap=True)
    if best is not None:
        console.print(f" the best: {words} --best", highlight=False, soft_wrap=True)
