"""Train one matrix: the text projection of a network, or a map after it.

A map W (D, D) after the projection P (W, D) is a torch parametrization of P, like adapters: every
path through the network computes with P W, and merging it leaves a plain network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compoclip.errors import CompoclipError

_LEAF = "text_projection"


def attach_text_map(network: nn.Module) -> None:
    """Add a square matrix after the text projection of a network, in place, as the identity.

    The state dict has other keys until `merge_text_map`.

    Args:
        network: An open_clip network.

    Raises:
        CompoclipError: Its text projection is not one matrix.
    """
    module, name, transposed = _projection(network)
    matrix = getattr(module, name)
    size = matrix.shape[0 if transposed else 1]
    after = _After(torch.eye(size, device=matrix.device), transposed)
    parametrize.register_parametrization(module, name, after, unsafe=True)


def merge_text_map(network: nn.Module) -> None:
    """Merge the matrix into the projection, in place; a network without one stays as it is."""
    for module in list(network.modules()):
        chains = getattr(module, "parametrizations", {})
        for name in [name for name, chain in chains.items() if isinstance(chain[0], _After)]:
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def text_matrix(network: nn.Module) -> nn.Parameter:
    """Return the matrix to train: the map after the text projection, or else the projection.

    Args:
        network: An open_clip network.

    Raises:
        CompoclipError: Its text projection is not one matrix.
    """
    module, name, _ = _projection(network)
    mapped = parametrize.is_parametrized(module, name)
    return module.get_parameter(f"parametrizations.{name}.0.weight" if mapped else name)


def _projection(network: nn.Module) -> tuple[nn.Module, str, bool]:
    """Return the module and name of the text projection, and whether rows are its outputs."""
    holder: nn.Module = getattr(network, "text", network)
    leaf: Any = getattr(holder, _LEAF, None)
    if isinstance(leaf, nn.Linear) and getattr(leaf, "bias", None) is None:
        return leaf, "weight", True
    if isinstance(leaf, Tensor) and leaf.ndim == 2:
        return holder, _LEAF, False
    raise CompoclipError(
        "the text projection of this model is not a single matrix without a bias: choose "
        "another model, or a method that trains the tower"
    )


class _After(nn.Module):
    """The parametrization P -> P W, of a transposed P: W^T P."""

    def __init__(self, weight: Tensor, transposed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.transposed = transposed

    def forward(self, projection: Tensor) -> Tensor:
        # A small change would be lost if it were multiplied in bfloat16.
        with torch.autocast(projection.device.type, enabled=False):
            if self.transposed:
                return self.weight.T @ projection
            return projection @ self.weight
