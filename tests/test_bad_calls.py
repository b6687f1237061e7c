"""Every wrong call: one clear error of the right type, and an optimizer that is bit-identical to before."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cases import INPUTS, batch, mlp, paper_filter, same_bits, snapshot
from torch import Tensor, nn

import kova

U, Y = batch(8)
NAN, INF = math.nan, math.inf


def spoiled(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[3] = value
    return tensor


def covariance_matrix(**changes: float) -> Tensor:
    matrix = torch.eye(8, dtype=torch.float64) + 0.1
    for place, value in changes.items():
        row, column = place[1:].split("_")
        matrix[int(row), int(column)] = value
    return matrix


#: name -> (call on a running optimizer, error type, what the message must name)
STEPS: dict[str, tuple[Callable[[kova.KOVA], object], type[Exception], str]] = {
    "inputs of the wrong width": (lambda o: o.step(U[:, :2], Y), ValueError, "inputs"),
    "inputs 0-dimensional": (lambda o: o.step(U[0, 0], Y), ValueError, "inputs"),
    "inputs empty": (lambda o: o.step(U[:0], Y[:0]), ValueError, "inputs"),
    "inputs empty tuple": (lambda o: o.step((), Y), ValueError, "inputs"),
    "inputs ragged": (lambda o: o.step((U, U[:5]), Y), ValueError, r"inputs\[1\]"),
    "inputs not tensors": (lambda o: o.step(U.tolist(), Y), TypeError, "inputs"),
    "inputs dict not tensors": (lambda o: o.step({"s": 1.0}, Y), TypeError, r"inputs\['s'\]"),
    "inputs nan": (lambda o: o.step(spoiled(U, NAN), Y), ValueError, "inputs has 1 non-finite"),
    "inputs inf": (lambda o: o.step(spoiled(U, -INF), Y), ValueError, "inputs has 1 non-finite"),
    "inputs of another dtype": (lambda o: o.step(U.float(), Y), ValueError, "float32"),
    "inputs of an integer dtype": (lambda o: o.step(U.long(), Y), ValueError, "int64"),
    "inputs on another device": (lambda o: o.step(U.to("meta"), Y), ValueError, "inputs is on meta"),
    "targets too few": (lambda o: o.step(U, Y[:7]), ValueError, "targets has 7 entries for a batch of 8"),
    "targets too many": (lambda o: o.step(U[:7], Y), ValueError, "targets has 8 entries for a batch of 7"),
    "targets two columns": (lambda o: o.step(U, torch.stack([Y, Y], 1)), ValueError, r"targets .* \(8, 2\)"),
    "targets a row": (lambda o: o.step(U, Y[None]), ValueError, r"targets .* \(1, 8\)"),
    "targets a scalar": (lambda o: o.step(U[:1], Y[0]), ValueError, r"targets .* \(\)"),
    "targets empty": (lambda o: o.step(U, Y[:0]), ValueError, "targets is empty"),
    "targets nan": (lambda o: o.step(U, spoiled(Y, NAN)), ValueError, "targets has 1 non-finite"),
    "targets inf": (lambda o: o.step(U, spoiled(Y, INF)), ValueError, "targets has 1 non-finite"),
    "targets integer": (lambda o: o.step(U, Y.long()), ValueError, "targets .*int64"),
    "targets boolean": (lambda o: o.step(U, Y > 0), ValueError, "targets .*bool"),
    "targets complex": (lambda o: o.step(U, Y.to(torch.complex128)), ValueError, "targets .*complex"),
    "targets a list": (lambda o: o.step(U, Y.tolist()), TypeError, "targets"),
    "targets missing": (lambda o: o.step(U, None), TypeError, "targets"),
    "targets on another device": (lambda o: o.step(U, Y.to("meta")), ValueError, "targets is on meta"),
    "ratio of the wrong length": (lambda o: o.step(U, Y, ratio=Y[:3]), ValueError, "ratio has 3 entries"),
    "ratio nan": (lambda o: o.step(U, Y, ratio=spoiled(Y.abs(), NAN)), ValueError, "ratio has 1 non-finite"),
    "ratio inf": (lambda o: o.step(U, Y, ratio=spoiled(Y.abs(), INF)), ValueError, "ratio has 1 non-finite"),
    "ratio negative": (lambda o: o.step(U, Y, ratio=-Y.abs()), ValueError, "ratio .* negative"),
    "ratio a number": (lambda o: o.step(U, Y, ratio=1.0), TypeError, "ratio"),
    "noise zero": (lambda o: o.step(U, Y, noise=0.0), ValueError, "noise"),
    "noise negative": (lambda o: o.step(U, Y, noise=-1.0), ValueError, "noise"),
    "noise nan": (lambda o: o.step(U, Y, noise=NAN), ValueError, "noise"),
    "noise inf": (lambda o: o.step(U, Y, noise=INF), ValueError, "noise"),
    "noise beyond float64": (lambda o: o.step(U, Y, noise=1e-310), ValueError, "noise"),
    "noise a string": (lambda o: o.step(U, Y, noise="loud"), TypeError, "noise"),
    "noise a boolean": (lambda o: o.step(U, Y, noise=True), TypeError, "noise"),
    "noise of integers": (lambda o: o.step(U, Y, noise=torch.ones(8, dtype=torch.long)), ValueError, "noise .*int64"),
    "noise of the wrong length": (lambda o: o.step(U, Y, noise=torch.ones(7).double()), ValueError, r"noise .* \(7,\)"),
    "noise vector negative": (lambda o: o.step(U, Y, noise=spoiled(Y.abs() + 1, -1)), ValueError, "noise .* 1 of 8"),
    "noise vector zero": (lambda o: o.step(U, Y, noise=spoiled(Y.abs() + 1, 0)), ValueError, "noise .* 1 of 8"),
    "noise vector nan": (lambda o: o.step(U, Y, noise=spoiled(Y.abs() + 1, NAN)), ValueError, "noise has 1 non-finite"),
    "noise matrix of the wrong shape": (lambda o: o.step(U, Y, noise=torch.eye(7).double()), ValueError, "noise"),
    "noise matrix asymmetric": (lambda o: o.step(U, Y, noise=covariance_matrix(_0_1=0.4)), ValueError, "asymmetric"),
    "noise matrix indefinite": (
        lambda o: o.step(U, Y, noise=covariance_matrix(_0_0=-3.0)),
        ValueError,
        "positive definite",
    ),
    "noise matrix singular": (lambda o: o.step(U, Y, noise=torch.ones(8, 8).double()), ValueError, "singular"),
    "noise matrix nan": (lambda o: o.step(U, Y, noise=covariance_matrix(_0_0=NAN)), ValueError, "noise has 1 non-fin"),
    "noise on another device": (lambda o: o.step(U, Y, noise=torch.ones(8, device="meta")), ValueError, "noise is on"),
    "predict nan": (lambda o: o.predict(spoiled(U, NAN)), ValueError, "inputs has 1 non-finite"),
    "predict of nothing": (lambda o: o.predict(U[:0]), ValueError, "inputs"),
    "predict with negative noise": (lambda o: o.predict(U, observation_noise=-1.0), ValueError, "observation_noise"),
    "predict with noise of the wrong length": (lambda o: o.predict(U, Y[:3]), ValueError, "observation_noise has 3"),
    "sample of nothing": (lambda o: o.sample(0), ValueError, "count"),
    "sample of half": (lambda o: o.sample(1.5), TypeError, "count"),
    "a state that is Adam's": (
        lambda o: o.load_state_dict({"state": {}, "param_groups": []}),
        ValueError,
        "state_dict",
    ),
    "a state of another critic": (
        lambda o: o.load_state_dict(paper_filter(mlp(hidden=6)).state_dict()),
        ValueError,
        "state_dict belongs to a critic",
    ),
    "a state of another structure": (
        lambda o: o.load_state_dict(paper_filter(mlp(), evolution=kova.Memoryless(0.1)).state_dict()),
        ValueError,
        "memoryless",
    ),
    "a state of another precision": (
        lambda o: o.load_state_dict(paper_filter(mlp(), dtype=torch.float32).state_dict()),
        ValueError,
        "float32",
    ),
    "a state of the future": (
        lambda o: o.load_state_dict({**o.state_dict(), "format": 99}),
        ValueError,
        "format 99",
    ),
}


@pytest.fixture
def running() -> kova.KOVA:
    """An optimizer with work deferred, whose next flush is one step away."""
    optimizer = paper_filter(mlp(), dtype=torch.float64)
    for step in range(31):
        optimizer.step(*batch(8, seed=step))
    return optimizer


@pytest.mark.parametrize("name", STEPS)
def test_a_bad_call_changes_nothing(running, name):
    call, kind, message = STEPS[name]
    before = snapshot(running)
    with pytest.raises(kind, match=message) as caught:
        call(running)
    assert caught.type is kind
    assert same_bits(before, snapshot(running))
    running.step(U, Y)
    assert running.steps == 32


CONSTRUCTIONS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a critic without parameters": (lambda: paper_filter(nn.Tanh()), ValueError, "no parameters"),
    "a frozen critic": (lambda: paper_filter(mlp().requires_grad_(False)), ValueError, "no parameters"),
    "a critic that is no module": (lambda: paper_filter(lambda u: u), TypeError, "critic"),
    "parameters instead of a critic": (lambda: paper_filter(mlp().parameters()), TypeError, "critic"),
    "an observation_fn that is none": (lambda: paper_filter(mlp(), observation_fn=3), TypeError, "observation_fn"),
    "an unknown structure": (lambda: paper_filter(mlp(), covariance="ful"), ValueError, "'ful'"),
    "a structure that is none": (lambda: paper_filter(mlp(), covariance=3), TypeError, "covariance"),
    "a structure of another size": (
        lambda: paper_filter(mlp(), covariance=kova.covariance.Full(kova.covariance.Layout.of(nn.Linear(2, 1)))),
        ValueError,
        "3 parameters",
    ),
    "a memoryless structure with memory": (
        lambda: paper_filter(mlp(), covariance="memoryless"),
        ValueError,
        "Memoryless",
    ),
    "prior_variance zero": (lambda: paper_filter(mlp(), prior_variance=0.0), ValueError, "prior_variance"),
    "prior_variance inf": (lambda: paper_filter(mlp(), prior_variance=INF), ValueError, "prior_variance"),
    "prior_variance a string": (lambda: paper_filter(mlp(), prior_variance="1"), TypeError, "prior_variance"),
    "step_size zero": (lambda: paper_filter(mlp(), step_size=0.0), ValueError, "step_size"),
    "step_size above one": (lambda: paper_filter(mlp(), step_size=1.5), ValueError, "step_size"),
    "step_size nan": (lambda: paper_filter(mlp(), step_size=NAN), ValueError, "step_size"),
    "step_size None": (lambda: paper_filter(mlp(), step_size=None), TypeError, "step_size"),
    "evolution a string": (lambda: paper_filter(mlp(), evolution="fading"), TypeError, "evolution"),
    "evolution a class": (lambda: paper_filter(mlp(), evolution=kova.Static), TypeError, "evolution"),
    "noise a number": (lambda: paper_filter(mlp(), noise=1.0), TypeError, "noise"),
    "dtype of half precision": (lambda: paper_filter(mlp(), dtype=torch.float16), ValueError, "dtype"),
    "a guard below the prior": (
        lambda: paper_filter(mlp(), prior_variance=5.0, evolution=kova.FadingMemory(0.1, max_variance=4.0)),
        ValueError,
        "max_variance must exceed prior_variance",
    ),
    "a prior beyond float32": (lambda: paper_filter(mlp(), prior_variance=1e39), ValueError, "prior_variance"),
    "a prior below float32": (lambda: paper_filter(mlp(), prior_variance=1e-60), ValueError, "prior_variance"),
    "a block without a size": (lambda: paper_filter(mlp(), covariance="block:"), ValueError, "block:SIZE"),
    "a rank of zero": (lambda: paper_filter(mlp(), covariance="low_rank:0"), ValueError, "'low_rank:0'"),
    "a last layer that is not there": (
        lambda: paper_filter(nn.Conv1d(1, 1, 1), covariance="last_layer"),
        ValueError,
        "last_layer",
    ),
    "a flop budget of nothing": (lambda: paper_filter(mlp(), flop_budget=0.0), ValueError, "flop_budget"),
    "eta one": (lambda: kova.FadingMemory(1.0), ValueError, "eta"),
    "eta above one": (lambda: kova.Memoryless(1.5), ValueError, "eta"),
    "eta negative": (lambda: kova.PriorRelaxation(-0.1), ValueError, "eta"),
    "eta nan": (lambda: kova.DirectionalForgetting(NAN), ValueError, "eta"),
    "eta a string": (lambda: kova.FadingMemory("0.1"), TypeError, "eta"),
    "max_variance negative": (lambda: kova.FadingMemory(0.1, max_variance=-1.0), ValueError, "max_variance"),
    "a random walk backwards": (lambda: kova.RandomWalk(-1e-3), ValueError, "variance"),
    "batch size scaled by zero": (lambda: kova.BatchSize(0.0), ValueError, "scale"),
    "constant noise of zero": (lambda: kova.ConstantNoise(0.0), ValueError, "variance"),
    "max-ratio turned round": (lambda: kova.MaxRatio(orientation="both"), ValueError, "orientation"),
    "max-ratio without eps": (lambda: kova.MaxRatio(eps=0.0), ValueError, "eps"),
    "a budget of nothing": (lambda: paper_filter(mlp(), memory_budget=0), ValueError, "memory_budget"),
}


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_a_bad_construction_says_why(name):
    call, kind, message = CONSTRUCTIONS[name]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert caught.type is kind


def test_max_ratio_says_that_it_needs_the_ratio():
    optimizer = paper_filter(mlp(), noise=kova.MaxRatio())
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="MaxRatio needs ratio"):
        optimizer.step(U, Y)
    assert same_bits(before, snapshot(optimizer))


@pytest.mark.parametrize("alpha", [0.0, 1.5, NAN, -1.0])
def test_a_schedule_that_leaves_the_range(alpha):
    optimizer = paper_filter(mlp(), step_size=lambda step: 1.0 if step < 3 else alpha)
    optimizer.step(U, Y)
    optimizer.step(U, Y)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="step_size"):
        optimizer.step(U, Y)
    assert same_bits(before, snapshot(optimizer))


def test_several_outputs_need_an_observation_fn():
    critic = nn.Linear(INPUTS, 3).double()
    optimizer = paper_filter(critic)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"\(8, 3\).*observation_fn"):
        optimizer.step(U, Y)
    assert same_bits(before, snapshot(optimizer))
    assert paper_filter(critic, observation_fn=lambda module, u: module(u)[:, 0]).step(U, Y).loss > 0


def test_a_critic_that_gives_no_tensor():
    class Pair(nn.Linear):
        def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(u), u

    optimizer = paper_filter(Pair(INPUTS, 1).double())
    with pytest.raises(ValueError, match="tuple"):
        optimizer.step(U, Y)


class Corner(nn.Module):
    """√ has an infinite derivative at 0 although its value is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(INPUTS, dtype=torch.float64))

    def forward(self, u: Tensor) -> Tensor:
        return (u @ self.weight).sqrt()


