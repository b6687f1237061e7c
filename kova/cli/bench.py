"""``kova bench``: the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kova.cli.common import MAX_SEEDS, SEED, examples, make_console, typed

#: Where the results of this repository are kept.
RESULTS = Path("benchmarks/results")

app = typer.Typer(
    help="Measure this machine, and compare the filter with other methods; a stopped command keeps its results.",
    epilog=examples("kova bench step", "kova bench values --seeds 3"),
    no_args_is_help=True,
)


@app.callback()
def main() -> None:
    """Measure this machine, and compare the filter with other methods."""


@app.command(epilog=examples("kova bench step --repeats 5 --out /tmp/bench"))
def step(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where step.json and step.png go.")] = RESULTS,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which every arm is timed once.")] = 5,
) -> None:
    """Time one step of every covariance structure.

    Beside it: Adam, literal Algorithm 1 and the hardware's floor.
    """
    from kova.experiments.benchmarks import step as step_benchmark

    step_benchmark.run(out, repeats, make_console(), typed(context))


@app.command("train", epilog=examples("kova bench train --steps 20480 --repeats 3", "kova bench train --algorithm a2c"))
def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where train.json goes.")] = RESULTS,
    algorithm: Annotated[
        str,
        typer.Option(
            help="ppo; a2c beside A2C with Adam and upstream PPO; paper-ppo or paper-trpo, the arms of Figure 3."
        ),
    ] = "ppo",
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "HalfCheetah-v4",
    steps: Annotated[int, typer.Option(min=1, help="Frames of every run.")] = 20_480,
    repeats: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Rounds in which every arm runs once.")] = 3,
) -> None:
    """Time whole runs beside upstream's, in turns."""
    from kova.experiments.benchmarks import train as train_benchmark

    train_benchmark.run(out, algorithm, env, steps, repeats, make_console(), typed(context))


@app.command("values", epilog=examples("kova bench values --seeds 3", "kova bench values --seeds 20 --jobs 2"))
def values(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where values.json and the figures go.")] = RESULTS,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Repetitions with other trajectories.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Methods that run at a time; time them with one.")] = 1,
) -> None:
    """Judge values and error bars where the truth is known.

    KOVA beside TD, LSTD, GPTD, KTD, XKTD and Adam on eight problems: error, calibration and time. Results that the file
    has for as many seeds are not repeated.
    """
    from kova.experiments.benchmarks import values as values_benchmark

    values_benchmark.run(out, seeds, make_console(), typed(context), jobs=jobs)


@app.command(
    "deep-sea",
    epilog=examples(
        "kova bench deep-sea --depth 5 --depth 10 --seeds 5",
        "kova bench deep-sea --arm 'Thompson, KOVA' --depth 20 --episodes 2000",
    ),
)
def deep_sea(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where deep_sea.json and deep_sea.png go.")] = RESULTS,
    depth: Annotated[
        list[int] | None, typer.Option(min=1, max=100, help="Of the sea; repeat as needed.", show_default="5 and 10")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of every arm at every depth.")] = 5,
    episodes: Annotated[int, typer.Option(min=1, help="Of a run, at most.")] = 1000,
    arm: Annotated[list[str] | None, typer.Option(help="Repeat as needed.", show_default="all of them")] = None,
) -> None:
    """Explore by the filter's posterior where random exploration fails.

    Beside it: ε-greedy. An arm goes no deeper than the first depth that no seed solves. Runs that the file has are not
    repeated.
    """
    from kova.experiments.benchmarks import deep_sea

    deep_sea.compare(out, depth or (5, 10), seeds, episodes, arm or (), make_console(), typed(context))


@app.command(
    "streams",
    epilog=examples("kova bench streams", "kova bench streams --stream Hopper-v4 --seed 101"),
)
def streams(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where streams.json and streams.png go.")] = RESULTS,
    frames: Annotated[Path, typer.Option(help="Where recorded frames are kept, some 100 MB.")] = Path("streams"),
    stream: Annotated[list[str] | None, typer.Option(help="Repeat as needed.", show_default="all of them")] = None,
    seed: Annotated[int, SEED] = 100,
) -> None:
    """Compare critics on the same recorded frames.

    Adam at four rates and settings of the filter, with the labels of PPO, A2C, DQN and DDPG: how well each predicts
    returns before it has learned from them. Results that the file has are not repeated.
    """
    from kova.experiments.benchmarks import streams as streams_benchmark

    streams_benchmark.run(out, frames, stream or (), seed, make_console(), typed(context))


@app.command("scale", epilog=examples("kova bench scale --seeds 1 --frames 10000", "kova bench scale --algo a2c"))
def scale(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where scale.json and scale.png go.")] = RESULTS,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of every arm at every scale.")] = 5,
    frames: Annotated[int, typer.Option(min=1, help="Of every run.")] = 20_480,
    algo: Annotated[list[str] | None, typer.Option(help="a2c or ppo.", show_default="both")] = None,
) -> None:
    """Multiply rewards by 0.01, 1 and 100.

    One setting of the filter beside upstream, upstream with VecNormalize, and Adam at four learning rates of the
    critic, on four tasks. Results that the file has are not repeated.
    """
    from kova.experiments.benchmarks import scale as scale_benchmark

    scale_benchmark.run(out, seeds, frames, algo or (), make_console(), typed(context))


