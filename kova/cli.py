"""The ``kova`` command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import typer
    from rich.console import Console
    from typer.core import TyperGroup
except ModuleNotFoundError as error:
    sys.stderr.write(f'{error.name} is missing; the kova command needs: pip install "kova-rl[experiments]"\n')
    raise SystemExit(2) from None

from kova.experiments.errors import UsageError, brief, one_line

#: What typer raises when the words of a command do not fit; which module it lives in depends on typer's version.
WrongWords: type[Any] = typer.BadParameter.__mro__[1].__mro__[1]


class OneLineErrors(TyperGroup):
    """A command whose errors are one line: exit code 2 for a wrong call, 1 for a run that failed."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run the command that ``args``, or else the process's arguments, name."""
        words = list(sys.argv[1:] if args is None else args)
        # Commands find in ``obj`` what was typed.
        extra = {"obj": words, **extra}
        if not standalone_mode:
            return super().main(words, standalone_mode=False, **extra)
        try:
            _check_words(words)
            code = super().main(words, standalone_mode=False, **extra)
        except WrongWords as error:
            _fail(brief(_explained(error), words), 2)
        except UsageError as error:
            _fail(brief(one_line(error), words), 2)
        except ModuleNotFoundError as error:
            _fail(f'{error.name} is missing; this command needs: pip install "kova-rl[experiments]"', 2)
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            _fail(brief(f"failed: {type(error).__name__}: {one_line(error)}", words), 1)
        raise SystemExit(code if isinstance(code, int) else 0)


def _check_words(words: Sequence[str]) -> None:
    """Refuse what no argument of any command can be: an empty variable of a shell, or bytes that are not text."""
    for place, word in enumerate(words):
        if not word.strip():
            before = f" after {words[place - 1]}" if place else ""
            raise UsageError(f"an argument is empty{before}; give it a value, or leave it out")
        if not word.isprintable():
            raise UsageError(f"the argument {word!r} has characters that cannot be printed; leave them out")


def _explained(error: Any) -> str:
    """Return what was wrong with the words of a command and where they are explained; no words ask for help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        raise SystemExit(error.exit_code)
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "kova"
    return f"{message[:1].lower()}{message[1:]}; see: {command} --help"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"kova: {message}\n")
    raise SystemExit(code)


def _typed(context: typer.Context) -> str:
    """Return the command as the user typed it, for the files that it makes."""
    return shlex.join(["kova", *context.obj])


def _console() -> Console:
    """Return the screen; a name in square brackets is a name and no markup."""
    return Console(markup=False)


def _list(title: str, *lines: str) -> str:
    """Return lines that typer does not wrap."""
    return "\b\n" + "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


def _examples(*lines: str) -> str:
    return _list(f"Example{'s' * (len(lines) > 1)}", *lines)


app = typer.Typer(
    cls=OneLineErrors,
    help="Kalman critics for reinforcement learning.",
    epilog=_examples(
        "kova train ppo HalfCheetah-v4",
        "kova eval runs/ppo-HalfCheetah-v4-kova-seed0",
        "kova sweep quick --jobs 2",
        "kova report sweeps/quick",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Measure this machine, and compare the filter with other methods; a stopped command keeps its results.",
    epilog=_examples("kova bench step", "kova bench values --seeds 3"),
    no_args_is_help=True,
)
app.add_typer(bench, name="bench")

#: Where the results of this repository are kept.
RESULTS = Path("benchmarks/results")
#: The largest that numpy and Gymnasium take.
MAX_SEED = 2**32 - 1
SEED = typer.Option(min=0, max=MAX_SEED, help="Of everything random.")
#: A larger number of repetitions is taken for a typing error.
MAX_SEEDS = 10_000

Steps = Annotated[int | None, typer.Option(help="Frames to train on, all environments together.")]


@app.callback()
def main() -> None:
    """Kalman critics for reinforcement learning."""


@app.command(
    epilog=_examples(
        "kova train ppo HalfCheetah-v4 --steps 200000",
        "kova train ppo Hopper-v4 --preset paper --critic adam",
        "kova train dqn CartPole-v1 --set 'critic.evolution=PriorRelaxation(0.02)'",
        "kova train a2c CartPole-v1 --set n_envs=4 --set algorithm.gamma=0.98",
        "kova train --resume --run-dir runs/ppo-HalfCheetah-v4-kova-seed0",
    )
)
def train(
    context: typer.Context,
    algo: Annotated[str | None, typer.Argument(help="ppo, trpo, a2c, ddpg or dqn.")] = None,
    env: Annotated[str | None, typer.Argument(help="A Gymnasium id, such as HalfCheetah-v4.")] = None,
    critic: Annotated[str | None, typer.Option(help="kova; adam, the control arm; or upstream, unchanged.")] = None,
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

    The run's directory gets its settings, logs, learning curve and checkpoints. A run that was stopped, by Ctrl-C or
    otherwise, continues from its last checkpoint with --resume.
    """
    from kova.experiments.commands import train as train_command

    request = train_command.TrainRequest(algo, env, critic, preset, steps, seed, tuple(settings or ()), run_dir)
    train_command.run(request, _typed(context), resume=resume, console=_console())


