"""``kova tune``: search for settings, judge the best on fresh seeds, and leave a preset and a picture."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kova.experiments.commands.train import TrainRequest
from kova.experiments.errors import UsageError, one_line
from kova.experiments.evaluation.wording import UNITS
from kova.experiments.files import check_folder, write_whole
from kova.experiments.report.numbers import decimals, in_words
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig, assigned_key, parsed
from kova.experiments.runs.model import build
from kova.experiments.runs.preset_files import shipped_presets
from kova.experiments.runs.run_directory import RUNS
from kova.experiments.sweeps.engines import LocalEngine
from kova.experiments.sweeps.scheduler import Job, Scheduler
from kova.experiments.tuning import figure
from kova.experiments.tuning.preset import as_preset
from kova.experiments.tuning.ranges import Dimension
from kova.experiments.tuning.space import dimensions
from kova.experiments.tuning.study import POINTS, WHY, TuningStudy
from kova.experiments.tuning.trials import TrialRunner
from kova.experiments.tuning.verdict import TUNED, Verdict, comparison, write_manifest

#: What a search leaves in its directory.
PRESET, PICTURE, TRIALS, VERDICT = "preset.yaml", "tuning.png", "trials", "verdict"
#: Results of this repository are of smaller ones.
FIRST_SEED = 100


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        trials: In all.
        first_seed: Of the trials.
        trial_seeds: On how many every trial is run.
        verdict_seeds: On how many later ones the best setting and the default are run.
        jobs: Runs at a time.
    """

    trials: int
    first_seed: int
    trial_seeds: int
    verdict_seeds: int
    jobs: int

    @property
    def seeds(self) -> range:
        """Of the trials."""
        return range(self.first_seed, self.first_seed + self.trial_seeds)

    @property
    def fresh(self) -> range:
        """Of the verdict."""
        return range(self.seeds.stop, self.seeds.stop + self.verdict_seeds)


def run(request: TrainRequest, effort: Effort, out: Path | None, console: Console, command: str) -> None:
    """Search, judge, and write the preset and the picture.

    Args:
        request: Where the search begins; its settings are held.
        effort: How much is tried.
        out: Where it all goes; by default a folder named by algorithm, environment and critic.
        console: Where to say what happens.
        command: What the user typed.

    Raises:
        UsageError: It cannot be done; nothing was left behind.
        SystemExit: No trial was completed (1), or the user stopped it (130); the same command continues.
    """
    base, space = _begun(request)
    folder = out or Path("tuning") / f"{base.algo}-{base.env.replace('/', '-')}-{base.critic['optimizer']}"
    check_folder(folder, "--out", PRESET, PICTURE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"another kova tune is working in {folder}; wait for it, or choose another --out") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {one_line(error)}; choose another --out") from None
    with lock:
        study = TuningStudy(folder, base, space, effort.seeds)
        try:
            _search(study, folder, effort, console, command)
            best = study.best
            if best is None:
                raise _Fruitless
            verdict = _judge(study, best, request, folder, effort, console, command)
        except KeyboardInterrupt:
            console.print("stopped; the same command continues", highlight=False)
            raise SystemExit(130) from None
        except _Fruitless:
            console.print(
                f"no trial was completed; the first one's log is in {folder / TRIALS / '0000'}", highlight=False
            )
            raise SystemExit(1) from None
        _conclude(study, best, verdict, folder, effort, console, command)


class _Fruitless(Exception):
    """No trial was completed."""


def _begun(request: TrainRequest) -> tuple[RunConfig, list[Dimension]]:
    """Return the run that the search begins with, and what is searched; building it shows what cannot work."""
    held = {assigned_key(setting) for setting in request.settings}
    if "seed" in held:
        raise UsageError("--set seed is not for kova tune, which runs many; give the first by --seed")
    preset = request.preset
    if preset is not None and preset not in shipped_presets():
        # What reads it later may do so from elsewhere.
        preset = str(Path(preset).resolve())
    base = TrainRequest(
        request.algo, request.env, request.critic, preset, request.steps, settings=request.settings
    ).config()
    env = environments.normalized(environments.make(base), base)
    try:
        with warnings.catch_warnings():
            # They will be in the log of the trial.
            warnings.simplefilter("ignore")
            return base, dimensions(base, build(base, env), held)
    finally:
        env.close()