@app.command("gradients", epilog=examples("kova bench gradients --env Hopper-v4 --seeds 1"))
def gradients(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where gradients.json and gradients.png go.")] = RESULTS,
    env: Annotated[list[str] | None, typer.Option(help="Repeat as needed.", show_default="Hopper, HalfCheetah")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Agents of every task.")] = 3,
    frames: Annotated[int, typer.Option(min=1, help="That an agent learns from.")] = 100_000,
    parts: Annotated[int, typer.Option(min=1, help="How often it is stopped on the way.")] = 5,
    steps: Annotated[int, typer.Option(min=200, help="Of 16 environments, to try each policy.")] = 2048,
) -> None:
    """Show what a critic does to A2C's policy gradient.

    KOVA beside Adam x 1 and x 10, on the same policies and the same frames: the Monte-Carlo returns that each explains,
    and the cosine between the gradient of a small rollout and that of a large batch. Agents that the file has are not
    repeated.
    """
    from kova.experiments.benchmarks import gradients as gradients_benchmark

    chosen = env or gradients_benchmark.ENVIRONMENTS
    gradients_benchmark.run(out, chosen, seeds, frames, parts, steps, make_console(), typed(context))


@app.command("ranking", epilog=examples("kova bench ranking --algo ppo --env Hopper-v4 --seeds 1"))
def ranking(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where ranking.json goes.")] = RESULTS,
    algo: Annotated[list[str] | None, typer.Option(help="a2c, ppo or trpo.", show_default="a2c and ppo")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Repeat as needed.", show_default="four tasks")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Agents of every task.")] = 3,
    frames: Annotated[int, typer.Option(min=1, help="That an agent learns from.")] = 60_000,
) -> None:
    """Show whether σ(V) tells where an agent's critic errs.

    From states that the agent visits many futures are played, so that the error is known, and with it the best
    correlation with |return - V| that anybody could have. Agents that the file has are not repeated.
    """
    from kova.experiments.benchmarks import ranking as ranking_benchmark

    chosen = env or ranking_benchmark.ENVIRONMENTS
    ranking_benchmark.run(out, algo or ("a2c", "ppo"), chosen, seeds, frames, make_console(), typed(context))


@app.command("returns", epilog=examples("kova bench returns --algo a2c --seeds 1"))
def returns(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where returns.json goes.")] = RESULTS,
    algo: Annotated[list[str] | None, typer.Option(help="Repeat as needed.", show_default="all five")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Agents of every kind.")] = 2,
) -> None:
    """Show how many returns the band of the return holds.

    Over the training of every algorithm on up to four tasks, and where rewards or gravity change half way. Agents that
    the file has are not repeated.
    """
    from kova.experiments.benchmarks import returns as returns_benchmark

    returns_benchmark.run(out, algo or (), seeds, make_console(), typed(context))


@app.command("policy", epilog=examples("kova bench policy --samples 4096"))
def policy(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where policy_evaluation.json and .png go.")] = RESULTS,
    samples: Annotated[int, typer.Option(help="Of the stream of returns.")] = 8192,
    seed: Annotated[int, SEED] = 0,
) -> None:
    """Evaluate a fixed policy from a stream of its returns, with KOVA and with Adam."""
    from kova.experiments.benchmarks import policy_evaluation

    policy_evaluation.run(out, seed, samples, make_console(), typed(context))
