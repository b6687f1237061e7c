"""The newest checkpoint of a run as a file of plain Stable-Baselines3."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm

from kova.experiments.errors import UsageError
from kova.experiments.files import check_file, replacing
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import NORMALIZATION, load
from kova.sb3.critic import CriticMixin


def file_name(config: RunConfig) -> str:
    """Return the name that the hub's users know models of Stable-Baselines3 by."""
    return f"{config.algo}-{re.sub(r'[^A-Za-z0-9._-]', '-', config.env)}.zip"


def check(out: Path, checkpoint: Path) -> None:
    """Check that the file and what goes beside it can be written.

    Raises:
        UsageError: It cannot, has another suffix, or the statistics beside it are another model's.
    """
    if out.suffix != ".zip":
        raise UsageError(f"-o {out} must end in .zip, as models of Stable-Baselines3 do")
    check_file(out, "-o")
    statistics = out.with_name(NORMALIZATION)
    if (checkpoint / NORMALIZATION).exists():
        check_file(statistics, "-o")
        if statistics.exists() and not out.exists():
            raise UsageError(f"{statistics} is of another model; choose a -o in another directory")


def write(config: RunConfig, checkpoint: Path, out: Path) -> tuple[BaseAlgorithm, list[Path]]:
    """Write the model, and the statistics of its ``VecNormalize`` if the run has them.

    Returns:
        The model as it was written, and the files.

    Raises:
        UsageError: The checkpoint cannot be read.
    """
    model, env = load(config, checkpoint)
    plain = model.to_sb3() if isinstance(model, CriticMixin) else model
    out.parent.mkdir(parents=True, exist_ok=True)
    files = [out]
    if (checkpoint / NORMALIZATION).exists():
        # First: a model whose statistics are missing would play without a word, and badly.
        files.append(out.with_name(NORMALIZATION))
        with replacing(files[1]) as draft:
            shutil.copyfile(checkpoint / NORMALIZATION, draft)
    with replacing(out) as draft:
        plain.save(draft)
    env.close()
    return plain, files
