"""The full covariance of the last Linear layer; the features below it are not optimised here."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from kova.covariance.full import Full
from kova.linearisation.observation import trainable


class LastLayer(Full):
    """A filter over the last Linear layer only, on features that keep their own optimizer or stay frozen.

    One step with P = I/λ and noise 1 is ridge regression on the last features (LS-DQN).
    """

    name: ClassVar[str] = "last_layer"

    @classmethod
    def parameters_of(cls, module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters of the last Linear layer that require grad.

        Raises:
            ValueError: No Linear layer has any.
        """
        candidates = trainable(module)
        for path, child in reversed(list(module.named_modules())):
            if isinstance(child, nn.Linear):
                prefix = f"{path}." if path else ""
                own = {name: p for name, p in candidates.items() if name.rpartition(".")[0] == prefix.rstrip(".")}
                if own:
                    return own
        raise ValueError('covariance="last_layer" needs a Linear layer whose parameters require grad; there is none')
