"""What W&B and MLflow have of a run, read from the files that they keep offline."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stable_baselines3.common.callbacks import BaseCallback
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.report.results import collect
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.tracking import MLflow
from kova.experiments.runs.training import Interrupted, Training
from kova.installation import pip_install

SETTINGS = {
    "steps": 512,
    "checkpoint_every": 256,
    "policy.net_arch": [8],
    "algorithm.n_steps": 64,
    "algorithm.n_epochs": 1,
    "eval_every": 128,
    "eval_episodes": 1,
}


@pytest.fixture
def wandb_offline(monkeypatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    yield
    import wandb

    wandb.teardown()


@pytest.fixture
def mlflow_files(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    return tmp_path / "store"


class Stop(BaseCallback):
    """Ctrl-C at a frame."""

    def __init__(self, frame: int) -> None:
        super().__init__()
        self.frame = frame

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.frame:
            raise KeyboardInterrupt
        return True


def stopped_and_resumed(path: Path, track: str) -> RunDirectory:
    """A run that was stopped after it had sent frames that it then repeats."""
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_values({**SETTINGS, "track": track})
    directory = RunDirectory(path)
    directory.create(config)
    with pytest.raises(KeyboardInterrupt):
        Training(config, directory, "kova train", lambda: [Stop(480)]).run()
    assert directory.status()["step"] == 256
    first = json.loads((path / "tracking.json").read_text())
    assert first["until"] > 256
    Training(config, directory, "kova train").run()
    assert json.loads((path / "tracking.json").read_text())["id"] == first["id"]
    return directory


def logged(directory: RunDirectory, tag: str) -> list[tuple[int, float]]:
    rows = read_rows(directory.path / "progress.csv")
    return [(int(float(row[STEP])), float(row[tag])) for row in rows if tag in row]


TAGS = ("kova/nis", "train/explained_variance", "eval/mean_reward", "rollout/ep_rew_mean")


def wandb_records(path: Path) -> Iterator[object]:
    """Read W&B's file: blocks of 32 kB that hold records, in pieces, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        kind = data[place + 6] if left >= 7 else 0
        if kind == 0:
            place += left
            continue
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        # A whole record, or its last piece.
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb_has_the_numbers_once_under_one_name(wandb_offline: None, tmp_path: Path):
    directory = stopped_and_resumed(tmp_path / "run", "wandb")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for path in files for record in wandb_records(path)]
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in runs} == {json.loads((tmp_path / "run" / "tracking.json").read_text())["id"]}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert (config["algo"], config["algorithm"]["n_steps"], config["track"]) == ("ppo", 64, "wandb")
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    for tag in TAGS:
        found = [(row[STEP], row[tag]) for row in rows if tag in row]
        assert found == logged(directory, tag), tag
    exits = [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"]
    assert exits == [255, 0]
    # W&B's own config.yaml is not one of ours.
    assert [run.path for run in collect(tmp_path).runs] == [tmp_path / "run"]
    assert not collect(tmp_path).damaged


def test_mlflow_has_the_numbers_once_under_one_name(mlflow_files: Path, tmp_path: Path, monkeypatch):
    directory = stopped_and_resumed(tmp_path / "run", "mlflow")
    (run,) = (path.parent for path in mlflow_files.glob("*/*/params"))
    assert run.name == json.loads((tmp_path / "run" / "tracking.json").read_text())["id"]
    assert (run / "params" / "algorithm.n_steps").read_text() == "64"
    assert (run / "params" / "env").read_text() == "CartPole-v1"
    assert (run / "tags" / "mlflow.runName").read_text() == "run"
    for tag in TAGS:
        assert len(logged(directory, tag)) >= 2
        lines = [line.split() for line in (run / "metrics" / tag).read_text().splitlines()]
        assert [(int(step), float(value)) for _, value, step in lines] == logged(directory, tag), tag
    # 3 is FINISHED.
    assert "status: 3" in (run / "meta.yaml").read_text()
    # Another place by default does not lose it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "other").as_uri())
    longer = directory.config().changed(steps=576)
    directory.extend(longer, 512)
    Training(longer, directory, "kova train").run()
    assert (run / "tags" / "steps").read_text() == "576"
    assert not (tmp_path / "other").exists()


def test_a_service_that_refuses_is_one_line(mlflow_files: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    words = ["train", "ppo", "CartPole-v1", "--track", "mlflow", "--run-dir", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stderr.startswith("kova: --track mlflow: ")
    assert result.stderr.endswith("; see to the server that MLFLOW_TRACKING_URI names, and give the command again\n")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_service_that_refuses_leaves_a_run_that_has_a_checkpoint(mlflow_files: Path, tmp_path: Path, monkeypatch):
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_values({**SETTINGS, "track": "mlflow"})
    directory = RunDirectory(tmp_path / "run")
    directory.create(config)
    Training(config, directory, "kova train").run()
    (tmp_path / "run" / "tracking.json").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    words = ["train", "--resume", "--run-dir", str(tmp_path / "run"), "--steps", "576"]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert directory.latest_checkpoint() is not None


class Outage(BaseCallback):
    """The store of MLflow is gone from a frame on, and then there is Ctrl-C."""

    def __init__(self, store: Path, frame: int) -> None:
        super().__init__()
        self.store, self.frame = store, frame

    def _on_step(self) -> bool:
        if self.num_timesteps == self.frame:
            self.store.rename(self.store.with_name("moved"))
            self.store.write_text("")
            signal.raise_signal(signal.SIGINT)
        return True


def test_a_service_that_is_gone_does_not_hide_how_a_run_ended(mlflow_files: Path, tmp_path: Path):
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_values({**SETTINGS, "n_envs": 1, "track": "mlflow"})
    directory = RunDirectory(tmp_path / "run")
    directory.create(config)
    training = Training(config, directory, "kova train", lambda: [Outage(mlflow_files, 300)])
    with pytest.warns(UserWarning, match="--track mlflow: .*; the run's own files have"), pytest.raises(Interrupted):
        training.run()
    assert directory.status()["state"] == "interrupted"


class Hiccup(BaseCallback):
    """The store of MLflow is away when half of the run is sent, and then back."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.store = store

    def _on_step(self) -> bool:
        if self.num_timesteps == 470:
            (service,) = (each for each in self.logger.output_formats if isinstance(each, MLflow))
            away = self.store.rename(self.store.with_name("away"))
            self.store.write_text("")
            with pytest.warns(UserWarning, match="--track mlflow: "):
                service.flush()
            self.store.unlink()
            away.rename(self.store)
        return True


def test_a_service_that_comes_back_gets_what_it_missed(mlflow_files: Path, tmp_path: Path):
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_values({**SETTINGS, "n_envs": 1, "track": "mlflow"})
    directory = RunDirectory(tmp_path / "run")
    directory.create(config)
    Training(config, directory, "kova train", lambda: [Hiccup(mlflow_files)]).run()
    assert directory.status()["state"] == "finished"
    (run,) = (path.parent for path in mlflow_files.glob("*/*/params"))
    for tag in TAGS:
        lines = [line.split() for line in (run / "metrics" / tag).read_text().splitlines()]
        assert [(int(step), float(value)) for _, value, step in lines] == logged(directory, tag), tag


@pytest.mark.parametrize("track", ["wandb", "mlflow"])
def test_a_missing_package_says_how_to_install_it(track: str, tmp_path: Path, monkeypatch):
    # What Python does where it is not installed.
    monkeypatch.setitem(sys.modules, track, None)
    words = ["train", "ppo", "CartPole-v1", "--track", track, "--run-dir", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stderr == f"kova: {track} is missing; --track {track} needs: {pip_install('experiments', track)}\n"
    assert not (tmp_path / "run").exists()


def test_a_damaged_memory_is_refused(tmp_path: Path, mlflow_files: Path):
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_values({**SETTINGS, "track": "mlflow"})
    RunDirectory(tmp_path / "run").create(config)
    (tmp_path / "run" / "tracking.json").write_text("{")
    result = CliRunner().invoke(app, ["train", "--resume", "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "tracking.json is damaged" in result.stderr
