"""Per-sample derivatives: the layer rule, torch.func and autograd agree, or the caller is told."""

from __future__ import annotations

import pytest
import torch
from cases import INPUTS, batch, mlp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import kova
from kova.jacobian import Jacobian, LinearBlock, RowsBlock
from kova.observation import Observation


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
    assert set(kinds(jacobian)) == {LinearBlock}


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias", "4.bias"])
def test_frozen_parameters_have_no_columns(frozen):
    critic = mlp()
    critic.get_parameter(frozen).requires_grad_(False)
    jacobian, expected = linearised(critic, batch()[0])
    assert set(kinds(jacobian)) == {LinearBlock}
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


@pytest.mark.parametrize("critic", [Tied, Twice, Bypassed, InPlace, Sequence, Residual, Spectral])
def test_what_does_not_factorise_is_still_right(critic):
    torch.manual_seed(0)
    jacobian, _ = linearised(critic().double(), batch()[0])
    assert RowsBlock in kinds(jacobian)


def test_a_subclass_of_linear_is_not_taken_for_one():
    jacobian, _ = linearised(Doubled(INPUTS, 1).double(), batch()[0])
    assert kinds(jacobian) == [RowsBlock, RowsBlock]


def test_a_convolution_goes_by_samples_and_its_head_by_layer():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 1)).double()
    jacobian, _ = linearised(critic, torch.randn(5, 1, 3, 3).double())
    assert kinds(jacobian) == [RowsBlock, RowsBlock, LinearBlock]


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
    monkeypatch.setattr("kova.observation.CHUNK_NUMBERS", 40)
    chunked, _ = linearised(critic, u)
    torch.testing.assert_close(whole.transposed(), chunked.transposed())


def test_samples_that_depend_on_each_other_are_refused():
    critic = nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = kova.KOVA(critic)
    with pytest.raises(ValueError, match=r"one sample at a time|other inputs of its batch"):
        optimizer.step(*batch())
    critic.eval()
    optimizer.step(*batch())

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(INPUTS, 1)

        def forward(self, u: Tensor) -> Tensor:
            value = self.layer(u)
            return value - value.mean()

    with pytest.raises(ValueError, match="other inputs of its batch"):
        kova.KOVA(Centred().double()).step(*batch())


def test_a_constant_critic_is_refused():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3))

        def forward(self, u: Tensor) -> Tensor:
            return u[:, 0]

    with pytest.raises(ValueError, match="does not depend on any parameter"):
        kova.KOVA(Constant()).step(*batch())


def test_no_hook_is_left_behind_even_by_an_error():
    critic = mlp()
    optimizer = kova.KOVA(critic)
    optimizer.step(*batch())
    with pytest.raises(ValueError, match="inputs"):
        optimizer.step(torch.randn(8, 7).double(), batch()[1])
    assert all(not module._forward_hooks for module in critic.modules())


def test_memoryless_never_forms_the_jacobian(monkeypatch):
    def refuse(self: Jacobian) -> Tensor:
        raise AssertionError("J was formed")

    monkeypatch.setattr(Jacobian, "transposed", refuse)
    monkeypatch.setattr(LinearBlock, "write_transposed", refuse)
    optimizer = kova.KOVA(mlp(), evolution=kova.Memoryless(0.1))
    optimizer.step(*batch())
    optimizer.predict(batch()[0])
    with pytest.raises(AssertionError, match="J was formed"):
        kova.KOVA(mlp(), evolution=kova.Static()).step(*batch())
