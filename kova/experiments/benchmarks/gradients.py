"""``kova bench gradients``: why a better critic makes a better A2C agent.

An agent of upstream learns, and critics learn beside it, from the same frames, with the labels of A2C. Now and then the
agent's policy is held fixed, and new frames are drawn with it. On these every critic is asked two things: how much of
the Monte-Carlo returns it explains, and how well the policy gradient of one small rollout, as A2C computes it with this
critic, points along that of a large batch with Monte-Carlo returns. Policy and frames are common; only critics differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

import kova
from kova.experiments.benchmarks.gradients_figure import save_figure
from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.benchmarks.streams import Arm, adam
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.experiments.streams.recording import Recorder
from kova.experiments.streams.replay import Learner, Rollouts
from kova.experiments.streams.stream import Stream

ENVIRONMENTS = ("Hopper-v4", "HalfCheetah-v4")
RATES = (3e-4, 7e-4, 3e-3)
#: A2C's rollouts: 5 steps of 8 environments, the 5-step return.
LABELS = Rollouts(5, 1.0)
SMALL = 8
#: Environments whose frames make the gradient of a large batch.
LARGE = 8
GAMMA = 0.99
#: Frames with a known return, below which a gradient means nothing.
LEAST = 200


ARMS: Mapping[str, Arm] = {
    "KOVA": Arm(lambda critic, h: kova.KOVA(critic, h, batch_size=5 * SMALL)),
    **{f"Adam × {passes}, {rate:g}": adam(rate, passes) for passes in (1, 10) for rate in RATES},
}

ROW = "{:<16} {:>4} {:>8} {:<20} {:>10} {:>8} {:>8}"


def configuration(env: str, seed: int, n_envs: int) -> RunConfig:
    """Return the agent: upstream's PPO, normalised, at one rate: it is stopped on the way."""
    config = RunConfig.from_preset("ppo", env).with_critic("upstream")
    settings = {"algorithm.n_steps": 256, "algorithm.learning_rate": 3e-4}
    return config.with_values({"seed": seed, "n_envs": n_envs, **settings})


def drawn(model: OnPolicyAlgorithm, env: str, seed: int, steps: int) -> Stream:
    """Return frames of the policy as it is now; actions are what was drawn, before they are cut to their range."""
    config = configuration(env, seed, SMALL + LARGE)
    frames = environments.normalized(environments.make(config), config)
    agents = model.get_vec_normalize_env()
    assert isinstance(frames, VecNormalize)
    assert agents is not None
    frames.obs_rms, frames.ret_rms, frames.training = agents.obs_rms, agents.ret_rms, False
    frames.seed(seed)
    recorder, actions = Recorder(frames, as_paid=False), []
    space = frames.action_space
    observations: Any = recorder.reset()
    for _ in range(steps):
        with torch.no_grad():
            action = model.policy(torch.as_tensor(observations))[0].numpy()
        actions.append(action.reshape(len(action), -1))
        given = np.clip(action, space.low, space.high) if isinstance(space, spaces.Box) else action
        observations = recorder.step(given)[0]
    frames.close()
    return dataclasses.replace(recorder.stream(), actions=torch.from_numpy(np.stack(actions)))


