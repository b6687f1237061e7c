"""Per-sample derivatives: the layer rule, torch.func and autograd agree, or the caller is told."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases import INPUTS, batch, mlp, paper_filter
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import kova
from kova.linearisation.jacobian import DenseColumns, Jacobian, LinearColumns
from kova.linearisation.observation import Observation


def by_autograd(observation: Observation, u) -> Tensor:
    """∂h/∂θ one sample at a time by plain autograd on the whole batch."""
    module, function = observation.module, observation.function
    values = (module(u) if function is None else function(module, u)).reshape(-1)
    parameters = list(observation.parameters.values())
    rows = []
    for value in values:
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(found, parameters, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs]))
    return torch.stack(rows).detach()


def linearised(module: nn.Module, u, function=None) -> tuple[Jacobian, Tensor]:
    observation = Observation(module, function)
    size = len(u if isinstance(u, Tensor) else next(iter(u.values() if isinstance(u, dict) else u)))
    jacobian = observation.linearise(u, size, torch.float64)
    expected = by_autograd(observation, u)
    torch.testing.assert_close(jacobian.transposed(), expected.T, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(jacobian.gram(torch.float64), expected @ expected.T, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(jacobian.squared_norms(), expected.square().sum(1), rtol=1e-9, atol=1e-12)
    weights = torch.linspace(-1, 1, size, dtype=torch.float64)
    torch.testing.assert_close(jacobian.transposed_product(weights), expected.T @ weights, rtol=1e-9, atol=1e-12)
    # The second batch of a kind is not checked against autograd any more: it must be right by itself.
    again = observation.linearise(u, size, torch.float64)
    assert torch.equal(again.transposed(), jacobian.transposed())
    return jacobian, expected


def kinds(jacobian: Jacobian) -> list[type]:
    return [type(block) for block in jacobian.blocks]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    samples=st.integers(1, 9),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_stack_of_linear_layers_factorises(sizes, samples, bias, seed):
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(sizes, [*sizes[1:], 1], strict=True):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), nn.Tanh()]
    jacobian, _ = linearised(nn.Sequential(*layers).double(), torch.randn(samples, sizes[0]).double())
    assert set(kinds(jacobian)) == {LinearColumns}


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias", "4.bias"])
def test_frozen_parameters_have_no_columns(frozen):
    critic = mlp()
    critic.get_parameter(frozen).requires_grad_(False)
    jacobian, expected = linearised(critic, batch()[0])
    assert set(kinds(jacobian)) == {LinearColumns}
    assert jacobian.dim == expected.shape[1] == sum(p.numel() for p in critic.parameters() if p.requires_grad)


class Tied(nn.Module):
    """Two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = (nn.Linear(INPUTS, INPUTS) for _ in range(2)), None, nn.Linear(INPUTS, 1)
        self.first, self.second = self.first
        self.second.weight = self.first.weight

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.second(self.first(u).tanh()).tanh())


class Twice(nn.Module):
    """One layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(self.layer(u).tanh()).tanh())


class Bypassed(nn.Module):
    """A layer's weight is also used behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u).tanh() + nn.functional.linear(u, self.layer.weight.square()))


class InPlace(nn.Module):
    """The activation overwrites the layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(INPUTS, 4), nn.Linear(4, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u).tanh_().mul(2))


class Sequence(nn.Module):
    """A Linear layer on (N, T, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u[:, :, None]).tanh().mean(1))


class Doubled(nn.Linear):
    """A subclass that is not what nn.Linear is."""

    def forward(self, u: Tensor) -> Tensor:
        return 2 * super().forward(u)


class Residual(nn.Module):
    """Keyword call, skip connection, a bare parameter, a normalisation, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layer, self.norm = nn.Linear(INPUTS, INPUTS), nn.LayerNorm(INPUTS)
        self.spare, self.out = nn.Linear(2, 2), nn.Linear(INPUTS, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.scale * self.out(u + self.norm(self.layer(input=u)).tanh())


class Spectral(nn.Module):
    """A parametrised layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, 4))
        self.out = nn.Linear(4, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u).tanh())


