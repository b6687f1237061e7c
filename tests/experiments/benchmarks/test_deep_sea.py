import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("matplotlib")

from stable_baselines3.common.env_checker import check_env
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.benchmarks import deep_sea as deep_sea_benchmark
from kova.experiments.problems.deep_sea import ID, DeepSea

SEEDS = range(5)


def play(env: DeepSea, rights: list[bool]) -> tuple[float, list[np.ndarray], dict]:
    observation, info = env.reset()
    total, seen, done = 0.0, [observation], False
    for right in rights:
        assert not done
        observation, reward, done, truncated, info = env.step(np.int64(env.right() if right else 1 - env.right()))
        assert not truncated
        total += reward
        seen.append(observation)
    assert done
    return total, seen, info


def test_it_is_registered_with_a_depth():
    env = gymnasium.make(ID, depth=7, mapping_seed=3)
    assert env.unwrapped.depth == 7
    check_env(DeepSea(4))
    # Without an import, as the command line does it.
    assert gymnasium.make(f"kova.experiments.problems.deep_sea:{ID}").unwrapped.depth == 10


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_only_the_diagonal_finds_the_treasure(depth):
    env = DeepSea(depth, mapping_seed=5)
    for number in range(2**depth):
        rights = [bool(number >> bit & 1) for bit in range(depth)]
        total, _, info = play(env, rights)
        expected = float(all(rights)) - 0.01 * sum(rights) / depth
        assert total == pytest.approx(expected)
        assert info == {"is_success": all(rights)}


def test_cells_are_unit_vectors_and_the_floor_is_none():
    _, seen, _ = play(DeepSea(3), [True, False, False])
    assert [np.flatnonzero(cell).tolist() for cell in seen] == [[0], [4], [6], []]
    assert all(cell.sum() in (0.0, 1.0) for cell in seen)


def test_the_mapping_is_the_seeds_and_differs_between_cells():
    def mapping(seed: int) -> list[int]:
        env = DeepSea(12, seed)
        actions = []
        env.reset()
        for _ in range(12):
            actions.append(env.right())
            env.step(np.int64(env.right()))
            env._row %= 12
        return actions

    assert mapping(0) == mapping(0) != mapping(1)
    assert set(mapping(0)) == {0, 1}


def test_a_depth_below_one_is_refused():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        DeepSea(0)


@pytest.mark.parametrize("arm", ["Thompson, KOVA", "UCB, KOVA"])
def test_the_posterior_finds_a_shallow_treasure_and_keeps_it(arm):
    result = deep_sea_benchmark.run(arm, depth=5, seed=0, episodes=200)
    assert result.solved is not None
    assert result.first_treasure <= result.solved == result.episodes


def test_the_same_seed_gives_the_same_run():
    first, second = (deep_sea_benchmark.run("Thompson, KOVA", depth=3, seed=1, episodes=15) for _ in range(2))
    assert first.first_treasure is not None
    assert (first.first_treasure, first.treasures) == (second.first_treasure, second.treasures)


def test_the_benchmark_writes_numbers_and_a_figure_and_repeats_no_run(tmp_path: Path, monkeypatch):
    words = ["bench", "deep-sea", "--depth", "4", "--depth", "3", "--seeds", "1", "--episodes", "4"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "deep_sea.json").read_text())
    assert numbers["made_by"]["command"] == f"kova {' '.join(words)} --out {tmp_path}"
    # Four episodes solve nothing, so no arm is sent deeper.
    assert [(run["arm"], run["depth"], run["solved"]) for run in numbers["results"]] == [
        (arm, 3, None) for arm in deep_sea_benchmark.ARMS
    ]
    assert (tmp_path / "deep_sea.png").stat().st_size > 5_000
    assert "not solved" in result.output

    monkeypatch.setattr(deep_sea_benchmark, "run", None)
    again = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "deep_sea.json").read_text()) == numbers


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("{", [], "deep_sea.json cannot be read"),
        ('{"runs": []}', [], "deep_sea.json is not a record of kova bench deep-sea"),
        (
            '{"benchmark": "deep-sea", "results": [{"a": 1}]}',
            [],
            "deep_sea.json is not a record of kova bench deep-sea",
        ),
        ('{"benchmark": "deep-sea", "results": []}', ["--arm", "Thompson"], "did you mean 'Thompson, KOVA'?"),
    ],
)
def test_what_is_not_a_record_is_not_written_over(content, words, says, tmp_path: Path):
    (tmp_path / "deep_sea.json").write_text(content)
    result = CliRunner().invoke(app, ["bench", "deep-sea", "--out", str(tmp_path), *words])
    assert result.exit_code == 2
    assert says in result.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("deep_sea.json", content)]


@pytest.mark.slow
def test_thompson_solves_depth_ten_where_epsilon_greedy_with_adam_never_does():
    thompson = [deep_sea_benchmark.run("Thompson, KOVA", 10, seed, episodes=1000).solved for seed in SEEDS]
    adam = [deep_sea_benchmark.run("ε-greedy, Adam", 10, seed, episodes=1000).solved for seed in SEEDS]
    assert sum(solved is not None for solved in thompson) >= 4, thompson
    assert all(solved is None for solved in adam), adam
