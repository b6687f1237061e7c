"""``kova export`` and ``kova fetch``: a trained agent for others, and from others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from kova.experiments.errors import UsageError
from kova.experiments.export import hub, plain_file
from kova.experiments.runs.config import ALGORITHMS, upstream_of
from kova.experiments.runs.expressions import suggestion
from kova.experiments.runs.run_directory import RunDirectory


def to_file(path: Path, out: Path | None, console: Console) -> None:
    """Write the newest checkpoint of a run as a file of plain Stable-Baselines3.

    Args:
        path: The run.
        out: The file; by default in ``exports``.
        console: Where to say so.

    Raises:
        UsageError: There is no such run, it has no checkpoint, or the file cannot be written.
    """
    config, checkpoint = RunDirectory(path).trained()
    if out is None:
        out = Path("exports") / path.resolve().name / plain_file.file_name(config)
    plain_file.check(out, checkpoint)
    model, files = plain_file.write(config, checkpoint, out)
    console.print(f"{config.algo} on {config.env} after {model.num_timesteps:,} frames")
    for file in files:
        console.print(f"  {file}", soft_wrap=True)
    kind = upstream_of(config.algo)
    console.print(f'open it: {kind.__module__.split(".")[0]}.{kind.__name__}.load("{out}")', soft_wrap=True)
    for statistics in files[1:]:
        console.print(
            f'its observations: stable_baselines3.common.vec_env.VecNormalize.load("{statistics}", env)', soft_wrap=True
        )


def to_hub(path: Path, repo: str, console: Console, *, private: bool) -> None:
    """Put the newest checkpoint of a run on the Hugging Face hub.

    Args:
        path: The run.
        repo: Where, ``user/name``.
        console: Where to say so.
        private: Whether only its owner sees a repository that is made.

    Raises:
        UsageError: There is no such run, it has no checkpoint, or the hub refuses.
    """
    address = hub.upload(path, repo, private=private)
    console.print(f"{address}\nfetch it: kova fetch {repo}", soft_wrap=True)


def fetch(repo: str, target: Path | None, console: Console) -> None:
    """Make a run directory of a repository on the Hugging Face hub, or fetch the plain models that it has.

    Args:
        repo: ``user/name``.
        target: The directory; by default in ``runs``, or in ``models``.
        console: Where to say so.

    Raises:
        UsageError: The hub has no such repository, it has nothing to fetch, or the directory is there.
    """
    name = repo.split("/")[-1]
    if target is not None:
        # Before anything is asked of the hub.
        RunDirectory(target).check_free()
    if hub.has_run(repo):
        found = Path("runs") / name if target is None else target
        hub.fetch_run(repo, found)
        console.print(f"{found}\nplay it: kova eval {found}", soft_wrap=True)
        return
    for model in hub.fetch_models(repo, Path("models") / name if target is None else target):
        # rl-zoo's files begin with the algorithm.
        algorithm = model.name.split("-")[0].lower()
        kind = ALGORITHMS[algorithm].__name__ if algorithm in ALGORITHMS else "<its algorithm>"
        console.print(f'{model}\nopen it: kova.sb3.{kind}.load("{model}")', soft_wrap=True)


#: What ``--to`` may be, and the options that are for it alone.
TARGETS = {"sb3": ("-o",), "hub": ("--repo", "--private")}


def check(to: str, given: Mapping[str, object]) -> None:
    """Check that the options go together.

    Args:
        to: Of what kind the export is.
        given: {option: its value, None if it was not given}.

    Raises:
        UsageError: They do not.
    """
    if to not in TARGETS:
        raise UsageError(f"--to {to} is unknown{suggestion(to, TARGETS)}")
    for kind, options in TARGETS.items():
        for option in options:
            if kind != to and given[option]:
                raise UsageError(f"{option} is for --to {kind}; leave it out, or use --to {kind}")
    if to == "hub" and not given["--repo"]:
        raise UsageError("--to hub needs a repository: --repo user/name")
