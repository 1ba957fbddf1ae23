"""Flickr8k (and Flickr30k) token files: one caption a line."""

from __future__ import annotations

import os
import re
from pathlib import Path

from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.textfiles import read_lines
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable

NO_PHOTO = "id with captions but no photo"
NO_CAPTIONS = "listed photo without captions"

# "name#k", then a TAB; three lines of a copy in wide use have a blank there instead.
_LINE = re.compile(r"([^#/\\\0]+)#\d+(?:[\t ](.*))?")
_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images")


def open_flickr8k(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Lines `name.jpg#k<TAB>caption`; ids are the photo names, in the order of the file.

    images: the folder of the photos, by default a folder of a usual name beside the file. split:
    a name such as "train", found beside the file as *.trainImages.txt, or a file with one photo
    name a line. Photos that are named but not in the folder are left out and counted: the official
    file has one such id.

    Raises CompoclipError for a malformed line or when no photo is there, UsageError for a split
    that cannot be found.
    """
    root = images if images is not None else _photo_folder(path.parent)
    captions = read_token_file(path)
    builder = RowBuilder(path)
    wanted = None if split is None else _split_names(path, split)
    if wanted is not None:
        missing = sum(name not in captions for name in wanted)
        if missing:
            builder.left_out[NO_CAPTIONS] = missing
    try:
        present = set(os.listdir(root))
    except OSError as error:
        raise unreadable(root, error) from None
    for name, texts in captions.items():
        if wanted is not None and name not in wanted:
            continue
        if name not in present:
            builder.left_out[NO_PHOTO] += 1
            continue
        builder.add(name, name, texts)
    if builder.left_out[NO_PHOTO] and not present.intersection(captions):
        raise CompoclipError(f"{root}: holds none of the photos of {path}; pass --images")
    part = f", split {split}" if split else ""
    return builder.build(FolderImages(root), f"Flickr8k token file {path}{part}")


def read_token_file(path: Path) -> dict[str, list[str]]:
    """The captions of each photo name, in the order of the file."""
    captions: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise CompoclipError(
                f"{path}: line {number} is not 'name.jpg#k<TAB>caption'; mend the line"
            )
        captions.setdefault(match.group(1), []).append(match.group(2) or "")
    return captions


def is_token_line(line: str) -> bool:
    """Whether a line looks like one of a token file."""
    return _LINE.fullmatch(line) is not None


def _photo_folder(beside: Path) -> Path:
    for name in _FOLDERS:
        if (beside / name).is_dir():
            return beside / name
    return beside


def _split_names(path: Path, split: str) -> set[str]:
    lists = {file.name: file for file in path.parent.glob("*Images.txt")}
    suffix = f"{'dev' if split == 'val' else split}Images.txt"
    found = next((file for name, file in sorted(lists.items()) if name.endswith(suffix)), None)
    if found is None and Path(split).is_file():
        found = Path(split)
    if found is None:
        have = ", ".join(sorted(lists)) or "none"
        raise UsageError(f"{path}: no list for split {split!r} beside it (lists there: {have})")
    return {line.strip() for _, line in read_lines(found) if line.strip()}
