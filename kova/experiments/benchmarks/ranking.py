"""``kova bench ranking``: does σ(V) tell where an agent's critic errs?

From states that an agent visits many futures are played. Their mean return is the value of the policy there, so the
error of the critic is known; and so is the best that anybody could do. One return scatters around the value, and where
it scatters more than the critic errs, |return - V| says little of the critic: even a ranking by E|return - V| itself,
taken from one half of the futures, correlates with the other half only so much.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from scipy import stats

from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.errors import UsageError
from kova.experiments.evaluation.futures import moments, returns_from
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.sb3.on_policy import OnPolicyCritic

Array = npt.NDArray[np.float64]

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v4", "HalfCheetah-v4")
REPLICAS = 16
STATES, FUTURES = 96, 24
#: Frames of the trained agent that the states are drawn from.
DRAWN_FROM = 4000

ROW = "{:<5} {:<15} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}"
HEAD = ("algo", "task", "seed", "error", "scatter", "σ: |G-V|", "at best", "P: |G-V|", "σ: error", "P: error")
SHOWN = (
    *("error", "scatter", "replicas_with_returns", "best_with_returns", "P_with_returns"),
    *("replicas_with_errors", "P_with_errors"),
)


def scores(values: Array, replicas: Array, believed: Array, returns: Array) -> dict[str, float]:
    """Return how deviations rank errors.

    Args:
        values: V of the critic, (B,).
        replicas: σ(V) by the replicas, (B,).
        believed: σ(V) by P, (B,).
        returns: G of the futures, (B, K).
    """
    half = returns.shape[1] // 2
    distances = np.abs(returns - values[:, None])
    errors = np.abs(returns.mean(1) - values)

    def with_returns(ranking: Array) -> float:
        found = [stats.spearmanr(ranking, distances[:, future]).statistic for future in range(half, returns.shape[1])]
        return float(np.mean(found))

    return {
        "error": float(np.sqrt(np.mean(errors**2))),
        "scatter": float(np.sqrt(returns.var(1, ddof=1).mean())),
        "replicas_with_returns": with_returns(replicas),
        "best_with_returns": with_returns(distances[:, :half].mean(1)),
        "error_with_returns": with_returns(np.abs(returns[:, :half].mean(1) - values)),
        "P_with_returns": with_returns(believed),
        "replicas_with_errors": float(stats.spearmanr(replicas, errors).statistic),
        "P_with_errors": float(stats.spearmanr(believed, errors).statistic),
    }


def judged(algo: str, env: str, seed: int, frames: int) -> dict[str, Any]:
    """Train an agent and return how its σ(V) ranks its errors."""
    config = RunConfig.from_preset(algo, env).with_values({"seed": seed, "steps": frames, "critic.replicas": REPLICAS})
    trained = environments.normalized(environments.make(config), config)
    model = build(config, trained)
    assert isinstance(model, OnPolicyCritic)
    model.learn(frames)
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None:
        normaliser.training = False
    states = moments(model, env, STATES, seed=seed, steps=DRAWN_FROM)
    seen: Any = np.stack([state.observation for state in states])
    seen = seen if normaliser is None else normaliser.normalize_obs(seen)
    told, believed = model.predict_value(seen, calibrated=True), model.predict_value(seen)
    returns = np.stack([returns_from(model, state, FUTURES, seed=seed) for state in states])
    trained.close()
    sigmas = (told.stddev.double().numpy(), believed.stddev.double().numpy())
    found = scores(told.mean.double().numpy(), *sigmas, returns)
    return {"arm": "KOVA", "algorithm": algo, "environment": env, "seed": seed, "frames": frames, **found}


def run(
    out: Path, algos: Sequence[str], envs: Sequence[str], seeds: int, frames: int, console: Console, command: str
) -> None:
    """Judge every agent that the record does not have, and write ``ranking.json`` as it goes.

    Args:
        out: Its folder.
        algos: On-policy algorithms.
        envs: Gymnasium ids.
        seeds: Agents of every task and algorithm.
        frames: That an agent learns from.
        console: The screen.
        command: What was typed.

    Raises:
        UsageError: An algorithm has no critic of V(s), or the file cannot be read or written.
    """
    check_folder(out, "--out", "ranking.json")
    for algo in algos:
        if algo not in ("a2c", "ppo", "trpo"):
            raise UsageError(f"--algo must be a2c, ppo or trpo, whose critics are of V(s); got {algo!r}")
    path = out / "ranking.json"
    settings = {"states": STATES, "futures": FUTURES, "replicas": REPLICAS}
    record = Record(path, "ranking", command, settings, read_results(path, "ranking"))
    keys = ("algorithm", "environment", "seed", "frames")
    known = {tuple(result[key] for key in keys) for result in record.results}
    jobs = [(algo, env, seed, frames) for seed in range(seeds) for algo in algos for env in envs]
    torch.set_num_threads(1)
    console.print(ROW.format(*HEAD), highlight=False)
    with record.kept(console):
        for job in track([job for job in jobs if job not in known], "agents", console=console, transient=True):
            result = judged(*job)
            record.add(result)
            numbers = [f"{result[name]:.2f}" for name in SHOWN]
            console.print(ROW.format(*job[:3], *numbers), highlight=False)
    console.print(str(path), highlight=False, soft_wrap=True)
