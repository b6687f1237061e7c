"""Training, in parts: each ends with a checkpoint, and begins in the same way whether or not the run was stopped.

Every part seeds all random numbers from (seed, frame) and resets the environment. That is what makes a resumed run
end with the same parameters as one that was never stopped, for any environment.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from kova.experiments.errors import one_line
from kova.experiments.runs import environments, evaluation, tracking
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.evaluation import Evaluator
from kova.experiments.runs.logs import STEP, MonitorCSV, make_logger
from kova.experiments.runs.model import MODEL, NORMALIZATION, REPLAY, build, load
from kova.experiments.runs.provenance import add_maker, provenance
from kova.experiments.runs.run_directory import MADE_BY, RunDirectory
from kova.sb3.upstream import forget_last_observation

#: Frames between two rows of the logs, if rollouts are shorter: A2C's of 40 would fill megabytes.
LOG_EVERY = 200


class Interrupted(Exception):
    """The user stopped the run; it continues from its last checkpoint when it is resumed.

    Attributes:
        frame: Where it stopped.
        checkpoint: Frame of the last checkpoint, 0 if there is none yet.
    """

    def __init__(self, frame: int, checkpoint: int) -> None:
        super().__init__(f"stopped at frame {frame:,}; the last checkpoint is at {checkpoint:,}")
        self.frame, self.checkpoint = frame, checkpoint


class _PartDone(Exception):
    """The part is complete."""


class Training:
    """One run: build or restore, train part by part.

    Args:
        config: The run.
        directory: Where it leaves its files.
        command: What the user typed, for the run's record of how it was made.
        watch: Makes the callbacks that show progress.

    Raises:
        UsageError: The run cannot be built, or its checkpoint cannot be read.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        command: str,
        watch: Callable[[], list[BaseCallback]] = list,
    ) -> None:
        self.config, self.directory, self._command, self._watch = config, directory, command, watch
        self._interrupted = False
        evaluation.check(config)
        tracking.check(config.track)
        checkpoint = directory.latest_checkpoint()
        if checkpoint is None:
            self.env = environments.normalized(environments.make(config), config)
            try:
                self.model = build(config, self.env)
            except BaseException:
                self.env.close()
                raise
        else:
            self.model, self.env = load(config, checkpoint, to_train=True)
        self._last_checkpoint = self.model.num_timesteps
        self._evaluator = Evaluator(config, directory, self._last_checkpoint, self._save)

    @property
    def best_return(self) -> float | None:
        """Mean return of the best evaluation so far."""
        best = self._evaluator.made.best
        return None if best is None else best.mean

    def run(self) -> BaseAlgorithm:
        """Train to the end, close the environments, and return the model.

        Raises:
            UsageError: A log of an earlier part is damaged, or the run cannot be tracked.
            Interrupted: Ctrl-C. No checkpoint is written for it: the schedule of checkpoints decides where the random
                numbers are seeded and the environment is reset, and a resumed run must repeat that schedule.
        """
        try:
            with self._ctrl_c():
                return self._run()
        finally:
            self.env.close()
            self._evaluator.close()

    def _run(self) -> BaseAlgorithm:
        done = self.model.num_timesteps
        # Before anything is written: they raise if the log of an earlier part is damaged.
        monitor = MonitorCSV(self.directory.path / "monitor.csv", self.config.env, done)
        tracker = tracking.begin(self.config.track, self.directory.path, self.config.content())
        logger, progress = make_logger(self.directory.path, done, tracker)
        self.model.set_logger(logger)
        add_maker(self.directory.path / MADE_BY, provenance(self._command))
        callbacks = [monitor, *self._watch(), self._evaluator]
        state = "failed"
        try:
            while self.model.num_timesteps < self.config.steps and self._evaluator.made.verdict is None:
                self._stop_if_interrupted()
                self._status("running")
                self._train_part(callbacks)
                # Before the checkpoint: a resumed run begins after it and will not log these frames again.
                progress.flush()
                monitor.flush()
                tracker.flush()
                self._checkpoint()
            state = "finished"
        except (KeyboardInterrupt, Interrupted):
            state = "interrupted"
            self._status(state)
            raise
        except BaseException as error:
            self._status("failed", error=f"{type(error).__name__}: {one_line(error)}")
            raise
        finally:
            for callback in callbacks[1:]:
                callback.on_training_end()
            logger.close()
            tracker.end(state)
        verdict = self._evaluator.made.verdict
        self._status(state, **({} if verdict is None else {"stopped_early": verdict}))
        return self.model

    def _train_part(self, callbacks: list[BaseCallback]) -> None:
        model, done = self.model, self.model.num_timesteps
        every = self.config.checkpoint_every
        until = min((done // every + 1) * every, self.config.steps)
        model.set_random_seed(part_seed(self.config.seed, done))
        forget_last_observation(model)
        stop = _Stop(self._is_part_done(until), self._stop_if_interrupted)
        with suppress(_PartDone):
            model.learn(
                self.config.steps - done,
                CallbackList([*callbacks, stop]),
                log_interval=_log_interval(model),
                reset_num_timesteps=False,
            )
        # After the last rollout of all no other begins.
        self._evaluator.evaluate_if_due()
        # Upstream would write the values of the last update with the next rollout only.
        model.logger.record(STEP, model.num_timesteps, exclude="tensorboard")
        model.logger.dump(model.num_timesteps)

    def _is_part_done(self, until: int) -> Callable[[], bool]:
        return lambda: self.model.num_timesteps >= until or self._evaluator.made.verdict is not None

    def _save(self, folder: Path) -> None:
        self.model.save(folder / MODEL)
        if isinstance(self.env, VecNormalize):
            self.env.save(str(folder / NORMALIZATION))

    def _checkpoint(self) -> None:
        with self.directory.new_checkpoint(self.model.num_timesteps) as folder:
            forget_last_observation(self.model)
            self._save(folder)
            if isinstance(self.model, OffPolicyAlgorithm):
                _end_trajectory(self.model)
                self.model.save_replay_buffer(folder / REPLAY)
        self._last_checkpoint = self.model.num_timesteps

    def _status(self, state: str, **details: Any) -> None:
        """Write the state; frames after the last checkpoint do not count, because a resumed run repeats them."""
        self.directory.write_status(state, step=self._last_checkpoint, steps=self.config.steps, **details)

    def _stop_if_interrupted(self) -> None:
        if self._interrupted:
            raise Interrupted(self.model.num_timesteps, self._last_checkpoint)

    @contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        """Stop at the next frame after the first Ctrl-C, when no file is half written; at once after a second."""

        def remember(number: int, frame: FrameType | None) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, before)

        before = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, remember)
        except ValueError:
            # Not in the main thread: there is no Ctrl-C to catch.
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _log_interval(model: BaseAlgorithm) -> int:
    """Return how many rollouts, off-policy episodes, make a row of the logs."""
    if not isinstance(model, OnPolicyAlgorithm):
        return 1
    return max(1, LOG_EVERY // (model.n_steps * model.n_envs))


class _Stop(BaseCallback):
    """Ends a part between two rollouts, when everything has been learnt from, and an interrupted run at any frame."""

    def __init__(self, is_part_done: Callable[[], bool], stop_if_interrupted: Callable[[], None]) -> None:
        super().__init__()
        self._is_part_done, self._stop_if_interrupted = is_part_done, stop_if_interrupted

    def _on_rollout_start(self) -> None:
        # First: a part that is complete gets its checkpoint even if Ctrl-C came during its last update.
        if self._is_part_done():
            raise _PartDone
        self._stop_if_interrupted()

    def _on_step(self) -> bool:
        self._stop_if_interrupted()
        return True


def _end_trajectory(model: OffPolicyAlgorithm) -> None:
    """Mark where the environment is about to be reset, so that no n-step return crosses it."""
    buffer = model.replay_buffer
    if isinstance(buffer, ReplayBuffer) and (buffer.pos or buffer.full):
        last = (buffer.pos - 1) % buffer.buffer_size
        buffer.timeouts[last] = np.maximum(buffer.timeouts[last], 1.0 - buffer.dones[last])


def part_seed(seed: int, frame: int) -> int:
    """Return the seed of the part that begins at a frame."""
    return int(np.random.SeedSequence([seed, frame]).generate_state(1)[0] % 2**31)
