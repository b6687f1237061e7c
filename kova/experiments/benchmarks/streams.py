"""``kova bench streams``: every setting of the filter on the same recorded frames; how the defaults were chosen.

Two agents that differ in their critics soon differ in their policies, and their explained variances no longer compare.
Here an agent of upstream makes the frames once, and every critic learns from the same ones, with labels of its own.
What is judged is the explained variance of the Monte-Carlo returns, before the critic has learned from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

import kova
from kova.defaults import IN_UNITS
from kova.errors import NumericalError
from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.benchmarks.streams_figure import save_figure
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import suggestion
from kova.experiments.streams.recording import record
from kova.experiments.streams.replay import CriticOptimizer, ReplayBuffer, Rollouts
from kova.experiments.streams.stream import Stream
from kova.sb3.adam import AdamCritic

Scheme = Rollouts | ReplayBuffer
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
DEFAULT = "KOVA, the default"

PPO_LABELS, A2C_LABELS = Rollouts(256, 0.95, batch_size=64), Rollouts(5, 1.0)
Q_LABELS = ReplayBuffer(every=256, updates=64, batch_size=64, tau=0.02)


@dataclass(frozen=True)
class Recording:
    """An agent whose frames are kept, and the labels that critics learn from there.

    Attributes:
        algo: The agent, an algorithm of upstream.
        env: Gymnasium id.
        frames: How many.
        labels: {name: scheme}.
        settings: Of the run, beside the default preset's.
    """

    algo: str
    env: str
    frames: int
    labels: Mapping[str, Scheme]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, seed: int) -> RunConfig:
        """Return the run."""
        config = RunConfig.from_preset(self.algo, self.env).with_critic("upstream")
        return config.with_values({"steps": self.frames, "seed": seed, **self.settings})


RAW = {"normalize_observations": False, "normalize_rewards": False}
EIGHT = {"n_envs": 8, "algorithm.n_steps": 256}
ON_POLICY = {"PPO": PPO_LABELS, "A2C": A2C_LABELS}
#: rl-zoo's CartPole.
DQN = {
    "algorithm.learning_rate": 2.3e-3,
    "algorithm.batch_size": 64,
    "algorithm.train_freq": 256,
    "algorithm.gradient_steps": 128,
    "algorithm.learning_starts": 1000,
    "algorithm.target_update_interval": 10,
    "algorithm.exploration_final_eps": 0.04,
}

RECORDINGS: Mapping[str, Recording] = {
    "Pendulum-v1, raw": Recording("ppo", "Pendulum-v1", 100_000, ON_POLICY, {**EIGHT, **RAW}),
    "CartPole-v1, raw": Recording("ppo", "CartPole-v1", 40_000, ON_POLICY, {**EIGHT, **RAW}),
    "Hopper-v4, raw": Recording("ppo", "Hopper-v4", 100_000, ON_POLICY, {**EIGHT, **RAW}),
    "Hopper-v4": Recording("ppo", "Hopper-v4", 100_000, ON_POLICY, EIGHT),
    "CartPole-v1, DQN": Recording("dqn", "CartPole-v1", 20_000, {"Q": Q_LABELS}, DQN),
    "Acrobot-v1, DQN": Recording("dqn", "Acrobot-v1", 20_000, {"Q": Q_LABELS}, DQN),
    "Pendulum-v1, DDPG": Recording("ddpg", "Pendulum-v1", 20_000, {"Q": Q_LABELS}),
    "Walker2d-v4": Recording("ppo", "Walker2d-v4", 100_000, ON_POLICY, EIGHT),
    "HalfCheetah-v4": Recording("ppo", "HalfCheetah-v4", 100_000, ON_POLICY, EIGHT),
}


@dataclass(frozen=True)
class Arm:
    """A way to fit a critic.

    Attributes:
        make: Its optimizer, for a critic and its h.
        passes: Over every rollout.
    """

    make: Callable[[nn.Module, Any], CriticOptimizer]
    passes: int = 1


def adam(rate: float, passes: int) -> Arm:
    """Return the control: Adam at a rate, without a clip."""
    return Arm(lambda critic, h: AdamCritic(critic, h, lr=rate), passes)


def _kova(**settings: Any) -> Arm:
    return Arm(lambda critic, h: kova.KOVA(critic, h, **settings))


def _times(wrong: float) -> kova.ConstantNoise:
    assert isinstance(IN_UNITS.noise, kova.ConstantNoise)
    return kova.ConstantNoise(wrong * IN_UNITS.noise.variance)


EVOLUTIONS = (kova.PriorRelaxation(1e-4), kova.PriorRelaxation(1e-3), kova.PriorRelaxation(1e-2))
NOISES = (kova.ConstantNoise(0.01), kova.ConstantNoise(0.1), kova.ConstantNoise(1.0), kova.InnovationNoise())
#: Around the default, closer than the grid.
NEAR = ((kova.PriorRelaxation(1e-4), kova.ConstantNoise(0.05)), (kova.PriorRelaxation(3e-4), kova.ConstantNoise(0.1)))
#: How wrong a noise may be, beside the default's.
WRONG = (1e-3, 1e3)
#: Every setting is the default but for what it says.
ARMS: Mapping[str, Arm] = {
    **{f"Adam × 1, {rate:g}": adam(rate, 1) for rate in RATES},
    **{f"Adam × 10, {rate:g}": adam(rate, 10) for rate in RATES},
    DEFAULT: _kova(),
    **{
        f"KOVA, {evolution!r}, {noise!r}": _kova(evolution=evolution, noise=noise)
        for evolution, noise in (*itertools.product(EVOLUTIONS, NOISES), *NEAR)
    },
    "KOVA, EvidenceForgetting()": _kova(evolution=kova.EvidenceForgetting()),
    "KOVA, FadingMemory(0.001)": _kova(evolution=kova.FadingMemory(0.001)),
    "KOVA, Memoryless(0.1)": _kova(evolution=kova.Memoryless(0.1)),
    "KOVA, Isotropic()": _kova(prior=kova.Isotropic()),
    "KOVA, InnovationNoise(floor=1e-06)": _kova(noise=kova.InnovationNoise(floor=1e-6)),
    "KOVA, the paper's models": _kova(units=kova.RawUnits()),
    "KOVA, GainRatio()": _kova(trust=kova.GainRatio()),
    **{f"KOVA, noise × {wrong:g}": _kova(noise=_times(wrong)) for wrong in WRONG},
    **{f"KOVA, noise × {wrong:g}, GainRatio()": _kova(noise=_times(wrong), trust=kova.GainRatio()) for wrong in WRONG},
}

ROW = "{:<20} {:<5} {:<62} {:>9} {:>9} {:>9} {:>8}"


def run(out: Path, frames: Path, chosen: Sequence[str], seed: int, console: Console, command: str) -> None:
    """Record what is missing, replay what the record does not have, and print it row by row.

    Args:
        out: Folder of ``streams.json`` and ``streams.png``.
        frames: Folder of the recorded frames, which are large.
        chosen: Names of recordings; all of them if there are none.
        seed: Of the agents.
        console: The screen.
        command: What was typed.

    Raises:
        UsageError: A name is unknown, or a file cannot be read or written.
    """
    for name in chosen:
        if name not in RECORDINGS:
            raise UsageError(f"stream {name!r} is unknown{suggestion(name, RECORDINGS)}")
    check_folder(out, "--out", "streams.json", "streams.png")
    check_folder(frames, "--frames")
    path = out / "streams.json"
    record_file = Record(path, "streams", command, {"seed": seed}, read_results(path, "streams"))
    known = {(result["stream"], result["labels"], result["arm"]) for result in record_file.results}
    console.print(
        ROW.format("stream", "label", "critic", "explained", "1st half", "2nd half", "seconds"),
        highlight=False,
        soft_wrap=True,
    )
    torch.set_num_threads(1)
    with record_file.kept(console):
        for name in chosen or RECORDINGS:
            recording = RECORDINGS[name]
            jobs = [
                (labels, arm)
                for labels in recording.labels
                for arm in ARMS
                if (name, labels, arm) not in known and not (labels == "Q" and ARMS[arm].passes > 1)
            ]
            if not jobs:
                continue
            stream = recorded(recording, seed, frames / f"{recording.algo}-{name}-{seed}.npz", console)
            for labels, arm in track(jobs, name, console=console, transient=True):
                result = {
                    "stream": name,
                    "labels": labels,
                    "arm": arm,
                    **judged(recording.labels[labels], ARMS[arm], stream),
                }
                record_file.add(result)
                _print(result, console)
    save_figure(out / "streams.png", record_file.results)
    console.print(str(path), highlight=False, soft_wrap=True)


def recorded(recording: Recording, seed: int, path: Path, console: Console) -> Stream:
    """Return the frames of a recording, from its file if there is one."""
    if path.exists():
        return Stream.load(path)
    with console.status(f"recording {recording.frames:,} frames of {recording.env}"):
        stream = record(recording.config(seed))
    stream.save(path)
    return stream


def judged(scheme: Scheme, arm: Arm, stream: Stream) -> dict[str, Any]:
    """Return how an arm does on a stream; a filter that cannot go on explains nothing."""
    if isinstance(scheme, Rollouts):
        scheme = scheme.with_passes(arm.passes)
    try:
        found = scheme.replay(stream, arm.make)
    except NumericalError as error:
        return {"explained": None, "first_half": None, "second_half": None, "seconds": None, "error": str(error)}
    return {
        "explained": found.mean,
        "first_half": found.half(0),
        "second_half": found.half(1),
        "seconds": round(found.seconds, 2),
    }


def _print(result: Mapping[str, Any], console: Console) -> None:
    numbers = (result[name] for name in ("explained", "first_half", "second_half", "seconds"))
    shown = ["failed" if number is None else f"{number:.3f}" for number in numbers]
    console.print(
        ROW.format(result["stream"], result["labels"], result["arm"], *shown), highlight=False, soft_wrap=True
    )