@app.command(
    "eval",
    epilog=_examples(
        "kova eval runs/ppo-HalfCheetah-v4-kova-seed0 --episodes 20",
        "kova eval runs/ppo-HalfCheetah-v4-kova-seed0 --video cheetah.mp4",
    ),
)
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 10,
    video: Annotated[Path | None, typer.Option(help="An mp4 of the first, the value and its band below.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the first episode.")] = 0,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the mode.")
    ] = False,
) -> None:
    """Play a trained agent and report its return.

    The return is a mean over the episodes with its 95 % interval.
    """
    from kova.experiments.commands import evaluate as eval_command

    eval_command.run(run, episodes, video, seed, deterministic=not stochastic, console=_console())


@app.command(
    epilog=_list(
        "Sweeps that come with kova",
        "quick            two minutes; PPO and TRPO, Adam beside Kalman critics",
        "mujoco-300k      PPO and TRPO on three MuJoCo tasks",
        "paper-fig3-ppo   Figure 3a of the paper",
        "paper-fig3-trpo  Figure 3b of the paper",
        "paper-fig4       Figure 4 of the paper: eta times observation noise",
    )
    + "\n\n"
    + _examples(
        "kova sweep quick --jobs 2",
        "kova sweep paper-fig3-ppo --dry-run",
        "kova sweep paper-fig4 --seeds 3 --set critic.covariance=neuron",
        "kova sweep my.yaml --engine ray --address auto --out /shared/my-sweep",
    )
)
def sweep(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="FILE.yaml|NAME", help="A file, or a sweep that comes with kova.")],
    engine: Annotated[str, typer.Option(help="local, processes of this machine; or ray, a cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go.", show_default="sweeps/NAME")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_SEEDS, help="How many, instead of the sweep's own.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for every run; repeatable.")
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="How often a run may fail without a new checkpoint.")] = 3,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; auto finds the one this machine is in.")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Ray: the nodes do not share a disk; send files to this machine.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print runs, time and memory; train nothing.")] = False,
) -> None:
    """Train every run of a sweep: algorithms × environments × critics × seeds.

    The same configuration is never run twice: call it again, and it continues with what is missing.
    """
    from kova.experiments.commands import sweep as sweep_command
    from kova.experiments.runs.config import parsed
    from kova.experiments.sweeps import engines
    from kova.experiments.sweeps.grid import Sweep

    found = Sweep.find(name).changed(seeds, parsed(settings or ()))
    target = Path("sweeps") / found.name if out is None else out
    engines.check(engine, address=address, fetch=fetch)
    if dry_run:
        sweep_command.dry_run(found, target, engines.slots(jobs), _console())
        return
    given = {"--engine": engine, "--jobs": jobs, "--address": address, "--attempts": attempts}
    words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    sweep_command.run(
        found,
        target,
        lambda: engines.make(engine, jobs=jobs, address=address, fetch=fetch),
        attempts,
        _console(),
        _typed(context),
        [*words, *(["--fetch"] if fetch else [])],
    )


