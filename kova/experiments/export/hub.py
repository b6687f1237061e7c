"""Runs on the Hugging Face hub.

A repository has the agent as a file of plain Stable-Baselines3, for everybody, and the run itself, filter included, in
``run/``, from which :func:`fetch_run` makes a run directory again. Files are named as huggingface_sb3 and rl-zoo name
them, so that theirs can be fetched here and ours there. An upload is one commit of huggingface_hub's own: that of
huggingface_sb3 takes one file, and would leave a model without its statistics in between. Whoever writes needs to be
logged in: huggingface_hub finds the login, nothing here looks at it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from kova.experiments.errors import UsageError, one_line
from kova.experiments.export import plain_file
from kova.experiments.runs.config import RunConfig, upstream_of
from kova.experiments.runs.model import MODEL, NORMALIZATION
from kova.experiments.runs.run_directory import BEST, MADE_BY, RunDirectory
from kova.installation import pip_install

#: The folder of a repository that has the run.
RUN = "run"
#: What is taken of a run; a replay buffer is large, and only needed to train on.
FILES = ("config.yaml", "status.json", "progress.csv", "monitor.csv", "evaluations.csv", "curves.png", MADE_BY)
CHECKPOINT_FILES = (MODEL, NORMALIZATION)

CARD = """---
library_name: {library}
tags:
- reinforcement-learning
- {library}
- {env}
---

# {algo} on {env}

{kind} after {frames:,} frames, trained with kova (`kova-rl`), Kalman critics for reinforcement learning; the optimizer
of this critic was "{critic}". `{file}` is a model of plain {library}{statistics}:

```python
from huggingface_hub import hf_hub_download
from {module} import {kind}

model = {kind}.load(hf_hub_download("{repo}", "{file}"))
```

`run/` is the run as kova left it, with settings, logs and the optimizer of the critic: `kova fetch {repo}`.
"""


def check_repo(repo: str) -> None:
    """Check the name of a repository.

    Raises:
        UsageError: It is not one.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo):
        raise UsageError(f"{repo!r} is not a repository of the hub; write user/name")


def upload(run: Path, repo: str, *, private: bool) -> str:
    """Put the newest checkpoint of a run on the hub.

    Args:
        run: The directory of the run.
        repo: Where, ``user/name``; it is made if there is none.
        private: Whether only its owner sees a repository that is made.

    Returns:
        Its address.

    Raises:
        UsageError: There is no such run, it has no checkpoint, or the hub refuses.
    """
    check_repo(repo)
    hub = _library()
    config, checkpoint = RunDirectory(run).trained()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder, config, run, checkpoint, repo)
        with _refusals(hub, repo):
            api = hub.HfApi()
            address = api.create_repo(repo, private=private, exist_ok=True)
            # Of an earlier upload, what this one has not would be taken for a part of it. Other files are the owner's.
            api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=f"{config.algo} on {config.env}, frame {int(checkpoint.name):,}",
                delete_patterns=[f"{RUN}/*", NORMALIZATION],
            )
    return str(address)


def has_run(repo: str) -> bool:
    """Return whether a repository has a run of kova, and not models of others.

    Raises:
        UsageError: The hub has no such repository, or nothing that can be fetched.
    """
    files = _files(repo)
    if f"{RUN}/config.yaml" not in files and not _models(files):
        raise UsageError(f"{repo} has neither a run of kova nor a model of Stable-Baselines3, a .zip")
    return f"{RUN}/config.yaml" in files


def fetch_run(repo: str, target: Path) -> None:
    """Make a run directory of a repository that has one.

    Args:
        repo: ``user/name``.
        target: The directory; it must not be there.

    Raises:
        UsageError: The hub does not answer, or the directory is there.
    """
    RunDirectory(target).check_free()
    with _draft(target) as draft:
        hub = _library()
        with _refusals(hub, repo):
            hub.snapshot_download(repo, local_dir=draft, allow_patterns=[f"{RUN}/*"])
        RunDirectory(draft / RUN).trained()
        (draft / RUN).rename(target)


def fetch_models(repo: str, target: Path) -> list[Path]:
    """Fetch what Stable-Baselines3 opens of a repository: models, and statistics of their ``VecNormalize``.

    Args:
        repo: ``user/name``.
        target: The directory; it must not be there.

    Returns:
        The models.

    Raises:
        UsageError: The hub does not answer, or the directory is there.
    """
    RunDirectory(target).check_free()
    files = _files(repo)
    with _draft(target) as draft:
        for name in files:
            if "/" not in name and name.endswith((".zip", ".pkl")):
                shutil.copyfile(_download(repo, name), draft / name)
        draft.rename(target)
    return [target / name for name in _models(files)]


def _files(repo: str) -> list[str]:
    check_repo(repo)
    hub = _library()
    with _refusals(hub, repo):
        return list(hub.HfApi().list_repo_files(repo))


def _models(files: Sequence[str]) -> list[str]:
    return [name for name in files if "/" not in name and name.endswith(".zip")]


def _download(repo: str, name: str) -> str:
    """Return where a file of a repository was put; through huggingface_sb3 where it is installed."""
    hub = _library()
    with _refusals(hub, repo):
        try:
            from huggingface_sb3 import load_from_hub
        except ImportError:
            return str(hub.hf_hub_download(repo, name))
        return str(load_from_hub(repo, name))


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Give a directory beside the target, which is gone afterwards, whatever happens."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _library() -> ModuleType:
    try:
        import huggingface_hub.errors
    except ModuleNotFoundError:
        raise UsageError(f"huggingface_hub is missing; the hub needs: {pip_install('experiments', 'hub')}") from None
    return huggingface_hub


@contextmanager
def _refusals(hub: ModuleType, repo: str) -> Iterator[None]:
    """Say in one line why the hub does not do what was asked."""
    try:
        yield
    except hub.errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"the hub does not show {repo}: there is none, or it is not yours; check the name, or log in: hf auth login"
        ) from error
    except (hub.errors.HfHubHTTPError, hub.errors.LocalTokenNotFoundError) as error:
        raise UsageError(f"the hub refuses: {one_line(error)}; to log in: hf auth login") from error
    except UsageError:
        raise
    except Exception as error:
        # Which library the client talks through, and so what a broken connection raises, depends on its version.
        raise UsageError(
            f"the hub does not answer: {one_line(error)}; check the connection, then give the same command again"
        ) from error


def _fill(folder: Path, config: RunConfig, run: Path, checkpoint: Path, repo: str) -> None:
    """Make the content of the repository."""
    model, files = plain_file.write(config, checkpoint, folder / plain_file.file_name(config))
    parts = {".": FILES, BEST: CHECKPOINT_FILES, f"checkpoints/{checkpoint.name}": CHECKPOINT_FILES}
    for part, names in parts.items():
        for name in names:
            if (run / part / name).is_file():
                (folder / RUN / part).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / part / name, folder / RUN / part / name)
    kind = upstream_of(config.algo)
    module = kind.__module__.split(".")[0]
    card = CARD.format(
        library=module.replace("_", "-"),
        module=module,
        kind=kind.__name__,
        algo=config.algo,
        critic=config.critic["optimizer"],
        env=config.env,
        frames=model.num_timesteps,
        file=files[0].name,
        repo=repo,
        statistics=f", and `{NORMALIZATION}` the statistics of its `VecNormalize`" if len(files) > 1 else "",
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
