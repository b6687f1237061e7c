"""``make demo``: PPO with a Kalman critic beside PPO with Adam, on a small real task."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kova.experiments.evaluation import curves as figures
from kova.experiments.evaluation.play import Episode, play_as_valued
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.progress import ProgressBar
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Training, load

ARMS = {"kova": "Kalman critic", "adam": "Adam critic"}


def run(out: Path, env: str, steps: int, seeds: int, console: Console) -> None:
    """Train both arms on every seed, print a table, and draw the curves and the value with its band.

    A demo that was stopped goes on where it was.
    """
    start = time.perf_counter()
    runs: dict[str, list[Path]] = {label: [] for label in ARMS.values()}
    for seed in range(seeds):
        for critic, label in ARMS.items():
            config = RunConfig.from_preset("ppo", env).with_critic(critic).changed(steps=steps, seed=seed)
            path = out / f"{env}-{steps}-{critic}-seed{seed}"
            train(config, RunDirectory(path), f"{label}, seed {seed}", console)
            runs[label].append(path)
    table = Table("critic", "return, last fifth", "area under the curve", "explained variance")
    for label, paths in runs.items():
        table.add_row(label, _over_seeds(paths, _last_fifth), _over_seeds(paths, _area), _over_seeds(paths, _explained))
    picture = out / "demo.png"
    figures.save(picture, runs, _episode(runs[ARMS["kova"]][0]), f"PPO on {env}, {seeds} seeds")
    console.print(table)
    console.print(f"{time.perf_counter() - start:.0f} s; picture: {picture}", highlight=False)


def train(config: RunConfig, directory: RunDirectory, label: str, console: Console) -> None:
    """Run one arm to its end, from where it is."""
    if not directory.path.exists():
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.create(config)
    directory.discard_drafts()
    Training(config, directory, lambda: [ProgressBar(console, label, config.steps)]).run()


def _episode(path: Path) -> Episode:
    directory = RunDirectory(path)
    checkpoint = directory.latest_checkpoint()
    assert checkpoint is not None
    model, env = load(directory.config(), checkpoint)
    episode = play_as_valued(model, env, seed=10_000)
    env.close()
    return episode


def _last_fifth(path: Path) -> float:
    frames, returns = figures.training_returns(path)
    return float(returns[frames > 0.8 * frames[-1]].mean())


def _area(path: Path) -> float:
    return float(figures.training_returns(path)[1].mean())


def _explained(path: Path) -> float:
    """Mean over the second half of the run: the first rollouts say little."""
    rows = [row for row in read_rows(path / "progress.csv") if "train/explained_variance" in row]
    half = [row for row in rows if float(row[STEP]) > 0.5 * float(rows[-1][STEP])]
    return float(np.mean([float(row["train/explained_variance"]) for row in half]))


def _over_seeds(paths: list[Path], measure: object) -> str:
    assert callable(measure)
    values = [measure(path) for path in paths]
    return f"{np.mean(values):.2f}  ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where runs and picture go")
    parser.add_argument("--env", default="CartPole-v1", help="a Gymnasium id")
    parser.add_argument("--steps", type=int, default=12_288, help="frames of every run")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of every arm")
    arguments = parser.parse_args()
    run(arguments.out, arguments.env, arguments.steps, arguments.seeds, Console())


if __name__ == "__main__":
    main()
