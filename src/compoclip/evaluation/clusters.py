"""Which items are about the same photos, and so not independent of each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from compoclip.benchmarks.case import Case

_CHAIN, _LONG = 0.25, 100


def case_clusters(cases: Sequence[Case]) -> list[str]:
    """The cluster of each case: cases share one that have a photo in common (crops of a photo are
    the same photo), or without photos one of the texts that belong together."""
    return linked([_content(case) for case in cases])


def _content(case: Case) -> tuple[str, ...]:
    if case.images:
        return tuple(ref.photo for ref in case.images)
    return tuple(f"text: {text}" for text in case.texts[:2])


def linked(contents: Sequence[Sequence[str]]) -> list[str]:
    """For each item a photo that stands for its cluster; contents: the photos of each.

    Items that have a photo in common are in one cluster, and so are those that hang together
    through others: clusters are the connected components. Where photos are used so often that more
    than a hundred of them, and more than a quarter of all items, hang together (SVO-Probes), being
    connected says little any more: items of such a chain are clustered by the one of their photos
    that most items have.
    """
    parent: dict[str, str] = {}

    def root(photo: str) -> str:
        while parent[photo] != photo:
            parent[photo] = photo = parent[parent[photo]]
        return photo

    for photos in contents:
        for photo in photos:
            parent.setdefault(photo, photo)
            parent[root(photo)] = root(photos[0])
    found = [root(photos[0]) for photos in contents]
    items, photos_of = Counter(found), Counter(map(root, parent))
    chains = {c for c, n in items.items() if n > _CHAIN * len(found) and photos_of[c] > _LONG}
    uses = Counter(photo for photos in contents for photo in set(photos))
    return [
        max(photos, key=lambda photo: uses[photo]) if cluster in chains else cluster
        for cluster, photos in zip(found, contents)
    ]
