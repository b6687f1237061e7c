"""The progress bar fits a terminal of 80 columns."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from kova.experiments.runs.progress import ProgressBar


@pytest.mark.parametrize(("best", "third"), [(None, "expl. var. -12.35"), (-12345.67, "best -12345.7")])
@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut(width: int, best: float | None, third: str):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    bar = ProgressBar(console, "ppo on Ant-v4", 10**6, lambda: best)
    bar.model = SimpleNamespace(ep_info_buffer=[{"r": -12345.67}], logger=SimpleNamespace(name_to_value={}))
    bar.num_timesteps = 0
    bar._on_training_start()
    bar._explained = -12.345
    for frame in range(1, 5):
        bar.n_calls, bar.num_timesteps = 64, 150_000 * frame
        bar._on_step()
    bar._on_training_end()
    last = [part for part in out.getvalue().split("\x1b[2K") if "%" in part][-1]
    assert "…" not in out.getvalue()
    for shown in ("60%", "return -12345.7", third, "frames/s", "━━━"):
        assert shown in last
    assert "ppo on Ant-v4" in out.getvalue()
