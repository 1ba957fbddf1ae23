"""COCO and Flickr30k captions in the JSON files of Karpathy's splits."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from compoclip.data.decode import EXTENSIONS
from compoclip.data.extras import read_extras
from compoclip.data.sources.rows import ALL, FolderImages, RowBuilder, RowSource, Split
from compoclip.data.textfiles import (
    delimited_header,
    pick_captions,
    read_delimited,
    read_lines,
    relative_image,
)
from compoclip.errors import CompoclipError, UsageError, shown
from compoclip.files import read_json, unreadable


def open_karpathy(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Karpathy's splits, in either of the two forms in use.

    The original dataset_*.json: {"images": [{filepath, filename, split, sentences: [{raw}]}]};
    split: "train" (with "restval") unless given; images of others are counted; "all" takes
    everything. Or rows [{image, caption}] as in BLIP's files, where `caption` is a list or, one row
    a caption, a text; such a file is one split already. Or {"photo.jpg": caption or captions}.
    Ids are the image paths.

    images: the folder the paths are relative to, by default the folder of the file. Raises
    CompoclipError for a file of another form, UsageError for a split that it does not have.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    chosen = Split(split)
    if isinstance(data, dict) and isinstance(data.get("images"), list):
        rows = _original(data["images"], path, chosen)
    elif isinstance(data, list) or _names_images(data):
        if isinstance(data, dict):
            data = [{"image": image, "caption": texts} for image, texts in data.items()]
        if split not in (None, ALL):
            raise UsageError(f"{path}: holds one split already; leave out split {split!r}")
        rows = _rows(data, path)
    else:
        raise CompoclipError(
            f"{path}: neither a list of rows nor an object with 'images' or names of images"
        )
    builder = RowBuilder(path)
    for origin, image, texts in rows:
        name = relative_image(image, root, origin)
        builder.add(name, name, texts, origin=origin)
    chosen.require(path)
    builder.left_out.update(chosen.left_out())
    return builder.build(FolderImages(root), f"Karpathy JSON {path}{chosen}")


def _names_images(data: Any) -> bool:
    """Return whether the keys of an object are names of images."""
    return isinstance(data, dict) and any(
        name.rpartition(".")[2].lower() in EXTENSIONS for name in data
    )


def _rows(data: list[Any], path: Path) -> Iterator[tuple[str, str, list[Any]]]:
    """(file and row, image, captions) of every row."""
    for number, row in enumerate(data, 1):
        origin = f"{path}, row {number}"
        if not isinstance(row, dict) or not isinstance(row.get("image"), str):
            keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise CompoclipError(
                f"{origin} has no 'image' path (it has: {keys}); is this a Karpathy file?"
            )
        caption = row.get("caption")
        texts = [caption] if isinstance(caption, str) else caption
        if not isinstance(texts, list):
            if "caption" in row:
                raise CompoclipError(f"{origin}: the caption must be a text or a list of texts")
            raise CompoclipError(f"{origin} has no 'caption'; it has: {', '.join(row)}")
        yield origin, row["image"], texts


def _original(entries: list[Any], path: Path, split: Split) -> Iterator[tuple[str, str, list[Any]]]:
    """(file and row, image, captions) of every image of the split."""
    for number, entry in enumerate(entries, 1):
        origin = f"{path}, image {number}"
        try:
            folder, name, part = entry.get("filepath") or "", entry["filename"], entry["split"]
            texts = [sentence["raw"] for sentence in entry["sentences"]]
        except (TypeError, KeyError, AttributeError) as error:
            raise CompoclipError(
                f"{origin} lacks {error}; is this a Karpathy dataset file?"
            ) from None
        if not all(isinstance(value, str) for value in (folder, name, part)):
            raise CompoclipError(
                f"{origin}: filepath, filename and split must be texts; is this a Karpathy dataset "
                "file?"
            )
        if split.takes(part):
            yield origin, f"{folder}/{name}" if folder else name, texts


# --- COCO's own caption annotations (captions_train2017.json and the like). ---


UPDATED = "updated_caption"  # of NegationCLIP's file: the caption saying what is absent
NOT_UPDATED = f"annotation without {UPDATED}, of which the caption is taken"


def open_coco(
    path: Path, images: Path | None = None, caption_column: str | None = None
) -> RowSource:
    """{"images": [{id, file_name}], "annotations": [{image_id, caption}]}: one sample an image.

    images: the folder that holds the photos, by default the folder of the file. Ids are the file
    names. caption_column: keys of an annotation, joined by commas; unless given updated_caption
    where annotations have it (NegationCLIP's file), and caption for those that lack it. Raises
    CompoclipError for a file of another form, an image id that occurs twice, or a caption of an
    unknown image, UsageError for a key that no annotation has.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    builder = RowBuilder(path)
    captions: dict[Any, tuple[str, str, list[Any]]] = {}
    for origin, key, name in _entries(data, "images", "id", "file_name", path):
        if key in captions:
            raise CompoclipError(f"{origin}: the image id {key!r} occurs twice; remove one")
        if not isinstance(name, str):
            raise CompoclipError(f"{origin}: the file_name {shown(name)} is no text; mend the file")
        captions[key] = (origin, relative_image(name, root, origin), [])
    keys = _caption_keys(data, caption_column, path)
    for origin, key, entry in _records(data, "annotations", "image_id", "caption", path):
        if key not in captions:
            raise CompoclipError(f"{origin}: no image has the id {key!r}; fetch the file again")
        texts = [entry[name] for name in keys if entry.get(name)]
        if caption_column is None and not texts:
            builder.left_out[NOT_UPDATED] += UPDATED in keys
            texts = [entry["caption"]]
        captions[key][2].extend(texts)
    for origin, name, texts in captions.values():
        builder.add(name, name, texts, origin=origin)
    return builder.build(FolderImages(root), f"COCO captions {path}")


def _caption_keys(data: Any, wanted: str | None, path: Path) -> tuple[str, ...]:
    """The keys of an annotation that hold its captions."""
    entries = data.get("annotations") if isinstance(data, dict) else None
    rows = entries if isinstance(entries, list) else []
    found = {key for each in rows if isinstance(each, dict) for key in each}
    if wanted is None:
        return (UPDATED,) if UPDATED in found else ("caption",)
    return pick_captions(found, wanted, path)


def _entries(
    data: Any, part: str, key: str, value: str, path: Path
) -> Iterator[tuple[str, Hashable, Any]]:
    """(file and entry for messages, its id, its value) of a list of the file; entries from 1."""
    for origin, id, entry in _records(data, part, key, value, path):
        yield origin, id, entry[value]


def _records(
    data: Any, part: str, key: str, value: str, path: Path
) -> Iterator[tuple[str, Hashable, dict[str, Any]]]:
    """The same with the whole entry in the place of the value."""
    entries = data.get(part) if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise CompoclipError(f"{path}: lacks {part!r}; are these COCO's caption annotations?")
    for number, entry in enumerate(entries, 1):
        origin = f"{path}, {part} {number}"
        if not isinstance(entry, dict) or not {key, value} <= entry.keys():
            raise CompoclipError(f"{origin} lacks {key!r} or {value!r}; is the file whole?")
        if not isinstance(entry[key], str | int):
            found = shown(entry[key])
            raise CompoclipError(f"{origin}: the id {found} is no number; mend the file")
        yield origin, entry[key], entry


# --- Flickr8k (and Flickr30k) token files, one caption a line, and Kaggle's captions.txt of
# them. ---

NO_PHOTO = "id with captions but no photo"
NO_CAPTIONS = "listed photo without captions"

# "name#k", then a TAB; three lines of a copy in wide use have a blank there instead.
_LINE = re.compile(r"([^#/\\\0]+)#\d+(?:[\t ](.*))?")
# "name| k| caption" of Flickr30k's results.csv, one line of which lacks the second bar.
_BAR_LINE = re.compile(r"([^|/\\\0]+)\| *\d+ *\|? *(.*)")
_BAR_HEADER = "image_name|comment_number|comment"
KAGGLE_FILE, _KAGGLE = "captions.txt", "image,caption"  # what Kaggle has, and its header
_LISTS = "Images.txt"
_FOLDERS = (
    *("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"),
    *("flickr30k-images", "flickr30k_images"),
)


def open_flickr8k(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Lines `name.jpg#k<TAB>caption`, or below a header `image,caption` rows `name.jpg,caption`.

    Or Flickr30k's results.csv: below `image_name| comment_number| comment` lines `name.jpg| k|
    caption`. Ids are the photo names, in the order of the file. images: the folder of the photos,
    by default a folder of a usual name beside the file. split: a name such as "train", found beside
    the file as *.trainImages.txt, or a file with one photo name a line. Unless given it is "train"
    where such lists lie beside the file (photos of the others are counted), else all, as for "all".
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
    form, shown = _LINE, "name.jpg#k<TAB>caption"
    for number, line in read_lines(path):
        if not line.strip():
            continue
        if number == 1 and is_bar_header(line):
            form, shown = _BAR_LINE, "name.jpg| k| caption"
            continue
        match = form.fullmatch(line)
        if match is None:
            raise CompoclipError(f"{path}: line {number} is not {shown!r}; mend the line")
        captions.setdefault(match.group(1), []).append(match.group(2) or "")
    return captions


def is_token_line(line: str) -> bool:
    """True if a line is one of a token file, or the header of Kaggle's or of Flickr30k's."""
    return _is_kaggle(line) or is_bar_header(line) or _LINE.fullmatch(line) is not None


def is_bar_header(line: str) -> bool:
    """True if a line is the header of Flickr30k's results.csv."""
    return line.replace(" ", "") == _BAR_HEADER


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


# --- NegCLIP's training files: captions with generated hard negatives. ---

COLUMNS = ("title", "filepath", "neg_caption")


def open_negclip(path: Path, images: Path | None = None) -> RowSource:
    """TSV (or CSV) with columns title, filepath, neg_caption; one sample a row.

    `neg_caption` is a Python list written as text; its entries become `Sample.negatives`. Further
    columns are read as in `read_extras` (neg_image: rows with similar images). Captions may hold
    line breaks. Ids are "filepath#row", rows counted from 0 as in neg_image. images: the folder the
    paths are relative to, by default the folder of the file. Raises CompoclipError for a malformed
    row, UsageError when a column is missing.
    """
    root = images if images is not None else path.parent
    header = delimited_header(path)
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path}: no column {missing[0]!r}; the columns are: {', '.join(header) or 'none'}"
        )
    builder = RowBuilder(path)
    for number, row in read_delimited(path):
        origin = f"{path}, row {number}"
        image = relative_image(row["filepath"], root, origin)
        extras = read_extras(row, root, origin, lists=True)
        builder.add(f"{image}#{number - 1}", image, [row["title"]], extras, origin)
    return builder.build(FolderImages(root), f"NegCLIP table {path}")
