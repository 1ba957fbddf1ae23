"""Data sets in the layouts in which they are published, recognised by their columns or keys.

Tables (see `TABLES`): NegCLIP's, which MACCO extends by columns, TROHN-Text and TROHN-Img, SemCLIP.
Rows of objects (see `published_rows`): BLIP's and other files in Karpathy's splits, DeGLA, VisMin's
JSON, Flickr30k-Counterfactuals. What needs a join: Karpathy's original file, COCO's annotations,
which NegationCLIP extends by updated_caption, VisMin's tables, Flickr8k's token files with their
lists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip.arrow_files import holds_bytes
from compoclip.data.columns import (
    NEG_CAPTION,
    NEG_IMAGE,
    NO_CAPTION,
    NO_ORIGINAL,
    POS_CAPTION,
    pick_captions,
    read_split,
)
from compoclip.data.published_rows import (
    IN_TABLES,
    KAGGLE_HEADER,
    PublishedRows,
    Row,
    numbered,
    token_lines,
    with_photo,
)
from compoclip.data.sources import ImageColumn, Source
from compoclip.data.sources.table import RowBuilder
from compoclip.data.sources.tables import open_tables, table_of
from compoclip.data.split_names import COLUMN
from compoclip.embedded_images import EmbeddedImages
from compoclip.errors import CompoclipError, require
from compoclip.files import reading
from compoclip.records import read_rows
from compoclip.tables import FETCH_AGAIN, read_delimited, read_lines
from compoclip.typed import read_fields

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

# --- Tables whose columns have other names. ---

TABLES: Mapping[tuple[str, ...], Mapping[str, Any]] = {
    ("filepath", "title", "neg_caption"): {"lists": True, "name": "NegCLIP table"},
    ("image_id", "caption", "negative_caption"): {  # TROHN
        "renamed": {NEG_CAPTION: "negative_caption", NEG_IMAGE: "negative_image"}
    },
    ("filename", "caption", "paraphrased", "negation"): {  # SemCLIP
        "renamed": {POS_CAPTION: "paraphrased", NEG_CAPTION: "negation"}
    },
}
"""The columns of a published table, of images and captions first -> options of `open_tables`."""


def open_rows(layout: PublishedRows, path: Path, rows: Iterable[Row], request: Request) -> Source:
    """Open the rows of a published set: their samples."""
    builder = RowBuilder.of_paths(path, request, path.parent)
    for origin, number, row in rows:
        samples = layout.samples_of(row, number, origin)
        split = read_split(row.get(COLUMN), origin)
        for sample in samples:
            photo = builder.path_of(sample.pop("photo"), origin)
            if "negative_image" in sample:
                sample["negative_image"] = builder.path_of(sample["negative_image"], origin)
            id = f"{photo}#{sample.pop('id', builder.rows)}" if layout.numbered else str(photo)
            captions = sample.pop("captions")
            texts = captions if isinstance(captions, list) else [captions]
            extras = {key: value for key, value in sample.items() if value}
            builder.add(id, photo, texts, extras, origin, split=split)
    return builder.build(f"{layout.name} {path}")


def _open_files(
    layout: PublishedRows, files: Sequence[Path], request: Request, splits: Sequence[str]
) -> Source:
    """Open the rows of CSV files."""
    rows = (
        (f"{file}, row {number}", number, {COLUMN: split, **row})
        for file, split in zip(files, splits)
        for number, row in read_delimited(file)
    )
    return open_rows(layout, files[0], rows, request)


def published_table(files: Sequence[Path], request: Request) -> Callable[..., Source] | None:
    """Return what opens tables of one kind that a published training set has; None for others.

    request: a published set is read by its own columns only.
    """
    if not request.quoting:
        return None
    table = table_of(files[0])
    names = {*table.columns}
    for columns, options in TABLES.items():
        image, caption = columns[:2]
        usual = request.image_column in (None, image) and request.caption_column in (None, caption)
        if usual and names >= {*columns}:
            named = replace(request, image_column=image, caption_column=caption)
            return lambda files, _, splits: open_tables(files, named, splits, **options)
    if request.image_column or request.caption_column:
        return None
    if names >= _VISMIN.keys() | {"image"} and table.kinds:
        return _vismin
    layout = next((form for form in IN_TABLES if names >= form.keys.keys()), None)
    return partial(_open_files, layout) if layout else None


# --- VisMin's tables: every edit is joined to its original, a row each. ---

_VISMIN = dict.fromkeys(("image_id", "source_image_id", "caption"), str)


def _vismin(files: Sequence[Path], request: Request, splits: Sequence[str]) -> Source:
    """Originals with their edits: a row for every edit, and one for an original without any."""
    for file in files:
        kinds = table_of(file).kinds
        read_fields({**kinds}, dict.fromkeys((*_VISMIN, "image"), object), str(file))
        if not holds_bytes(kinds["image"]):
            raise CompoclipError(f"{file}: lacks encoded images in column 'image'; {FETCH_AGAIN}")
    images = EmbeddedImages(files, "image")
    column, present = ImageColumn("image", images), images.present()
    builder = RowBuilder.of_paths(files[0], request, files[0].parent, column)
    originals: dict[str, tuple[str, str, int, str]] = {}
    edits: dict[str, list[tuple[str, str, int, str]]] = {}
    seen_ids: set[str] = set()
    texts = (
        (file, split, *row)
        for file, split in zip(files, splits)
        for row in read_rows(file, _VISMIN)
    )
    for place, (file, split, number, row) in enumerate(texts):
        origin = f"{file}, {number}"
        fields = read_fields(
            {**row, "source_image_id": row["source_image_id"] or ""}, _VISMIN, origin
        )
        id, source, caption = (fields[name] for name in _VISMIN)
        require(id not in seen_ids, origin, f"the image_id {id!r:.80} occurs twice; {FETCH_AGAIN}")
        seen_ids.add(id)
        if source:
            edits.setdefault(source, []).append((id, caption, place, split))
        else:
            originals[id] = (origin, split, place, caption)
    for id, (origin, split, place, caption) in originals.items():
        derived, photo = edits.pop(id, []), str(place) if present[place] else None
        for edited, negative, other, _ in derived:
            extras: dict[str, Any] = {"negatives": [negative]}
            if present[other]:
                extras |= {"negative_place": 1, "negative_image": str(other)}
            builder.add(f"{id}#{edited}", photo, [caption], extras, origin, 1, split=split)
        if not derived:
            builder.add(id, photo, [caption], {}, origin, 1, split=split)
    for _, _, _, split in (edit for lost in edits.values() for edit in lost):
        builder.lost[split][NO_ORIGINAL] += 1
    return builder.build(f"VisMin tables {files[0]} ({len(files)})")


# --- COCO's own caption annotations (captions_train2017.json and the like). ---

UPDATED = "updated_caption"  # of NegationCLIP's file: the caption names an absent object
NOT_UPDATED = f"annotation without {UPDATED}, of which the caption is taken"


def open_coco(path: Path, data: Any, request: Request) -> Source:
    """Open {"images": [{id, file_name}], "annotations": [{image_id, caption}]}: a sample per image.

    Ids are the file names. The caption column may be keys of an annotation, joined by commas;
    unless given updated_caption where annotations have it (NegationCLIP's file), and caption for
    those that lack it. Raises CompoclipError for a file of another form, an image id that occurs
    twice, or a caption of an unknown image, UsageError for a key that no annotation has.
    """

    def entries(part: str, keys: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        rows = data.get(part)
        if not isinstance(rows, list):
            raise CompoclipError(f"{path}: lacks {part!r}; are these COCO's caption annotations?")
        for origin, _, entry in numbered(rows, f"{path}, {part}"):
            yield origin, read_fields(with_photo(entry, "file_name"), keys, origin)

    builder = RowBuilder.of_paths(path, request, path.parent)
    captions: dict[Any, tuple[str, str | None, list[Any]]] = {}
    for origin, entry in entries("images", {"id": int | str, "file_name": str}):
        id = entry["id"]
        require(id not in captions, origin, f"the image id {id!r} occurs twice; remove one")
        captions[id] = (origin, builder.path_of(entry["file_name"], origin), [])
    annotations = list(entries("annotations", {"image_id": int | str, "caption": object}))
    columns = {key for _, entry in annotations for key in entry} | {"caption"}
    names: tuple[str, ...] = (UPDATED,) if UPDATED in columns else ("caption",)
    if request.caption_column is not None:
        names = pick_captions(columns, request.caption_column, path)
    for origin, entry in annotations:
        id = entry["image_id"]
        require(id in captions, origin, f"no image has the id {id!r}; {FETCH_AGAIN}")
        texts = [entry[name] for name in names if entry.get(name)]
        if request.caption_column is None and not texts:
            builder.left_out[NOT_UPDATED] += UPDATED in names
            texts = [entry["caption"]]
        captions[id][2].extend(texts)
    for origin, name, texts in captions.values():
        builder.add(str(name), name, texts, origin=origin)
    return builder.build(f"COCO captions {path}")


# --- Flickr8k (and Flickr30k) token files, one caption a line, and Kaggle's captions.txt of
# them. ---

_LISTS = "Images.txt"
_FOLDERS = (
    *("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"),
    *("flickr30k-images", "flickr30k_images"),
)


def open_flickr8k(path: Path, request: Request) -> Source:
    """Open lines `name.jpg#k<TAB>caption`, or rows `name.jpg,caption` below `image,caption`.

    Or Flickr30k's results.csv: below `image_name| comment_number| comment` lines `name.jpg| k|
    caption`. Ids are the photo names, in the order of the file. Photos that are missing from the
    folder (by default one of a usual name next to the file) are left out and counted.

    split: a name such as "train", with a list *.trainImages.txt next to the file, or a file with
    one photo name per line; by default "train" if there are such lists, else "all". Raises
    CompoclipError for a malformed line and without any photo.
    """
    usual = (path.parent / name for name in _FOLDERS if (path.parent / name).is_dir())
    root = request.images or next(usual, path.parent)
    captions, splits = _token_file(path), _listed(path, request.split)
    builder = RowBuilder(path, root, needs=request.needs)
    for name, split in splits.items():
        builder.lost[split][NO_CAPTION] += name not in captions
    with reading(root):
        present = set(os.listdir(root))
    if captions and not present.intersection(captions):
        raise CompoclipError(f"{root}: holds none of the photos of {path}; pass --images")
    for name, texts in captions.items():
        image = name if name in present else None
        builder.add(name, image, texts, split=splits.get(name, ""))
    return builder.build(f"Flickr8k token file {path}")


def _token_file(path: Path) -> dict[str, list[str]]:
    """The captions of each photo name, in the order of the file."""
    captions: dict[str, list[str]] = {}
    if next((line for _, line in read_lines(path)), "") == KAGGLE_HEADER:
        for number, row in read_delimited(path):
            name = row["image"].strip()
            if not name or set(name) & set("/\\\0"):
                raise CompoclipError(
                    f"{path}, row {number}: {name!r} is not the name of a photo; fix it"
                )
            captions.setdefault(name, []).append(row["caption"])
        return captions
    for _, name, _, caption in token_lines(path):
        captions.setdefault(name, []).append(caption)
    return captions


def _listed(path: Path, split: str | None) -> dict[str, str]:
    """The split of every photo in the lists beside a token file; split: a name, or a list."""
    files = {
        file.name.removesuffix(_LISTS).rpartition(".")[2]: file
        for file in sorted(path.parent.glob(f"*{_LISTS}"))
    }
    if split and split not in files and Path(split).is_file():
        files[split] = Path(split)
    lines = ((part, line.strip()) for part, file in files.items() for _, line in read_lines(file))
    return {photo: part for part, photo in lines if photo}
