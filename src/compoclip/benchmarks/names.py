"""What images and texts are called in results and audits: the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks.case import ImageRef, Retrieval


def image_key(ref: ImageRef) -> str:
    """Name of an image in results: `ImageRef.photo`, and "#left,upper,right,lower" when cropped."""
    if ref.box is None:
        return ref.photo
    return f"{ref.photo}#{','.join(f'{value:g}' for value in ref.box)}"


def image_names(refs: Sequence[ImageRef]) -> list[str]:
    """Names of a gallery's images that stay the same on another machine or when others are absent.

    Folder and file name, with the box, and "(2)" for a second image of that name.
    """
    seen: Counter[str] = Counter()
    names = []
    for ref in refs:
        name = f"{ref.path.parent.name}/{image_key(replace(ref, path=Path(ref.path.name)))}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def text_names(content: Retrieval) -> dict[int, str]:
    """Text index -> name, of all texts with an image: the first such image (`image_names`) and the
    place among that image's texts."""
    names = image_names(content.images)
    place: Counter[int] = Counter()
    found: dict[int, str] = {}
    for image, text in content.pairs:
        found.setdefault(text, f"{names[image]} text {place[image]}")
        place[image] += 1
    return found
