"""The observation function h(u; θ) and its linearisation (Eq. 13).

A layer that has a rule (:mod:`kova.linearisation.layer_rules`) gives its columns of the Jacobian from one forward and
one backward pass. Everything else goes through ``torch.func``, a chunk of samples at a time, or, where that does not
work, through one backward pass per sample. The first batch of every kind is checked against plain autograd, so that
tied weights, overwritten activations and weights that are used without calling their layer never give a wrong number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from kova import _checks, memory
from kova._checks import Inputs
from kova.interrupts import HeldSignals
from kova.linearisation import layer_rules as rules
from kova.linearisation.jacobian import Columns, DenseColumns, Jacobian

#: The most numbers of per-sample gradients that torch.func holds at once.
CHUNK_NUMBERS = 2**25

ObservationFn = Callable[[nn.Module, Inputs], Tensor]

COUPLED = "h of one input depends on the other inputs of its batch, so there is no derivative per sample"


@dataclass(frozen=True)
class _Plan:
    """How a kind of batch is differentiated: these layers by rule, the rest by torch.func or else by a loop."""

    layers: tuple[nn.Module, ...]
    loop: bool = False


class Observation:
    """h(u; θ) for one module, differentiable with respect to some of its parameters.

    Args:
        module: The critic.
        function: (module, inputs) -> (N,) or (N, 1); ``None`` calls ``module(inputs)``.
        parameters: What is optimised, in order; by default all that require grad.

    Raises:
        ValueError: The module has nothing to optimise, or its parameters are spread over devices.
    """

    def __init__(
        self, module: nn.Module, function: ObservationFn | None, parameters: dict[str, nn.Parameter] | None = None
    ) -> None:
        self.module = module
        self.function = function
        self.parameters = trainable(module) if parameters is None else parameters
        self.dim = sum(parameter.numel() for parameter in self.parameters.values())
        self._places = [(module.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in self.parameters]
        self._layers = _layers_with_rules(module, self.parameters)
        self._batch_norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
        self._plans: dict[Hashable, _Plan] = {}

    @cached_property
    def _own(self) -> dict[nn.Module, dict[str, int]]:
        """The optimised parameters of each layer with a rule: name and id."""
        optimised = {id(parameter) for parameter in self.parameters.values()}
        named = {layer: layer.named_parameters() for layer in self._layers}
        return {layer: {name: id(p) for name, p in own if id(p) in optimised} for layer, own in named.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: ids mean nothing in a copy."""
        return {key: value for key, value in self.__dict__.items() if key != "_own"}

    @property
    def device(self) -> torch.device:
        """Where the parameters are now."""
        return next(iter(self.parameters.values())).device

    def linearise(self, inputs: Inputs, size: int, dtype: torch.dtype) -> Jacobian:
        """Return h(u; θ) and ∂h/∂θ at the present parameters.

        Args:
            inputs: The batch, checked.
            size: N.
            dtype: Of ∂h/∂θ; h keeps the critic's.

        Raises:
            ValueError: h cannot be evaluated on ``inputs``, has the wrong shape or is not finite, or one sample's h
                depends on the others.
        """
        self._check_module()
        # Tensors that were made in inference mode cannot be saved for a backward pass.
        inputs = _checks.map_inputs(lambda leaf: leaf.clone() if leaf.is_inference() else leaf, inputs)
        kind = (self.module.training, *((leaf.shape[1:], leaf.dtype) for leaf in _tensors(inputs)))
        plan = self._plans.get(kind)
        if plan is not None:
            jacobian, _, _ = self._linearise(plan, inputs, size, dtype, check=False)
            return jacobian
        jacobian, plan, wrong = self._linearise(_Plan(self._layers), inputs, size, dtype, check=True)
        jacobian.check_finite()
        if wrong & set(plan.layers):
            plan = _Plan(tuple(layer for layer in plan.layers if layer not in wrong))
            jacobian, plan, wrong = self._linearise(plan, inputs, size, dtype, check=True)
        if wrong:
            raise ValueError(COUPLED)
        # A single sample cannot show that samples depend on each other: the next batch is checked again.
        if size > 1:
            self._plans[kind] = plan
        return jacobian

    def values(self, inputs: Inputs, size: int) -> Tensor:
        """Return h(u; θ), (N,), without its derivative.

        Raises:
            ValueError: As for :meth:`linearise`.
        """
        self._check_module()
        return _checks.finite("h(u; θ)", self._call(inputs, size).detach())

    def values_at(self, parameters: dict[str, Tensor], inputs: Inputs, size: int) -> Tensor:
        """Return h(u; θ'), (N,), with other parameters in the place of the present ones; it may not be finite.

        Args:
            parameters: θ', by name.
            inputs: The batch, checked.
            size: N.
        """
        swapped = {f"module.{name}": value for name, value in parameters.items()}
        with torch.no_grad():
            output: Tensor = functional_call(_Caller(self.module, self.function), swapped, (inputs,))
        return output.reshape(size)

    def _linearise(
        self, plan: _Plan, inputs: Inputs, size: int, dtype: torch.dtype, *, check: bool
    ) -> tuple[Jacobian, _Plan, set[nn.Module | None]]:
        """Return the Jacobian, the plan that was carried out, and the layers whose blocks disagree with autograd.

        ``None`` stands for the parameters outside the plan's layers.
        """
        calls = _Calls(plan.layers)
        output = calls.during(lambda: self._call(inputs, size))
        values = _checks.finite("h(u; θ)", output.detach())
        if not output.requires_grad:
            raise ValueError("h(u; θ) does not depend on any parameter that requires grad")
        usable = calls.usable(size)
        by_layer = self._layer_blocks(usable, output, dtype)
        rest = [name for name, parameter in self.parameters.items() if id(parameter) not in by_layer]
        rows, loop = self._rest(rest, inputs, output, dtype, loop=plan.loop) if rest else ({}, False)
        blocks: list[Columns] = []
        owners: list[nn.Module | None] = []
        for name, parameter in self.parameters.items():
            owner, block = (None, rows[name]) if name in rows else by_layer[id(parameter)]
            if not blocks or blocks[-1] is not block:
                blocks.append(block)
                owners.append(owner)
        jacobian = Jacobian(blocks, values, dtype)
        wrong = self._disagreeing(jacobian, owners, output) if check else set()
        return jacobian, _Plan(tuple(usable), loop), wrong

    def _layer_blocks(
        self, usable: dict[nn.Module, list[tuple[Tensor, Tensor]]], output: Tensor, dtype: torch.dtype
    ) -> dict[int, tuple[nn.Module, Columns]]:
        """Return layer and block for every parameter of the usable layers, by the parameter's id."""
        if not usable:
            return {}
        outs = [out for calls in usable.values() for _, out in calls]
        # The graph is kept for the loop over samples and for the check.
        found = torch.autograd.grad(output, outs, torch.ones_like(output), allow_unused=True, retain_graph=True)
        gradients = iter([torch.zeros_like(out) if g is None else g for g, out in zip(found, outs, strict=True)])
        blocks: dict[int, tuple[nn.Module, Columns]] = {}
        for layer, calls in usable.items():
            pairs = [(given, next(gradients)) for given, _ in calls]
            own = self._own[layer]
            block = rules.layer_columns(layer, pairs, own.keys(), dtype)
            blocks.update(dict.fromkeys(own.values(), (layer, block)))
        return blocks

    def _rest(
        self, names: list[str], inputs: Inputs, output: Tensor, dtype: torch.dtype, *, loop: bool
    ) -> tuple[dict[str, Columns], bool]:
        """Return the blocks of parameters without a rule, and whether it took a loop over the samples."""
        if not loop:
            try:
                return self._rows_by_func(names, inputs, output.detach(), dtype), False
            except (RuntimeError, NotImplementedError) as error:
                # vmap does not work with recurrent cells, data-dependent control flow and random layers.
                if memory.ran_out(error):
                    raise
        return self._rows_by_loop(names, output, dtype), True

    def _rows_by_func(self, names: list[str], inputs: Inputs, values: Tensor, dtype: torch.dtype) -> dict[str, Columns]:
        caller = _Caller(self.module, self.function)
        fixed = {f"module.{name}": p.detach() for name, p in self.parameters.items() if name not in names}

        def single(free: dict[str, Tensor], sample: Inputs) -> tuple[Tensor, Tensor]:
            batch = _checks.map_inputs(partial(torch.unsqueeze, dim=0), sample)
            value = functional_call(caller, {**fixed, **free}, (batch,)).reshape(())
            return value, value.detach()

        free = {f"module.{name}": self.parameters[name].detach() for name in names}
        chunk = max(1, CHUNK_NUMBERS // sum(p.numel() for p in free.values()))
        rows, again = vmap(grad(single, has_aux=True), in_dims=(None, 0), chunk_size=chunk)(free, inputs)
        tolerance = _tolerance(values.dtype)
        if not torch.allclose(again, values, rtol=tolerance, atol=tolerance * float(values.abs().max()) + 1e-6):
            raise ValueError(COUPLED)
        return {name: DenseColumns(rows[f"module.{name}"].reshape(len(values), -1).to(dtype)) for name in names}

    def _rows_by_loop(self, names: list[str], output: Tensor, dtype: torch.dtype) -> dict[str, Columns]:
        parameters = [self.parameters[name] for name in names]
        rows: list[list[Tensor]] = [[] for _ in names]
        # The values of single samples are part of the graph only if autograd is on while they are taken.
        with torch.enable_grad():
            values = output.unbind()
        for value in values:
            found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            for row, gradient, parameter in zip(rows, found, parameters, strict=True):
                row.append((torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1).to(dtype))
        return {name: DenseColumns(torch.stack(row)) for name, row in zip(names, rows, strict=True)}

    def _disagreeing(
        self, jacobian: Jacobian, owners: Sequence[nn.Module | None], output: Tensor
    ) -> set[nn.Module | None]:
        """Return the owners of blocks whose Jᵀw is not autograd's, up to the rounding of the network."""
        size = len(output)
        # All weights differ, so that a derivative in the row of the wrong sample is noticed.
        weights = torch.linspace(1.0, 2.0, size, dtype=output.dtype, device=output.device)
        weights[1::2] *= -1.0
        parameters = list(self.parameters.values())
        found = torch.autograd.grad(output, parameters, weights, retain_graph=True, allow_unused=True)
        flat = [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(found, parameters, strict=True)]
        reference = torch.cat([part.to(jacobian.dtype) for part in flat])
        tolerance = _tolerance(output.dtype)
        weights = weights.to(jacobian.dtype)
        wrong = set()
        expected = reference.split([block.size for block in jacobian.blocks])
        for owner, block, wanted in zip(owners, jacobian.blocks, expected, strict=True):
            error = block.transposed_product(weights) - wanted
            # The terms of the sum may cancel; their rounding errors do not.
            terms = float((block.squared_norms() * weights.square()).sum().sqrt())
            if not float(error.norm()) <= tolerance * max(float(wanted.norm()), terms) + 1e-30:
                wrong.add(owner)
        return wrong

    def _check_module(self) -> None:
        if any(norm.training for norm in self._batch_norms):
            raise ValueError(f"{COUPLED}: a batch norm is in training mode; call critic.eval()")
        for (owner, key), (name, parameter) in zip(self._places, self.parameters.items(), strict=True):
            if owner._parameters.get(key) is not parameter:
                raise ValueError(f"{name!r} was replaced in the critic after this filter was made; make a new one")
            if not parameter.requires_grad:
                raise ValueError(f"{name!r} was optimised when this filter was made and is frozen now")

    def _call(self, inputs: Inputs, size: int) -> Tensor:
        """Return h(u; θ) as the critic gives it, flattened to (N,)."""
        try:
            output = self.module(inputs) if self.function is None else self.function(self.module, inputs)
        except (RuntimeError, IndexError, KeyError, TypeError) as error:
            if memory.ran_out(error):
                raise
            what = ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in _tensors(inputs))
            raise ValueError(f"the critic cannot be evaluated on inputs {what}: {error}") from error
        if not isinstance(output, Tensor):
            raise ValueError(f"h(u; θ) must be a tensor, the critic gave {type(output).__name__}: pass observation_fn")
        shapes = [torch.Size([size]), torch.Size([size, 1]), *([torch.Size([])] if size == 1 else [])]
        if output.shape not in shapes:
            raise ValueError(
                f"h(u; θ) must have shape ({size},) or ({size}, 1), the critic gave {tuple(output.shape)}: "
                "pass observation_fn=(module, inputs) -> (N,) to pick one value per sample"
            )
        return output.reshape(-1)


