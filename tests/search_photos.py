"""Photos to search, and their index, for the tests of search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from build.photos import write_noise
from compoclip.data.sources.open import Request
from compoclip.evaluation import ModelEncoder
from compoclip.search import PhotoIndex, index_photos


def write_photos(folder: Path) -> Path:
    """Five photos at two depths, and what is none."""
    for number in range(5):
        write_noise(folder / ("deep/er" if number > 2 else "") / f"{number}.png", number)
    (folder / "notes.txt").write_text("no photo")
    (folder / "5.jxl").write_bytes(b"x")
    write_noise(folder / ".hidden" / "6.png", 6)
    return folder


def indexed(photos: Path | str, encoder: ModelEncoder, out: Path, **options: Any) -> PhotoIndex:
    """Index photos, two at once. options: of `Request`, or of `index_photos`."""
    request = {name: options.pop(name) for name in ("images", "exclude") if name in options}
    return index_photos(Request(str(photos), **request), encoder, out, "base", 2, **options)


def changes(index: PhotoIndex) -> tuple[int, int, int]:
    """Return how many photos the last run encoded, left as they are, and removed."""
    counts = index.about["changes"]
    return counts["encoded"], counts["unchanged"], counts["removed"]


@contextmanager
def stopped_after(batches: int) -> Iterator[None]:
    """Interrupt the encoding of photos inside after some batches."""
    encode = ModelEncoder.encode_images
    left = iter(range(batches))

    def stopping(self: ModelEncoder, images: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return encode(self, images)

    with (
        mock.patch.object(ModelEncoder, "encode_images", stopping),
        pytest.raises(KeyboardInterrupt),
    ):
        yield
