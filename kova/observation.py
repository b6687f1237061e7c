"""The observation function h(u; θ) and its linearisation (Eq. 13).

A Linear layer that is called once gives its rows of the Jacobian from one forward and one backward pass, as activation
times output gradient. Whatever else there is goes through ``torch.func``, a chunk of samples at a time. The first batch
of every kind is checked against plain autograd, so tied weights, in-place activations and layers that are called twice
or bypassed end up on the general path, never with a wrong number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.hooks import RemovableHandle

from kova import _checks
from kova._checks import Inputs
from kova.jacobian import Block, Jacobian, LinearBlock, RowsBlock

#: Numbers of a per-sample gradient that torch.func may hold at once.
CHUNK_NUMBERS = 2**25

ObservationFn = Callable[[nn.Module, Inputs], Tensor]


class Observation:
    """h(u; θ) for one module, differentiable with respect to the parameters that require grad.

    Args:
        module: The critic.
        function: (module, inputs) -> (N,) or (N, 1); ``None`` calls ``module(inputs)``.

    Raises:
        ValueError: The module has nothing to optimise, or its parameters are spread over devices.
    """

    def __init__(self, module: nn.Module, function: ObservationFn | None) -> None:
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError("module has no parameters that require grad: there is nothing to optimise")
        devices = {str(parameter.device) for parameter in trainable.values()}
        if len(devices) > 1:
            raise ValueError(f"module's parameters must be on one device, they are on {sorted(devices)}")
        odd = [name for name, parameter in trainable.items() if not parameter.is_floating_point()]
        if odd:
            raise ValueError(f"module's parameters must be real floating numbers, {odd[0]!r} is not")
        self.module = module
        self.function = function
        self.parameters = trainable
        self.dim = sum(parameter.numel() for parameter in trainable.values())
        self._layers = _factorising_layers(module, trainable)
        self._factorises: dict[Hashable, bool] = {}

    @property
    def device(self) -> torch.device:
        """Where the parameters are now."""
        return next(iter(self.parameters.values())).device

    def values(self, inputs: Inputs, size: int, dtype: torch.dtype) -> Tensor:
        """Return h(u; θ), (N,), without derivatives."""
        with torch.no_grad():
            return self._checked(self._call(inputs, size), dtype)

    def linearise(self, inputs: Inputs, size: int, dtype: torch.dtype) -> Jacobian:
        """Return h(u; θ) and ∂h/∂θ at the present parameters.

        Args:
            inputs: The batch, checked.
            size: N.
            dtype: Of the result.

        Raises:
            ValueError: h cannot be evaluated on ``inputs``, has the wrong shape or is not finite, or one sample's h
                depends on the others.
        """
        kind = (self.module.training, *((leaf.shape[1:], leaf.dtype) for leaf in _tensors(inputs)))
        layers = self._layers if self._factorises.get(kind, True) else []
        first_time = kind not in self._factorises
        jacobian, reference = self._linearise(layers, inputs, size, dtype, check=first_time)
        network = next(iter(self.parameters.values())).dtype
        if layers and reference is not None and not _agree(jacobian, reference, network):
            layers = []
            jacobian, reference = self._linearise(layers, inputs, size, dtype, check=True)
        if reference is not None and not _agree(jacobian, reference, network):
            raise ValueError("h of one input depends on the other inputs of its batch (a batch norm in training?)")
        self._factorises[kind] = bool(layers)
        return jacobian

    def _linearise(
        self, layers: list[nn.Linear], inputs: Inputs, size: int, dtype: torch.dtype, *, check: bool
    ) -> tuple[Jacobian, Tensor | None]:
        """Return the Jacobian and, to check it, autograd's Jᵀw for the weights of :func:`_probe`."""
        calls = _Calls(layers)
        with torch.enable_grad(), calls:
            output = self._call(inputs, size)
        values = self._checked(output, dtype)
        if not output.requires_grad:
            raise ValueError("h(u; θ) does not depend on any parameter that requires grad")
        reference = None
        if check:
            parameters = list(self.parameters.values())
            found = torch.autograd.grad(output, parameters, _probe(output), retain_graph=True, allow_unused=True)
            pairs = zip(found, parameters, strict=True)
            flat = [(torch.zeros_like(p) if g is None else g).reshape(-1).to(dtype) for g, p in pairs]
            reference = torch.cat(flat)
        owned = self._layer_blocks(calls, output, dtype)
        rest = [name for name, parameter in self.parameters.items() if id(parameter) not in owned]
        rows = self._sample_rows(rest, inputs, values) if rest else {}
        blocks: list[Block] = []
        for name, parameter in self.parameters.items():
            block = rows[name] if name in rows else owned[id(parameter)]
            if not blocks or blocks[-1] is not block:
                blocks.append(block)
        jacobian = Jacobian(blocks, values)
        _checks.finite("∂h/∂θ (its squared norm per sample)", jacobian.squared_norms())
        return jacobian, reference

    def _layer_blocks(self, calls: _Calls, output: Tensor, dtype: torch.dtype) -> dict[int, Block]:
        """Return a block for every parameter of every layer whose rule applies, by the parameter's id."""
        usable = calls.usable()
        if not usable:
            return {}
        gradients = torch.autograd.grad(
            output, [out for _, _, out in usable], torch.ones_like(output), allow_unused=True
        )
        blocks: dict[int, Block] = {}
        for (layer, given, out), gradient in zip(usable, gradients, strict=True):
            gradient = torch.zeros_like(out) if gradient is None else gradient
            activation, gradient = given.to(dtype), gradient.to(dtype)
            optimised = {name for name, p in layer.named_parameters() if p.requires_grad}
            block: Block = LinearBlock(activation, gradient, weight="weight" in optimised, bias="bias" in optimised)
            for name in optimised:
                blocks[id(layer.get_parameter(name))] = block
        return blocks

    def _sample_rows(self, names: list[str], inputs: Inputs, values: Tensor) -> dict[str, Block]:
        """Return ∂h/∂parameter for each name by ``torch.func``: one sample at a time, vectorised in chunks."""
        caller = _Caller(self.module, self.function)
        fixed = {f"module.{name}": p.detach() for name, p in self.parameters.items() if name not in names}

        def single(free: dict[str, Tensor], sample: Inputs) -> tuple[Tensor, Tensor]:
            batch = _checks.map_inputs(partial(torch.unsqueeze, dim=0), sample)
            value = functional_call(caller, {**fixed, **free}, (batch,)).reshape(())
            return value, value.detach()

        free = {f"module.{name}": self.parameters[name].detach() for name in names}
        chunk = max(1, CHUNK_NUMBERS // sum(p.numel() for p in free.values()))
        try:
            rows, again = vmap(grad(single, has_aux=True), in_dims=(None, 0), chunk_size=chunk)(free, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"torch.func cannot differentiate the critic one sample at a time: {error}") from error
        if not torch.allclose(again.to(values.dtype), values, rtol=1e-2, atol=1e-2 * float(values.abs().max()) + 1e-6):
            raise ValueError("h of one input depends on the other inputs of its batch (a batch norm in training?)")
        return {name: RowsBlock(rows[f"module.{name}"].reshape(len(values), -1).to(values.dtype)) for name in names}

    def _call(self, inputs: Inputs, size: int) -> Tensor:
        """Return h(u; θ) as the critic gives it, flattened to (N,)."""
        try:
            output = self.module(inputs) if self.function is None else self.function(self.module, inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            what = ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in _tensors(inputs))
            raise ValueError(f"the critic cannot be evaluated on inputs {what}: {error}") from error
        if not isinstance(output, Tensor):
            raise ValueError(f"h(u; θ) must be a tensor, the critic gave {type(output).__name__}: pass observation_fn")
        if output.shape not in (torch.Size([size]), torch.Size([size, 1])):
            raise ValueError(
                f"h(u; θ) must have shape ({size},) or ({size}, 1), the critic gave {tuple(output.shape)}: "
                "pass observation_fn=(module, inputs) -> (N,) to pick one value per sample"
            )
        return output.reshape(-1)

    @staticmethod
    def _checked(output: Tensor, dtype: torch.dtype) -> Tensor:
        return _checks.finite("h(u; θ)", output.detach().to(dtype))


def _factorising_layers(module: nn.Module, trainable: dict[str, nn.Parameter]) -> list[nn.Linear]:
    """Return the plain Linear layers whose optimised parameters stand together in θ and belong to them alone."""
    order = {id(parameter): index for index, parameter in enumerate(trainable.values())}
    owners = Counter(id(p) for child in module.modules() for p in child.parameters(recurse=False))
    layers = []
    for child in module.modules():
        # A subclass (a parametrised layer, say) may compute something else.
        if type(child) is nn.Linear:
            places = [order[id(p)] for p in child.parameters(recurse=False) if id(p) in order]
            alone = all(owners[id(p)] == 1 for p in child.parameters(recurse=False))
            if places and alone and places == list(range(places[0], places[0] + len(places))):
                layers.append(child)
    return layers


class _Calls:
    """Records what goes in and out of some layers while it is entered."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self._seen: dict[nn.Linear, list[tuple[Tensor, int, Tensor, int]]] = {layer: [] for layer in layers}
        self._unclear: set[nn.Linear] = set()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> None:
        self._handles = [layer.register_forward_hook(self._record) for layer in self._seen]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        if len(args) == 1:
            self._seen[layer].append((args[0].detach(), args[0]._version, output, output._version))
        else:
            self._unclear.add(layer)

    def usable(self) -> list[tuple[nn.Linear, Tensor, Tensor]]:
        """Return (layer, input, output) where the rule applies: one call on (N, fan-in), neither side overwritten."""
        found = []
        for layer, calls in self._seen.items():
            if len(calls) == 1 and layer not in self._unclear:
                given, given_version, output, output_version = calls[0]
                intact = given._version == given_version and output._version == output_version
                if given.dim() == 2 and output.requires_grad and intact:
                    found.append((layer, given, output))
        return found


class _Caller(nn.Module):
    """h as a module, so that ``functional_call`` can swap the parameters under an ``observation_fn``."""

    def __init__(self, module: nn.Module, function: ObservationFn | None) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, inputs: Inputs) -> Tensor:
        result: Tensor = self.module(inputs) if self.function is None else self.function(self.module, inputs)
        return result


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [leaf for _, leaf in _checks.leaves("inputs", inputs) if isinstance(leaf, Tensor)]


def _probe(values: Tensor) -> Tensor:
    """Return unequal weights, so that a derivative credited to the wrong sample shows."""
    return torch.linspace(1.0, 2.0, values.shape[0], dtype=values.dtype, device=values.device)


def _agree(jacobian: Jacobian, reference: Tensor, network: torch.dtype) -> bool:
    """Say whether Jᵀw is autograd's in every block, up to the rounding of a network of that dtype."""
    weights = _probe(jacobian.values)
    tolerance = 16.0 * torch.finfo(network).eps ** 0.5
    floor = tolerance * 1e-2 * float(reference.norm())
    expected = reference.split([block.size for block in jacobian.blocks])
    pairs = zip(jacobian.blocks, expected, strict=True)
    return all(
        float((block.transposed_product(weights) - wanted).norm()) <= tolerance * float(wanted.norm()) + floor
        for block, wanted in pairs
    )