def test_a_derivative_that_is_not_finite():
    optimizer = paper_filter(Corner())
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="∂h/∂θ"):
        optimizer.step(torch.zeros_like(U), Y)
    assert same_bits(before, snapshot(optimizer))


@pytest.mark.parametrize("evolution", [kova.Static(), kova.Memoryless(0.1), kova.DirectionalForgetting(0.1)], ids=repr)
def test_a_derivative_that_is_not_finite_later(evolution):
    optimizer = paper_filter(Corner(), evolution=evolution)
    good, bad = torch.ones(4, INPUTS, dtype=torch.float64), torch.zeros(4, INPUTS, dtype=torch.float64)
    optimizer.step(good, Y[:4])
    before = snapshot(optimizer)
    for call in (lambda: optimizer.step(bad, Y[:4]), lambda: optimizer.predict(bad)):
        with pytest.raises(ValueError, match="∂h/∂θ is not finite for 4 of 4"):
            call()
    assert same_bits(before, snapshot(optimizer))


def test_a_critic_that_has_become_nan():
    critic = mlp()
    optimizer = paper_filter(critic)
    with torch.no_grad():
        critic[0].bias[0] = NAN
    with pytest.raises(ValueError, match=r"h\(u; θ\) has 8 non-finite"):
        optimizer.step(U, Y)


