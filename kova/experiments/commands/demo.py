"""``kova demo``: A2C with a Kalman critic beside A2C as upstream has it, on a small real task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kova.experiments.evaluation import curves
from kova.experiments.evaluation.play import Episode, play_as_valued
from kova.experiments.evaluation.wording import UNITS
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.model import load
from kova.experiments.runs.progress import ProgressBar
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Interrupted, Training

ARMS = {"kova": "A2C, Kalman critic", "upstream": "A2C, Stable-Baselines3"}
#: As a user's script has it: nothing is normalised, and values are in units of the reward.
SETTINGS = {"normalize_observations": False, "normalize_rewards": False}


def configuration(env: str, critic: str, steps: int, seed: int) -> RunConfig:
    """Return a run of the demo: upstream's settings, eight environments; the critic and its gradient's clip differ."""
    config = RunConfig.from_preset("a2c", env).with_critic(critic)
    return config.with_values({**SETTINGS, "steps": steps, "seed": seed})


def run(out: Path, env: str, steps: int, seeds: int, console: Console, command: str) -> None:
    """Train both arms on every seed, print a table, and draw the curves and the value with its band.

    A demo that was stopped continues where it was.

    Raises:
        UsageError: The environment does not exist, or ``out`` cannot be written.
        SystemExit: The user stopped it (130).
    """
    # Threads that wait for each other make networks of this size ten times slower where another program has a core.
    torch.set_num_threads(1)
    start = time.perf_counter()
    check_folder(out, "--out", "demo.png")
    environments.make(RunConfig.from_preset("a2c", env)).close()
    runs: dict[str, list[Path]] = {label: [] for label in ARMS.values()}
    for seed in range(seeds):
        for critic, label in ARMS.items():
            config = configuration(env, critic, steps, seed)
            path = out / f"a2c-{env.replace('/', '-')}-{steps}-{critic}-seed{seed}"
            try:
                train(config, RunDirectory(path), command, f"{label}, seed {seed}", console)
            except Interrupted as stopped:
                console.print(f"{stopped}; the same command continues there", highlight=False)
                raise SystemExit(130) from None
            runs[label].append(path)
    table = Table(
        "agent",
        "return, last fifth",
        "area under the curve",
        "explained variance",
        caption=f"mean (lowest to highest seed); returns are {UNITS}",
    )
    for label, paths in runs.items():
        table.add_row(label, _over_seeds(paths, _last_fifth), _over_seeds(paths, _area), _over_seeds(paths, _explained))
    picture = out / "demo.png"
    curves.save(picture, runs, _episode(runs[ARMS["kova"]][0]), f"A2C on {env}, {seeds} seeds")
    console.print(table)
    console.print(f"{time.perf_counter() - start:.0f} s; picture: {picture}", highlight=False)


def train(config: RunConfig, directory: RunDirectory, command: str, label: str, console: Console) -> None:
    """Start or resume one run and train it to its end."""
    if not directory.path.exists():
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.create(config)
    directory.discard_drafts()
    Training(config, directory, command, lambda: [ProgressBar(console, label, config.steps)]).run()


def _episode(path: Path) -> Episode:
    directory = RunDirectory(path)
    checkpoint = directory.latest_checkpoint()
    assert checkpoint is not None
    model, env = load(directory.config().single(), checkpoint)
    episode = play_as_valued(model, env, seed=10_000)
    env.close()
    return episode


def _last_fifth(path: Path) -> float:
    frames, returns = curves.training_returns(path)
    if not len(returns):
        return float("nan")
    return float(returns[frames > 0.8 * frames[-1]].mean())


def _area(path: Path) -> float:
    returns = curves.training_returns(path)[1]
    return float(returns.mean()) if len(returns) else float("nan")


def _explained(path: Path) -> float:
    """Mean over the second half of the run: the first rollouts are not representative."""
    rows = [row for row in read_rows(path / "progress.csv") if "train/explained_variance" in row]
    half = [row for row in rows if float(row[STEP]) > 0.5 * float(rows[-1][STEP])]
    return float(np.mean([float(row["train/explained_variance"]) for row in half]))


def _over_seeds(paths: list[Path], measure: Callable[[Path], float]) -> str:
    values = [measure(path) for path in paths]
    if np.isnan(values).any():
        return "no episode ended"
    return f"{np.mean(values):.2f}  ({min(values):.2f} to {max(values):.2f})"