class OldWeightNorm(nn.Module):
    """A layer whose weight is recomputed by a hook."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.layer = nn.utils.weight_norm(nn.Linear(INPUTS, 4))
        self.out = nn.Linear(4, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u).tanh())


class Agents(nn.Module):
    """A layer sees (N · agents, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.layer(u.reshape(-1, 1)).tanh().reshape(len(u), -1, 4).sum(1))


class Recurrent(nn.Module):
    """vmap cannot follow a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(self.cell(u[:, :, None])[0][:, -1])


@pytest.mark.parametrize(
    "critic", [Tied, Twice, Bypassed, InPlace, Sequence, Residual, Spectral, OldWeightNorm, Agents, Recurrent]
)
def test_what_does_not_factorise_is_still_right(critic):
    torch.manual_seed(0)
    jacobian, _ = linearised(critic().double(), batch()[0])
    assert DenseColumns in kinds(jacobian)


def test_a_subclass_of_linear_is_not_taken_for_one():
    jacobian, _ = linearised(Doubled(INPUTS, 1).double(), batch()[0])
    assert kinds(jacobian) == [DenseColumns, DenseColumns]


@pytest.mark.parametrize("trained", ["all", "weight", "bias"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv2d(2, 3, 2), (2, 4, 5)),
        (lambda: nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 2), dilation=(2, 1)), (2, 4, 5)),
        (lambda: nn.LayerNorm(4), (4,)),
        (lambda: nn.LayerNorm((3, 4), eps=1e-3), (2, 3, 4)),
        (lambda: nn.Linear(4, 3), (2, 5, 4)),
        (lambda: nn.Linear(4, 3), (4,)),
    ],
    ids=["conv", "conv with options", "norm", "norm of two dimensions", "linear on a sequence", "linear"],
)
def test_a_layer_by_its_rule(layer, shape, trained):
    torch.manual_seed(0)
    critic = nn.Sequential(layer(), nn.Tanh(), nn.Flatten(), nn.LazyLinear(1))
    critic(torch.zeros(2, *shape))
    for name, parameter in critic[0].named_parameters():
        parameter.requires_grad_(trained in ("all", name))
    critic = critic.double()
    observation = Observation(critic, None)
    u = torch.randn(5, *shape).double()
    assert observation._layers[0] is critic[0]
    linearised(critic, u)
    observation.linearise(u, 5, torch.float64)
    (plan,) = observation._plans.values()
    assert plan.layers[0] is critic[0]


def test_an_embedding_by_its_rule():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 1)

        def forward(self, u: Tensor) -> Tensor:
            return self.out(self.embed(u).sum(1).tanh())

    torch.manual_seed(0)
    linearised(Words().double(), torch.tensor([[0, 1, 1], [2, 3, 0], [5, 5, 5], [4, 0, 0]]))


def test_a_layer_called_twice_by_its_rule():
    torch.manual_seed(0)
    critic = Twice().double()
    observation = Observation(critic, None)
    observation.linearise(batch()[0], 8, torch.float64)
    (plan,) = observation._plans.values()
    assert set(plan.layers) == {critic.layer, critic.out}


def test_a_convolution_with_groups_and_an_inplace_activation():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Conv2d(2, 4, 2, groups=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 1))
    jacobian, _ = linearised(critic.double(), torch.randn(5, 2, 3, 3).double())
    assert kinds(jacobian) == [DenseColumns, DenseColumns, LinearColumns]


def test_inputs_may_be_nested():
    class Merge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(4, 2), nn.Linear(INPUTS + 2, 1)

        def forward(self, inputs):
            return self.out(torch.cat([inputs["s"][0], self.embed(inputs["a"])], 1))

    torch.manual_seed(0)
    critic = Merge().double()
    u = {"s": (batch(6)[0],), "a": torch.tensor([0, 1, 2, 3, 0, 1])}
    observation = Observation(critic, None)
    jacobian = observation.linearise(u, 6, torch.float64)
    torch.testing.assert_close(jacobian.transposed(), by_autograd(observation, u).T)


def test_torch_func_works_in_chunks(monkeypatch):
    torch.manual_seed(0)
    critic = Twice().double()
    u, _ = batch(7)
    whole, _ = linearised(critic, u)
    monkeypatch.setattr("kova.linearisation.observation.CHUNK_NUMBERS", 40)
    chunked, _ = linearised(critic, u)
    torch.testing.assert_close(whole.transposed(), chunked.transposed())


class Centred(nn.Module):
    """Every sample's value depends on all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 1)

    def forward(self, u: Tensor) -> Tensor:
        value = self.layer(u)
        return value - 0.5 * value.mean()


