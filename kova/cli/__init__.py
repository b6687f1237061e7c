"""The ``kova`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from kova.installation import pip_install

try:
    import typer

    from kova import __version__
    from kova.cli import bench
    from kova.cli.common import MAX_SEED, MAX_SEEDS, examples, lines_of, make_console, typed
    from kova.cli.errors import OneLineErrors
    from kova.experiments.errors import UsageError
except ModuleNotFoundError as error:
    sys.stderr.write(f"{error.name} is missing; the kova command needs: {pip_install('experiments')}\n")
    raise SystemExit(2) from None

app = typer.Typer(
    cls=OneLineErrors,
    help="Kalman critics for reinforcement learning.",
    epilog=examples(
        "kova train ppo HalfCheetah-v5",
        "kova eval runs/ppo-HalfCheetah-v5-kova-seed0",
        "kova sweep quick --jobs 2",
        "kova report sweeps/quick",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench.app, name="bench")

Steps = Annotated[int | None, typer.Option(help="Frames to train on, all environments together.")]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kova-rl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Kalman critics for reinforcement learning."""


@app.command(
    epilog=examples(
        "kova train ppo HalfCheetah-v5 --steps 200000",
        "kova train ppo Hopper-v4 --preset paper --critic adam",
        "kova train dqn CartPole-v1 --set 'critic.evolution=PriorRelaxation(0.02)'",
        "kova train a2c CartPole-v1 --set n_envs=4 --set algorithm.gamma=0.98",
        "kova train a2c Hopper-v5 --env-kwargs forward_reward_weight=2.0",
        "kova train ppo Hopper-v5 --wrapper gymnasium.wrappers.TimeAwareObservation",
        "kova train a2c Hopper-v5 --eval-every 10000 --stop-at 1000 --patience 5",
        "kova train --resume --run-dir runs/ppo-HalfCheetah-v5-kova-seed0",
        "kova train --resume --run-dir runs/ppo-Hopper-v5-kova-seed0 --steps 400000",
    )
)
def train(
    context: typer.Context,
    algo: Annotated[str | None, typer.Argument(help="An algorithm of kova.sb3, such as ppo.")] = None,
    env: Annotated[str | None, typer.Argument(help="A Gymnasium id, such as HalfCheetah-v5.")] = None,
    critic: Annotated[str | None, typer.Option(help="kova; adam, the control arm; or upstream, unchanged.")] = None,
    preset: Annotated[str | None, typer.Option(help="default, paper for the published tables, or a YAML file.")] = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.  [default: 0]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; repeat as needed.")
    ] = None,
    env_kwargs: Annotated[
        list[str] | None,
        typer.Option("--env-kwargs", metavar="KEY=VALUE", help="An argument of the environment; repeat as needed."),
    ] = None,
    wrapper: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A gymnasium.Wrapper, package.Name or package.Name(key=1); innermost first."),
    ] = None,
    vec: Annotated[
        str | None, typer.Option(help="Where copies run: dummy, here; subproc, a process each.  [default: dummy]")
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="Frames between evaluations, which keep the best model.  [default: none]")
    ] = None,
    eval_episodes: Annotated[int | None, typer.Option(help="Of every evaluation.  [default: 10]")] = None,
    stop_at: Annotated[float | None, typer.Option(help="End when the mean return of an evaluation reaches it.")] = None,
    patience: Annotated[int | None, typer.Option(help="End after so many evaluations without a better one.")] = None,
    track: Annotated[str | None, typer.Option(help="Send the logs to wandb or mlflow too.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run goes.  [default: runs/…]")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue a run from its last checkpoint; a finished one with more --steps."),
    ] = False,
) -> None:
    """Train an agent with a Kalman critic.

    The run's directory gets its settings, logs, learning curve and checkpoints. A run that was stopped, by Ctrl-C or
    otherwise, continues from its last checkpoint with --resume. A finished one is extended by --resume with more
    --steps.
    """
    from kova.experiments.commands import train as train_command

    request = train_command.TrainRequest(
        *(algo, env, critic, preset, steps, seed, tuple(settings or ()), run_dir),
        env_kwargs=tuple(env_kwargs or ()),
        wrappers=tuple(wrapper or ()),
        vec=vec,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        stop_at=stop_at,
        patience=patience,
        track=track,
    )
    train_command.run(request, typed(context), resume=resume, console=make_console())


