"""Flickr8k (and Flickr30k) token files, one caption a line, and Kaggle's captions.txt of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.splits import ALL, Split
from compoclip.data.textfiles import read_delimited, read_lines
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable

NO_PHOTO = "id with captions but no photo"
NO_CAPTIONS = "listed photo without captions"

# "name#k", then a TAB; three lines of a copy in wide use have a blank there instead.
_LINE = re.compile(r"([^#/\\\0]+)#\d+(?:[\t ](.*))?")
KAGGLE_FILE, _KAGGLE = "captions.txt", "image,caption"  # what Kaggle has, and its header
_LISTS = "Images.txt"
_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images")


def open_flickr8k(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Lines `name.jpg#k<TAB>caption`, or below a header `image,caption` rows `name.jpg,caption`.

    Ids are the photo names, in the order of the file. images: the folder of the photos, by default
    a folder of a usual name beside the file. split: a name such as "train", found beside the file
    as *.trainImages.txt, or a file with one photo name a line. Unless given it is "train" where
    such lists lie beside the file (photos of the others are counted), else all, as for "all".
    Photos that are named but not in the folder are left out and counted: the official file has one
    such id.

    Raises CompoclipError for a malformed line or when no photo is there, UsageError for a split
    that cannot be found.
    """
    root = images if images is not None else _photo_folder(path.parent)
    captions = read_token_file(path)
    builder = RowBuilder(path)
    chosen = Split(split)
    parts = _parts(path, split, chosen.name)
    listed = [name for name, part in (parts or {}).items() if part == chosen.name]
    builder.left_out[NO_CAPTIONS] = sum(name not in captions for name in listed)
    try:
        present = set(os.listdir(root))
    except OSError as error:
        raise unreadable(root, error) from None
    for name, texts in captions.items():
        if not chosen.takes(chosen.name if parts is None else parts.get(name)):
            continue
        if name not in present:
            builder.left_out[NO_PHOTO] += 1
            continue
        builder.add(name, name, texts)
    builder.left_out.update(chosen.left_out("photo"))
    if builder.left_out[NO_PHOTO] and not present.intersection(captions):
        raise CompoclipError(f"{root}: holds none of the photos of {path}; pass --images")
    return builder.build(FolderImages(root), f"Flickr8k token file {path}{chosen}")


def read_token_file(path: Path) -> dict[str, list[str]]:
    """The captions of each photo name, in the order of the file."""
    captions: dict[str, list[str]] = {}
    if _is_kaggle(next((line for _, line in read_lines(path)), "")):
        for number, row in read_delimited(path):
            name = row["image"].strip()
            if not name or set(name) & set("/\\\0"):
                raise CompoclipError(f"{path}, row {number}: {name!r} is no photo name; mend it")
            captions.setdefault(name, []).append(row["caption"])
        return captions
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
    """Whether a line looks like one of a token file, or like the header of Kaggle's."""
    return _is_kaggle(line) or _LINE.fullmatch(line) is not None


def _is_kaggle(line: str) -> bool:
    return line == _KAGGLE


def _photo_folder(beside: Path) -> Path:
    for name in _FOLDERS:
        if (beside / name).is_dir():
            return beside / name
    return beside


def _parts(path: Path, split: str | None, name: str) -> dict[str, str] | None:
    """The split of every listed photo; None when all are read. name: the split that is read."""
    lists = {
        file.name.removesuffix(_LISTS).rpartition(".")[2]: file
        for file in sorted(path.parent.glob(f"*{_LISTS}"))
    }
    if split == ALL or (split is None and not lists):
        return None
    found = lists.get("dev" if name == "val" else name)
    if found is None and split is not None and Path(split).is_file():
        found = Path(split)
    if found is None:
        have = ", ".join(file.name for file in lists.values()) or "none"
        raise UsageError(
            f"{path}: no list for split {name!r} beside it (lists there: {have}); name one with "
            f"--split, or take everything: --split {ALL}"
        )
    parts = {photo: part for part, file in lists.items() for photo in _names(file)}
    return {**parts, **dict.fromkeys(_names(found), name)}


def _names(file: Path) -> set[str]:
    return {line.strip() for _, line in read_lines(file) if line.strip()}
