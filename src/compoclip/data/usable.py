"""Checks of data by a few samples, without reading an image or loading torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from compoclip.data.image_names import EXTENSIONS
from compoclip.data.sources import Sample, Source
from compoclip.errors import CompoclipError

_FEW = 64  # samples at most
_NO_TEXT = re.compile(rf"[\W\d_]+|\S+\.({'|'.join(sorted(EXTENSIONS))})", re.IGNORECASE)


def few_samples(source: Source) -> list[Sample]:
    """Return some samples, evenly apart, that show what the data are."""
    step = max(1, -(-len(source) // _FEW))
    return [source.bare(index) for index in range(0, len(source), step)]


def require_trainable(source: Source) -> None:
    """Raise CompoclipError for data that no recipe can be trained on.

    These are data of which none of the images looked for is there, and those whose captions are
    numbers or names of files.
    """
    samples = few_samples(source)
    data = source.describe()
    require_some_file([s.image for s in samples if isinstance(s.image, Path)], data)
    captions = [sample.captions[0] for sample in samples]
    if all(map(_NO_TEXT.fullmatch, captions)):
        raise CompoclipError(
            f"{data}: the captions are numbers or file names, such as {captions[0]!r:.40}; name "
            "their column with --caption-column"
        )


def require_some_file(images: Sequence[Path], data: str) -> None:
    """Raise CompoclipError when there are files of images and none of them exists."""
    if images and not any(image.is_file() for image in images):
        raise CompoclipError(
            f"{data}: images do not exist, such as {images[0]} ({len(images)} were "
            "tried); name their folder with --images, or their column with "
            "--image-column"
        )
