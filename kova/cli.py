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
    help="Kalman critics for reinforcement learning.\n\nExample: kova bench step --repeats 5",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure this machine.\n\nExample: kova bench step", no_args_is_help=True)
app.add_typer(bench, name="bench")


@app.callback()
def main() -> None:
    """Kalman critics for reinforcement learning."""


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