@app.command(
    "eval",
    epilog=examples(
        "kova eval runs/ppo-HalfCheetah-v5-kova-seed0 --episodes 20",
        "kova eval runs/ppo-HalfCheetah-v5-kova-seed0 --video cheetah.mp4",
        "kova eval runs/ppo-HalfCheetah-v5-kova-seed0 --best",
        "kova eval runs/ppo-Pendulum-v1-kova-seed0 --within 20",
    ),
)
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    episodes: Annotated[
        int | None, typer.Option(min=1, help="How many to play; with --within at most.", show_default="10")
    ] = None,
    within: Annotated[
        float | None, typer.Option(min=0.0, help="Play until the mean return is known to ± this, at 95 %.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="An mp4 of the first, the value and its band below.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the first episode.")] = 0,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the mode.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="The best model of a run with --eval-every, not the last.")
    ] = False,
) -> None:
    """Play a trained agent and report its return.

    The return is a mean over the episodes with its 95 % interval. A Kalman critic's value at the start, with its error,
    is beside the discounted return that followed. All are in the environment's reward units. With --within it stops
    when the mean is known well enough; where the start decides the return, the critic's value at the start saves most
    of the episodes.
    """
    from kova.experiments.commands import evaluate as eval_command

    greedy, console = not stochastic, make_console()
    eval_command.run(run, episodes, video, seed, deterministic=greedy, console=console, best=best, within=within)


