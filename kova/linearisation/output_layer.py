"""Which layer's outputs are the values: where a critic's units live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kova.linearisation.jacobian import Jacobian

#: How far h may be from w·φ + b, relatively.
TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The layer with h = w·φ + b.

    Attributes:
        weight: Name of w.
        bias: Name of b, if there is one.
    """

    weight: str
    bias: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def find_output_layer(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], jacobian: Jacobian
) -> OutputLayer | None:
    """Return the Linear layer whose outputs are the values, told by numbers.

    It is the one with ∂h/∂w·w + ∂h/∂b·b = h and ∂h/∂b = 1 for every sample: h is linear in it, and nothing comes after
    it but the choice of an output. Both must be optimised.

    Args:
        module: The critic.
        parameters: What is optimised, by name, in order.
        jacobian: ∂h/∂θ and h of a batch.
    """
    named = {id(parameter): name for name, parameter in parameters.items()}
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    for layer in reversed(layers):
        weight, bias = named.get(id(layer.weight)), None
        if layer.bias is not None:
            bias = named.get(id(layer.bias))
        if weight is None or (layer.bias is not None and bias is None):
            continue
        found = OutputLayer(weight, bias)
        if _is_linear(found, parameters, jacobian):
            return found
    return None


def _is_linear(layer: OutputLayer, parameters: Mapping[str, nn.Parameter], jacobian: Jacobian) -> bool:
    values = jacobian.values.to(jacobian.dtype)
    own = {name: parameters[name].detach() for name in layer.names}
    close = _close(_derivative(own, parameters, jacobian), values)
    if layer.bias is None:
        return close
    shift = {layer.bias: torch.ones_like(own[layer.bias])}
    return close and _close(_derivative(shift, parameters, jacobian), torch.ones_like(values))


def _derivative(direction: dict[str, Tensor], parameters: Mapping[str, nn.Parameter], jacobian: Jacobian) -> Tensor:
    """Return ∂h/∂θ along a direction that is zero in all other parameters."""
    parts = [direction.get(name, torch.zeros_like(p)).detach().reshape(-1) for name, p in parameters.items()]
    return jacobian.product(torch.cat(parts).to(jacobian.dtype))


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool(torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * float(wanted.abs().max()) + 1e-12))
