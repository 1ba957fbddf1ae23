"""Photos to search, and their index, for the tests of search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from compoclip.data.sources.open import Request
from compoclip.evaluation import ModelEncoder
from compoclip.search import PhotoIndex, index_photos


def photo(path: Path, seed: int) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 32, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_photos(folder: Path) -> Path:
    """Five photos at two depths, and what is none."""
    for number in range(5):
        photo(folder / ("deep/er" if number > 2 else "") / f"{number}.png", number)
    (folder / "notes.txt").write_text("no photo")
    (folder / "5.jxl").write_bytes(b"x")
    photo(folder / ".hidden" / "6.png", 6)
    return folder


def made(photos: Path | str, encoder: ModelEncoder, out: Path, **request: Any) -> PhotoIndex:
    return index_photos(Request(str(photos), **request), encoder, out, "base", 2)
