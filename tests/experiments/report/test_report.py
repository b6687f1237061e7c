"""The report: none, one or many runs, damaged ones, and how the page behaves in a browser."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import re
import shutil
from dataclasses import replace
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.report.answer import sentences
from kova.experiments.report.comparison import Comparison
from kova.experiments.report.palette import Palette
from kova.experiments.report.results import collect
from kova.experiments.report.statistics import Interval
from kova.experiments.sweeps.grid import PlannedRun, Sweep

runner = CliRunner()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def write_run(folder: Path, run: PlannedRun, state: str = "finished", level: float = 0.0) -> Path:
    """Write what a run that trained for 1,000 frames leaves behind, with returns around ``level``."""
    path = folder / "runs" / run.name
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text(run.config.to_yaml())
    (path / "status.json").write_text(json.dumps({"state": state, "step": 1000, "steps": 1000}))
    rng = np.random.default_rng(run.config.seed)
    with (path / "monitor.csv").open("w") as file:
        file.write('#{"t_start": 0, "env_id": "x"}\nr,l,t,step\n')
        for step in range(50, 1001, 50):
            file.write(f"{level + step / 10 + rng.normal()},50,{step / 100},{step}\n")
    with (path / "progress.csv").open("w") as file:
        file.write("time/total_timesteps,train/entropy,train/policy_loss,train/explained_variance\n")
        for step in range(200, 1001, 200):
            file.write(f"{step},{1.5 - step / 1000},{-0.01},{step / 2000}\n")
    return path


def sweep(seeds: int, environments: int = 1, arms: dict | None = None) -> Sweep:
    return Sweep(
        "made-up",
        ["ppo"],
        [f"Task{number}-v0" for number in range(environments)],
        arms or {"Adam": {"critic": "adam"}, "KOVA </script>": {}},
        seeds,
        set={"steps": 1000},
    )


def write_sweep(folder: Path, planned: Sweep) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.yaml").write_text(planned.to_yaml())
    return [write_run(folder, run, level=10.0 * (run.arm != "Adam")) for run in planned.runs()]


def report(folder: Path, *words: str) -> str:
    page = folder.parent / "report.html"
    result = runner.invoke(app, ["report", str(folder), "-o", str(page), *words])
    assert result.exit_code == 0, result.output
    return page.read_text()


def charts(page: str) -> dict:
    start = page.index('type="application/json">') + len('type="application/json">')
    found: dict = json.loads(page[start : page.index("</script>", start)])
    return found


def test_a_directory_without_runs_gives_a_page_that_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    page = report(tmp_path / "empty")
    assert "No run can be read below this directory yet." in page
    assert charts(page) == {}
    result = runner.invoke(app, ["report", str(tmp_path / "empty"), "-o", str(tmp_path / "page.html")])
    assert result.stdout.startswith("No run can be read below this directory yet.\n")


def test_one_run_gives_curves_without_intervals(tmp_path):
    write_run(tmp_path / "one", sweep(1).runs()[0])
    page = report(tmp_path / "one")
    assert {name.rsplit("-", 1)[0] for name in charts(page)} == {
        *("return", "entropy", "policy-loss", "explained-variance", "wall-clock"),
    }
    assert "1 of 1 run finished; 1 task, 1 arm, 1 seed." in page


def test_one_arm_is_shown_with_its_raw_scores_and_compared_with_nothing(tmp_path):
    write_sweep(tmp_path / "s", sweep(3, environments=2, arms={"KOVA": {}}))
    page = report(tmp_path / "s")
    table = page[page.index('<section id="statistics"') : page.index('<section id="wall-clock"')]
    assert "No task has more than one arm, so there is nothing to compare." in table
    for words in ("IQM", "P(better", "Sample efficiency", "reference"):
        assert words not in table
    assert "PPO Task0-v0" in table
    assert "±" in table
    comparison = Comparison(collect(tmp_path / "s").finished)
    assert comparison.normalised() == {}
    assert [(row.iqm, row.improvement) for row in comparison.table()] == [(None, None)]


def test_a_task_with_one_arm_counts_for_no_comparison(tmp_path):
    write_sweep(tmp_path / "all" / "a", sweep(2, arms={"Adam": {"critic": "adam"}, "KOVA": {}}))
    write_sweep(tmp_path / "all" / "b", replace(sweep(2, arms={"Only": {}}), algorithms=["a2c"]))
    comparison = Comparison(collect(tmp_path / "all").finished)
    rows = {row.arm: row for row in comparison.table()}
    assert comparison.references == ["Adam"]
    assert {arm: list(scores) for arm, scores in comparison.normalised().items()} == {
        "Adam": ["PPO Task0-v0"],
        "KOVA": ["PPO Task0-v0"],
    }
    assert rows["Only"].iqm is None
    assert rows["KOVA"].iqm is not None
    assert "Sample efficiency, A2C" not in report(tmp_path / "all")


def test_intervals_of_normalised_scores_stay_on_their_scale(tmp_path):
    write_sweep(tmp_path / "s", sweep(2))
    for row in Comparison(collect(tmp_path / "s").finished).table():
        assert 0.0 <= row.iqm.low <= row.iqm.estimate <= row.iqm.high <= 1.0


def test_a_sweep_that_was_run_again_with_more_seeds_is_named_once(tmp_path):
    folder = tmp_path / "grown"
    write_sweep(folder, sweep(1))
    (folder / "sweep-2.yaml").write_text(sweep(2).to_yaml())
    assert f"<title>kova: {sweep(1).name}</title>" in report(folder)


def test_five_hundred_runs_give_one_curve_for_each_arm_and_task(tmp_path):
    write_sweep(tmp_path / "many", sweep(50, environments=5))
    page = report(tmp_path / "many")
    found = charts(page)
    assert "500 of 500 runs finished; 5 tasks, 2 arms, 50 seeds." in page
    assert sum(name.startswith("return-") for name in found) == 5
    for name in (f"return-{task}" for task in range(5)):
        lines = [trace["name"] for trace in found[name]["data"] if trace["mode"] == "lines"]
        assert lines == ["Adam, band", "Adam", "KOVA </script>, band", "KOVA </script>"]


def test_damaged_runs_are_listed_and_stop_nothing(tmp_path):
    paths = write_sweep(tmp_path / "s", sweep(6))
    (paths[0] / "config.yaml").write_text("algo: [")
    (paths[1] / "progress.csv").write_text("time/total_timesteps,train/entropy\n100,abc\n")
    (paths[2] / "status.json").write_text("{")
    (paths[3] / "monitor.csv").write_bytes(b"\xff\xfe\x00")
    (paths[4] / "config.yaml").unlink()
    (paths[5] / "progress.csv").unlink()
    (paths[6] / "monitor.csv").unlink()
    (paths[7] / "status.json").write_text("[]")
    (paths[8] / "monitor.csv").write_text("\0" * 200_000)
    results = collect(tmp_path / "s")
    assert {one.path for one in results.damaged} == set(paths[:9])
    assert {run.path for run in results.runs} == set(paths[9:])
    page = report(tmp_path / "s")
    for path in paths[:9]:
        assert str(path) in page
    assert "9 damaged directories" in page


def test_a_copy_of_a_run_is_counted_once(tmp_path):
    paths = write_sweep(tmp_path / "s", sweep(2))
    shutil.copytree(tmp_path / "s" / "runs", tmp_path / "s" / "copies")
    results = collect(tmp_path / "s")
    assert len(results.runs) == len(paths)
    assert len(results.damaged) == len(paths)
    assert "counted once" in results.damaged[0].reason


@pytest.mark.parametrize("folder", ["before", "the-runs-after"])
def test_a_copy_that_was_not_finished_does_not_take_the_place_of_the_run(folder, tmp_path):
    write_sweep(tmp_path / "s", sweep(2))
    shutil.copytree(tmp_path / "s" / "runs", tmp_path / "s" / folder)
    for status in (tmp_path / "s" / folder).rglob("status.json"):
        status.write_text(json.dumps({"state": "failed"}))
    assert len(collect(tmp_path / "s").finished) == 4


def test_one_name_for_two_settings_is_told_apart(tmp_path):
    write_sweep(tmp_path / "all" / "a", sweep(2))
    write_sweep(tmp_path / "all" / "b", replace(sweep(2), set={"steps": 1000, "algorithm.gamma": 0.9}))
    arms = Comparison(collect(tmp_path / "all").finished).arms
    assert sorted(arms) == [
        *("Adam", "Adam (algorithm.gamma=0.9)", "KOVA </script>", "KOVA </script> (algorithm.gamma=0.9)"),
    ]


def test_runs_that_were_watched_differently_are_of_one_arm(tmp_path):
    watched = {"steps": 1000, "eval_every": 500, "eval_episodes": 3, "vec": "subproc"}
    for run in [*sweep(2).runs(), *replace(sweep(4), set=watched).runs()[4:]]:
        write_run(tmp_path / "all", run)
    (task,) = Comparison(collect(tmp_path / "all").finished).tasks
    assert {arm: list(curves.seeds) for arm, curves in task.arms.items()} == {
        "adam": [0, 1, 2, 3],
        "kova": [0, 1, 2, 3],
    }


def test_arms_keep_the_order_of_the_sweep_and_the_first_without_a_filter_is_the_reference(tmp_path):
    arms = {"Z": {}, "B": {"critic": "upstream"}, "A": {"critic": "adam"}}
    write_sweep(tmp_path / "s", replace(sweep(2, arms=arms), environments=["Swim-v0", "Hop-v0"]))
    comparison = Comparison(collect(tmp_path / "s").finished)
    assert [task.name for task in comparison.tasks] == ["PPO Swim-v0", "PPO Hop-v0"]
    assert comparison.arms == ["Z", "B", "A"]
    assert comparison.references == ["B"]


def test_the_reader_may_choose_what_the_arms_are_compared_with(tmp_path):
    arms = {"Adam": {"critic": "adam"}, "one": {}, "other": {"set": {"critic.epochs": 2}}}
    write_sweep(tmp_path / "s", sweep(3, arms=arms))
    page = report(tmp_path / "s", "--against", "one")
    assert "P(better than one)" in page
    assert "Return against one, task by task" in page
    comparison = Comparison(collect(tmp_path / "s").finished, against="one")
    differences = {arm: own["PPO Task0-v0"].estimate for arm, own in comparison.differences("return").items()}
    assert differences == {"Adam": pytest.approx(-10), "other": pytest.approx(0)}
    assert sentences(comparison)[0].count("it is the reference") == 1
    # Every arm has the same place and colour whatever it is compared with.
    assert comparison.arms == ["Adam", "one", "other"]


def test_an_arm_that_there_is_not_is_refused_before_anything_is_written(tmp_path):
    write_sweep(tmp_path / "s", sweep(1, arms={"Adam": {"critic": "adam"}, "KOVA": {}}))
    result = runner.invoke(app, ["report", str(tmp_path / "s"), "-o", str(tmp_path / "page.html"), "--against", "Kova"])
    assert result.exit_code == 2
    assert "--against must be an arm of the finished runs, one of 'Adam', 'KOVA'; got 'Kova'" in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_run_without_an_episode_is_listed_and_not_compared(tmp_path):
    paths = write_sweep(tmp_path / "s", sweep(2))
    (paths[0] / "monitor.csv").write_text('#{"t_start": 0}\nr,l,t,step\n')
    assert len(collect(tmp_path / "s").finished) == 3
    assert "no episode ended" in report(tmp_path / "s")


def test_runs_that_are_not_finished_are_listed_and_not_compared(tmp_path):
    planned = sweep(3)
    paths = write_sweep(tmp_path / "s", planned)
    (paths[0] / "status.json").write_text(json.dumps({"state": "failed", "error": "ValueError: it broke"}))
    (paths[1] / "status.json").write_text(json.dumps({"state": "running"}))
    results = collect(tmp_path / "s")
    assert len(results.finished) == 4
    assert sorted(run.state for run in results.runs if run.state != "finished") == ["failed", "stopped"]
    assert "ValueError: it broke" in report(tmp_path / "s")


def test_runs_that_a_stopped_sweep_has_not_begun_count_as_planned(tmp_path):
    paths = write_sweep(tmp_path / "s", sweep(3))
    for path in paths[:2]:
        shutil.rmtree(path)
    (paths[2] / "config.yaml").write_text("algo: [")
    assert [run.config.seed for run in collect(tmp_path / "s").waiting] == [0, 0]
    page = report(tmp_path / "s")
    assert "3 of 5 runs finished; 1 task, 2 arms, 2 seeds; 1 damaged directory" in page
    assert "3 finished, 2 not begun" in page


def test_a_sweep_of_which_nothing_has_begun_says_how_much_there_is_to_do(tmp_path):
    (tmp_path / "s" / "runs").mkdir(parents=True)
    (tmp_path / "s" / "sweep.yaml").write_text(sweep(3).to_yaml())
    assert "0 of 6 runs finished." in report(tmp_path / "s")


def test_a_return_that_is_no_number_spoils_its_own_run_alone(tmp_path):
    paths = write_sweep(tmp_path / "s", sweep(3))
    with (paths[0] / "monitor.csv").open("a") as file:
        file.write("nan,50,10.1,1000\n")
    page = report(tmp_path / "s")
    assert "5 of 6 runs finished" in page
    assert "a return is not finite" in page
    (adam, kova) = Comparison(collect(tmp_path / "s").finished).table()
    assert np.isfinite([adam.iqm.estimate, kova.iqm.estimate]).all()
    assert kova.improvement.estimate == 1.0


def test_a_trial_with_fewer_frames_is_another_task(tmp_path):
    write_sweep(tmp_path / "all" / "trial", replace(sweep(1), set={"steps": 100}))
    write_sweep(tmp_path / "all" / "whole", sweep(2))
    comparison = Comparison(collect(tmp_path / "all").finished)
    assert [task.name for task in comparison.tasks] == ["PPO Task0-v0, 100 frames", "PPO Task0-v0, 1,000 frames"]
    assert [list(task.arms) for task in comparison.tasks] == [["Adam", "KOVA </script>"]] * 2
    assert [len(task.arms["Adam"].seeds) for task in comparison.tasks] == [1, 2]


def test_every_task_is_compared_with_its_own_reference(tmp_path):
    write_sweep(tmp_path / "all" / "a", replace(sweep(2, arms={"Adam": {"critic": "adam"}, "KOVA": {}})))
    other = sweep(2, arms={"Adam (joint)": {"critic": "upstream"}, "Adam (separate)": {"critic": "adam"}, "KOVA": {}})
    write_sweep(tmp_path / "all" / "b", replace(other, algorithms=["a2c"]))
    comparison = Comparison(collect(tmp_path / "all").finished)
    rows = {row.arm: row for row in comparison.table()}
    assert comparison.references == ["Adam", "Adam (joint)"]
    assert set(rows["KOVA"].efficiency) == {"PPO Task0-v0", "A2C Task0-v0"}
    assert set(rows["Adam (separate)"].efficiency) == {"A2C Task0-v0"}
    assert rows["Adam"].improvement is None
    assert rows["Adam (joint)"].improvement is None
    page = report(tmp_path / "all")
    assert "P(better than the reference)" in page
    assert "The reference is Adam on PPO Task0-v0; Adam (joint) on A2C Task0-v0." in page
    assert "nan" not in page[page.index("<table") : page.index("</table>")]


def test_a_task_whose_reference_failed_is_not_compared_with_another_arm(tmp_path):
    planned = sweep(2, environments=2, arms={"Adam": {"critic": "adam"}, "M": {}, "F": {"set": {"critic.epochs": 2}}})
    for path, run in zip(write_sweep(tmp_path / "s", planned), planned.runs(), strict=True):
        if run.arm == "Adam" and run.config.env == "Task1-v0":
            (path / "status.json").write_text(json.dumps({"state": "failed"}))
    comparison = Comparison(collect(tmp_path / "s").finished)
    assert comparison.references == ["Adam"]
    for row in comparison.table()[1:]:
        assert set(row.finals) == {"PPO Task0-v0", "PPO Task1-v0"}
        assert set(row.efficiency) == {"PPO Task0-v0"}
        assert row.improvement.estimate == 1.0


def test_the_curves_go_to_the_end_of_the_last_rollout(tmp_path):
    write_sweep(tmp_path / "s", replace(sweep(2), set={"steps": 300}))
    (task,) = Comparison(collect(tmp_path / "s").finished).tasks
    assert task.grid[-1] == 1000.0
    # All twenty episodes, and not the six that ended by frame 300.
    assert task.arms["Adam"].final == pytest.approx([52.5, 52.5], abs=1.5)


def test_one_run_has_no_standard_deviation(tmp_path):
    write_sweep(tmp_path / "s", sweep(1))
    page = report(tmp_path / "s")
    assert "±" not in page[page.index("<table") : page.index("</table>")]


def test_manifests_are_read_in_the_order_they_were_written_and_others_files_are_not(tmp_path):
    write_sweep(tmp_path / "s", sweep(1))
    for number, name in ((2, "second"), (10, "tenth")):
        (tmp_path / "s" / f"sweep-{number}.yaml").write_text(replace(sweep(1), name=name).to_yaml())
    (tmp_path / "s" / "sweep_mine.yaml").write_text(replace(sweep(50), name="mine").to_yaml())
    shutil.copytree(tmp_path / "s" / "runs", tmp_path / "s" / ".old" / "runs")
    (tmp_path / "s" / ".old" / "sweep.yaml").write_text(replace(sweep(7), name="old").to_yaml())
    (tmp_path / "s" / "notes").mkdir()
    (tmp_path / "s" / "notes" / "sweep.yaml").write_text("not: a sweep")
    results = collect(tmp_path / "s")
    assert [sweep.name for sweep in results.sweeps.values()] == ["made-up", "second", "tenth"]
    assert results.damaged == []
    assert results.waiting == []


def test_the_page_has_the_commands_and_the_versions(tmp_path):
    write_sweep(tmp_path / "s", sweep(1))
    shutil.copy(tmp_path / "s" / "sweep.yaml", tmp_path / "s" / "sweep-2.yaml")
    for place, run in enumerate((tmp_path / "s" / "runs").iterdir()):
        makers = [{"command": "a", "date": "b", "torch": "2.0"}, {"torch": "2.1", "gpus": ["x", "y"]}]
        # As versions before the list left it, and as they are now.
        (run / "made_by.json").write_text(json.dumps(makers[0] if place else makers))
    code = report(tmp_path / "s", "--data", str(tmp_path / "curves.csv")).rpartition("<pre")[2]
    assert f"kova report {tmp_path / 's'} -o {tmp_path / 'report.html'} --data {tmp_path / 'curves.csv'}" in code
    assert code.count(f"kova sweep {tmp_path / 's' / 'sweep.yaml'} --out {tmp_path / 's'}") == 1
    assert "sweep-2.yaml" not in code
    assert code.count("# trained with") == 2
    assert collect(tmp_path / "s").damaged == []
    for package in ("torch", "stable-baselines3", "gymnasium", "mujoco", "numpy"):
        assert f"{package}: {version(package)}" in code


def test_a_report_of_damaged_runs_alone_says_so_and_has_a_header(tmp_path):
    (path,) = write_sweep(tmp_path / "s", sweep(1, arms={"Adam": {"critic": "adam"}}))
    with (path / "monitor.csv").open("a") as file:
        file.write("1.0,5")
    data = tmp_path / "curves.csv"
    page = report(tmp_path / "s", "--data", str(data))
    assert "0 of 0 runs finished; 1 damaged directory, listed below." in page
    assert "a line of its log has no step: it was cut short" in page
    assert data.read_text() == "task,arm,seed,frame,return,entropy,policy_loss,explained_variance\n"


def test_the_numbers_of_the_comparison(tmp_path):
    write_sweep(tmp_path / "s", sweep(5))
    comparison = Comparison(collect(tmp_path / "s").finished)
    rows = {row.arm: row for row in comparison.table()}
    kova = rows["KOVA </script>"]
    assert comparison.references == ["Adam"]
    assert rows["Adam"].improvement is None
    # Ten better at every frame, with noise of one.
    assert kova.improvement.estimate == 1.0
    mean, _ = kova.finals["PPO Task0-v0"]
    assert mean == pytest.approx(rows["Adam"].finals["PPO Task0-v0"][0] + 10, abs=1e-6)
    assert kova.efficiency["PPO Task0-v0"] > 1.2
    assert kova.seconds == 10.0


def test_every_task_has_its_differences_to_the_reference(tmp_path):
    write_sweep(tmp_path / "s", sweep(5, environments=2))
    comparison = Comparison(collect(tmp_path / "s").finished)
    found = comparison.differences("return")
    assert list(found) == ["KOVA </script>"]
    assert list(found["KOVA </script>"]) == ["PPO Task0-v0", "PPO Task1-v0"]
    difference = found["KOVA </script>"]["PPO Task0-v0"]
    assert difference.estimate == pytest.approx(10)
    assert 9.0 < difference.low < difference.estimate < difference.high < 11.0
    # What was logged is the same for both arms.
    assert comparison.differences("entropy")["KOVA </script>"]["PPO Task1-v0"] == Interval(0.0, 0.0, 0.0)
    page = report(tmp_path / "s")
    assert "Return against Adam, task by task" in page
    assert f"<td>10.0 ({difference.low:.1f} to {difference.high:.1f})</td>" in page


def test_the_grid_of_eta_and_noise_has_a_cell_for_every_pair(tmp_path):
    arms = {
        f"{eta} {noise}": {"set": {"critic.evolution": f"FadingMemory({eta})", "critic.noise": f"{noise}()"}}
        for eta in (0.1, 0.01)
        for noise in ("BatchSize", "MaxRatio")
    }
    write_sweep(tmp_path / "s", sweep(2, arms=arms))
    found = charts(report(tmp_path / "s"))
    grids = [chart for name, chart in found.items() if name.startswith("grid-")]
    assert len(grids) == 3
    assert [noise.partition("(")[0] for noise in grids[0]["data"][0]["x"]] == ["BatchSize", "MaxRatio"]
    assert grids[0]["data"][0]["y"] == ["η = 0.1", "η = 0.01"]
    # The last ten of a hundred points: nine hold what was logged at frame 800, one what was logged at 1,000.
    np.testing.assert_allclose(grids[1]["data"][0]["z"], (9 * 0.7 + 0.5) / 10)


def test_entropy_and_return_of_runs_that_differ_in_eta_stand_side_by_side(tmp_path):
    arms = {
        f"{eta} {noise}": {"set": {"critic.evolution": f"FadingMemory({eta})", "critic.noise": f"{noise}()"}}
        for eta in (0.1, 0.01)
        for noise in ("BatchSize", "MaxRatio")
    }
    planned = sweep(3, arms={"Adam": {"critic": "adam"}, **arms})
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.yaml").write_text(planned.to_yaml())
    for place, run in enumerate(planned.runs()):
        # More entropy, more return with one noise; with the other it is the reverse.
        path = write_run(tmp_path / "s", run, level=100.0 * place * (-1) ** ("MaxRatio" in run.arm))
        log = path / "progress.csv"
        lines = log.read_text().splitlines()
        log.write_text("\n".join([lines[0], *(line.replace("0.5", f"{place}", 1) for line in lines[1:])]))
    page = report(tmp_path / "s")
    shown = {name: chart for name, chart in charts(page).items() if name.startswith("exploration-")}
    titles = [chart["layout"]["title"]["text"] for chart in shown.values()]
    assert titles == ["PPO Task0-v0, FadingMemory, BatchSize", "PPO Task0-v0, FadingMemory, MaxRatio"]
    assert [len(trace["x"]) for trace in shown["exploration-0"]["data"]] == [3, 3]
    assert "Adam" not in {trace["name"] for chart in shown.values() for trace in chart["data"]}
    cells = re.findall(r"<td>(-?[\d.]+) \((-?[\d.]+) to (-?[\d.]+)\)</td>", page[page.index("Does more entropy") :])[:6]
    first, least, second, _, mean, slope = (tuple(map(float, cell)) for cell in cells)
    assert 0.9 < first[0] < 1.0
    assert first[1] > 0.0
    assert second == pytest.approx((-first[0], -first[2], -first[1]))
    assert mean == (0.0, -mean[2], mean[2])
    assert 0.0 < mean[2] < 1.0
    # Of every seed the arm with the smaller η comes later and has more entropy: ranks 1, 3, 5 against 2, 4, 6.
    assert least[0] == slope[0] == -0.29
    assert slope[1] < -0.29 < 0.0 < slope[2]


def test_noises_are_compared_at_the_same_eta(tmp_path):
    arms = {
        f"{eta} {noise}": {"set": {"critic.evolution": f"FadingMemory({eta})", "critic.noise": f"{noise}()"}}
        for noise in ("MaxRatio", "BatchSize")
        for eta in (0.1, 0.01, 0.001)
    }
    planned = sweep(3, environments=2, arms=arms)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.yaml").write_text(planned.to_yaml())
    # The smallest η earns most by far, which decides nothing between the noises.
    levels = {"0.1": 0.0, "0.01": 1000.0, "0.001": 9000.0}
    for run in planned.runs():
        better = "MaxRatio" if run.config.env == "Task0-v0" and not run.arm.startswith("0.001 ") else "BatchSize"
        write_run(tmp_path / "s", run, level=levels[run.arm.split()[0]] + 100.0 * (better in run.arm))
    page = report(tmp_path / "s")
    section = page[page.index("Which noise earns more?") : page.index("Statistics</h2>")]
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td>([\d.]+) \(([\d.]+) to ([\d.]+)\)", section)
    assert [row[:4] for row in rows] == [
        ("PPO Task0-v0, FadingMemory", "MaxRatio", "BatchSize", "0.67"),
        ("PPO Task1-v0, FadingMemory", "MaxRatio", "BatchSize", "0.00"),
        ("mean", "MaxRatio", "BatchSize", "0.33"),
    ]
    assert all(float(low) < 0.5 < float(high) for *_, low, high in rows[::3])
    assert float(rows[1][5]) < 0.5


def test_critics_that_differ_in_more_than_eta_and_noise_have_grids_of_their_own(tmp_path):
    arms = {}
    for eta, noise, covariance in itertools.product((0.1, 0.01), ("BatchSize", "MaxRatio"), ("full", "neuron")):
        models = {"critic.evolution": f"FadingMemory({eta})", "critic.noise": f"{noise}()"}
        rest = {"critic.covariance": covariance, "critic.epochs": 2}
        # Whatever the order in which they are written.
        rest = dict(sorted(rest.items(), reverse=noise == "MaxRatio"))
        arms[f"{eta} {noise} {covariance}"] = {"set": {**models, **rest}}
    planned = sweep(2, arms=arms)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.yaml").write_text(planned.to_yaml())
    for run in planned.runs():
        write_run(tmp_path / "s", run, level=1000.0 * ("full" in run.arm))
    found = charts(report(tmp_path / "s"))
    grids = [chart for name, chart in found.items() if name.startswith("grid-")]
    means = {chart["layout"]["title"]["text"]: np.mean(chart["data"][0]["z"]) for chart in grids}
    assert {name: mean for name, mean in means.items() if name.endswith(": return")} == {
        "PPO Task0-v0, FadingMemory, critic.covariance=full: return": pytest.approx(1050, abs=5),
        "PPO Task0-v0, FadingMemory, critic.covariance=neuron: return": pytest.approx(50, abs=5),
    }


def test_the_page_opens_with_the_answer(tmp_path):
    write_sweep(tmp_path / "s", sweep(4, environments=2))
    page = report(tmp_path / "s")
    # Ten points above Adam's on each run, where seeds scatter by one.
    assert "PPO, 2 tasks, 4 seeds: KOVA &lt;/script&gt; is ahead, interquartile mean 0." in page
    assert "and a run of KOVA &lt;/script&gt; earns more with probability 1.00 (" in page
    assert "not separated" not in page
    assert page.index("is ahead") < page.index('id="answer"') < page.index('id="return"')
    arms = [{trace["meta"] for trace in charts(page)[f"answer-{number}"]["data"]} for number in (0, 1)]
    # The reference has no probability to beat itself.
    assert arms == [{"Adam", "KOVA </script>"}, {"KOVA </script>"}]


THREE = {"Adam": {"critic": "adam"}, "K1": {}, "K2": {"set": {"critic.epochs": 2}}}


def answered(folder: Path, seeds: int, levels: dict[str, float], arms: dict | None = None) -> str:
    """Return the sentence about arms whose runs end at given levels, where seeds scatter by about 0.3."""
    planned = sweep(seeds, arms=arms or THREE)
    for run in planned.runs():
        write_run(folder, run, level=levels[run.arm])
    (folder / "sweep.yaml").write_text(planned.to_yaml())
    (sentence,) = sentences(Comparison(collect(folder).finished))
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    ("seeds", "levels", "says", "not_said"),
    [
        (5, {"Adam": 0.0, "K1": 10.0, "K2": 30.0}, ["K2 is ahead of every other arm", "; Adam has 0."], "separated"),
        # Ahead of the reference, and level with the second.
        (5, {"Adam": 0.0, "K1": 20.0, "K2": 20.05}, ["K2 has the largest", "not separated from K1; Adam has"], "ahead"),
        # All level: the seeds are the same, so that a difference of nothing decides who is first.
        (
            5,
            {"Adam": 0.0, "K1": 0.01, "K2": 0.02},
            ["not separated from K1 and Adam", "1.00): not separated."],
            "ahead",
        ),
        # Three wins of three are not enough.
        (3, {"Adam": 0.0, "K1": 10.0, "K2": 30.0}, ["K2 has the largest", "not separated from K1"], "ahead"),
        (1, {"Adam": 0.0, "K1": 10.0, "K2": 30.0}, ["1 seed: K2", "1.00; too few runs for an interval"], "ahead"),
        (
            5,
            {"Adam": 30.0, "K1": 10.0, "K2": 0.0},
            ["Adam is ahead of every other arm", "it is the reference"],
            "separ",
        ),
        (5, {"Adam": 20.05, "K1": 20.0, "K2": 0.0}, ["Adam has the largest", "not separated from K1; it is"], "ahead"),
    ],
)
def test_no_arm_is_ahead_that_is_not_separated_from_every_other(seeds, levels, says, not_said, tmp_path):
    sentence = answered(tmp_path / "s", seeds, levels)
    for words in says:
        assert words in sentence
    assert not_said not in sentence


def test_arms_that_earned_the_same_are_not_ranked(tmp_path):
    planned = sweep(2, arms={"Adam": {"critic": "adam"}, "KOVA": {}})
    for run in planned.runs():
        write_run(tmp_path / "s", run)
    (said,) = sentences(Comparison(collect(tmp_path / "s").finished))
    assert said.startswith("PPO, 1 task, 2 seeds: all arms have the same interquartile mean, 0.50")


def test_of_many_arms_that_are_level_some_are_named(tmp_path):
    arms = {"Adam": {"critic": "adam"}, **{f"K{n}": {"set": {"critic.epochs": n}} for n in range(1, 7)}}
    sentence = answered(tmp_path / "s", 3, {arm: place / 100 for place, arm in enumerate(arms)}, arms)
    assert "K6 has the largest interquartile mean" in sentence
    assert "not separated from K5, K4, K3 and 3 others;" in sentence


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        # The reference is on a task of its own.
        ({("Adam", "Task0-v0"), ("K1", "Task1-v0"), ("K2", "Task1-v0")}, "Adam, the reference, has no runs here"),
        # The best arm is on another task.
        ({("K2", "Task0-v0"), ("Adam", "Task1-v0")}, "they have no task in common"),
    ],
)
def test_an_answer_without_the_reference_says_so(tmp_path, failed, said):
    planned = sweep(5, environments=2, arms=THREE)
    levels = {"Adam": 0.0, "K1": 10.0, "K2": 20.0}
    for run in planned.runs():
        state = "failed" if (run.arm, run.config.env) in failed else "finished"
        write_run(tmp_path / "s", run, state=state, level=levels[run.arm])
    (tmp_path / "s" / "sweep.yaml").write_text(planned.to_yaml())
    page = report(tmp_path / "s")
    assert "5 seeds: K2 " in page
    assert said in page


def test_the_answer_about_one_arm_is_what_it_earned(tmp_path):
    write_sweep(tmp_path / "s", sweep(4, environments=2, arms={"KOVA": {}}))
    page = report(tmp_path / "s")
    finals = Comparison(collect(tmp_path / "s").finished).tasks[0].arms["KOVA"].final
    found = re.search(r"KOVA earned ([\d.]+) \(([\d.]+) to ([\d.]+)\) on Task0-v0 and [\d. to()]+ on Task1-v0 in", page)
    estimate, low, high = map(float, found.groups())
    # No end of the interval is where no run has been.
    assert round(finals.min(), 1) <= low <= estimate <= high <= round(finals.max(), 1)
    assert "PPO, 2 tasks, 4 seeds: KOVA earned" in page
    assert "There is no other arm to compare with." in page
    for words in ('id="answer"', 'id="pairs"', "P(earns", "P(better"):
        assert words not in page


def test_one_run_is_said_to_have_no_interval(tmp_path):
    write_run(tmp_path / "one", sweep(1).runs()[0])
    (sentence,) = sentences(Comparison(collect(tmp_path / "one").finished))
    assert re.match(
        r"PPO, 1 task, 1 seed: adam earned [\d.]+ on Task0-v0 in the last 100 episodes \(one seed has no interval",
        sentence,
    )


def test_a_curve_of_one_point_is_a_marker_with_its_deviation(tmp_path):
    for path in write_sweep(tmp_path / "s", sweep(2)):
        rows = (path / "monitor.csv").read_text().splitlines()
        (path / "monitor.csv").write_text("\n".join([*rows[:2], rows[-1]]) + "\n")
    page = report(tmp_path / "s", "--figures", str(tmp_path / "figures"))
    for trace in charts(page)["return-0"]["data"]:
        assert len(trace["x"]) == 1
        assert trace["mode"] == "markers"
        assert trace["error_y"]["array"][0] > 0.0
    # A line of several points has none.
    assert {trace["mode"] for trace in charts(page)["entropy-0"]["data"]} == {"lines"}


def test_bands_end_where_no_run_has_been(tmp_path):
    write_sweep(tmp_path / "s", sweep(2))
    comparison = Comparison(collect(tmp_path / "s").finished)
    (task,) = comparison.tasks
    # Both runs earn the most that there is at the end, or nearly.
    task.arms["Adam"].curves["return"][:, -1] = [500.0, 499.0]
    mean, low, high = task.band("Adam", "return")
    assert high[-1] == 500.0
    assert mean[-1] == 499.5
    assert low[-1] == pytest.approx(499.5 - 0.5**0.5)


def test_a_column_has_one_precision(tmp_path):
    planned = sweep(3, arms=THREE)
    for run in planned.runs():
        write_run(tmp_path / "s", run, level={"Adam": 0.0, "K1": -45.0, "K2": 5000.0}[run.arm])
    (tmp_path / "s" / "sweep.yaml").write_text(planned.to_yaml())
    page = report(tmp_path / "s")
    table = page[page.index('<section id="statistics"') : page.index('<section id="difference-return"')]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t", row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
    assert [row[0] for row in rows] == ["", "Adam", "K1", "K2"]
    for column in list(zip(*rows, strict=True))[1:]:
        places = {len(number.partition(".")[2]) for cell in column[1:] for number in re.findall(r"\d[\d.]*", cell)}
        assert len(places) <= 1, column
    scores = [row[rows[0].index("PPO Task0-v0")] for row in rows[1:]]
    assert all(re.fullmatch(r"-?[\d,]+ ± \d+", score) for score in scores), scores


def test_arms_have_colours_of_their_own():
    arms = [f"arm {number}" for number in range(80)]
    palette = Palette(arms)
    assert len({palette.colour(arm) for arm in arms[:20]}) == 20
    assert len({(palette.colour(arm), palette.dash(arm)) for arm in arms}) == 80


def test_the_page_is_small_and_its_library_is_the_one_that_it_says(tmp_path):
    write_run(tmp_path / "one", sweep(1).runs()[0])
    # The full plotly.js alone has 4.8 MB.
    assert len(report(tmp_path / "one").encode()) < 1_700_000
    vendor = resources.files("kova.experiments.report") / "vendor"
    digest = hashlib.sha256((vendor / "plotly-cartesian.min.js").read_bytes()).hexdigest()
    assert digest in (vendor / "README.md").read_text()
    assert "MIT License" in (vendor / "plotly-LICENSE").read_text()


def test_figures_and_the_table_of_curves(tmp_path):
    write_sweep(tmp_path / "s", sweep(2))
    figures, data = tmp_path / "figures", tmp_path / "curves.csv"
    report(tmp_path / "s", "--figures", str(figures), "--data", str(data))
    names = {path.name for path in figures.iterdir()}
    kinds = ("intervals", "fig3", "fig4")
    assert names == {f"{kind}-ppo.{suffix}" for kind in kinds for suffix in ("png", "svg")}
    for kind in ("fig3", "fig4"):
        drawn = (figures / f"{kind}-ppo.svg").read_text()
        assert "<text" in drawn
        for words in ("PPO Task0-v0", "frames", "mean episode reward", "Adam", "KOVA"):
            assert words in drawn
    rows = list(csv.DictReader(data.read_text().splitlines()))
    assert len(rows) == 2 * 2 * 100
    assert {row["arm"] for row in rows} == {"Adam", "KOVA </script>"}
    assert float(rows[99]["return"]) == pytest.approx(52.5, abs=1.5)


def test_the_page_needs_no_network(tmp_path):
    write_run(tmp_path / "one", sweep(1).runs()[0])
    page = report(tmp_path / "one")
    head = page[: page.index("<script>")]
    assert "http" not in head
    assert "<script src" not in page
    assert "<link" not in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is not a directory"),
        ([".", "-o", "file/report.html"], "choose another -o"),
        ([".", "-o", "folder"], "choose another -o"),
        ([".", "-o", "."], "choose another -o"),
        ([".", "--figures", "file"], "choose another --figures"),
        ([".", "--data", "folder"], "choose another --data"),
    ],
)
def test_a_wrong_call_is_one_line(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    result = runner.invoke(app, ["report", *words])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(1280, "light", "rgb(255, 255, 255)"), (390, "dark", "rgb(20, 23, 26)")]
)
def test_the_page_in_a_browser(width, scheme, paper, tmp_path):
    from playwright.sync_api import sync_playwright

    arms = {"Adam": {"critic": "adam"}, **{f"KOVA {n}": {"set": {"critic.epochs": n}} for n in range(1, 10)}}
    write_sweep(tmp_path / "s", sweep(3, environments=2, arms=arms))
    report(tmp_path / "s")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    quiet += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector("body[data-ready=true]")
        lines = "#return .chart .scatterlayer .js-line"
        # A curve and the outline of its band for each arm on each task.
        assert page.locator(lines).count() == 2 * 2 * 10
        button = page.get_by_role("button", name="KOVA 1")
        button.click()
        assert page.locator(lines).count() == 2 * 2 * 9
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert page.locator(lines).count() == 2 * 2 * 10
        # Nothing sticks out of the page, and the first screen has the answer and where its chart begins.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("scrollTo(0, 0)")
        answer, chart = (page.locator(place).first.bounding_box() for place in ("p.answer", "#answer .chart"))
        assert answer["y"] + answer["height"] < 800
        assert chart["y"] < 600
        # A wide table is swiped, and what its rows are about stays in sight.
        cell = page.locator("#statistics td:first-child").first
        before = cell.bounding_box()["x"]
        page.locator("#statistics .wide").evaluate("place => { place.scrollLeft = 150 }")
        scrolled = page.locator("#statistics .wide").evaluate("place => place.scrollLeft")
        assert width > 640 or (scrolled == 150 and cell.bounding_box()["x"] == before)
        # Letters of page and charts are light where the paper is dark; on white they are dark again, and so in print.
        colours = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.xtick text').style.fill]"
        ink = {"light": "rgb(26, 26, 26)", "dark": "rgb(230, 230, 230)"}
        assert page.evaluate(colours) == [paper, ink[scheme]]
        page.emulate_media(color_scheme="light")
        page.wait_for_function(f"document.querySelector('.xtick text').style.fill === '{ink['light']}'")
        page.emulate_media(color_scheme="dark", media="print")
        assert page.evaluate(colours)[0] == "rgb(255, 255, 255)"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function(f"document.querySelector('.xtick text').style.fill === '{ink['light']}'")
        browser.close()
    assert complaints == []


def test_arms_of_two_algorithms_are_compared_on_one_task(tmp_path):
    plain = {"A2C": {"critic": "upstream"}, "A2C KOVA": {}}
    first = Sweep("alone", ["a2c"], ["Ns/Task0-v0", "Task1-v0"], plain, seeds=3, set={"steps": 1000})
    mixed = replace(first, name="mixed", arms={**plain, "PPO": {"algorithm": "ppo", "critic": "upstream"}})
    # The arm was added later, in the same place.
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(first.to_yaml())
    (folder / "sweep-2.yaml").write_text(mixed.to_yaml())
    levels = {"A2C": 0.0, "A2C KOVA": 500.0, "PPO": 250.0}
    for run in mixed.runs():
        failed = run.arm == "A2C" and run.config.env == "Task1-v0"
        write_run(folder, run, state="failed" if failed else "finished", level=levels[run.arm])
    comparison = Comparison(collect(folder).finished)
    assert [(task.name, task.reference, list(task.arms)) for task in comparison.tasks] == [
        ("A2C Ns/Task0-v0", "A2C", ["A2C", "A2C KOVA", "PPO"]),
        ("A2C Task1-v0", "A2C", ["A2C KOVA", "PPO"]),
    ]
    pairs = comparison.pairs()
    assert [pairs["PPO"][other].estimate for other in ("A2C", "A2C KOVA")] == [1.0, 0.0]
    assert pairs["A2C KOVA"]["PPO"].estimate == 1.0
    assert "Every arm against every other" in report(folder, "--figures", str(tmp_path / "figures"))
    assert (tmp_path / "figures" / "fig3-a2c.png").exists()