def test_a_batch_norm_in_training_is_refused_before_it_learns():
    critic = nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = paper_filter(critic)
    before = critic[1].running_mean.clone()
    with pytest.raises(ValueError, match=r"critic\.eval\(\)"):
        optimizer.step(*batch())
    assert torch.equal(critic[1].running_mean, before)
    critic.eval()
    optimizer.step(*batch())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_samples_that_depend_on_each_other_are_refused(dtype):
    optimizer = paper_filter(Centred().to(dtype))
    u, y = batch()
    # One sample cannot show it; the first larger batch must.
    optimizer.predict(u[:1].to(dtype))
    with pytest.raises(ValueError, match="other inputs of its batch"):
        optimizer.step(u.to(dtype), y)


def test_a_constant_critic_is_refused():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3))

        def forward(self, u: Tensor) -> Tensor:
            return u[:, 0]

    with pytest.raises(ValueError, match="does not depend on any parameter"):
        paper_filter(Constant()).step(*batch())


def test_no_hook_is_left_behind_even_by_an_error():
    critic = mlp()
    optimizer = paper_filter(critic)
    optimizer.step(*batch())
    with pytest.raises(ValueError, match="inputs"):
        optimizer.step(torch.randn(8, 7).double(), batch()[1])
    assert all(not module._forward_hooks for module in critic.modules())


def test_a_parameter_that_was_frozen_later_is_not_moved():
    critic = mlp()
    optimizer = paper_filter(critic)
    optimizer.step(*batch())
    critic[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'0\.weight' .* frozen"):
        optimizer.step(*batch())


def test_autocast_and_inference_mode_do_not_reach_the_filter():
    plain, cast, inferred = (paper_filter(mlp(dtype=torch.float32), evolution=kova.FadingMemory(0.1)) for _ in range(3))
    for step in range(12):
        u, y = batch(24, seed=step, dtype=torch.float32)
        plain.step(u, y)
        with torch.autocast("cpu", torch.bfloat16):
            cast.step(u, y)
            cast.predict(u)
        with torch.inference_mode():
            inferred.step(u.clone(), y.clone())
            inferred.predict(u.clone())
    for other in (cast, inferred):
        assert torch.equal(plain.covariance.dense(), other.covariance.dense())
    inferred.step(u, y)


def test_memoryless_never_forms_the_jacobian(monkeypatch):
    def refuse(self: Jacobian, out: Tensor | None = None) -> Tensor:
        raise AssertionError("J was formed")

    monkeypatch.setattr(Jacobian, "transposed", refuse)
    monkeypatch.setattr(LinearColumns, "write_transposed", refuse)
    optimizer = paper_filter(mlp(), evolution=kova.Memoryless(0.1))
    optimizer.step(*batch())
    optimizer.predict(batch()[0])
    with pytest.raises(AssertionError, match="J was formed"):
        paper_filter(mlp(), evolution=kova.Static()).step(*batch())
