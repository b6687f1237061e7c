"""Sweeps: what they expand to, and that every run is done once and whole, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import small_sweeps
from filelock import FileLock
from killed_runs import assert_same
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.errors import UsageError
from kova.experiments.report.results import settings
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.provenance import read_makers
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps.engines import LocalEngine, make
from kova.experiments.sweeps.grid import PlannedRun, Sweep, shipped_sweeps
from kova.experiments.sweeps.scheduler import Job, Scheduler
from kova.experiments.sweeps.taken import is_finished

runner = CliRunner()


def planned(*assignments: str, preset: str = "default") -> PlannedRun:
    return PlannedRun("arm", RunConfig.from_preset("ppo", "Hopper-v4", preset).with_overrides(assignments))


def test_the_shipped_sweeps_are_the_papers():
    counts = {name: len(Sweep.find(name).runs()) for name in shipped_sweeps()}
    assert counts == {
        "a2c": 5 * 6 * 5,
        "a2c-ablation": 2 * 11 * 3,
        "a2c-tuning": 3 * 15 * 2,
        "mujoco-300k": 2 * 3 * 4 * 3,
        "paper-envs": 2 * 2 * 5,
        "paper-fig3-ppo": 5 * 3 * 5,
        "paper-fig3-trpo": 5 * 3 * 5,
        "paper-fig4": 2 * 7 * 3,
        "paper-full-ppo": 2 * 2,
        "paper-full-trpo": 2 * 2,
        "quick": 2 * 3 * 2,
    }


def test_the_papers_arms_keep_its_tables():
    runs = {(run.arm, run.config.env): run.config for run in Sweep.find("paper-fig3-ppo").runs()}
    hopper = runs["KOVA Memoryless", "Hopper-v4"]
    assert (hopper.critic["evolution"], hopper.critic["step_size"]) == ("Memoryless(0.1)", 0.1)
    assert runs["KOVA Memoryless", "Swimmer-v4"].critic["evolution"] == "Memoryless(0.01)"
    assert runs["KOVA FadingMemory", "Walker2d-v4"].critic["evolution"] == "FadingMemory(0.01)"
    assert runs["KOVA FadingMemory", "Walker2d-v4"].critic["covariance"] == "neuron"
    assert runs["Adam", "Hopper-v4"].critic == {"optimizer": "upstream"}
    assert all(run.steps == 1_000_000 for run in runs.values())
    # The paper's frames of a rollout.
    assert all(run.n_envs * run.algorithm["n_steps"] == 2048 for run in runs.values())
    assert all(
        run.config.n_envs * run.config.algorithm["n_steps"] == 1024 for run in Sweep.find("paper-fig3-trpo").runs()
    )


def test_figure_4_and_the_whole_p_take_their_common_runs_from_figure_3():
    figure = {run.key for name in ("paper-fig3-ppo", "paper-fig3-trpo") for run in Sweep.find(name).runs()}
    assert sum(run.key in figure for run in Sweep.find("paper-fig4").runs()) == 2 * 2 * 3
    assert [run.arm for run in Sweep.find("paper-full-trpo").runs() if run.key in figure] == ["neuron", "neuron"]


def test_a_run_is_named_by_its_content():
    first = planned("critic.evolution=FadingMemory(0.1)")
    assert planned("critic.evolution=FadingMemory(eta=0.10)").key == first.key
    assert planned("critic.evolution=FadingMemory(0.2)").key != first.key
    assert planned("critic.evolution=FadingMemory(0.1)", "seed=1").key != first.key
    assert planned("critic.step_size=1").key == planned("critic.step_size=1.0").key
    assert planned("algorithm.learning_rate=linear(3e-4)").key == planned().key
    named_otherwise = PlannedRun("another arm", first.config.changed(preset="mine"))
    assert named_otherwise.key == first.key


def test_a_name_once_given_does_not_change():
    config = RunConfig("ppo", "Hopper-v4", algorithm={"learning_rate": "linear(3e-4)"}, critic={"optimizer": "adam"})
    assert PlannedRun("arm", config).name == "ppo-Hopper-v4-adam-seed0-79ab7dd66e57"


def test_settings_that_came_later_name_a_run_only_where_they_are_used():
    before = planned().key
    for same in ("vec=dummy", "eval_episodes=10", "wrappers=[]", "env_kwargs={}", "stop_at=null", "track=wandb"):
        assert planned(same).key == before, same
    others = [
        *("vec=subproc", "eval_every=1000", "eval_episodes=3", "stop_at=3", "patience=2"),
        *("env_kwargs={frame_skip: 2}", "env_kwargs={name: Ant(3)}", "wrappers=[gymnasium.wrappers.TimeLimit(3)]"),
        "wrappers=['gymnasium.wrappers.TimeLimit(3)', gymnasium.wrappers.ClipAction]",
    ]
    keys = [planned(other).key for other in others]
    assert len({before, *keys}) == len(others) + 1
    assert settings(planned(others[6]).config)["env_kwargs.name"] == "Ant(3)"
    assert "track" not in settings(planned("track=wandb").config)


def test_seeds_come_first_so_that_a_stopped_sweep_has_every_arm():
    runs = Sweep.find("quick").runs()
    assert [run.config.seed for run in runs] == [0] * 6 + [1] * 6


def test_settings_of_the_filter_are_for_arms_that_have_one(tmp_path):
    path = small_sweeps.write(tmp_path / "s.yaml", set={"steps": 64, "critic.covariance": "diagonal"})
    adam, kova = (run.config.critic for run in Sweep.from_file(path).runs())
    assert adam == {"optimizer": "adam"}
    assert kova["covariance"] == "diagonal"


WRONG = {
    "an unknown part": ({"seed": 3}, "'seed'", "did you mean 'seeds'?"),
    "no list of algorithms": ({"algorithms": "ppo"}, "algorithms must be a list"),
    "no arms": ({"arms": {}}, "arms must name at least one"),
    "arms that are a list": ({"arms": ["adam"]}, "arms must be a mapping"),
    "an unknown part of an arm": ({"arms": {"A": {"crtic": "adam"}}}, "arms.A", "did you mean 'critic'?"),
    "an unknown critic": ({"arms": {"A": {"critic": "sgd"}}}, "arm 'A'", "kova, adam, upstream"),
    "an unknown setting": ({"arms": {"A": {"set": {"critic.eta": 1}}}}, "arm 'A'", "critic.eta"),
    "a value out of range": ({"arms": {"A": {"set": {"critic.step_size": 2}}}}, "arm 'A'", "step_size"),
    "two arms that are one": ({"arms": {"A": {}, "B": {}}}, "'A' and 'B' are the same run"),
    "an arm that is a number": ({"arms": {0.1: {"critic": "adam"}}}, "0.1", "quotes"),
    "settings for an environment that is not there": (
        {"arms": {"A": {"environments": {"CartPol-v1": {"steps": 9}}}}},
        *("arms.A.environments", "did you mean 'CartPole-v1'?"),
    ),
    "a misspelt setting that no arm would take": (
        {"arms": {"A": {"critic": "adam"}}, "set": {"critic.covarance": "full"}},
        *("critic.covarance", "did you mean 'critic.covariance'?"),
    ),
    "an algorithm twice": ({"algorithms": ["ppo", "ppo"]}, "twice"),
    "a seed among the settings": ({"set": {"seed": 4}}, "seeds"),
    "a seed in an arm": ({"arms": {"A": {"set": {"seed": 4}}}}, "arms.A.set has a seed"),
    "a seed for one environment": (
        {"arms": {"A": {"environments": {"CartPole-v1": {"seed": 4}}}}},
        "arms.A.environments.CartPole-v1 has a seed",
    ),
    "settings that cannot be built": (
        {"arms": {"A": {"set": {"algorithm.n_steps": 1, "algorithm.batch_size": 1}}}},
        "arm 'A': ppo on CartPole-v1: `batch_size` must be greater than 1",
    ),
    "an unknown covariance": ({"set": {"critic.covariance": "foo"}}, "arm 'KOVA'", "'foo'"),
    "a preset that is a number": ({"preset": 3}, "preset must be a name"),
    "actions that the algorithm does not take": (
        {"algorithms": ["dqn"], "environments": ["Pendulum-v1"], "set": {"steps": 64}},
        *("dqn takes Discrete actions and Pendulum-v1 has Box", "use one of a2c, ddpg, ppo, sac, td3, trpo"),
    ),
    "a name that would leave the folder": ({"name": ".."}, "without slashes"),
    "seeds that are none": ({"seeds": [None]}, "seeds must be"),
    "no seeds": ({"seeds": 0}, "seeds must be"),
    "the same seed twice": ({"seeds": [1, 1]}, "seeds must be"),
    "an unknown algorithm": ({"algorithms": ["pppo"]}, "did you mean 'ppo'?"),
    "an unknown environment": ({"environments": ["CartPole-v9x"]}, "CartPole-v9x"),
    "an unknown preset": ({"preset": "papers"}, "did you mean 'paper'?"),
    "a name with a slash": ({"name": "a/b"}, "without slashes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_sweep_is_one_line_and_leaves_nothing(case, tmp_path):
    changes, *says = WRONG[case]
    path = small_sweeps.write(tmp_path / "s.yaml", **changes)
    result = runner.invoke(app, ["sweep", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    for words in says:
        assert words in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["quik"], "did you mean 'quick'?"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["x" * 300], "neither a file nor one that comes with kova"),
        (["quick", "--engine", "dask"], "local, ray"),
        (["quick", "--address", "auto"], "--engine ray"),
        (["quick", "--jobs", "0"], "--jobs"),
        (["quick", "--seeds", "0"], "--seeds"),
        (["quick", "--set", "stepz=3"], "did you mean"),
        (["quick", "--dry-run", "--engine", "dask"], "local, ray"),
        (["quick", "--from", "nowhere"], "--from: nowhere has no folder runs/; name the directory of a sweep"),
        (["quick", "--dry-run", "--from", "nowhere"], "--from: nowhere has no folder runs/"),
    ],
)
def test_a_wrong_call_is_one_line(words, says, tmp_path):
    result = runner.invoke(app, ["sweep", *words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not (tmp_path / "out").exists()


def test_upstreams_warnings_go_to_the_logs_of_the_runs(tmp_path):
    path = small_sweeps.write(
        tmp_path / "s.yaml", arms={"A": {"set": {"algorithm.n_steps": 64, "algorithm.batch_size": 48}}}
    )
    output = small_sweeps.finish(path, "--out", tmp_path / "out")
    assert "mini-batch" not in output
    assert "mini-batch" in (small_sweeps.runs(tmp_path / "out")[0] / "log.txt").read_text()


def test_a_critic_too_large_for_this_machine_now_is_left_to_the_one_that_trains_it(tmp_path):
    huge = {"critic.covariance": "full", "critic.memory_budget": 1000}
    path = small_sweeps.write(tmp_path / "s.yaml", arms={"A": {"set": huge}})
    output = small_sweeps.finish(path, "--attempts", "1", "--out", tmp_path / "out", code=1)
    assert "failed  ppo CartPole-v1 A seed 0: critic.covariance" in output


def test_a_name_that_is_there_twice_is_not_lost_without_a_word(tmp_path):
    path = small_sweeps.write(tmp_path / "s.yaml")
    path.write_text(path.read_text().replace("  KOVA:", "  Adam:"))
    with pytest.raises(UsageError, match="'Adam' is given twice"):
        Sweep.from_file(path)


def test_a_date_that_no_calendar_has_is_one_line(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("description: 2020-13-45\n")
    with pytest.raises(UsageError, match=r"s\.yaml cannot be read: month must be in 1\.\.12"):
        Sweep.from_file(path)


def test_numbers_are_written_in_yaml_as_after_set(tmp_path):
    path = small_sweeps.write(tmp_path / "s.yaml")
    path.write_text(path.read_text().replace("steps: 512", "steps: 1e3\n  algorithm.learning_rate: 3e-4"))
    config = Sweep.from_file(path).runs()[0].config
    assert (config.steps, config.algorithm["learning_rate"]) == (1000, 3e-4)


def test_a_shipped_sweep_can_be_made_smaller():
    small = Sweep.find("paper-fig4").changed(2, {"steps": 1000, "critic.covariance": "neuron"}).runs()
    assert len(small) == 2 * 7 * 2
    assert {run.config.steps for run in small} == {1000}
    assert {run.config.critic.get("covariance") for run in small} == {None, "neuron"}


def test_a_dry_run_says_what_it_takes_and_does_nothing(tmp_path):
    path = small_sweeps.write(tmp_path / "s.yaml", seeds=3)
    result = runner.invoke(app, ["sweep", str(path), "--dry-run", "--jobs", "2", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "6 runs, 0 finished; about 0:00:" in result.output
    assert re.search(r"with --jobs 2 and \d.* [MG]B of memory", result.output)
    assert not (tmp_path / "out").exists()


def test_more_jobs_than_cores_take_their_memory_all_at_once(tmp_path):
    path = small_sweeps.write(tmp_path / "s.yaml", seeds=20)
    total = re.compile(r"40 runs, 0 finished; .* with --jobs (\d+) and ([\d.]+) (\w+) of memory")
    sizes = {}
    for jobs in ("1", "40"):
        result = runner.invoke(app, ["sweep", str(path), "--dry-run", "--jobs", jobs, "--out", str(tmp_path / "out")])
        found = total.search(result.output)
        assert found, result.output
        assert found[1] == jobs
        sizes[jobs] = float(found[2]) * {"MB": 1, "GB": 1000}[found[3]]
    assert sizes["40"] > 30 * sizes["1"]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A tiny sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("sweep")
    output = small_sweeps.finish(small_sweeps.write(folder / "tiny.yaml"), "--jobs", "2", "--out", folder / "out")
    assert "2 finished, 0 kept from before, 0 failed" in output
    return folder / "out"


def test_every_run_is_finished_and_named_in_the_manifest(done):
    assert [small_sweeps.state(run) for run in small_sweeps.runs(done)] == ["finished", "finished"]
    planned_names = {run.name for run in Sweep.from_file(done / "sweep.yaml").runs()}
    assert {run.name for run in small_sweeps.runs(done)} == planned_names


def test_a_second_call_does_nothing_and_a_larger_sweep_only_what_is_new(done):
    before = small_sweeps.fingerprint(done)
    output = small_sweeps.finish(done / "sweep.yaml", "--jobs", "2", "--out", done)
    assert "0 finished, 2 kept from before, 0 failed" in output
    assert small_sweeps.fingerprint(done) == before
    larger = small_sweeps.write(
        done.parent / "larger.yaml", arms={"Adam": {"critic": "adam"}, "KOVA": {}, "joint": {"critic": "upstream"}}
    )
    output = small_sweeps.finish(larger, "--jobs", "2", "--out", done)
    assert "1 finished, 2 kept from before, 0 failed" in output
    after = small_sweeps.fingerprint(done)
    assert {name: after[name] for name in before} == before
    assert len(after) == 3


def test_finished_runs_of_another_sweep_are_taken_and_the_others_trained(done, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(done, source)
    adam, kova = (run.name for run in Sweep.from_file(done / "sweep.yaml").runs())
    status = source / "runs" / kova / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "running"}))
    words = [done.parent / "tiny.yaml", "--from", source, "--out", tmp_path / "out"]
    tried = runner.invoke(app, ["sweep", *map(str, words), "--dry-run"])
    assert "2 runs, 1 finished" in tried.output
    assert not (tmp_path / "out").exists()
    # What is begun here goes on here, and counts as not finished though it is finished there.
    begun, run = tmp_path / "begun", Sweep.from_file(done / "sweep.yaml").runs()[0]
    (begun / "runs" / adam).mkdir(parents=True)
    assert not is_finished(run, begun, source)
    output = small_sweeps.finish(*words)
    assert f"1 finished run taken from {source}\n2 runs, 1 of them finished before" in output
    assert "1 finished, 1 kept from before, 0 failed" in output
    assert [run.name for run in small_sweeps.runs(tmp_path / "out")] == sorted([adam, kova])
    assert_same(tmp_path / "out" / "runs" / adam, done / "runs" / adam)
    assert small_sweeps.fingerprint(tmp_path / "out")[adam] == small_sweeps.fingerprint(done)[adam]
    # Trained anew, not from what is unfinished there; the result is the same all the same.
    assert_same(tmp_path / "out" / "runs" / kova, done / "runs" / kova)
    assert small_sweeps.fingerprint(tmp_path / "out")[kova] > small_sweeps.fingerprint(done)[kova]
    assert "2 runs, 2 finished" in runner.invoke(app, ["sweep", *map(str, words), "--dry-run"]).output


def test_a_run_that_cannot_be_copied_leaves_nothing_half_taken(done, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(done, source)
    name = small_sweeps.runs(source)[0].name
    # A link that leads nowhere cannot be copied, by root neither.
    (source / "runs" / name / "broken").symlink_to(tmp_path / "nowhere")
    words = ["sweep", done.parent / "tiny.yaml", "--from", source, "--out", tmp_path / "out"]
    result = runner.invoke(app, list(map(str, words)))
    assert result.exit_code == 2, result.output
    assert f"--from: {name} cannot be copied" in result.stderr
    assert list((tmp_path / "out" / "runs").iterdir()) == []


def test_a_run_that_cannot_be_done_fails_after_its_attempts_and_stops_no_other(tmp_path):
    arms = {"KOVA": {}, "too wide": {"set": {"critic.prior_variance": 1e38}}}
    path = small_sweeps.write(tmp_path / "s.yaml", arms=arms)
    output = small_sweeps.finish(path, "--jobs", "2", "--attempts", "2", "--out", tmp_path / "out", code=1)
    assert "1 finished, 0 kept from before, 1 failed" in output
    assert "failed  ppo CartPole-v1 too wide seed 0: NumericalError" in output
    assert sorted(map(small_sweeps.state, small_sweeps.runs(tmp_path / "out"))) == ["failed", "finished"]
    for run in small_sweeps.runs(tmp_path / "out"):
        (maker,) = read_makers(run / "made_by.json")
        assert maker["command"] == f"kova sweep {path} --jobs 2 --attempts 2 --out {tmp_path / 'out'}"
    log = next(run for run in small_sweeps.runs(tmp_path / "out") if small_sweeps.state(run) == "failed") / "log.txt"
    assert log.read_text().count("NumericalError") == 2


def test_a_killed_worker_is_started_again_where_it_was(done, tmp_path):
    driver = small_sweeps.start(done / "sweep.yaml", "--jobs", "1", "--out", tmp_path)
    first = small_sweeps.training_pid(tmp_path)
    os.kill(first, signal.SIGKILL)
    assert small_sweeps.status_of_the_next(tmp_path, first)["step"] >= 128
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    assert_same_sweep(tmp_path, done)


def test_a_killed_driver_takes_its_workers_along_and_loses_nothing(done, tmp_path):
    driver = small_sweeps.start(done / "sweep.yaml", "--jobs", "1", "--out", tmp_path)
    worker = small_sweeps.training_pid(tmp_path)
    driver.kill()
    driver.communicate()
    assert_ends(worker)
    small_sweeps.finish(done / "sweep.yaml", "--jobs", "2", "--out", tmp_path)
    assert_same_sweep(tmp_path, done)


def test_two_calls_do_not_work_in_one_directory(done, tmp_path):
    with FileLock(tmp_path / ".lock"):
        result = runner.invoke(app, ["sweep", str(done / "sweep.yaml"), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "another kova sweep is working" in result.stderr
    assert small_sweeps.runs(tmp_path) == []


def test_ctrl_c_says_how_to_go_on_and_that_goes_on(done, tmp_path):
    driver = small_sweeps.start(done / "sweep.yaml", "--jobs", "1", "--out", tmp_path)
    worker = small_sweeps.training_pid(tmp_path)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert_ends(worker)
    words = shlex.split(output[output.index("Continue:") :].splitlines()[1])
    assert words[:2] == ["kova", "sweep"]
    assert "0 failed" in small_sweeps.finish(*words[2:])
    assert_same_sweep(tmp_path, done)


def test_a_run_that_another_process_trains_is_waited_for(done, tmp_path):
    sweep = Sweep.from_file(done / "sweep.yaml")
    shutil.copytree(done / "runs", tmp_path / "runs")
    run = tmp_path / "runs" / sweep.runs()[0].name
    (run / "status.json").unlink()
    engine = LocalEngine(2)
    scheduler = Scheduler(sweep.runs(), tmp_path / "runs", engine, "kova sweep")
    waits: list[str] = []
    with ExitStack() as held:
        held.enter_context(RunDirectory(run).locked())

        def watch(jobs: Sequence[Job]) -> None:
            waits.append(jobs[0].message)
            if len(waits) == 4:
                held.close()

        scheduler.run(watch)
    assert waits[:4] == ["another process is training it"] * 4
    assert [job.state for job in scheduler.jobs] == ["finished", "finished"]


def test_a_damaged_directory_fails_alone(done, tmp_path):
    sweep = Sweep.from_file(done / "sweep.yaml")
    shutil.copytree(done / "runs", tmp_path / "runs")
    first, second = (tmp_path / "runs" / run.name for run in sweep.runs())
    (first / "config.yaml").unlink()
    (first / "status.json").write_text("[]")
    (second / "status.json").write_text("{")
    (second / "progress.csv").write_bytes(b"\xff\xfe")
    scheduler = Scheduler(sweep.runs(), tmp_path / "runs", LocalEngine(1), "kova sweep", attempts=1)
    scheduler.run()
    assert [job.state for job in scheduler.jobs] == ["failed", "failed"]
    assert "config.yaml" in scheduler.jobs[0].message
    assert scheduler.jobs[1].frames() == 0


def test_a_run_whose_settings_cannot_work_says_why_and_is_not_tried_again(tmp_path):
    path = small_sweeps.write(
        tmp_path / "s.yaml", arms={"A": {"set": {"algorithm.n_steps": 1, "algorithm.batch_size": 1}}}
    )
    scheduler = Scheduler(Sweep.from_file(path).runs(), tmp_path, LocalEngine(1), "kova sweep")
    scheduler.run()
    (job,) = scheduler.jobs
    assert job.state == "failed"
    assert "ppo on CartPole-v1: `batch_size` must be greater than 1" in job.message
    assert (job.path / "log.txt").read_text().count("must be greater than 1") == 1


@pytest.mark.slow
def test_a_failure_after_a_new_checkpoint_does_not_count(done, tmp_path):
    driver = small_sweeps.start(done / "sweep.yaml", "--jobs", "1", "--attempts", "1", "--out", tmp_path)
    os.kill(small_sweeps.training_pid(tmp_path), signal.SIGKILL)
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    assert_same_sweep(tmp_path, done)


def test_an_engine_that_is_unknown_names_the_others():
    with pytest.raises(UsageError, match="did you mean 'local'"):
        make("locl")


def test_a_scheduler_of_nothing_ends_at_once(tmp_path):
    scheduler = Scheduler([], tmp_path, LocalEngine(1), "kova sweep")
    scheduler.run()
    assert scheduler.jobs == []


@pytest.mark.slow
def test_twenty_kills_of_workers_and_drivers_lose_nothing_and_run_nothing_twice(tmp_path):
    small_sweeps.finish("quick", "--jobs", "2", "--out", tmp_path / "calm")
    rng, kills = random.Random(0), 0
    seen: dict[str, int] = {}
    while kills < 20:
        driver = small_sweeps.start("quick", "--jobs", "2", "--attempts", "30", "--out", tmp_path / "wild")
        while driver.poll() is None and kills < 20:
            time.sleep(rng.uniform(2, 12))
            if rng.random() < 0.5:
                driver.kill()
            else:
                victims = [run for run in small_sweeps.runs(tmp_path / "wild") if small_sweeps.state(run) == "running"]
                if not victims:
                    continue
                kill_worker(rng.choice(victims))
            kills += 1
            now = small_sweeps.fingerprint(tmp_path / "wild")
            assert {name: now[name] for name in seen} == seen, "a finished run was touched"
            seen = now
        driver.kill()
        driver.communicate()
        if len(seen) == 12:
            # Everything was finished before all kills were used: once more, elsewhere.
            (tmp_path / "wild").rename(tmp_path / f"wild-{kills}")
            seen = {}
    small_sweeps.finish("quick", "--jobs", "2", "--out", tmp_path / "wild")
    for out in tmp_path.glob("wild*"):
        assert_same_sweep(out, tmp_path / "calm")


def kill_worker(run: Path) -> None:
    # It may have ended, or have been killed already and not been started again.
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(json.loads((run / "status.json").read_text())["pid"]), signal.SIGKILL)


def assert_ends(pid: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived its driver")


def assert_same_sweep(out: Path, other: Path) -> None:
    """The same runs are finished with the same numbers, bit for bit."""
    names = [run.name for run in Sweep.from_file(out / "sweep.yaml").runs()]
    assert sorted(names) == [run.name for run in small_sweeps.runs(out)]
    for name in names:
        assert small_sweeps.state(out / "runs" / name) == "finished"
        assert_same(out / "runs" / name, other / "runs" / name)


def test_an_arm_may_be_of_another_algorithm():
    arms = {"A2C": {"critic": "upstream"}, "PPO": {"algorithm": "ppo", "set": {"algorithm.n_steps": 256}}}
    sweep = Sweep("mixed", ["a2c"], ["CartPole-v1"], arms, seeds=1)
    assert [(run.config.algo, run.task) for run in sweep.runs()] == [
        ("a2c", "A2C CartPole-v1"),
        ("ppo", "A2C CartPole-v1"),
    ]
    with pytest.raises(UsageError, match="arm 'PPO', ppo on CartPole-v1: setting"):
        Sweep(
            "wrong", ["a2c"], ["CartPole-v1"], {"PPO": {"algorithm": "ppo", "set": {"algorithm.rms_prop_eps": 1}}}
        ).runs()


@pytest.mark.parametrize(
    ("algorithms", "given", "said"),
    [
        (["a2c"], 7, "arms.X.algorithm must be a name"),
        (["a2c"], "pppo", "algorithm 'pppo' is unknown"),
        (["a2c", "trpo"], "ppo", "the sweep must have one only"),
    ],
)
def test_an_arms_algorithm_is_checked(algorithms, given, said):
    with pytest.raises(UsageError, match=said):
        Sweep("mixed", algorithms, ["CartPole-v1"], {"X": {"algorithm": given}}, seeds=1).runs()
