"""Training sets of the literature, read as they are published: told by their columns or keys.

TROHN-Text and TROHN-Img (Parquet): image_id, caption, negative_caption, and in the latter the
encoded negative_image. Photos are COCO train2017's.
SemCLIP (CSV): filename, caption, paraphrased, negation.
VisMin (Parquet): image, image_id, source_image_id ("" for an original), caption; every edit is
joined to its original, a row each. Or (JSON) [{"image_path", "caption", "negatives":
[{"edited_image_path", "edited_caption"}]}].
DeGLA (JSON): [{"image_id", "original", "enhanced": [4 texts]}], photos COCO_train2014_*.jpg.
Flickr30k-Counterfactuals (cells apart by tabs, whatever the name ends in): captions, images,
neg_captions, neg_images, where captions that say left or right have the photo mirrored, and other
pictures are named by file (the folder up_down of the images); or captions, images and for noun, adj
and rev *_captions, *_images, of which "nonexistent" is none.

NegCLIP's layout, which MACCO's table extends by columns, and COCO's annotations, which
NegationCLIP's file extends by updated_caption, are read by `open_negclip` and `open_coco`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from compoclip.data.extras import NEG_CAPTION, NEG_IMAGE, POS_CAPTION, Extras
from compoclip.data.members import EmbeddedImages, holds_bytes
from compoclip.data.sources.rows import ALL, FolderImages, RowBuilder, RowSource
from compoclip.data.sources.tables import ColumnImages, open_table
from compoclip.data.textfiles import (
    PARQUET_BATCH,
    delimited_header,
    has_ending,
    opened_parquet,
    read_delimited,
    relative_image,
)
from compoclip.errors import CompoclipError, UsageError, shown

NO_SOURCE = "edit whose original is not there"
_AGAIN = "fetch the file again"

# --- Tables. ---

_TROHN = {"image_id", "caption", "negative_caption"}
_SEM = {"filename", "caption", "paraphrased", "negation"}
_VISMIN = {"image", "image_id", "source_image_id", "caption"}
_POSITIONS = ("captions", "images", "neg_captions", "neg_images")
_VARIANTS = ("noun", "adj", "rev")
_NONE = "nonexistent"
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_UP_DOWN = "up_down"


def open_published(
    files: Sequence[Path], images: Path | None, split: str | None
) -> RowSource | None:
    """Open tables that a published training set has.

    Args:
        files: Of one kind.
        images: Folder of the photos, by default that of the first file.
        split: As for `open_table`.

    Returns:
        The samples; None for tables of other columns.

    Raises:
        CompoclipError: For rows that are malformed.
        UsageError: For a split that is not there.
    """
    names = _columns(files[0])
    root = images if images is not None else files[0].parent
    if names >= _VISMIN and has_ending(files[0], ".parquet"):
        _refuse_split(files[0], split)
        return _vismin(files, root)
    if names >= _TROHN:
        extras = {NEG_CAPTION: "negative_caption", NEG_IMAGE: "negative_image"}
        return open_table(files, images, "image_id", "caption", split, extras)
    if names >= _SEM:
        extras = {POS_CAPTION: "paraphrased", NEG_CAPTION: "negation"}
        return open_table(files, images, "filename", "caption", split, extras)
    reader: Callable[[Path, Path, RowBuilder], None]
    if names >= {*_POSITIONS}:
        reader = _positions
    elif {"captions", "images"} <= names and names & {f"{v}_captions" for v in _VARIANTS}:
        reader = _attributes
    else:
        return None
    _refuse_split(files[0], split)
    builder = RowBuilder(files[0])
    for file in files:
        reader(file, root, builder)
    return builder.build(FolderImages(root), f"Flickr30k-Counterfactuals {files[0]}")


def _columns(file: Path) -> set[str]:
    """The columns of a table; none of JSON lines, in which no set is published."""
    if has_ending(file, ".parquet"):
        with opened_parquet(file) as parquet:
            return set(parquet.schema_arrow.names)
    return set(delimited_header(file)) if has_ending(file, ".csv", ".tsv") else set()


def _refuse_split(file: Path, split: str | None) -> None:
    if split not in (None, ALL):
        raise UsageError(f"{file}: holds one split already; leave out split {split!r}")


def _positions(file: Path, root: Path, builder: RowBuilder) -> None:
    for number, row in read_delimited(file):
        origin = f"{file}, row {number}"
        photo = relative_image(_last(row["images"]), root, origin)
        mirror = bool(_SIDES.search(row["captions"]))
        other = ""
        if not mirror:
            other = relative_image(f"{_UP_DOWN}/{_last(row['neg_images'])}", root, origin)
        extras = Extras(negatives=(row["neg_captions"],), negative_image=other, mirror=mirror)
        builder.add(f"{photo}#{builder.rows}", photo, [row["captions"]], extras, origin)


def _attributes(file: Path, root: Path, builder: RowBuilder) -> None:
    names = delimited_header(file)
    kinds = [kind for kind in _VARIANTS if f"{kind}_captions" in names]
    lacking = next((f"{kind}_images" for kind in kinds if f"{kind}_images" not in names), None)
    if lacking is not None:
        raise CompoclipError(f"{file}: lacks the column {lacking!r}; {_AGAIN}")
    for number, row in read_delimited(file):
        origin = f"{file}, row {number}"
        photo = relative_image(_last(row["images"]), root, origin)
        told = [(row[f"{kind}_captions"], row[f"{kind}_images"], kind) for kind in kinds]
        pairs = [each for each in told if _NONE not in (each[0].strip(), each[1].strip())]
        for caption, image, kind in pairs:
            other = relative_image(_last(image, 2), root, origin)
            extras = Extras(negatives=(caption,), negative_image=other)
            builder.add(f"{photo}#{number - 1}/{kind}", photo, [row["captions"]], extras, origin)
        if not pairs:
            builder.add(f"{photo}#{number - 1}", photo, [row["captions"]], origin=origin)


def _last(path: str, parts: int = 1) -> str:
    """The last parts of a path of the authors' machine."""
    return "/".join(PurePosixPath(path.replace("\\", "/").strip()).parts[-parts:])