def test_a_covariance_that_does_not_fit():
    with pytest.raises(kova.CovarianceTooLarge, match="TB") as caught:
        paper_filter(nn.Linear(2_000_000, 1), covariance="full")
    assert isinstance(caught.value, MemoryError)
    assert caught.value.wanted > caught.value.available > 0
    assert "Memoryless" in str(caught.value)
    with pytest.raises(kova.CovarianceTooLarge, match=r'"full" of 56 .* kB.*covariance="neuron" needs .* would fit'):
        paper_filter(mlp(), covariance="full", memory_budget=10**4)
    assert paper_filter(mlp(), memory_budget=10**4).covariance.name == "neuron"
    assert paper_filter(nn.Linear(2_000_000, 1), evolution=kova.Memoryless(0.1)).covariance.nbytes == 0


def test_an_own_noise_model_is_checked_like_an_argument():
    class Broken(kova.Noise):
        def covariance(self, batch):
            return -torch.ones(batch.size, dtype=torch.float64)

    optimizer = paper_filter(mlp(), noise=Broken())
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="noise must be > 0, 8 of 8"):
        optimizer.step(U, Y)
    assert same_bits(before, snapshot(optimizer))


def test_an_own_evolution_that_returns_nothing():
    class Broken(kova.Evolution):
        def predict(self, P):
            P.scaled(2.0)

    with pytest.raises(TypeError, match=r"evolution\.predict must return"):
        paper_filter(mlp(), evolution=Broken())


def test_there_are_more_than_forty():
    assert len(STEPS) + len(CONSTRUCTIONS) >= 40
