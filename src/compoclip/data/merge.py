"""The parts of a batch that several processes make, put together as one process would make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compoclip.data.textblock import TextBlock
from compoclip.losses.contract import Role


@dataclass(frozen=True)
class Merged:
    """The texts of a whole batch, and where its images and texts are in the parts.

    block: equal to that of one process. images: for each image its place among the images of all
    parts, one part after the other. texts: the same for each text. sizes: images and texts of each
    part.
    """

    block: TextBlock
    images: tuple[int, ...]
    texts: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


def merge(parts: Sequence[TextBlock], drawn: Sequence[int]) -> Merged:
    """The parts of a batch as one.

    drawn: how many of the images of each part are those of samples drawn, which come first in a
    part; images that a plan adds (neighbours, negative images) come after them, in the parts and in
    the whole.
    """
    starts = _starts([part.images for part in parts])
    own = [start + i for start, n in zip(starts, drawn) for i in range(n)]
    added = [
        start + i for start, part, n in zip(starts, parts, drawn) for i in range(n, part.images)
    ]
    images = (*own, *added)
    place = {old: new for new, old in enumerate(images)}
    owner = [place[start + o] for start, part in zip(starts, parts) for o in part.owner]
    texts = tuple(sorted(range(len(owner)), key=owner.__getitem__))  # stable: as they were drawn
    flat = TextBlock(
        texts=_joined(part.texts for part in parts),
        owner=tuple(owner),
        role=_joined(part.role for part in parts),
        rewrite=_joined(part.rewrite for part in parts),
        images=len(images),
    )
    photos = _joined(part.photos for part in parts)
    paired = any(part.pair for part in parts)
    pair = [
        place[start + p] if p >= 0 else -1
        for start, part in zip(starts, parts)
        for p in (part.pair or (-1,) * part.images)
    ]
    block = TextBlock(
        texts=tuple(flat.texts[t] for t in texts),
        owner=tuple(flat.owner[t] for t in texts),
        role=tuple(flat.role[t] for t in texts),
        rewrite=tuple(flat.rewrite[t] for t in texts),
        images=len(images),
        photos=tuple(photos[i] for i in images) if photos else (),
        pair=tuple(pair[i] for i in images) if paired else (),
    )
    return Merged(block, images, texts, tuple((part.images, len(part.texts)) for part in parts))


def to_record(block: TextBlock) -> dict[str, Any]:
    """A block as JSON keeps it."""
    return {
        "texts": block.texts,
        "owner": block.owner,
        "role": [int(role) for role in block.role],
        "rewrite": block.rewrite,
        "images": block.images,
        "photos": block.photos,
        "pair": block.pair,
    }


def from_record(record: dict[str, Any]) -> TextBlock:
    """The block that `to_record` took apart."""
    return TextBlock(
        texts=tuple(record["texts"]),
        owner=tuple(record["owner"]),
        role=tuple(Role(role) for role in record["role"]),
        rewrite=tuple(record["rewrite"]),
        images=record["images"],
        photos=tuple(record["photos"]),
        pair=tuple(record["pair"]),
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _joined(parts: Any) -> tuple[Any, ...]:
    return tuple(each for part in parts for each in part)
