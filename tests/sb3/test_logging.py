"""Every output upstream's logger has, with upstream's tags as they are, and the filter's beside them."""

import csv
import json
import math

import gymnasium
import pytest
from sb3_cases import ALL, CONTINUOUS, DQN, ENOUGH, KOVA_TAGS, ON_POLICY, SETTINGS, environment, make
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HumanOutputFormat, configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

#: What an algorithm adds to upstream's tags, besides the filter's.
ADDED = {algorithm: {"train/entropy", "train/policy_loss"} for algorithm in ON_POLICY}
ADDED |= {**{algorithm: {"train/policy_loss"} for algorithm in CONTINUOUS}, DQN: set()}

#: With a Kalman critic nothing of DQN has a learning rate.
WITHOUT_RATE = {"train/learning_rate"}

#: Some rollouts and some short episodes, hence some lines of every log.
STEPS = 64

# tensorboard's protobufs and numpy.
tensorboards = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Tags(BaseCallback):
    """Collects every number that was ever recorded."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def _on_step(self):
        self.values.update(self.logger.name_to_value)
        return True

    def _on_training_end(self):
        self._on_step()


def small(algorithm, **options):
    return make(algorithm, gymnasium.make(environment(algorithm), max_episode_steps=20), **options)


def recorded(model):
    tags = Tags()
    model.learn(STEPS, callback=tags, log_interval=1)
    return tags.values


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("algorithm", ALL)
def test_upstreams_tags_and_ours(algorithm, critic):
    theirs = recorded(small(algorithm, upstream=True))
    ours = recorded(small(algorithm, critic=critic))
    own = ADDED[algorithm] | (KOVA_TAGS if critic == "kova" else set())
    gone = WITHOUT_RATE if critic == "kova" and algorithm is DQN else set()
    assert ours.keys() == theirs.keys() - gone | own
    assert all(math.isfinite(ours[tag]) for tag in ours)


@pytest.mark.parametrize("algorithm", ALL)
def test_what_the_filter_says_makes_sense(algorithm):
    values = recorded(small(algorithm))
    assert values["kova/nis"] > 0
    assert values["kova/information_gain"] >= 0
    assert values["kova/trust_region"] >= 0
    assert values["kova/update_norm"] > 0
    assert values["kova/mean_variance"] > 0


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_entropy_is_that_of_the_policy(algorithm):
    model = small(algorithm).learn(SETTINGS[algorithm]["n_steps"])
    entropy = model.logger.name_to_value["train/entropy"]
    assert 0 < entropy <= math.log(2) + 1e-6


@tensorboards
@pytest.mark.parametrize("algorithm", ALL)
def test_tensorboard(algorithm, tmp_path):
    small(algorithm, tensorboard_log=str(tmp_path)).learn(STEPS, log_interval=1)
    run = tmp_path / f"{algorithm.__name__}_1"
    events = EventAccumulator(str(run))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert tags >= KOVA_TAGS | ADDED[algorithm] | {"time/fps", "rollout/ep_rew_mean"}
    assert ("train/learning_rate" in tags) == (algorithm is not DQN)
    assert "train/n_updates" not in tags
    assert len(events.Scalars("kova/nis")) > 1


@tensorboards
@pytest.mark.parametrize("algorithm", ALL)
def test_tensorboard_counts_runs_and_continues_them(algorithm, tmp_path):
    model = small(algorithm, tensorboard_log=str(tmp_path))
    model.learn(ENOUGH, tb_log_name="run")
    model.learn(ENOUGH, tb_log_name="run", reset_num_timesteps=False)
    model.learn(ENOUGH, tb_log_name="run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run_1", "run_2"]


@pytest.mark.parametrize("algorithm", ALL)
def test_csv_json_and_log(algorithm, tmp_path):
    model = small(algorithm)
    model.set_logger(configure(str(tmp_path), ["csv", "json", "log"]))
    model.learn(STEPS, log_interval=1)
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() >= KOVA_TAGS | {"train/n_updates", "time/total_timesteps"}
    assert math.isfinite(float(rows[-1]["kova/log_likelihood"]))
    lines = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert lines[-1].keys() >= KOVA_TAGS
    assert "information_gain" in (tmp_path / "log.txt").read_text()
    model.logger.close()


@pytest.mark.parametrize("algorithm", ALL)
def test_verbose_prints_a_table(algorithm, capsys):
    model = small(algorithm, verbose=1).learn(STEPS, log_interval=1)
    assert any(isinstance(output, HumanOutputFormat) for output in model.logger.output_formats)
    printed = capsys.readouterr().out
    assert "kova/" in printed
    assert "nis" in printed


# tqdm says that its rich bar is experimental.
@pytest.mark.filterwarnings("ignore:rich is experimental")
@pytest.mark.parametrize("algorithm", ALL)
def test_progress_bar(algorithm):
    model = small(algorithm).learn(ENOUGH, progress_bar=True)
    assert model.num_timesteps == ENOUGH


@pytest.mark.parametrize("algorithm", [*ON_POLICY, *CONTINUOUS])
def test_schedules_reach_the_policy_and_not_the_filter(algorithm):
    model = small(algorithm, learning_rate=lambda remaining: 1e-3 * remaining).learn(STEPS)
    optimizer = model.actor.optimizer if algorithm in CONTINUOUS else model.policy.optimizer
    assert optimizer.param_groups[0]["lr"] < 1e-3
    assert all("lr" not in group for group in model.critic_optimizer.param_groups)
    assert model.logger.name_to_value["train/learning_rate"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("algorithm", ALL)
def test_schedules_reach_the_control_arm(algorithm):
    model = small(algorithm, critic="adam", learning_rate=lambda remaining: 1e-3 * remaining).learn(STEPS)
    optimizer = model.actor.optimizer if algorithm in CONTINUOUS else model.policy.optimizer
    assert model.critic_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] < 1e-3


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_critic_that_is_left_alone_logs_nothing_of_a_filter(algorithm):
    values = recorded(small(algorithm, critic_epochs=0))
    assert not KOVA_TAGS & values.keys()
