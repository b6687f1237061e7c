"""How often a run writes a row of its logs."""

from __future__ import annotations

import numpy as np

from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Training


def frames_logged(path, algo: str, **settings) -> list[int]:
    config = RunConfig.from_preset(algo, "CartPole-v1").with_values(settings)
    directory = RunDirectory(path)
    directory.create(config)
    Training(config, directory, "kova train").run()
    return [int(float(row[STEP])) for row in read_rows(path / "progress.csv") if "train/explained_variance" in row]


def test_short_rollouts_share_a_row_and_long_ones_have_their_own(tmp_path):
    steps = frames_logged(tmp_path / "a2c", "a2c", steps=2000)
    # The row at a frame has the update before it; one more at the end has the last.
    assert set(np.diff(steps[:-1])) == {200}
    assert steps[-2:] == [2000, 2000]
    assert frames_logged(tmp_path / "ppo", "ppo", steps=1024, **{"algorithm.n_steps": 512}) == [1024, 1024]