@app.command(
    epilog=_examples(
        "kova report sweeps/quick",
        "kova report sweeps/paper-fig3-ppo -o fig3.html --figures figures",
    )
)
def report(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a sweep, or any that has runs below it.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Directory for Figures 3 and 4 as PNG and SVG.")] = None,
    data: Annotated[Path | None, typer.Option(help="CSV file for every curve of every run.")] = None,
) -> None:
    """Write one self-contained page about finished runs.

    Learning curves with arms to toggle, entropy, policy loss, explained variance, statistics, wall-clock, and how it
    was made.
    """
    from kova.experiments.commands import report as report_command

    report_command.run(folder, out, figures, data, _console(), _typed(context))


@app.command(epilog=_examples("kova demo", "kova demo --env Acrobot-v1 --steps 40960 --out /tmp/demo"))
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where runs and picture go.")] = Path("demo"),
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "CartPole-v1",
    steps: Annotated[int, typer.Option(min=1, help="Frames of every run.")] = 12_288,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of each critic.")] = 2,
) -> None:
    """Train PPO with a Kalman critic beside PPO with Adam.

    A demo that was stopped continues where it was.
    """
    from kova.experiments.commands import demo as demo_command

    demo_command.run(out, env, steps, seeds, _console(), _typed(context))


@bench.callback()
def bench_main() -> None:
    """Measure this machine, and compare the filter with other methods."""


@bench.command(epilog=_examples("kova bench step --repeats 5 --out /tmp/bench"))
def step(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where step.json and step.png go.")] = RESULTS,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which every arm is timed once.")] = 5,
) -> None:
    """Time one step of every covariance structure.

    Beside it: Adam, literal Algorithm 1 and the hardware's floor.
    """
    from kova.experiments.benchmarks import step as step_benchmark

    step_benchmark.run(out, repeats, _console(), _typed(context))


@bench.command("train", epilog=_examples("kova bench train --steps 20480 --repeats 3"))
def bench_train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where train.json goes.")] = RESULTS,
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "HalfCheetah-v4",
    steps: Annotated[int, typer.Option(min=1, help="Frames of every run.")] = 20_480,
    repeats: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Rounds in which every arm runs once.")] = 3,
) -> None:
    """Time whole PPO runs beside upstream PPO, in turns."""
    from kova.experiments.benchmarks import train as train_benchmark

    train_benchmark.run(out, env, steps, repeats, _console(), _typed(context))


@bench.command("values", epilog=_examples("kova bench values --seeds 3"))
def bench_values(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where values.json and the figures go.")] = RESULTS,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Repetitions with other trajectories.")] = 3,
) -> None:
    """Judge values and error bars where the truth is known.

    KOVA beside TD, LSTD, GPTD, KTD, XKTD and Adam on eight problems: error, calibration and time.
    """
    from kova.experiments.benchmarks import values as values_benchmark

    values_benchmark.run(out, seeds, _console(), _typed(context))


@bench.command(
    "deep-sea",
    epilog=_examples(
        "kova bench deep-sea --depth 5 --depth 10 --seeds 5",
        "kova bench deep-sea --arm 'Thompson, KOVA' --depth 20 --episodes 2000",
    ),
)
def bench_deep_sea(
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

    deep_sea.compare(out, depth or (5, 10), seeds, episodes, arm or (), _console(), _typed(context))


@bench.command("passes", epilog=_examples("kova bench passes --env HalfCheetah-v4 --steps 200000"))
def bench_passes(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where critic_passes_ENV.json goes.")] = RESULTS,
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "HalfCheetah-v4",
    steps: Annotated[int, typer.Option(min=1, help="Frames of the recorded run.")] = 200_000,
    seed: Annotated[int, SEED] = 0,
) -> None:
    """Compare critics and their passes over the same rollouts."""
    from kova.experiments.benchmarks import critic_passes

    critic_passes.run(out, env, steps, seed, _console(), _typed(context))


@bench.command("policy", epilog=_examples("kova bench policy --samples 4096"))
def bench_policy(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where policy_evaluation.json and .png go.")] = RESULTS,
    samples: Annotated[int, typer.Option(help="Of the stream of returns.")] = 8192,
    seed: Annotated[int, SEED] = 0,
) -> None:
    """Evaluate a fixed policy from a stream of its returns, with KOVA and with Adam."""
    from kova.experiments.benchmarks import policy_evaluation

    policy_evaluation.run(out, seed, samples, _console(), _typed(context))
