"""Runs on the Hugging Face hub.

A repository has the agent as a file of plain Stable-Baselines3, for everybody, and the run itself, filter included, in
``run/``, from which :func:`fetch` makes a run directory again. Whoever writes needs to be logged in: huggingface_hub
finds the login, nothing here looks at it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from kova.experiments.errors import UsageError, one_line
from kova.experiments.export import plain_file
from kova.experiments.runs.config import RunConfig, upstream_of
from kova.experiments.runs.run_directory import MADE_BY, RunDirectory
from kova.experiments.runs.training import MODEL, NORMALIZATION

#: The folder of a repository that has the run.
RUN = "run"
#: What is taken of a run; a replay buffer is large, and only needed to train on.
FILES = ("config.yaml", "status.json", "progress.csv", "monitor.csv", "curves.png", MADE_BY)
CHECKPOINT_FILES = (MODEL, NORMALIZATION)
#: Errors of a machine without network, httpx's or requests', whichever huggingface_hub has.
UNREACHABLE = ("ConnectError", "ConnectTimeout", "ConnectionError")

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


def fetch(repo: str, target: Path) -> None:
    """Make a run directory of a repository.

    Args:
        repo: ``user/name``.
        target: The directory; it must not be there.

    Raises:
        UsageError: The hub has no such repository, it has no run, or the directory is there.
    """
    check_repo(repo)
    hub = _library()
    RunDirectory(target).check_free()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        with _refusals(hub, repo):
            if f"{RUN}/config.yaml" not in hub.HfApi().list_repo_files(repo):
                raise UsageError(f"{repo} has no run of kova; kova export --to hub makes such repositories")
            hub.snapshot_download(repo, local_dir=draft, allow_patterns=[f"{RUN}/*"])
        RunDirectory(draft / RUN).trained()
        (draft / RUN).rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _library() -> ModuleType:
    try:
        import huggingface_hub.errors
    except ModuleNotFoundError:
        raise UsageError(
            'the hub needs huggingface_hub, which is missing; in a clone of kova: pip install ".[hub]"'
        ) from None
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
    except Exception as error:
        if type(error).__name__ not in UNREACHABLE:
            raise
        raise UsageError(f"the hub cannot be reached: {one_line(error)}; check the network") from error


def _fill(folder: Path, config: RunConfig, run: Path, checkpoint: Path, repo: str) -> None:
    """Make the content of the repository."""
    model, files = plain_file.write(config, checkpoint, folder / plain_file.file_name(config))
    kept = folder / RUN / "checkpoints" / checkpoint.name
    kept.mkdir(parents=True)
    for source, names, target in ((run, FILES, folder / RUN), (checkpoint, CHECKPOINT_FILES, kept)):
        for name in names:
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
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
