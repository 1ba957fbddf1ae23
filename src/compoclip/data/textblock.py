"""All texts that accompany a batch of images, as one flat ragged list."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch

from compoclip.losses.contract import Layout, Role
from compoclip.rewrites.tokenkey import token_key


@dataclass(frozen=True)
class TextBlock:
    """T texts for B images: no padding, no placeholder negatives.

    texts: T strings. owner: T image indices in [0, images). role: T roles.
    rewrite: T names of the rewrite that made the text; "" for captions.
    photos: `images` names, equal where two images are the same photo; () when not known.
    pair: `images` numbers: for a negative image that a row brought along the index of the row's own
    image, -1 for all others; () is -1 for all.
    """

    texts: tuple[str, ...]
    owner: tuple[int, ...]
    role: tuple[Role, ...]
    rewrite: tuple[str, ...]
    images: int
    photos: tuple[str, ...] = ()
    pair: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.texts), len(self.owner), len(self.role), len(self.rewrite)}
        if len(lengths) != 1:
            raise ValueError("texts, owner, role and rewrite must have the same length")
        if any(not 0 <= owner < self.images for owner in self.owner):
            raise ValueError(f"owner must lie in [0, {self.images})")
        if any(len(each) not in (0, self.images) for each in (self.photos, self.pair)):
            raise ValueError("photos and pair must name every image, or none")

    def layout(
        self,
        rewrites: Sequence[str],
        device: torch.device | str = "cpu",
        ids: torch.Tensor | None = None,
    ) -> Layout:
        """The tensors a loss may see; `rewrites` fixes the index of each rewrite name.

        ids: (T, context) token ids, on the CPU. With them texts are the same when their ids are;
        without, when CLIP's tokenizer cannot tell them apart.
        """
        index = {name: i for i, name in enumerate(rewrites)}
        texts: Iterable[Hashable] = map(token_key, self.texts)
        if ids is not None:
            texts = (row.tobytes() for row in ids.numpy())

        def tensor(values: Iterable[int]) -> torch.Tensor:
            return torch.tensor(list(values), dtype=torch.int64, device=device)

        return Layout(
            owner=tensor(self.owner),
            role=tensor(map(int, self.role)),
            rewrite=tensor(index.get(name, -1) for name in self.rewrite),
            images=self.images,
            text_id=tensor(_numbered(texts)),
            image_id=tensor(_numbered(self.photos)) if self.photos else None,
            side=tensor(int(row >= 0) for row in self.pair) if self.pair else None,
            pair=tensor(row if row >= 0 else i for i, row in enumerate(self.pair))
            if self.pair
            else None,
        )


def _numbered(items: Iterable[Hashable]) -> list[int]:
    """Equal numbers for equal items, counted from 0 in order of appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(item, len(seen)) for item in items]
