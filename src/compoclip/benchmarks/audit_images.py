"""Images of items: boxes that miss them, files that cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from PIL import Image

from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.defects import Kind
from compoclip.benchmarks.names import image_key
from compoclip.console import track
from compoclip.data.decode import decode
from compoclip.data.members import Members
from compoclip.errors import CompoclipError


def audit_images(
    items: Iterable[tuple[str, str, tuple[ImageRef, ...]]], decoding: bool
) -> Iterator[tuple[str, str, Kind, str, str]]:
    """(sub-task, id, kind, "", detail) of items, given with their images, that have a bad image.

    Boxes are compared with the sizes that the files state; absent files are passed over. decoding:
    decode every image, each once.
    """
    refs = [(part, name, ref) for part, name, images in items for ref in images]
    wanted = {ref for *_, ref in refs if decoding or ref.box is not None}
    found: dict[ImageRef, tuple[Kind, str] | None] = {}
    members = Members()
    there = lru_cache(maxsize=None)(Path.is_file)
    what = "decoding" if decoding else "comparing boxes"
    for ref in track(sorted(wanted, key=image_key), what, unit="images"):
        found[ref] = _judge(ref, members, decoding) if there(ref.path) else None
    told = set()
    for part, name, ref in refs:
        bad = found.get(ref)
        if bad is not None and (part, name, bad[0]) not in told:
            told.add((part, name, bad[0]))
            yield part, name, bad[0], "", bad[1]


def _judge(ref: ImageRef, members: Members, decoding: bool) -> tuple[Kind, str] | None:
    size = None if ref.member or ref.box is None else _size(ref.path)
    if ref.box is not None and size is not None:
        left, upper, right, lower = (round(edge) for edge in ref.box)
        shown = f"{image_key(ref)} of {size[0]} x {size[1]} pixels"
        empty = right <= left or lower <= upper
        if empty or left >= size[0] or upper >= size[1] or right <= 0 or lower <= 0:
            return Kind.BOX_OUTSIDE, shown
        if left < 0 or upper < 0 or right > size[0] or lower > size[1]:
            return Kind.BOX_BEYOND, shown
    if decoding:
        try:
            decode(members(ref.path, ref.member) if ref.member else ref.path, name=ref.photo)
        except CompoclipError as error:
            return Kind.UNDECODABLE, str(error)
    return None


@lru_cache(maxsize=1 << 10)
def _size(path: Path) -> tuple[int, int] | None:
    """Width and height as the file states them, None where it cannot be told."""
    try:
        with Image.open(path) as opened:
            return opened.size
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