class _Calls:
    """Records what goes in and out of some layers during a call."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._seen: dict[nn.Module, list[tuple[Tensor, int, Tensor, int]]] = {layer: [] for layer in layers}
        self._unclear: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []

    def during(self, call: Callable[[], Tensor]) -> Tensor:
        """Return what ``call`` gives with autograd on; whatever interrupts it, no hook stays on the layers."""
        try:
            try:
                with HeldSignals():
                    self._handles = [layer.register_forward_hook(self._record) for layer in self._seen]
                with torch.enable_grad():
                    return call()
            finally:
                self._remove()
        finally:
            # A signal may have interrupted the first removal.
            self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if len(args) == 1:
            self._seen[layer].append((args[0].detach(), args[0]._version, output, output._version))
        else:
            self._unclear.add(layer)

    def usable(self, size: int) -> dict[nn.Module, list[tuple[Tensor, Tensor]]]:
        """Return the (input, output) pairs of layers whose calls all had N first and were not overwritten later."""
        found = {}
        for layer, calls in self._seen.items():
            clear = bool(calls) and layer not in self._unclear
            if clear and all(
                given.dim()
                and len(given) == len(output) == size
                and output.requires_grad
                and given._version == given_version
                and output._version == output_version
                for given, given_version, output, output_version in calls
            ):
                found[layer] = [(given, output) for given, _, output, _ in calls]
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


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require grad, by name.

    Raises:
        ValueError: There are none, or they are spread over devices, or not real floating numbers.
    """
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("module has no parameters that require grad: there is nothing to optimise")
    devices = {str(parameter.device) for parameter in found.values()}
    if len(devices) > 1:
        raise ValueError(f"module's parameters must be on one device, they are on {sorted(devices)}")
    odd = [name for name, parameter in found.items() if not parameter.is_floating_point()]
    if odd:
        raise ValueError(f"module's parameters must be real floating numbers, {odd[0]!r} is not")
    return found


def _layers_with_rules(module: nn.Module, parameters: dict[str, nn.Parameter]) -> tuple[nn.Module, ...]:
    """Return the layers with a rule whose optimised parameters are consecutive in θ and in no other module."""
    order = {id(parameter): index for index, parameter in enumerate(parameters.values())}
    owners = Counter(id(p) for child in module.modules() for p in child.parameters(recurse=False))
    layers = []
    for child in module.modules():
        if rules.applies(child):
            places = [order[id(p)] for p in child.parameters() if id(p) in order]
            alone = all(owners[id(p)] == 1 for p in child.parameters())
            if places and alone and places == list(range(places[0], places[0] + len(places))):
                layers.append(child)
    return tuple(layers)


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [leaf for _, leaf in _checks.leaves("inputs", inputs) if isinstance(leaf, Tensor)]


def _tolerance(network: torch.dtype) -> float:
    """Return the relative error that two ways of differentiating a network of that dtype may have."""
    return min(16.0 * math.sqrt(torch.finfo(network).eps), 0.1)
