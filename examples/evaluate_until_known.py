"""An evaluation that stops when the mean return is known: the critic's value at the start saves most of the episodes.

A pendulum that starts near the top earns more than one that hangs, whatever the agent does: returns scatter because
starts do. The critic knows what a start is worth, and its mean over many starts costs resets and no episodes. Two
evaluations of one agent, each until the 95 % interval of its mean return is narrow enough: by the returns alone, and by
their regression on the critic's value at the start. `kova eval RUN --within 20` does the latter.
"""

import argparse
import shlex
import sys
from pathlib import Path

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from kova.experiments.benchmarks.record import Record
from kova.experiments.evaluation.play import mean_and_interval
from kova.experiments.evaluation.until import LEAST, STARTS, adjusted_mean
from kova.sb3 import PPO

#: What is asked for, in deviations of a return.
PARTS = (0.5, 0.35, 0.25, 0.2, 0.15)


def played(model: PPO, env: VecEnv, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns of some episodes, and the critic's values at their starts."""
    returns, values = [], []
    while len(returns) < episodes:
        observations = env.reset()
        values += model.predict_value(observations).mean.tolist()
        totals = np.zeros(env.num_envs)
        for _ in range(200):
            actions, _ = model.predict(observations, deterministic=True)
            observations, rewards, _, _ = env.step(actions)
            totals += rewards
        returns += totals.tolist()
    return np.array(returns), np.array(values)


def stopped(returns: np.ndarray, values: np.ndarray, starts: np.ndarray | None, within: float) -> tuple[int, float]:
    """Return after how many episodes an evaluation stops, and the mean that it then tells."""
    for count in range(LEAST, len(returns) + 1):
        seen = returns[:count].tolist()
        mean, half = mean_and_interval(seen) if starts is None else adjusted_mean(seen, values[:count], starts)
        if half <= within:
            break
    return count, mean


def main(
    frames: int = 8_000, episodes: int = 300, repeats: int = 40, out: Path | None = None
) -> dict[str, list[float]]:
    training = make_vec_env("Pendulum-v1", n_envs=4, seed=0)
    model = PPO("MlpPolicy", training, n_steps=256, gamma=0.95, learning_rate=1e-3, seed=0).learn(frames)
    env = make_vec_env("Pendulum-v1", n_envs=20, seed=1000)
    returns, values = played(model, env, episodes)
    starts = np.concatenate([model.predict_value(env.reset()).mean.numpy() for _ in range(500)]).astype(np.float64)
    truth, _ = adjusted_mean(returns.tolist(), values.tolist(), starts)
    explained = np.corrcoef(returns, values)[0, 1] ** 2
    print(f"return {truth:.0f}, deviation {returns.std():.0f}; the value at the start explains {explained:.0%} of it")

    rng = np.random.default_rng(0)
    arms = ("returns alone", "with the critic")
    found: dict[str, list[float]] = {
        "within": [round(part * returns.std()) for part in PARTS],
        **{arm: [] for arm in arms},
    }
    found |= {f"{arm}: inside": [] for arm in arms}
    print("  ± asked for    episodes: returns alone / with the critic    typical error")
    for within in found["within"]:
        errors = []
        for arm in arms:
            ends = []
            for _ in range(repeats):
                order = rng.permutation(len(returns))
                own = rng.choice(starts, STARTS) if arm == "with the critic" else None
                ends.append(stopped(returns[order], values[order], own, within))
            found[arm].append(float(np.median([count for count, _ in ends])))
            found[f"{arm}: inside"].append(float(np.mean([abs(mean - truth) <= within for _, mean in ends])))
            errors.append(np.median([abs(mean - truth) for _, mean in ends]))
        counts = " / ".join(f"{found[arm][-1]:.0f}" for arm in arms)
        print(f"  {within:8.0f}       {counts:>20}{errors[0]:27.1f} / {errors[1]:.1f}")
    if out is not None:
        draw(found, returns, values, out)
    return found


def draw(found: dict[str, list[float]], returns: np.ndarray, values: np.ndarray, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(values, returns, ".", ms=3, color="#7570b3")
    left.set(xlabel="the critic's value at the start", ylabel="return of the episode", title="What the start decides")
    for arm, colour in (("returns alone", "#1b9e77"), ("with the critic", "#d95f02")):
        right.plot(found["within"], found[arm], "o-", color=colour, label=arm)
    right.set(xscale="log", yscale="log", xlabel="mean return known to ±", ylabel="episodes played (median)")
    right.set_xticks(found["within"], [f"{within:.0f}" for within in found["within"]])
    counts = (10, 20, 50, 100, 200)
    right.set_yticks(counts, list(map(str, counts)))
    right.minorticks_off()
    right.set_title("When the evaluation stops")
    right.legend(frameon=False)
    figure.savefig(out, dpi=120)
    rows = [
        {"arm": arm, "within": within, "episodes": episodes, "inside": inside}
        for arm in ("returns alone", "with the critic")
        for within, episodes, inside in zip(found["within"], found[arm], found[f"{arm}: inside"], strict=True)
    ]
    settings = {"pool": len(returns)}
    Record(out.with_suffix(".json"), "evaluation", shlex.join(["python", *sys.argv]), settings).add(*rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=8_000)
    parser.add_argument("--episodes", type=int, default=300, help="that evaluations draw from")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, help="a picture; numbers go beside it")
    main(**vars(parser.parse_args()))