class PolicyGradient:
    """∇ E[log π(a|s) · advantage] of a policy, as one vector.

    Args:
        model: Whose policy.
    """

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self._policy = model.policy
        self._discrete = isinstance(model.action_space, spaces.Discrete)
        critics = ("value_net", "mlp_extractor.value_net", "vf_features_extractor")
        self._parameters = [p for name, p in self._policy.named_parameters() if not name.startswith(critics)]

    def __call__(self, observations: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
        """Return the gradient over (N, size) observations and actions and (N,) advantages."""
        actions = actions.long().flatten() if self._discrete else actions
        log_prob = self._policy.get_distribution(observations).log_prob(actions)
        found = torch.autograd.grad((log_prob * advantages).mean(), self._parameters)
        return torch.cat([part.flatten() for part in found])


def large_batch(model: OnPolicyAlgorithm, gradient: PolicyGradient, frames: Stream) -> Tensor:
    """Return the gradient with Monte-Carlo returns, where they are known; the agent's own critic is the baseline.

    Raises:
        UsageError: They are hardly known anywhere.
    """
    returns, known = frames.returns(GAMMA)
    for part in (known[:, :SMALL], known[:, SMALL:]):
        if int(part.sum()) < LEAST:
            raise UsageError(
                f"fewer than {LEAST} of the frames have a return that is known: episodes are cut after less than "
                f"{round(1 / (1 - GAMMA))} steps, or --steps is too small"
            )
    known[:, :SMALL] = False
    observations = frames.observations[known]
    with torch.no_grad():
        advantages = returns[known] - model.policy.predict_values(observations).flatten()
    return gradient(observations, frames.actions[known], advantages)


def judged(learner: Learner, gradient: PolicyGradient, along: Tensor, frames: Stream) -> dict[str, float]:
    """Return what a critic does: the returns that it explains, and where the gradients of its rollouts point."""
    own = frames.of(slice(SMALL))
    returns, known = own.returns(GAMMA)
    with torch.no_grad():
        values = learner.critic(own.observations).squeeze(-1)
    error, spread = (returns - values)[known].double().var(), returns[known].double().var()
    found = []
    for start in range(0, len(own.rewards) - LABELS.n_steps + 1, LABELS.n_steps):
        rollout = own.part(start, start + LABELS.n_steps)
        labels, values = learner.labels(rollout)
        flat = rollout.observations.flatten(0, 1), rollout.actions.flatten(0, 1), (labels - values).flatten()
        found.append(gradient(*flat))
    gradients = torch.stack(found)
    cosine = nn.functional.cosine_similarity
    return {
        "explained": float(1.0 - error / spread),
        "cosine": float(cosine(gradients, along[None]).mean()),
        "mean_cosine": float(cosine(gradients.mean(0), along, dim=0)),
    }


def compared(env: str, seed: int, frames: int, parts: int, steps: int) -> list[dict[str, Any]]:
    """Return the results of one agent: every arm after every part of its training."""
    config = configuration(env, seed, SMALL)
    normalised = environments.normalized(environments.make(config), config)
    results: list[dict[str, Any]] = []
    try:
        recorder = Recorder(normalised, as_paid=False)
        model = build(config, recorder)
        assert isinstance(model, OnPolicyAlgorithm)
        size = int(np.prod(recorder.observation_space.shape or ()))
        schemes = {arm: dataclasses.replace(LABELS, passes=ARMS[arm].passes, seed=seed) for arm in ARMS}
        learners = {arm: schemes[arm].learner(size, ARMS[arm].make) for arm in ARMS}
        gradient, seen = PolicyGradient(model), 0
        for part in range(parts):
            model.learn(frames // parts, reset_num_timesteps=part == 0)
            news = recorder.stream().part(seen, None)
            seen += len(news.rewards)
            for learner in learners.values():
                learner.learn(news)
            fresh = drawn(model, env, 1000 * (seed + 1) + part, steps)
            along = large_batch(model, gradient, fresh)
            place = {"environment": env, "seed": seed, "of": frames, "parts": parts, "steps": steps}
            place["frames"] = model.num_timesteps
            results += [
                {**place, "arm": arm, **judged(learner, gradient, along, fresh)} for arm, learner in learners.items()
            ]
    finally:
        normalised.close()
    return results


def _check(env: str) -> None:
    """Raise ``UsageError`` unless the environment exists and its observations are vectors."""
    made = environments.make(configuration(env, 0, 1))
    space = made.observation_space
    made.close()
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UsageError(f"{env} has observations of the kind {space}; choose one with vectors")


def run(
    out: Path, envs: Sequence[str], seeds: int, frames: int, parts: int, steps: int, console: Console, command: str
) -> None:
    """Compare the critics beside every agent and write ``gradients.json`` and ``gradients.png`` as it goes.

    Args:
        out: Folder of the two.
        envs: Gymnasium ids.
        seeds: Agents of every task.
        frames: That an agent learns from.
        parts: How often it is stopped on the way.
        steps: Of each of the sixteen environments in which the policy that is held fixed is tried.
        console: The screen.
        command: What was typed.

    Raises:
        UsageError: An environment does not exist or does not fit, there are more parts than frames, or a file cannot
            be read or written.
    """
    check_folder(out, "--out", "gradients.json", "gradients.png")
    path = out / "gradients.json"
    settings = {"frames": frames, "parts": parts, "steps": steps}
    if parts > frames:
        raise UsageError(f"--parts must be at most --frames, got {parts} and {frames}")
    envs = list(dict.fromkeys(envs))
    for env in envs:
        _check(env)
    record = Record(path, "gradients", command, settings, read_results(path, "gradients"))
    keys = ("environment", "seed", "of", "parts", "steps")
    known = {tuple(result[key] for key in keys) for result in record.results}
    jobs = [(env, seed) for seed in range(seeds) for env in envs if (env, seed, frames, parts, steps) not in known]
    torch.set_num_threads(1)
    console.print(ROW.format("task", "seed", "frames", "critic", "explained", "cosine", "of mean"), highlight=False)
    with record.kept(console):
        for env, seed in track(jobs, "agents", console=console, transient=True):
            results = compared(env, seed, frames, parts, steps)
            record.add(*results)
            for result in results:
                numbers = (f"{result[name]:.3f}" for name in ("explained", "cosine", "mean_cosine"))
                console.print(ROW.format(env, seed, f"{result['frames']:,}", result["arm"], *numbers), highlight=False)
    save_figure(out / "gradients.png", record.results)
    console.print(str(path), highlight=False, soft_wrap=True)
