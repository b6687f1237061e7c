"""``kova eval``: play a trained agent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from kova.experiments.errors import UsageError
from kova.experiments.evaluation import video
from kova.experiments.evaluation.play import (
    Episode,
    mean_and_interval,
    play,
    uncertainty_correlation,
    value_at_start,
    values_exploration,
)
from kova.experiments.evaluation.until import MOST, play_until
from kova.experiments.evaluation.wording import UNITS, decimals, with_error
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import load
from kova.experiments.runs.run_directory import RunDirectory

DEFAULT_FPS = 30
EPISODES = 10


def run(
    path: Path,
    episodes: int | None,
    video_file: Path | None,
    seed: int,
    *,
    deterministic: bool,
    console: Console,
    best: bool = False,
    within: float | None = None,
) -> None:
    """Play and print the mean return with its 95 % interval; ``video_file`` gets a video of the first episode.

    Args:
        path: Of the run.
        episodes: How many, by default :data:`EPISODES`; where ``within`` is given, at most.
        video_file: Of the video, if there is to be one.
        seed: Of the first episode.
        deterministic: Whether the agent takes the mode of its policy.
        console: The screen.
        best: Whether the agent is the best of its evaluations, not that of the last checkpoint.
        within: Play until the mean is known to plus or minus so much; see :mod:`kova.experiments.evaluation.until`.

    Raises:
        UsageError: There is no such run, it has no checkpoint, or the video cannot be made.
    """
    if within is not None and video_file is not None:
        raise UsageError("--within and --video do not go together; make the video with a call of its own")
    directory = RunDirectory(path)
    config, checkpoint = directory.trained()
    if best:
        checkpoint = _best(directory, config)
    if video_file is not None:
        video.check(video_file)
        # MuJoCo and pygame must render without a screen.
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    model, env = load(config.single(), checkpoint, None if video_file is None else "rgb_array")
    if video_file is not None and "rgb_array" not in env.get_attr("metadata")[0].get("render_modes", ()):
        raise UsageError(f"{config.env} does not draw itself; leave --video out")
    if within is not None:
        _until(config, model, env, within, episodes or MOST, seed, deterministic=deterministic, console=console)
        env.close()
        return
    episodes, played = episodes or EPISODES, []
    for index in track(range(episodes), "playing", console=console, transient=True):
        record = video_file is not None and index == 0
        episode = play(model, env, seed=seed + index, deterministic=deterministic, record=record)
        if video_file is not None and record:
            fps = int(env.get_attr("metadata")[0].get("render_fps", DEFAULT_FPS))
            video.write(video_file, episode, fps)
        # Pictures are large and no longer needed.
        played.append(replace(episode, frames=[]))
    env.close()
    mean, half = mean_and_interval([episode.total for episode in played])
    length = sum(episode.length for episode in played) / episodes
    interval = f" ± {half:.1f} (95 % interval)" if episodes > 1 else ""
    console.print(
        f"{config.algo} on {config.env}, frame {model.num_timesteps:,}: return {mean:.1f}{interval}, "
        f"{episodes} {'episodes' if episodes > 1 else 'episode'} of {length:.0f} frames",
        highlight=False,
        soft_wrap=True,
    )
    start = at_the_start(played)
    if start is not None:
        other = ""
        if deterministic and values_exploration(model):
            other = "; the value is that of the policy with its exploration (--stochastic)"
        console.print(start + other, highlight=False, soft_wrap=True)
    correlation = uncertainty_correlation(played)
    if correlation is not None:
        rho, low, high = correlation
        console.print(
            f"rank correlation of σ with |return - value|: {rho:.2f} (95 % interval {low:.2f} to {high:.2f})",
            highlight=False,
            soft_wrap=True,
        )
    if video_file is not None:
        console.print(f"video: {video_file}", highlight=False, soft_wrap=True)


def _until(
    config: RunConfig,
    model: BaseAlgorithm,
    env: VecEnv,
    within: float,
    most: int,
    seed: int,
    *,
    deterministic: bool,
    console: Console,
) -> None:
    """Play until the mean return is known well enough, and say what it took."""
    returns: list[float] = []
    mean, half = float("nan"), float("nan")
    with console.status("playing") as status:
        for episode, mean, half in play_until(model, env, within, seed=seed, deterministic=deterministic, most=most):
            returns.append(episode.total)
            status.update(f"playing: {len(returns)} episodes, return {mean:.1f} ± {half:.1f}")
    digits = decimals(within)
    found = f"return {mean:.{digits}f} ± {half:.{digits}f} (95 % interval), {len(returns)} episodes"
    console.print(
        f"{config.algo} on {config.env}, frame {model.num_timesteps:,}: {found}", highlight=False, soft_wrap=True
    )
    if half > within:
        advice = f"not within ± {within:g} after {most} episodes; let it play on with a larger --episodes"
        console.print(advice, highlight=False, soft_wrap=True)
        return
    _, plain = mean_and_interval(returns)
    if plain > within:
        more = len(returns) * (plain / within) ** 2
        console.print(
            f"without the critic's value at the start: ± {plain:.{digits}f}, and some {more:.0f} episodes to play",
            highlight=False,
            soft_wrap=True,
        )


def _best(directory: RunDirectory, config: RunConfig) -> Path:
    if not directory.best.is_dir():
        reason = "was trained without --eval-every" if config.eval_every is None else "has not been evaluated yet"
        raise UsageError(
            f"{directory.path} has no best model: it {reason}; leave --best out to play the last checkpoint"
        )
    return directory.best


def at_the_start(played: list[Episode]) -> str | None:
    """Return what the critic expected of the episodes beside what they earned, if it says how sure it was."""
    expected = value_at_start(played)
    if expected is None:
        return None
    value, stddev = expected
    mean, half = mean_and_interval([float(episode.realised[0]) for episode in played])
    followed = f"{with_error(mean, half)} (95 % interval)" if len(played) > 1 else f"{mean:.{decimals(2 * stddev)}f}"
    cut = ", cut off by the time limit" if any(episode.known == 0 for episode in played) else ""
    return (
        f"at the start: value {with_error(value, 2 * stddev)} (2σ), discounted return that followed {followed}{cut}, "
        f"{UNITS}"
    )
