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
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from kova.errors import CovarianceTooLarge
from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs import environments, evaluation, replay, tracking
from kova.experiments.runs.config import ALGORITHMS, RunConfig, upstream_of
from kova.experiments.runs.evaluation import Evaluator
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.logs import STEP, MonitorCSV, make_logger
from kova.experiments.runs.provenance import add_maker, provenance
from kova.experiments.runs.run_directory import BEST, MADE_BY, RunDirectory
from kova.sb3.upstream import forget_last_observation

MODEL, NORMALIZATION, REPLAY = "model.zip", "normalization.pkl", "replay.pkl"
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


def build(config: RunConfig, env: VecEnv) -> BaseAlgorithm:
    """Return the untrained model of a run.

    Raises:
        UsageError: The settings do not go together, or not with the environment.
    """
    _check_device(config)
    algorithm, critic = _algorithm(config)
    _check_actions(config, env)
    settings = resolve(config.algorithm)
    if critic.get("critic") == "kova":
        # Presets set them for every critic; given to a Kalman critic they would bring a warning.
        settings = {name: settings[name] for name in settings if name not in ALGORITHMS[config.algo].only_for_adam}
    if isinstance(settings.get("train_freq"), list):
        settings["train_freq"] = tuple(settings["train_freq"])
    if issubclass(ALGORITHMS[config.algo], OffPolicyAlgorithm):
        settings["buffer_size"] = _buffer_size(config)
    if "action_noise" in settings:
        settings["action_noise"] = _action_noise(settings["action_noise"], env)
    try:
        return algorithm(
            environments.policy_for(env),
            env,
            seed=config.seed,
            policy_kwargs=resolve(config.policy) or None,
            device=settings.pop("device", "cpu"),
            **critic,
            **settings,
        )
    except CovarianceTooLarge as error:
        raise UsageError(f"critic.covariance: {one_line(error)}") from error
    except Exception as error:
        # Upstream refuses what it cannot do with errors of many kinds; nothing has been trained or written yet.
        raise UsageError(f"{config.algo} on {config.env}: {one_line(error)}") from error


def _algorithm(config: RunConfig) -> tuple[Callable[..., BaseAlgorithm], dict[str, Any]]:
    """Return the class of a run and the arguments that only this library's classes take."""
    settings = dict(resolve(config.critic))
    optimizer = settings.pop("optimizer")
    if optimizer == "upstream":
        return upstream_of(config.algo), {}
    own = ("epochs", "batch_size", "learning_rate")
    passes = {f"critic_{name}": settings.pop(name) for name in own if name in settings}
    return ALGORITHMS[config.algo], {"critic": optimizer, "critic_kwargs": settings, **passes}


def _check_device(config: RunConfig) -> None:
    """Refuse a device that this machine does not have: upstream would train on the CPU instead."""
    device = config.algorithm.get("device", "cpu")
    if device == "auto":
        return
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:
        # What torch raises depends on the device.
        gpu = ", cuda" if torch.cuda.is_available() else ""
        raise UsageError(f"algorithm.device={device} is not a device of this machine; use cpu, auto{gpu}") from error


def _check_actions(config: RunConfig, env: VecEnv) -> None:
    """Refuse actions of a kind that the algorithm does not take, and name the algorithms that do."""
    takers = [name for name, algorithm in ALGORITHMS.items() if isinstance(env.action_space, algorithm.action_spaces)]
    if config.algo not in takers:
        taken = " or ".join(kind.__name__ for kind in ALGORITHMS[config.algo].action_spaces)
        way_out = f"use one of {', '.join(takers)}" if takers else "no algorithm takes those"
        raise UsageError(
            f"{config.algo} takes {taken} actions and {config.env} has {type(env.action_space).__name__}; {way_out}"
        )


def _buffer_size(config: RunConfig) -> int:
    """Return the frames of a replay buffer; one for more than the run has would only make checkpoints larger."""
    return min(int(config.algorithm.get("buffer_size", 1_000_000)), config.steps)


def _action_noise(sigma: float | None, env: VecEnv) -> NormalActionNoise | None:
    if sigma is None:
        return None
    size = env.action_space.shape or (1,)
    return NormalActionNoise(np.zeros(size), np.full(size, float(sigma)))


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


def load(
    config: RunConfig, checkpoint: Path, render_mode: str | None = None, *, to_train: bool = False
) -> tuple[BaseAlgorithm, VecEnv]:
    """Return model and environment of a checkpoint, with its replay buffer if it is ``to_train``.

    Raises:
        UsageError: It cannot be read.
    """
    if to_train:
        _check_device(config)
    saved = checkpoint / NORMALIZATION
    if not saved.exists() and (config.normalize_observations or config.normalize_rewards):
        raise UsageError(f"the checkpoint {checkpoint} has no {NORMALIZATION}; {_advice(checkpoint)}")
    try:
        env = environments.normalized(environments.make(config, render_mode), config, saved if saved.exists() else None)
        upstream = config.critic["optimizer"] == "upstream"
        algorithm = upstream_of(config.algo) if upstream else ALGORITHMS[config.algo]
        model = algorithm.load(checkpoint / MODEL, env=env, device=config.algorithm.get("device", "cpu"))
        if isinstance(model, OffPolicyAlgorithm) and to_train:
            model.load_replay_buffer(checkpoint / REPLAY)
            assert isinstance(model.replay_buffer, ReplayBuffer)
            # The run may have been extended.
            replay.grow(model.replay_buffer, _buffer_size(config))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the checkpoint {checkpoint} cannot be read: {one_line(error)}; {_advice(checkpoint)}"
        ) from error
    return model, env


def _advice(checkpoint: Path) -> str:
    if checkpoint.name == BEST:
        return "leave --best out to play the last checkpoint"
    older = sorted(path.name for path in checkpoint.parent.glob("[0-9]*") if path.name < checkpoint.name)
    if older:
        return f"delete that folder to continue from {older[-1]}"
    return "there is no older one: start a new run in another --run-dir"


def _end_trajectory(model: OffPolicyAlgorithm) -> None:
    """Mark where the environment is about to be reset, so that no n-step return crosses it."""
    buffer = model.replay_buffer
    if isinstance(buffer, ReplayBuffer) and (buffer.pos or buffer.full):
        last = (buffer.pos - 1) % buffer.buffer_size
        buffer.timeouts[last] = np.maximum(buffer.timeouts[last], 1.0 - buffer.dones[last])


def part_seed(seed: int, frame: int) -> int:
    """Return the seed of the part that begins at a frame."""
    return int(np.random.SeedSequence([seed, frame]).generate_state(1)[0] % 2**31)
