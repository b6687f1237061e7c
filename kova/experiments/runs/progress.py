"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from stable_baselines3.common.callbacks import BaseCallback

#: Frames between two updates of the bar.
EVERY = 64


class ProgressBar(BaseCallback):
    """A bar with the mean return of the last episodes, the critic's explained variance and the speed.

    Where a run is evaluated, the best evaluation has the place of the explained variance: 80 columns are full.

    Args:
        console: Where it is drawn.
        label: What is running; a line above the bar, which has no room for it.
        steps: Frames in all.
        best: Mean return of the best evaluation so far, if there is one.
    """

    def __init__(
        self, console: Console, label: str, steps: int, best: Callable[[], float | None] = lambda: None
    ) -> None:
        super().__init__()
        self._best = best
        # The bar takes the width that the numbers leave, so that nothing is cut at 80 columns.
        self._bar = Progress(
            BarColumn(None, table_column=Column(ratio=1)),
            TaskProgressColumn(),
            TextColumn("{task.fields[shown]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=steps, shown="")
        self._label = label
        self._explained: float | None = None

    def _on_training_start(self) -> None:
        # The frames before a resume must not count for the speed.
        if not self._bar.live.is_started:
            self._bar.console.print(self._label, highlight=False)
            self._bar.reset(self._task, completed=self._completed())
        self._bar.start()

    def _on_rollout_start(self) -> None:
        # The logger clears its values when it writes them.
        value = self.logger.name_to_value.get("train/explained_variance")
        self._explained = self._explained if value is None else float(value)

    def _on_step(self) -> bool:
        if self.n_calls % EVERY == 0:
            self._bar.update(self._task, completed=self._completed(), shown=self._shown())
        return True

    def _on_training_end(self) -> None:
        self._bar.update(self._task, completed=self._completed())
        self._bar.stop()

    def _completed(self) -> int:
        return int(min(self.num_timesteps, self._bar.tasks[0].total or 0))

    def _shown(self) -> str:
        parts = []
        episodes: Any = self.model.ep_info_buffer
        if episodes:
            parts.append(f"return {np.mean([episode['r'] for episode in episodes]):8.1f}")
        if (best := self._best()) is not None:
            parts.append(f"best {best:8.1f}")
        elif self._explained is not None:
            parts.append(f"expl. var. {self._explained:5.2f}")
        if (speed := self._bar.tasks[0].speed) is not None:
            parts.append(f"{speed:,.0f} frames/s")
        return " · ".join(parts)
