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
    """The layer whose outputs the values are made of.

    Attributes:
        weight: Name of w.
        bias: Name of b, if there is one.
        centred: Whether a number added to b is added to every value: h = w·φ + b. Otherwise h is only proportional to
            (w, b), as an advantage is, from which an average over actions was taken.
    """

    weight: str
    bias: str | None
    centred: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def find_output_layer(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], jacobian: Jacobian
) -> OutputLayer | None:
    """Return the Linear layer whose outputs are the values, told by numbers.

    It is the last one with ∂h/∂w·w + ∂h/∂b·b = h for every sample: multiplying it multiplies the values. Where besides
    ∂h/∂b = 1, it can hold their mean too. All of it must be optimised.

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
        own = {name: parameters[name].detach() for name in (weight, bias) if name is not None}
        values = jacobian.values.to(jacobian.dtype)
        if _close(_derivative(own, parameters, jacobian), values):
            return OutputLayer(weight, bias, bias is not None and _adds(own[bias], bias, parameters, jacobian))
    return None


def _adds(own: Tensor, name: str, parameters: Mapping[str, nn.Parameter], jacobian: Jacobian) -> bool:
    """Return whether a number added to the bias is added to every value."""
    shift = _derivative({name: torch.ones_like(own)}, parameters, jacobian)
    return _close(shift, torch.ones_like(shift))


def _derivative(direction: dict[str, Tensor], parameters: Mapping[str, nn.Parameter], jacobian: Jacobian) -> Tensor:
    """Return ∂h/∂θ along a direction that is zero in all other parameters."""
    parts = [direction.get(name, torch.zeros_like(p)).detach().reshape(-1) for name, p in parameters.items()]
    return jacobian.product(torch.cat(parts).to(jacobian.dtype)[None]).squeeze(1)


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool(torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * float(wanted.abs().max()) + 1e-12))
