"""The study: which settings were tried, what they earned, and what to try next; in a file that outlives a kill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.training import part_seed
from kova.experiments.sweeps.grid import canonical
from kova.experiments.tuning.ranges import Dimension

#: The file in the directory of a search.
JOURNAL = "study.journal"
NAME = "kova"
#: Points of a run at which its score is reported, and it may be pruned.
POINTS = 10
#: Why a trial failed.
WHY = "why"


class TuningStudy:
    """The trials of a search. The first is the setting that the search begins with, exactly.

    A trial draws its random numbers from (seed, its number): what a search that was stopped draws next is what it
    would have drawn.

    Args:
        folder: Where the study is kept; one process at a time may use it.
        base: What the search begins with.
        space: What is searched.
        seeds: On which every trial is run, one after the other.

    Raises:
        UsageError: The study in the folder is of another search, or damaged.
    """

    def __init__(self, folder: Path, base: RunConfig, space: Sequence[Dimension], seeds: Sequence[int]) -> None:
        self.base, self.space, self.seeds = base, space, seeds
        path = folder / JOURNAL
        _mend(path)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path))),
                study_name=NAME,
                direction="maximize",
                load_if_exists=True,
                # The beginning of a run says little, and so do a few trials.
                pruner=MedianPruner(n_startup_trials=5, n_warmup_steps=POINTS * len(seeds) // 3),
            )
        except (OSError, ValueError, KeyError, AssertionError) as error:
            raise UsageError(f"{path} cannot be read: {one_line(error)}; choose another --out") from None
        self._check_same(folder)

    def _check_same(self, folder: Path) -> None:
        """Write down what this is a search of, or check that it is the one that was begun."""
        content = {name: value for name, value in asdict(self.base).items() if name not in ("seed", "preset")}
        own = {
            "settings": canonical(content),
            "seeds": list(self.seeds),
            "ranges": {one.key: json.loads(distribution_to_json(one.distribution)) for one in self.space},
        }
        begun = self._study.user_attrs
        for name, value in own.items():
            if name in begun and begun[name] != value:
                raise UsageError(
                    f"the search in {folder} was begun with other {name}; give those again, or choose another --out"
                )
        for name, value in own.items():
            if name not in begun:
                self._study.set_user_attr(name, value)

    @property
    def optuna(self) -> optuna.Study:
        """What Optuna knows."""
        return self._study

    @property
    def trials(self) -> list[FrozenTrial]:
        """Every trial that was begun, in order."""
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state is not TrialState.WAITING]

    @property
    def unfinished(self) -> list[Trial]:
        """Trials that a stopped search left behind."""
        return [Trial(self._study, one._trial_id) for one in self.trials if one.state is TrialState.RUNNING]

    @property
    def best(self) -> FrozenTrial | None:
        """The complete trial that earned most, the first of equals."""
        complete = [trial for trial in self.trials if trial.state is TrialState.COMPLETE]
        return max(complete, key=lambda trial: trial.values[0], default=None)

    def reported(self, trial: Trial) -> list[int]:
        """Return the points at which the score of a trial was reported."""
        return list(self._study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def ask(self) -> Trial:
        """Begin the next trial."""
        number = len(self.trials)
        if number == 0:
            self._study.enqueue_trial({one.key: one.start for one in self.space}, skip_if_exists=True)
        self._study.sampler = TPESampler(seed=part_seed(self.seeds[0], number))
        return self._study.ask({one.key: one.distribution for one in self.space})

    def tell(self, trial: Trial, value: float | None = None, *, why: str = "") -> FrozenTrial:
        """End a trial: with its score, with the reason of its failure, or else pruned."""
        if value is not None:
            return self._study.tell(trial, value)
        if why:
            trial.set_user_attr(WHY, why)
            return self._study.tell(trial, state=TrialState.FAIL)
        return self._study.tell(trial, state=TrialState.PRUNED)

    def settings(self, trial: FrozenTrial | Trial) -> dict[str, Any]:
        """Return what a trial sets; nothing if it is the first, which is the beginning as it is."""
        return self._written(trial.params) if trial.number else {}

    def _written(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {one.key: one.write(params[one.key]) for one in self.space}

    def config(self, trial: FrozenTrial | Trial, seed: int) -> RunConfig:
        """Return the run of a trial with a seed."""
        return self.base.with_values(self.settings(trial)).changed(seed=seed)


def _mend(path: Path) -> None:
    """Remove what a kill in the middle of a write leaves behind: half a line, and Optuna's lock."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