def _vismin(files: Sequence[Path], root: Path) -> RowSource:
    """Originals with their edits: a row for every edit, and one for an original without any."""
    builder = RowBuilder(files[0])
    originals: dict[str, tuple[str, int, str]] = {}
    edits: dict[str, list[tuple[str, str, int]]] = {}
    seen: set[str] = set()
    for origin, place, row in _rows(files):
        id, source, caption = (row[name] for name in ("image_id", "source_image_id", "caption"))
        source = "" if source is None else source
        if not all(isinstance(each, str) for each in (id, source, caption)) or not id:
            raise CompoclipError(f"{origin}: image_id, source_image_id and caption must be texts")
        if id in seen:
            raise CompoclipError(f"{origin}: the image_id {id!r:.80} occurs twice; {_AGAIN}")
        seen.add(id)
        if source:
            edits.setdefault(source, []).append((id, caption, place))
        else:
            originals[id] = (origin, place, caption)
    for id, (origin, place, caption) in originals.items():
        made = edits.pop(id, [])
        for edited, negative, other in made:
            extras = Extras(negatives=(negative,), negative_image=f"image:{other}")
            builder.add(f"{id}#{edited}", f"image:{place}", [caption], extras, origin)
        if not made:
            builder.add(id, f"image:{place}", [caption], origin=origin)
    builder.left_out[NO_SOURCE] += sum(map(len, edits.values()))
    opener = ColumnImages(root, {"image": EmbeddedImages(files, "image")})
    return builder.build(opener, f"VisMin tables {files[0]} ({len(files)})")


def _rows(files: Sequence[Path]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(file and row, number over all files, texts of the row)."""
    number = 0
    for file in files:
        with opened_parquet(file) as parquet:
            schema = parquet.schema_arrow
            missing = next((name for name in sorted(_VISMIN) if name not in schema.names), None)
            if missing is not None or not holds_bytes(schema.field("image").type):
                lack = f"column {missing!r}" if missing else "encoded images in column 'image'"
                raise CompoclipError(f"{file}: lacks {lack}; {_AGAIN}")
            texts = sorted(_VISMIN - {"image"})
            start = number
            for batch in parquet.iter_batches(PARQUET_BATCH, columns=texts):
                for row in batch.to_pylist():
                    yield f"{file}, row {number - start + 1}", number, row
                    number += 1


# --- JSON. ---

_DEGLA = {"image_id", "original", "enhanced"}
_EDITS = {"image_path", "caption", "negatives"}


def open_published_json(path: Path, data: Any, images: Path | None) -> RowSource | None:
    """Open the content of a JSON file that a published training set has.

    Args:
        path: The file.
        data: Its content.
        images: Folder of the photos, by default that of the file.

    Returns:
        The samples; None for a file of another form.

    Raises:
        CompoclipError: For an entry that is malformed.
    """
    first = data[0] if isinstance(data, list) and data else None
    keys = set(first) if isinstance(first, dict) else set()
    root = images if images is not None else path.parent
    builder = RowBuilder(path)
    if keys >= _DEGLA:
        for origin, row in _entries(data, _DEGLA, path):
            _degla(row, origin, builder)
        return builder.build(FolderImages(root), f"DeGLA captions {path}")
    if keys >= _EDITS:
        for origin, row in _entries(data, _EDITS, path):
            _edited(row, origin, root, builder)
        return builder.build(FolderImages(root), f"VisMin edits {path}")
    return None


def _entries(
    data: Sequence[Any], keys: set[str], path: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, row in enumerate(data, 1):
        origin = f"{path}, entry {number}"
        if not isinstance(row, dict) or not keys <= row.keys():
            raise CompoclipError(f"{origin}: needs {', '.join(sorted(keys))}; {_AGAIN}")
        yield origin, row


def _degla(row: Mapping[str, Any], origin: str, builder: RowBuilder) -> None:
    number, caption, texts = row["image_id"], row["original"], row["enhanced"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise CompoclipError(f"{origin}: the image_id {shown(number)} is no number; {_AGAIN}")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CompoclipError(f"{origin}: 'enhanced' is no list of texts; {_AGAIN}")
    photo = f"COCO_train2014_{number:012d}.jpg"
    extras = Extras(negatives=tuple(texts))
    builder.add(f"{photo}#{builder.rows}", photo, [caption], extras, origin)


def _edited(row: Mapping[str, Any], origin: str, root: Path, builder: RowBuilder) -> None:
    image, caption, edits = row["image_path"], row["caption"], row["negatives"]
    if not isinstance(image, str) or not isinstance(edits, list):
        raise CompoclipError(f"{origin}: 'image_path' must be a text, 'negatives' a list; {_AGAIN}")
    photo = relative_image(image, root, origin)
    for edit in edits:
        told = edit if isinstance(edit, dict) else {}
        other, negative = told.get("edited_image_path"), told.get("edited_caption")
        if not isinstance(other, str) or not isinstance(negative, str):
            raise CompoclipError(
                f"{origin}: an edit needs 'edited_image_path' and 'edited_caption'; {_AGAIN}"
            )
        extras = Extras(negatives=(negative,), negative_image=relative_image(other, root, origin))
        builder.add(f"{photo}#{builder.rows}", photo, [caption], extras, origin)
    if not edits:
        builder.add(f"{photo}#{builder.rows}", photo, [caption], origin=origin)
