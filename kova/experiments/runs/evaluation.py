"""Evaluation while a run trains: how well the policy plays, the best model so far, and when that is enough.

It has an environment of its own and leaves every random number as it found it: a run that is evaluated learns, bit for
bit, what it learns without. Every evaluation plays the same episodes, from seeds of their own, so that the next one
differs by the policy alone. What is known of earlier evaluations comes from ``evaluations.csv``, up to the checkpoint
that the run continues from; those after it are repeated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

from kova.experiments.errors import UsageError
from kova.experiments.files import write_whole
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import Row, as_csv, rows_until
from kova.experiments.runs.run_directory import RunDirectory

COLUMNS = ["step", "mean", "std", "length", "returns"]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    Attributes:
        step: Frame of the run.
        returns: Of its episodes, as the environment pays.
        length: Mean of their lengths.
    """

    step: int
    returns: tuple[float, ...]
    length: float

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def score(self) -> float:
        """The mean return, to be compared: a return that is not a number is the worst of all."""
        return -math.inf if math.isnan(self.mean) else self.mean

    def row(self) -> dict[str, Any]:
        """Return its row of the table."""
        returns = " ".join(str(value) for value in self.returns)
        std = float(np.std(self.returns))
        return {"step": self.step, "mean": self.mean, "std": std, "length": self.length, "returns": returns}

    @classmethod
    def of_row(cls, row: Row) -> Evaluation:
        """Read what :meth:`row` wrote."""
        returns = tuple(float(value) for value in row["returns"].split())
        return cls(int(row["step"]), returns, float(row["length"]))


class Evaluations:
    """The evaluations of a run, in order, and what follows from them.

    Args:
        path: The table.
        config: The run.
        until: Later ones are dropped; none by default.

    Raises:
        UsageError: The table is damaged.
    """

    def __init__(self, path: Path, config: RunConfig, until: float = math.inf) -> None:
        self._path, self._config = path, config
        rows = rows_until(path, "step", until)
        try:
            self._made = [Evaluation.of_row(row) for row in rows]
        except (KeyError, ValueError) as error:
            raise UsageError(f"{path} is damaged: {error!r}; delete it to continue without its rows") from None

    @property
    def last_step(self) -> int:
        """Frame of the last one, 0 before the first."""
        return self._made[-1].step if self._made else 0

    @property
    def best(self) -> Evaluation | None:
        """The one with the highest mean return, the first of equals."""
        return max(self._made, key=lambda made: made.score, default=None)

    def add(self, made: Evaluation) -> bool:
        """Add one, and return whether it is the best so far."""
        before = self.best
        self._made.append(made)
        write_whole(self._path, as_csv(COLUMNS, [each.row() for each in self._made]))
        return before is None or made.score > before.score

    @property
    def verdict(self) -> str | None:
        """Why the run should end now, if it should."""
        best, config = self.best, self._config
        if best is None:
            return None
        last = self._made[-1]
        if config.stop_at is not None and last.mean >= config.stop_at:
            return f"the mean evaluation return, {last.mean:.1f}, reached {config.stop_at:g}"
        without = len(self._made) - 1 - self._made.index(best)
        if config.patience is not None and without >= config.patience:
            count = "1 evaluation was" if without == 1 else f"{without} evaluations were"
            return f"{count} no better than {best.mean:.1f} at frame {best.step:,}"
        return None


class Evaluator(BaseCallback):
    """Evaluates the policy between two rollouts, whenever another ``eval_every`` frames have passed.

    Args:
        config: The run.
        directory: Where the table and the best model go.
        until: Frame that the run continues from.
        save: Writes the model into a folder.

    Raises:
        UsageError: The table of an earlier part is damaged.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory, until: int, save: Callable[[Path], None]) -> None:
        super().__init__()
        self._directory, self._save = directory, save
        self._every, self._episodes, self._seed = config.eval_every, config.eval_episodes, seed_of(config.seed)
        self.made = Evaluations(directory.evaluations_file, config, until)
        if self._every is not None:
            single = config.single()
            self._env = environments.normalized(environments.make(single), single)
            if isinstance(self._env, VecNormalize):
                self._env.training = False

    def _on_rollout_start(self) -> None:
        self.evaluate_if_due()

    def _on_step(self) -> bool:
        return True

    def evaluate_if_due(self) -> None:
        """Evaluate the policy, unless it is not time yet; everything must have been learnt from."""
        frame = self.model.num_timesteps
        if self._every is None or frame // self._every == self.made.last_step // self._every:
            return
        made = self._evaluate(frame)
        best = self.made.add(made)
        # Not by the logger's own dump: what it has gathered belongs to a later row.
        row = {"eval/mean_reward": made.mean, "eval/mean_ep_length": made.length}
        for output in self.logger.output_formats:
            output.write(row, dict.fromkeys(row, ()), frame)
        if best:
            with self._directory.new_best() as folder:
                self._save(folder)

    def close(self) -> None:
        """Close the environment."""
        if self._every is not None:
            self._env.close()

    def _evaluate(self, frame: int) -> Evaluation:
        training = self.model.get_env()
        assert training is not None
        sync_envs_normalization(training, self._env)
        with untouched_randomness(self.model):
            self._env.seed(self._seed)
            returns, lengths = evaluate_policy(
                self.model, self._env, self._episodes, deterministic=True, return_episode_rewards=True
            )
        assert isinstance(returns, list)
        return Evaluation(frame, tuple(float(value) for value in returns), float(np.mean(lengths)))


def check(config: RunConfig) -> None:
    """Check that the settings of a run's evaluation go together.

    Raises:
        UsageError: They do not.
    """
    if config.eval_every is None:
        for name, option in (("stop_at", "--stop-at"), ("patience", "--patience")):
            if getattr(config, name) is not None:
                raise UsageError(f"{option} looks at evaluations, and there are none; add --eval-every N")
    elif config.eval_every > config.steps:
        raise UsageError(
            f"--eval-every {config.eval_every} is more than the {config.steps} frames of the run; it would never be "
            "evaluated"
        )


def seed_of(seed: int) -> int:
    """Return the seed of a run's evaluations, which no part of its training has."""
    return int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0] % 2**31)


@contextmanager
def untouched_randomness(model: BaseAlgorithm) -> Iterator[None]:
    """Leave the random numbers that training draws as they were."""
    # Upstream draws from numpy's global state.
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
