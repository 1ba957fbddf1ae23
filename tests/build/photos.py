"""Photos of a given size, colour, orientation and format, alone and in folders."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

Colour = str | int | tuple[int, ...]
FORMATS = {".png": "PNG", ".jp2": "JPEG2000", ".gif": "GIF", ".webp": "WEBP", ".bmp": "BMP"}
"""Ending of a file -> its format; all others are JPEG."""


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """Return an image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def plain(colour: Colour = 0, size: tuple[int, int] = (8, 8), format: str = "PNG") -> bytes:
    """Return a photo of one colour as the bytes of a file."""
    return encode(Image.new("RGB", size, colour), format)


def picture(number: int) -> bytes:
    """Return a small PNG file; each number has another colour."""
    return plain((20 * number, 20, 200 - 20 * number))


def noise(number: int, size: tuple[int, int] = (24, 20)) -> Image.Image:
    """Return an image of noise; each number has another one."""
    width, height = size
    values = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def write_noise(path: Path, number: int, size: tuple[int, int] = (24, 20)) -> Path:
    """Write `noise` in the format of its ending, with the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(number, size).save(path)
    return path


def smooth(width: int, height: int) -> Image.Image:
    """Return something smooth with an edge, as photos are."""
    y, x = np.mgrid[:height, :width]
    waves = 128 + 80 * np.sin(x / 23) * np.cos(y / 31)
    values = np.stack([waves, 255 * x / width, 255 * (y > height / 2)], -1)
    return Image.fromarray(values.astype(np.uint8))


@cache
def snapshot(width: int, height: int, format: str = "JPEG", **options: object) -> bytes:
    """Return `smooth` as the bytes of a file, in a quality that shows no blocks."""
    if format == "JPEG":
        options = {"quality": 95, **options}
    return encode(smooth(width, height), format, **options)


def stored_in(orientation: int) -> Image.Exif:
    """Return the metadata of a photo that is stored in an orientation, to be saved with it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_photo(
    path: Path, mode: str = "RGB", colour: Colour = 0, size: tuple[int, int] = (8, 8)
) -> Path:
    """Write a photo of one colour in the format of its ending, with the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, FORMATS.get(path.suffix.lower(), "JPEG"))
    return path


def write_photos(folder: Path, *places: str, size: tuple[int, int] = (8, 8)) -> Path:
    """Write photos that differ at places below a folder, as "cat/1.jpg"; return the folder."""
    for number, place in enumerate(places):
        write_photo(folder / place, colour=(number, 9, 9), size=size)
    return folder


def write_captioned(folder: Path, captions: Mapping[str, str]) -> Path:
    """Write empty photos with their captions in text files beside them; return the folder."""
    for name, text in captions.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return folder