def _search(study: TuningStudy, folder: Path, effort: Effort, console: Console, command: str) -> None:
    before = len(study.trials) - len(study.unfinished)
    words = f", {before} of them from before" if before else ""
    ranges = ", ".join(one.key for one in study.space)
    console.print(f"{effort.trials} trials{words}, seeds {_listed(effort.seeds)}: {ranges}", highlight=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("trials", total=max(effort.trials, before), completed=before)

        def watch(ended: FrozenTrial) -> None:
            console.print(_line(ended, study), highlight=False, soft_wrap=True)
            bar.advance(task)

        TrialRunner(study, folder / TRIALS, effort.jobs, command, watch).run(effort.trials)


def _line(trial: FrozenTrial, study: TuningStudy) -> str:
    """Return what there is to say of a trial that ended."""
    settings = study.settings(trial) or {"the default": ""}
    words = ", ".join(
        f"{key.removeprefix('algorithm.')}={value}" if value != "" else key for key, value in settings.items()
    )
    if trial.state is TrialState.FAIL:
        return f"trial {trial.number} failed: {trial.user_attrs.get(WHY, '')} ({words})"
    if trial.state is TrialState.PRUNED:
        share = max(trial.intermediate_values, default=0) / (POINTS * len(study.seeds))
        return f"trial {trial.number} pruned at {share:.0%} ({words})"
    best = ", best so far" if study.best is not None and study.best.number == trial.number else ""
    return f"trial {trial.number}: {trial.values[0]:.1f}{best} ({words})"


def _judge(
    study: TuningStudy,
    best: FrozenTrial,
    request: TrainRequest,
    folder: Path,
    effort: Effort,
    console: Console,
    command: str,
) -> Verdict:
    """Run the best setting and the default on fresh seeds."""
    name = f"{study.base.algo}-{study.base.env.replace('/', '-')}-tuned"
    sweep = comparison(study.base, parsed(request.settings), study.settings(best), effort.fresh, name)
    write_manifest(sweep, folder / VERDICT)
    runs = sweep.runs()
    console.print(
        f"verdict: {' and '.join(sweep.arms)} on {len(effort.fresh)} fresh seeds, {_listed(effort.fresh)}",
        highlight=False,
    )
    scheduler = Scheduler(runs, folder / VERDICT / RUNS, LocalEngine(effort.jobs), command)
    with Progress(
        TextColumn("verdict"),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("verdict", total=len(runs))

        def watch(jobs: object) -> None:
            bar.update(task, completed=sum(job.state in ("finished", "failed") for job in scheduler.jobs))

        scheduler.run(watch)
    for job in scheduler.jobs:
        if job.state == "failed":
            console.print(f"failed: {_label(job)}: {job.message}", highlight=False, soft_wrap=True)
    return Verdict.of(sweep, folder / VERDICT)


def _conclude(
    study: TuningStudy,
    best: FrozenTrial,
    verdict: Verdict,
    folder: Path,
    effort: Effort,
    console: Console,
    command: str,
) -> None:
    base, found = study.base, study.settings(best)
    title = f"{base.algo} on {base.env}, {base.critic['optimizer']} critic"
    figure.save(study, folder / PICTURE, f"{title}: {len(study.trials)} trials of {base.steps:,} frames")
    comments = [
        f"{title}: the best of {len(study.trials)} trials of {base.steps:,} frames on seeds {_listed(effort.seeds)}.",
        f"Made by: {command}",
        f"{verdict.sentence} Judged on seeds {_listed(effort.fresh)}.",
    ]
    write_whole(folder / PRESET, as_preset(base.with_values(found), comments))
    if found:
        console.print(_settings_table(study, found), highlight=False)
    console.print(_verdict_table(verdict, effort), highlight=False)
    console.print(verdict.sentence, highlight=False, soft_wrap=True)
    console.print(f"picture: {folder / PICTURE}", highlight=False, soft_wrap=True)
    console.print(f"curves and statistics: kova report {folder / VERDICT}", highlight=False, soft_wrap=True)
    console.print(
        f"train with it: kova train {base.algo} {base.env} --preset {folder / PRESET}", highlight=False, soft_wrap=True
    )


def _settings_table(study: TuningStudy, found: dict[str, object]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("setting", "default", TUNED):
        table.add_column(column, overflow="fold")
    for one in study.space:
        table.add_row(one.key, str(one.write(one.start)), str(found[one.key]))
    return table


def _verdict_table(verdict: Verdict, effort: Effort) -> Table:
    fresh = f"{len(effort.fresh)} fresh seed{'s' if len(effort.fresh) > 1 else ''}"
    table = Table(box=None, header_style="bold", caption=f"score: mean of the last 100 training episodes, {UNITS}")
    table.add_column("setting")
    for column in (f"interquartile mean, {fresh} (95 % interval)", "runs from", "to"):
        table.add_column(column, justify="right")
    places = decimals(number for own in verdict.scores.values() for number in own)
    for arm, own in verdict.scores.items():
        interval = verdict.interval(arm)
        if interval is None:
            table.add_row(arm, "no run was finished", "", "")
        else:
            table.add_row(arm, in_words(interval, places), f"{own.min():,.{places}f}", f"{own.max():,.{places}f}")
    return table


def _listed(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _label(job: Job) -> str:
    return f"{job.run.arm}, seed {job.run.config.seed}"
