"""A filter that is saved, copied or pickled in the middle of deferred work goes on bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import EVOLUTION_IDS, EVOLUTIONS, batch, mlp, paper_filter, same_bits, snapshot
from torch import nn

import kova
from kova.checkpoint import KEYS

EVOLVING = pytest.mark.parametrize("evolution", [evolution for evolution, _ in EVOLUTIONS], ids=EVOLUTION_IDS)


def schedule(step: int) -> float:
    return 1.0 / (1.0 + 0.01 * step)


def make(evolution: kova.Evolution, critic: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> kova.KOVA:
    critic = mlp(dtype=torch.float32) if critic is None else critic
    return paper_filter(critic, evolution=evolution, step_size=schedule, dtype=dtype)


def advance(optimizer: kova.KOVA, start: int, stop: int) -> list[float]:
    return [float(optimizer.step(*batch(24, seed=step, dtype=torch.float32)).nis) for step in range(start, stop)]


def saved_and_loaded(optimizer: kova.KOVA) -> kova.KOVA:
    """Through a file, into a critic and a filter built anew."""
    file = io.BytesIO()
    torch.save({"critic": optimizer.observation.module.state_dict(), "kova": optimizer.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    critic = mlp(dtype=torch.float32, seed=99)
    critic.load_state_dict(checkpoint["critic"])
    restored = make(optimizer.evolution, critic, optimizer.dtype)
    restored.load_state_dict(checkpoint["kova"])
    return restored


COPIES: dict[str, Callable[[kova.KOVA], kova.KOVA]] = {
    "save and load": saved_and_loaded,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}


@EVOLVING
@pytest.mark.parametrize("way", COPIES)
def test_the_copy_continues_bit_for_bit(evolution, way):
    original = make(evolution)
    advance(original, 0, 17)
    if evolution.keeps_memory:
        assert len(original.state_dict()["covariance"]["parts"][0]["rows"]) > 0, (
            "nothing is deferred: the test proves too little"
        )
    duplicate = COPIES[way](original)
    assert same_bits(snapshot(original), snapshot(duplicate))
    assert advance(original, 17, 60) == advance(duplicate, 17, 60)
    assert same_bits(snapshot(original), snapshot(duplicate))
    u, _ = batch(9, dtype=torch.float32)
    assert torch.equal(original.predict(u).stddev, duplicate.predict(u).stddev)
    assert original.steps == duplicate.steps == 60


@EVOLVING
def test_a_copy_shares_nothing_with_the_original(evolution):
    original = make(evolution)
    advance(original, 0, 5)
    duplicate = copy.deepcopy(original)
    before = snapshot(duplicate)
    advance(original, 5, 40)
    assert same_bits(before, snapshot(duplicate))
    assert not same_bits(before, snapshot(original))


def test_deepcopy_of_critic_and_optimizer_keeps_them_together():
    critic = mlp(dtype=torch.float32)
    pair = copy.deepcopy({"critic": critic, "optimizer": make(kova.Static(), critic)})
    assert pair["optimizer"].observation.module is pair["critic"]
    held = pair["optimizer"].param_groups[0]["params"]
    assert all(mine is theirs for mine, theirs in zip(held, pair["critic"].parameters(), strict=True))
    before = [parameter.clone() for parameter in critic.parameters()]
    advance(pair["optimizer"], 0, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))


def test_a_snapshot_is_not_moved_by_later_steps():
    # A peer's state_dict shares its tensors, so a run that goes on silently rewrites the checkpoint.
    optimizer = make(kova.FadingMemory(0.1))
    advance(optimizer, 0, 17)
    state = optimizer.state_dict()
    wanted = copy.deepcopy(state["covariance"]["parts"][0])
    advance(optimizer, 17, 60)
    for key in ("rows", "signs", "variances"):
        assert torch.equal(state["covariance"]["parts"][0][key], wanted[key])
    assert all(map(torch.equal, state["covariance"]["parts"][0]["panels"], wanted["panels"]))
    assert state["steps"] == 17


def test_a_restart_does_not_begin_with_the_prior():
    # A peer caches its state in __init__; load_state_dict replaces it, and a restart silently uses P = I.
    optimizer = make(kova.Static())
    advance(optimizer, 0, 30)
    restored = saved_and_loaded(optimizer)
    prior = torch.ones(restored.covariance.dim)
    assert not torch.allclose(restored.covariance.diagonal(), prior)
    step_of = [o.step(*batch(24, seed=77, dtype=torch.float32)).update_norm for o in (optimizer, restored)]
    assert torch.equal(*step_of)


def test_a_wide_covariance_is_not_narrowed_by_loading():
    # torch.optim casts loaded state to the parameter's dtype.
    optimizer = make(kova.FadingMemory(0.1), dtype=torch.float64)
    advance(optimizer, 0, 17)
    restored = saved_and_loaded(optimizer)
    assert restored.covariance.dense().dtype == torch.float64
    assert torch.equal(restored.covariance.dense(), optimizer.covariance.dense())


def test_loading_goes_to_the_state_a_failed_load_would_have_left():
    optimizer = make(kova.FadingMemory(0.1))
    advance(optimizer, 0, 17)
    broken = optimizer.state_dict()
    del broken["covariance"]["parts"][0]["panels"]
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="panels"):
        optimizer.load_state_dict(broken)
    assert same_bits(before, snapshot(optimizer))


def damaged(state: dict, where: str, value: object) -> dict:
    state = copy.deepcopy(state)
    target = state["covariance"]["parts"][0] if where in state["covariance"]["parts"][0] else state
    target[where] = value
    return state


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("rows", torch.zeros(2, 55)),
        ("rows", torch.zeros(300, 56)),
        ("rows", None),
        ("signs", torch.ones(3)),
        ("panels", []),
        ("panels", [torch.zeros(3, 3)]),
        ("panels", [torch.full((56, 56), torch.nan)]),
        ("variances", torch.ones(55)),
        ("variances", torch.full((56,), torch.nan)),
        ("scale", "x"),
        ("shift", -1.0),
        ("steps", "x"),
        ("covariance", {}),
        ("parameters", []),
    ],
)
def test_a_damaged_checkpoint_is_refused_whole(where, value):
    optimizer = make(kova.FadingMemory(0.1))
    advance(optimizer, 0, 17)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"checkpoint|state_dict"):
        optimizer.load_state_dict(damaged(optimizer.state_dict(), where, value))
    assert same_bits(before, snapshot(optimizer))
    for key in KEYS:
        partial = optimizer.state_dict()
        del partial[key]
        with pytest.raises(ValueError, match="state_dict"):
            optimizer.load_state_dict(partial)
    with pytest.raises(ValueError, match="state_dict"):
        optimizer.load_state_dict(None)


def test_a_checkpoint_of_another_prior_or_another_order_is_refused():
    saved = paper_filter(mlp(), prior_variance=4.0).state_dict()
    with pytest.raises(ValueError, match="prior_variance"):
        paper_filter(mlp()).load_state_dict(saved)

    class Pair(nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, nn.Linear(3, 1))

    state = paper_filter(Pair("ab")).state_dict()
    with pytest.raises(ValueError, match="critic"):
        paper_filter(Pair("ba")).load_state_dict(state)


def test_numpy_numbers_do_not_spoil_a_checkpoint():
    optimizer = paper_filter(
        mlp(),
        prior_variance=np.float64(1.5),
        evolution=kova.FadingMemory(np.float32(0.1), max_variance=np.float64(3.0)),
        noise=kova.BatchSize(np.float32(2.0)),
        step_size=np.float64(0.5),
    )
    for step in range(5):
        optimizer.step(*batch(24, seed=step), noise=np.float32(1.0) if step else None)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["steps"] == 5
    assert len(optimizer.sample(np.int64(3))["0.bias"]) == 3


def test_another_process_continues_the_same_run(tmp_path: Path):
    original = make(kova.DirectionalForgetting(0.1))
    advance(original, 0, 17)
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save({"critic": original.observation.module.state_dict(), "kova": original.state_dict()}, checkpoint)
    advance(original, 17, 30)
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch; torch.set_num_threads(1)
import kova
from cases import mlp
from test_checkpoint import advance, make
saved = torch.load({str(checkpoint)!r}, weights_only=True)
critic = mlp(dtype=torch.float32, seed=5)
critic.load_state_dict(saved["critic"])
optimizer = make(kova.DirectionalForgetting(0.1), critic)
optimizer.load_state_dict(saved["kova"])
advance(optimizer, 17, 30)
torch.save({{"critic": critic.state_dict(), "P": optimizer.covariance.dense()}}, {str(tmp_path / "end.pt")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    assert torch.equal(end["P"], original.covariance.dense())
    for name, value in original.observation.module.state_dict().items():
        assert torch.equal(end["critic"][name], value)


def test_errors_survive_a_process_boundary():
    error = kova.CovarianceTooLarge("too large", wanted=10, available=5)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.wanted, again.available) == ("too large", 10, 5)
