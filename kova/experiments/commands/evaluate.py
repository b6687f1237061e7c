"""``kova eval``: play a trained agent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

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
from kova.experiments.evaluation.wording import UNITS, decimals, with_error
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import load

DEFAULT_FPS = 30


def run(
    path: Path, episodes: int, video_file: Path | None, seed: int, *, deterministic: bool, console: Console
) -> None:
    """Play ``episodes`` and print the mean return with its 95 % interval; ``video_file`` gets a video of the first.

    Raises:
        UsageError: There is no such run, it has no checkpoint, or the video cannot be made.
    """
    config, checkpoint = RunDirectory(path).trained()
    if video_file is not None:
        video.check(video_file)
        # MuJoCo and pygame must render without a screen.
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    model, env = load(config.changed(n_envs=1), checkpoint, None if video_file is None else "rgb_array")
    if video_file is not None and "rgb_array" not in env.get_attr("metadata")[0].get("render_modes", ()):
        raise UsageError(f"{config.env} does not draw itself; leave --video out")
    played = []
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
