"""Lets a loss that knows kinds of text by number join a method that numbers them otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Loss, Role, StatefulLoss
from compoclip.losses.select import select_texts


@dataclass(frozen=True)
class Translated:
    """A loss that sees the captions and its own kinds of text, under its own numbers.

    loss: the loss, which may have a state. kinds: entry k is the batch's number (`Layout.rewrite`)
    of the kind that the loss knows as k; texts of other kinds are not shown to it.
    """

    loss: Loss
    kinds: tuple[int, ...]

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """`loss` on the texts that remain, renumbered."""
        kinds = torch.tensor(self.kinds, dtype=torch.int64, device=layout.rewrite.device)
        same = layout.rewrite[:, None] == kinds
        own = same.any(1)
        number = (same * torch.arange(len(kinds), device=kinds.device)).sum(1)
        renumbered = replace(layout, rewrite=number.masked_fill(~own, -1))
        keep = own | (layout.role == int(Role.CAPTION))
        return self.loss(*select_texts(features, renumbered, keep))

    def state_dict(self) -> dict[str, float]:
        """What the loss remembers; nothing for one without a state."""
        return self.loss.state_dict() if isinstance(self.loss, StatefulLoss) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Let the loss go on from `state`."""
        if isinstance(self.loss, StatefulLoss):
            self.loss.load_state_dict(state)
