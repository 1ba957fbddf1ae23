"""Show a loss some of the texts of a batch only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Loss, Role


def select_texts(features: Features, layout: Layout, keep: Tensor) -> tuple[Features, Layout]:
    """The batch with the texts where `keep` (T,) bool is set, in the same order."""

    def of(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[keep]

    return (
        replace(
            features,
            text=features.text[keep],
            tokens=of(features.tokens),
            token_mask=of(features.token_mask),
        ),
        replace(
            layout,
            owner=layout.owner[keep],
            role=layout.role[keep],
            rewrite=layout.rewrite[keep],
            text_id=of(layout.text_id),
        ),
    )


@dataclass(frozen=True)
class OnlyRewrites:
    """A loss that sees the captions, and of the other texts those of the named rewrites.

    For recipes whose terms read different texts: in DAC, the contrast with hard negatives must not
    see the negatives of bags. Wrap losses without state.
    """

    loss: Loss
    rewrites: tuple[int, ...]

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """`loss` on the texts that remain."""
        wanted = torch.tensor(self.rewrites, dtype=torch.int64, device=layout.rewrite.device)
        keep = (layout.role == int(Role.CAPTION)) | torch.isin(layout.rewrite, wanted)
        return self.loss(*select_texts(features, layout, keep))
