"""All texts that accompany a batch of images, as one flat ragged list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compoclip.losses.contract import Layout, Role


@dataclass(frozen=True)
class TextBlock:
    """T texts for B images: no padding, no placeholder negatives.

    texts: T strings. owner: T image indices in [0, images). role: T roles.
    rewrite: T names of the rewrite that made the text; "" for captions.
    """

    texts: tuple[str, ...]
    owner: tuple[int, ...]
    role: tuple[Role, ...]
    rewrite: tuple[str, ...]
    images: int

    def __post_init__(self) -> None:
        lengths = {len(self.texts), len(self.owner), len(self.role), len(self.rewrite)}
        if len(lengths) != 1:
            raise ValueError("texts, owner, role and rewrite must have the same length")
        if any(not 0 <= owner < self.images for owner in self.owner):
            raise ValueError(f"owner must lie in [0, {self.images})")

    def layout(self, rewrites: Sequence[str], device: torch.device | str = "cpu") -> Layout:
        """The tensors a loss may see; `rewrites` fixes the index of each rewrite name."""
        index = {name: i for i, name in enumerate(rewrites)}
        return Layout(
            owner=torch.tensor(self.owner, dtype=torch.int64, device=device),
            role=torch.tensor([int(r) for r in self.role], dtype=torch.int64, device=device),
            rewrite=torch.tensor(
                [index.get(name, -1) for name in self.rewrite], dtype=torch.int64, device=device
            ),
            images=self.images,
        )
