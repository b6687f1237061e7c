"""The ``kova`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as error:
    sys.stderr.write(f'{error.name} is missing; the kova command needs: pip install "kova-rl[experiments]"\n')
    raise SystemExit(2) from None

app = typer.Typer(
    help="Kalman critics for reinforcement learning.\n\nExample: kova train ppo HalfCheetah-v4",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure this machine.\n\nExample: kova bench step", no_args_is_help=True)
app.add_typer(bench, name="bench")

Steps = Annotated[int | None, typer.Option(help="Frames to train on, all environments together.")]


@app.callback()
def main() -> None:
    """Kalman critics for reinforcement learning."""


@app.command()
def train(
    algo: Annotated[str | None, typer.Argument(help="ppo, trpo, a2c, ddpg or dqn.")] = None,
    env: Annotated[str | None, typer.Argument(help="A Gymnasium id, such as HalfCheetah-v4.")] = None,
    critic: Annotated[str | None, typer.Option(help="kova, or adam for the control arm.")] = None,
    preset: Annotated[str | None, typer.Option(help="default, or paper for the published tables.")] = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.  [default: 0]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; repeat as needed.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run goes.  [default: runs/…]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run from its last checkpoint.")] = False,
) -> None:
    """Train an agent with a Kalman critic.

    Examples:
      kova train ppo HalfCheetah-v4 --steps 200000

      kova train ppo Hopper-v4 --preset paper --critic adam

      kova train dqn CartPole-v1 --set critic.evolution=PriorRelaxation(0.02) --set algorithm.batch_size=64

      kova train --resume --run-dir runs/ppo-HalfCheetah-v4-kova-seed0
    """
    with _errors():
        from kova.experiments import train_command

        asked = train_command.Asked(algo, env, critic, preset, steps, seed, tuple(settings or ()), run_dir)
        train_command.run(asked, resume=resume, console=Console())


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 10,
    video: Annotated[Path | None, typer.Option(help="An mp4 of the first, the value and its band below.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode.")] = 0,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the mode.")
    ] = False,
) -> None:
    """Play a trained agent and report its return.

    Example: kova eval runs/ppo-HalfCheetah-v4-kova-seed0 --episodes 20 --video cheetah.mp4
    """
    with _errors():
        from kova.experiments import eval_command

        eval_command.run(run, episodes, video, seed, deterministic=not stochastic, console=Console())


@bench.callback()
def bench_main() -> None:
    """Measure this machine: medians of several repeats, arms in turns."""


@bench.command()
def step(
    out: Annotated[Path, typer.Option(help="Where step.json and step.png go.")] = Path("benchmarks/results"),
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which every arm is timed once.")] = 5,
) -> None:
    """Time one step of every covariance structure beside Adam, literal Algorithm 1 and the hardware's floor.

    Example: kova bench step --repeats 5 --out /tmp/bench
    """
    from kova.experiments import step_benchmark

    step_benchmark.run(out, repeats, Console())


@bench.command("train")
def bench_train(
    out: Annotated[Path, typer.Option(help="Where train.json goes.")] = Path("benchmarks/results"),
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "HalfCheetah-v4",
    steps: Annotated[int, typer.Option(min=1, help="Frames of every run.")] = 20_480,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which every arm runs once.")] = 3,
) -> None:
    """Time whole PPO runs with a Kalman critic beside upstream PPO, in turns.

    Example: kova bench train --steps 20480 --repeats 3
    """
    with _errors():
        from kova.experiments import train_benchmark

        train_benchmark.run(out, env, steps, repeats, Console())


class _errors:  # noqa: N801
    """Turns a wrong call into one line and exit code 2, a failed run into one line and exit code 1."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            _fail(f'{error.name} is missing; this command needs: pip install "kova-rl[experiments]"', 2)
        if error is not None and kind is not None:
            from kova.experiments.config import WrongCall

            if isinstance(error, WrongCall):
                _fail(str(error), 2)
            if isinstance(error, Exception) and not isinstance(error, typer.Exit):
                _fail(f"the run failed: {kind.__name__}: {' '.join(str(error).split())}", 1)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"kova: {message}\n")
    raise SystemExit(code)