@app.command(
    epilog=lines_of(
        "Sweeps that come with kova",
        "quick            two minutes; PPO and TRPO, Adam beside Kalman critics",
        "mujoco-300k      PPO and TRPO on three MuJoCo tasks",
        "a2c              A2C with every critic beside PPO, five MuJoCo tasks",
        "a2c-ablation     its Kalman critic taken apart",
        "a2c-tuning       settings of A2C's critics, on seeds from 100",
        "paper-fig3-ppo   Figure 3a of the paper",
        "paper-fig3-trpo  Figure 3b of the paper",
        "paper-fig4       Figure 4 of the paper: eta times observation noise",
        "paper-envs       the paper's rollouts from one environment and from eight",
        "paper-full-ppo   the paper's filter with P in blocks and whole, fewer frames",
        "paper-full-trpo  the same with TRPO, all frames",
    )
    + "\n\n"
    + examples(
        "kova sweep quick --jobs 2",
        "kova sweep paper-fig3-ppo --dry-run",
        "kova sweep paper-fig4 --seeds 1 --jobs 2",
        "kova sweep paper-fig4 --from sweeps/paper-fig3-ppo",
        "kova sweep my.yaml --engine ray --address auto --out /shared/my-sweep",
    )
)
def sweep(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="FILE.yaml|NAME", help="A file, or a sweep that comes with kova.")],
    engine: Annotated[str, typer.Option(help="local, processes of this machine; or ray, a cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go.", show_default="sweeps/NAME")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, instead of the sweep's own.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for every run; repeatable.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Of another sweep: its finished runs are taken, if alike."),
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
        sweep_command.dry_run(found, target, engines.slots(jobs), make_console(), source)
        return
    given = {"--engine": engine, "--jobs": jobs, "--address": address, "--attempts": attempts}
    words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    sweep_command.run(
        found,
        target,
        lambda: engines.make(engine, jobs=jobs, address=address, fetch=fetch),
        attempts,
        make_console(),
        typed(context),
        [*words, *(["--fetch"] if fetch else [])],
        source,
    )


@app.command(
    epilog=examples(
        "kova report sweeps/quick",
        "kova report sweeps/paper-fig3-ppo -o fig3.html --figures figures",
        "kova report sweeps/a2c --pack a2c.tar.xz",
        "kova report sweeps/paper-fig3-ppo --against 'KOVA Memoryless'",
    )
)
def report(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a sweep, or any that has runs below it.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Directory for the figures, as PNG and SVG.")] = None,
    data: Annotated[Path | None, typer.Option(help="CSV file for every curve of every run.")] = None,
    pack: Annotated[
        Path | None, typer.Option(help="A .tar.xz of the finished runs, without checkpoints, to keep or to send.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="What the others are compared with; the first arm without a filter."),
    ] = None,
) -> None:
    """Write one self-contained page about finished runs.

    The answer with its intervals, learning curves with arms to toggle, entropy, policy loss, explained variance,
    statistics, wall-clock, and how it was made.
    """
    from kova.experiments.commands import report as report_command

    report_command.run(folder, out, figures, data, pack, against, make_console(), typed(context))


@app.command(
    epilog=examples(
        "kova tune a2c CartPole-v1 --trials 30 --steps 20000 --jobs 2",
        "kova tune a2c Hopper-v5 --critic adam --trials 50 --steps 100000",
        "kova tune ppo Hopper-v5 --set algorithm.gamma=0.99 --set n_envs=4",
    )
)
def tune(
    context: typer.Context,
    algo: Annotated[str, typer.Argument(help="An algorithm of kova.sb3, such as a2c.")],
    env: Annotated[str, typer.Argument(help="A Gymnasium id, such as CartPole-v1.")],
    critic: Annotated[str | None, typer.Option(help="kova, adam or upstream: rivals are tuned alike.")] = None,
    preset: Annotated[str | None, typer.Option(help="Where to begin: default, paper, or a YAML file.")] = None,
    trials: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Settings to try, the default among them.")] = 30,
    steps: Steps = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as cores.")] = None,
    seed: Annotated[
        int, typer.Option(min=100, max=MAX_SEED - 2 * MAX_SEEDS, help="Of the search, and the first of its runs.")
    ] = 100,
    trial_seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of every trial, one seed each.")] = 2,
    verdict_seeds: Annotated[
        int, typer.Option(min=1, max=MAX_SEEDS, help="Later seeds, on which the best meets the default.")
    ] = 5,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting that is held; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where it all goes.", show_default="tuning/ALGO-ENV-CRITIC")] = None,
) -> None:
    """Search for settings of filter and algorithm; leave a preset.

    Trials that fall behind are pruned. The best then meets the default on seeds that no trial has seen, and the verdict
    says whether it is better. The same command continues a search that was stopped; more --trials extend it.
    """
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError(f"optuna is missing; kova tune needs: {pip_install('experiments', 'tune')}") from None
    from kova.experiments.commands import tune as tune_command
    from kova.experiments.commands.train import TrainRequest
    from kova.experiments.sweeps import engines

    request = TrainRequest(algo, env, critic, preset, steps, settings=tuple(settings or ()))
    effort = tune_command.Effort(trials, seed, trial_seeds, verdict_seeds, engines.slots(jobs))
    tune_command.run(request, effort, out, make_console(), typed(context))


@app.command(
    epilog=examples(
        "kova export runs/ppo-Hopper-v5-kova-seed0 --to sb3",
        "kova export runs/ppo-Hopper-v5-kova-seed0 --to sb3 -o hopper/ppo.zip",
        "kova export runs/ppo-Hopper-v5-kova-seed0 --to hub --repo me/hopper",
    )
)
def export(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    to: Annotated[str, typer.Option("--to", help="sb3, a file; or hub, the Hugging Face hub.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The .zip.  [default: exports/…]")] = None,
    repo: Annotated[str | None, typer.Option(help="On the hub, user/name; made if there is none.")] = None,
    private: Annotated[bool, typer.Option("--private", help="If it is made, for its owner only.")] = False,
) -> None:
    """Give a trained agent to people without kova.

    The newest checkpoint becomes a model of plain Stable-Baselines3 (TRPO: sb3-contrib), the statistics of its
    VecNormalize beside it as normalization.pkl. On the hub the run itself is in the repository too, for kova fetch.
    """
    from kova.experiments.commands import export as export_command

    export_command.check(to, {"-o": out, "--repo": repo, "--private": private})
    if repo is not None:
        export_command.to_hub(run, repo, make_console(), private=private)
    else:
        export_command.to_file(run, out, make_console())


@app.command(epilog=examples("kova fetch me/hopper", "kova fetch sb3/ppo-CartPole-v1 --run-dir models/pole"))
def fetch(
    repo: Annotated[str, typer.Argument(help="On the Hugging Face hub, user/name.")],
    run_dir: Annotated[Path | None, typer.Option(help="Where it goes.  [default: runs/NAME or models/NAME]")] = None,
) -> None:
    """Get a run that kova export put on the hub, or models of plain Stable-Baselines3.

    A run can be played, reported and exported again; a plain model opens with kova.sb3 and gets a new filter. Loading a
    model runs code that is in its file: fetch from people you trust.
    """
    from kova.experiments.commands import export as export_command

    export_command.fetch(repo, run_dir, make_console())


@app.command(epilog=examples("kova demo", "kova demo --env Pendulum-v1 --steps 60000 --out /tmp/demo"))
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where runs and picture go.")] = Path("demo"),
    env: Annotated[str, typer.Option(help="A Gymnasium id.")] = "CartPole-v1",
    steps: Annotated[int, typer.Option(min=1, help="Frames of every run.")] = 20_000,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of each critic.")] = 3,
) -> None:
    """Train A2C with a Kalman critic beside A2C of Stable-Baselines3.

    Settings are upstream's, rewards and observations as they are. The Kalman critic has no learning rate, and its loss
    no longer shares a gradient clip with the policy's. A demo that was stopped continues where it was.
    """
    from kova.experiments.commands import demo as demo_command

    demo_command.run(out, env, steps, seeds, make_console(), typed(context))
