"""Per-sample derivatives of single layers, from their inputs and the gradients of their outputs.

Each rule takes the layer's calls, as pairs of input and output gradient with N first, and adds them up: a layer that is
called twice has the sum of two derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from kova.linearisation.jacobian import Columns, DenseColumns, LinearColumns

#: (input, gradient of the output), each with N as its first dimension.
Call = tuple[Tensor, Tensor]
#: Gives {parameter: (N, size)} for the layer's ``weight`` and ``bias``.
Rule = Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]


def layer_columns(layer: nn.Module, calls: Sequence[Call], optimised: Collection[str], dtype: torch.dtype) -> Columns:
    """Return the columns of J for the optimised parameters of one layer, weight first.

    Args:
        layer: Of a type in :data:`RULES`.
        calls: Its calls.
        optimised: Which of "weight" and "bias" are optimised.
        dtype: Of the result.
    """
    if type(layer) is nn.Linear and len(calls) == 1 and calls[0][0].dim() == 2:
        activation, gradient = (side.to(dtype) for side in calls[0])
        return LinearColumns(activation, gradient, weight="weight" in optimised, bias="bias" in optimised)
    rule = RULES[type(layer)]
    found = [rule(layer, given.to(dtype) if given.is_floating_point() else given, g.to(dtype)) for given, g in calls]
    parts = [
        sum((rows[name] for rows in found[1:]), start=found[0][name])
        for name in ("weight", "bias")
        if name in optimised
    ]
    return DenseColumns(torch.cat(parts, dim=1))


def applies(layer: nn.Module) -> bool:
    """Say whether the layer is exactly one that has a rule: a subclass may compute something else."""
    if type(layer) not in RULES or not set(dict(layer.named_parameters())) <= {"weight", "bias"}:
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return True


def _linear(layer: nn.Module, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    size = len(given)
    activation = given.reshape(size, -1, given.shape[-1])
    gradient = gradient.reshape(size, -1, gradient.shape[-1])
    return {"weight": (gradient.mT @ activation).reshape(size, -1), "bias": gradient.sum(1)}


def _conv2d(layer: nn.Module, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    patches = nn.functional.unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    gradient = gradient.flatten(2)
    return {"weight": (gradient @ patches.mT).flatten(1), "bias": gradient.sum(2)}


def _layer_norm(layer: nn.Module, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    assert isinstance(layer, nn.LayerNorm)
    size = len(given)
    shape = list(layer.normalized_shape)
    normalised = nn.functional.layer_norm(given, shape, eps=layer.eps)
    features = gradient.reshape(size, -1, normalised[(0,) * (given.dim() - len(shape))].numel())
    return {"weight": (features * normalised.reshape(features.shape)).sum(1), "bias": features.sum(1)}


def _embedding(layer: nn.Module, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    assert isinstance(layer, nn.Embedding)
    size = len(given)
    tokens = given.reshape(size, -1)
    vectors = gradient.reshape(size, tokens.shape[1], -1)
    if layer.padding_idx is not None:
        vectors = vectors * (tokens != layer.padding_idx)[:, :, None]
    rows = vectors.new_zeros(size, layer.num_embeddings, layer.embedding_dim)
    samples = torch.arange(size, device=tokens.device)[:, None].expand_as(tokens)
    rows.index_put_((samples, tokens), vectors, accumulate=True)
    return {"weight": rows.flatten(1)}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
