"""Data sets in the layouts in which they are published, recognised by their columns or keys.

Tables (see `TABLES`): NegCLIP's, which MACCO extends by columns, TROHN-Text and TROHN-Img, SemCLIP.
Rows of objects (see `LAYOUTS`): BLIP's and other files in Karpathy's splits, DeGLA, VisMin's JSON,
Flickr30k-Counterfactuals. What needs a join: Karpathy's original file, COCO's annotations, which
NegationCLIP extends by updated_caption, VisMin's tables, Flickr8k's token files with their lists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from compoclip.archives import EmbeddedImages
from compoclip.data.columns import (
    NEG_CAPTION,
    NEG_IMAGE,
    POS_CAPTION,
    fields,
    pick_captions,
    relative_image,
)
from compoclip.data.decode import EXTENSIONS
from compoclip.data.sources import ImageColumn, Source
from compoclip.data.sources.splits import ALL, NoUseError, Split, require_one_split
from compoclip.data.sources.table import RowBuilder
from compoclip.data.sources.tables import columns_of, open_table
from compoclip.data.written import UNIT_CAPTION
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import reading
from compoclip.tables import (
    has_ending,
    holds_bytes,
    read_delimited,
    read_lines,
    read_rows,
)

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

_AGAIN = "fetch the file again"

# --- Tables whose columns have other names. ---

NEGCLIP = ("title", "filepath", "neg_caption")
TABLES: Mapping[tuple[str, ...], tuple[str, str, Mapping[str, Any]]] = {
    NEGCLIP: ("filepath", "title", {"lists": True, "name": "NegCLIP table"}),
    ("image_id", "caption", "negative_caption"): (  # TROHN
        "image_id",
        "caption",
        {"renamed": {NEG_CAPTION: "negative_caption", NEG_IMAGE: "negative_image"}},
    ),
    ("filename", "caption", "paraphrased", "negation"): (  # SemCLIP
        "filename",
        "caption",
        {"renamed": {POS_CAPTION: "paraphrased", NEG_CAPTION: "negation"}},
    ),
}
"""The columns of a published table -> its image column, caption column and options of
`open_table`."""


# --- Rows that say their photo, captions and edits under names of their own. ---

_Row = tuple[str, int, Any]
"""File and number for messages, the number, and the row."""
_Sample = dict[str, Any]
"""A sample of a row: its photo, captions, extra columns, and what its id ends with."""


@dataclass(frozen=True)
class PublishedRows:
    """The columns of a published set.

    keys: the columns that every row has, and their types. samples: column of a sample -> column of
    the row, or pattern of the photo; or a function that returns the samples of a row, given the
    row, its number from 1 and its place for messages. numbered: whether ids end in a number of the
    row.
    """

    name: str
    keys: Mapping[str, Any]
    samples: Mapping[str, str] | Callable[[Mapping[str, Any], int, str], Iterable[_Sample]]
    numbered: bool = True

    def read(
        self, path: Path, rows: Iterable[_Row], images: Path | None, more: object = ""
    ) -> Source:
        """Return the samples of the rows; images: of the photos, by default the file's folder."""
        builder = RowBuilder(path, images if images is not None else path.parent)
        for origin, number, row in rows:
            known = fields(row, self.keys, origin)
            found: Iterable[_Sample]
            if callable(self.samples):
                found = self.samples(known, number, origin)
            else:
                columns = {ours: known.get(theirs) for ours, theirs in self.samples.items()}
                found = [{**columns, "photo": self.samples["photo"].format(**known)}]
            for made in found:
                photo = relative_image(made.pop("photo"), builder.root, origin)
                if other := made.get("negative_image"):
                    made["negative_image"] = relative_image(other, builder.root, origin)
                id = f"{photo}#{made.pop('id', builder.rows)}" if self.numbered else photo
                captions = made.pop("captions")
                texts = captions if isinstance(captions, list) else [captions]
                extras = {key: value for key, value in made.items() if value}
                builder.add(id, photo, texts, extras, origin)
        return builder.build(f"{self.name} {path}{more}")


def _last(path: str, parts: int = 1) -> str:
    """The last parts of a path of the authors' machine."""
    return "/".join(PurePosixPath(path.replace("\\", "/").strip()).parts[-parts:])


def _original(row: Mapping[str, Any], number: int, origin: str) -> Iterator[_Sample]:
    yield {
        "photo": "/".join(filter(None, (row["filepath"], row["filename"]))),
        "captions": [fields(each, {"raw": object}, origin)["raw"] for each in row["sentences"]],
    }


def _edits(row: Mapping[str, Any], number: int, origin: str) -> Iterator[_Sample]:
    keys = {"edited_image_path": str, "edited_caption": str}
    plain = {"photo": row["image_path"], "captions": row["caption"]}
    for edit in [fields(each, keys, f"{origin}: an edit") for each in row["negatives"]]:
        negative = {"negatives": [edit["edited_caption"]]}
        yield {**plain, **negative, "negative_image": edit["edited_image_path"]}
    if not row["negatives"]:
        yield plain


_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)


def _positions(row: Mapping[str, Any], number: int, origin: str) -> Iterator[_Sample]:
    mirror = bool(_SIDES.search(row["captions"]))  # else another picture shows the other position
    yield {
        "photo": _last(row["images"]),
        "captions": row["captions"],
        "negatives": [row["neg_captions"]],
        "negative_image": "" if mirror else f"up_down/{_last(row['neg_images'])}",
        "mirror": mirror,
    }


def _attributes(row: Mapping[str, Any], number: int, origin: str) -> Iterator[_Sample]:
    plain = {"photo": _last(row["images"]), "captions": row["captions"]}
    pairs = 0
    for kind in (each for each in ("noun", "adj", "rev") if f"{each}_captions" in row):
        names = f"{kind}_captions", f"{kind}_images"
        known = fields(row, dict.fromkeys(names, str), origin)
        caption, image = (known[name] for name in names)
        if "nonexistent" not in (caption.strip(), image.strip()):
            pairs += 1
            edit = {"negatives": [caption], "negative_image": _last(image, 2)}
            yield {**plain, **edit, "id": f"{number - 1}/{kind}"}
    if not pairs:
        yield {**plain, "id": number - 1}


KARPATHY = PublishedRows(
    "Karpathy JSON",
    {"image": str, "caption": str | list},
    {"photo": "{image}", "captions": "caption"},
    numbered=False,
)
ORIGINAL = PublishedRows(
    "Karpathy JSON",
    {"filename": str, "split": str, "sentences": list, "filepath": str | None},
    _original,
    numbered=False,
)
IN_JSON = (
    PublishedRows(
        "DeGLA captions",
        {"image_id": int, "original": str, "enhanced": list[str]},
        {
            "photo": "COCO_train2014_{image_id:012d}.jpg",
            "captions": "original",
            "negatives": "enhanced",
        },
    ),
    PublishedRows("VisMin edits", {"image_path": str, "caption": str, "negatives": list}, _edits),
)
UNITS = PublishedRows(  # CS-CLIP
    "units",
    {UNIT_CAPTION: str, "image_path": str, "swap_negatives": list[str] | None},
    {"photo": "{image_path}", "captions": UNIT_CAPTION, "negatives": "swap_negatives"},
)
_COUNTERFACTUALS = (
    (("neg_captions", "neg_images"), _positions),
    *(((f"{kind}_captions",), _attributes) for kind in ("noun", "adj", "rev")),
)
IN_TABLES = tuple(
    PublishedRows(
        "Flickr30k-Counterfactuals", dict.fromkeys(("captions", "images", *more), str), read
    )
    for more, read in _COUNTERFACTUALS
)


def open_published(files: Sequence[Path], asked: Request) -> Source | None:
    """Open tables of one kind that a published training set has; None for other columns.

    asked: as for `open_table`; a published set is read by its own columns only. Raises
    CompoclipError for malformed rows, UsageError for a split that does not exist.
    """
    tabular = has_ending(files[0], ".parquet", ".csv", ".tsv")
    names = {*columns_of(files[0])[0]} if tabular else set()
    for columns, (image, caption, options) in TABLES.items():
        usual = asked.image_column in (None, image) and asked.caption_column in (None, caption)
        if usual and names >= {*columns}:
            named = replace(asked, image_column=image, caption_column=caption)
            return open_table(files, named, **options)
    vismin = names >= _VISMIN.keys() | {"image"} and has_ending(files[0], ".parquet")
    layout = next((each for each in IN_TABLES if names >= each.keys.keys()), None)
    if asked.image_column or asked.caption_column or not (vismin or layout):
        return None
    require_one_split(files[0], asked.split)
    if layout is None:
        return _vismin(files, asked.images if asked.images is not None else files[0].parent)
    read = ((file, each) for file in files for each in read_delimited(file))
    rows = ((f"{file}, row {number}", number, row) for file, (number, row) in read)
    return layout.read(files[0], rows, asked.images)


def open_karpathy(path: Path, data: Any, asked: Request) -> Source:
    """Open the content of a JSON file with rows of a published set, or of Karpathy's splits.

    Karpathy's splits have two forms. The original dataset_*.json: {"images": [{filepath, filename,
    split, sentences: [{raw}]}]}; split: "train" (with "restval") by default; images of other splits
    are counted; "all" takes everything. Or rows [{image, caption}] as in BLIP's files, where
    `caption` is a list, or a text with one row per caption; such a file is one split already. Or
    {"photo.jpg": caption or captions}. Ids are the image paths.

    Raises CompoclipError for a file of another form, UsageError for a split that it does not have.
    """
    if isinstance(data, dict) and isinstance(data.get("images"), list):
        chosen = Split(asked.split)
        rows = [
            (origin, number, row)
            for origin, number, row in numbered(data["images"], f"{path}, image")
            if chosen.takes(fields(row, ORIGINAL.keys, origin)["split"])
        ]
        chosen.require(path)
        source = ORIGINAL.read(path, rows, asked.images, chosen)
        source.left_out = {**source.left_out, **chosen.left_out()}
        return source
    endings = {name.rpartition(".")[2].lower() for name in data} if isinstance(data, dict) else ()
    if EXTENSIONS.intersection(endings):
        data = [{"image": image, "caption": texts} for image, texts in data.items()]
    problem = "neither a list of rows nor an object with 'images' or names of images"
    require(isinstance(data, list), path, problem)
    require_one_split(path, asked.split)
    first = data[0] if data and isinstance(data[0], dict) else {}
    layout = next((each for each in IN_JSON if first.keys() >= each.keys.keys()), KARPATHY)
    return layout.read(path, numbered(data, f"{path}, row"), asked.images)


def numbered(rows: Iterable[Any], noun: str) -> Iterator[_Row]:
    """Yield rows for `PublishedRows.read`, counted from 1; noun: the file and a word."""
    yield from ((f"{noun} {number}", number, row) for number, row in enumerate(rows, 1))


# --- VisMin's tables: every edit is joined to its original, a row each. ---

NO_SOURCE = "edit whose original is not there"
_VISMIN = dict.fromkeys(("image_id", "source_image_id", "caption"), str)


def _vismin(files: Sequence[Path], root: Path) -> Source:
    """Originals with their edits: a row for every edit, and one for an original without any."""
    for file in files:
        kinds = columns_of(file)[1]
        fields({**kinds}, dict.fromkeys((*_VISMIN, "image"), object), str(file))
        problem = f"lacks encoded images in column 'image'; {_AGAIN}"
        require(holds_bytes(kinds["image"]), file, problem)
    builder = RowBuilder(files[0], root, ImageColumn("image", EmbeddedImages(files, "image")))
    originals: dict[str, tuple[str, int, str]] = {}
    edits: dict[str, list[tuple[str, str, int]]] = {}
    seen: set[str] = set()
    texts = ((file, *each) for file in files for each in read_rows(file, _VISMIN))
    for place, (file, number, row) in enumerate(texts):
        origin = f"{file}, {number}"
        known = fields({**row, "source_image_id": row["source_image_id"] or ""}, _VISMIN, origin)
        id, source, caption = (known[name] for name in _VISMIN)
        require(id not in seen, origin, f"the image_id {id!r:.80} occurs twice; {_AGAIN}")
        seen.add(id)
        if source:
            edits.setdefault(source, []).append((id, caption, place))
        else:
            originals[id] = (origin, place, caption)
    for id, (origin, place, caption) in originals.items():
        made = edits.pop(id, [])
        for edited, negative, other in made:
            extras = {"negatives": [negative], "negative_place": 1, "negative_image": str(other)}
            builder.add(f"{id}#{edited}", str(place), [caption], extras, origin, place=1)
        if not made:
            builder.add(id, str(place), [caption], origin=origin, place=1)
    builder.left_out[NO_SOURCE] += sum(map(len, edits.values()))
    return builder.build(f"VisMin tables {files[0]} ({len(files)})")


# --- COCO's own caption annotations (captions_train2017.json and the like). ---

UPDATED = "updated_caption"  # of NegationCLIP's file: the caption names an absent object
NOT_UPDATED = f"annotation without {UPDATED}, of which the caption is taken"


def open_coco(path: Path, data: Any, asked: Request) -> Source:
    """Open {"images": [{id, file_name}], "annotations": [{image_id, caption}]}: a sample per image.

    Ids are the file names. The caption column may be keys of an annotation, joined by commas;
    unless given updated_caption where annotations have it (NegationCLIP's file), and caption for
    those that lack it. Raises CompoclipError for a file of another form, an image id that occurs
    twice, or a caption of an unknown image, UsageError for a key that no annotation has.
    """

    def entries(part: str, keys: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        rows = data.get(part)
        problem = f"lacks {part!r}; are these COCO's caption annotations?"
        require(isinstance(rows, list), path, problem)
        for origin, _, entry in numbered(rows, f"{path}, {part}"):
            yield origin, fields(entry, keys, origin)

    builder = RowBuilder(path, asked.images if asked.images is not None else path.parent)
    captions: dict[Any, tuple[str, str, list[Any]]] = {}
    for origin, entry in entries("images", {"id": int | str, "file_name": str}):
        id = entry["id"]
        require(id not in captions, origin, f"the image id {id!r} occurs twice; remove one")
        captions[id] = (origin, relative_image(entry["file_name"], builder.root, origin), [])
    annotations = list(entries("annotations", {"image_id": int | str, "caption": object}))
    found = {key for _, entry in annotations for key in entry} | {"caption"}
    names: tuple[str, ...] = (UPDATED,) if UPDATED in found else ("caption",)
    if asked.caption_column is not None:
        names = pick_captions(found, asked.caption_column, path)
    for origin, entry in annotations:
        id = entry["image_id"]
        require(id in captions, origin, f"no image has the id {id!r}; {_AGAIN}")
        texts = [entry[name] for name in names if entry.get(name)]
        if asked.caption_column is None and not texts:
            builder.left_out[NOT_UPDATED] += UPDATED in names
            texts = [entry["caption"]]
        captions[id][2].extend(texts)
    for origin, name, texts in captions.values():
        builder.add(name, name, texts, origin=origin)
    return builder.build(f"COCO captions {path}")


# --- Flickr8k (and Flickr30k) token files, one caption a line, and Kaggle's captions.txt of
# them. ---

NO_PHOTO = "id with captions but no photo"
NO_CAPTIONS = "listed photo without captions"

# "name#k", then a TAB; three lines of a copy in wide use have a blank there instead.
_LINE = re.compile(r"([^#/\\\0]+)#(\d{1,9})(?:[\t ](.*))?")
# "name| k| caption" of Flickr30k's results.csv, one line of which lacks the second bar.
_BAR_LINE = re.compile(r"([^|/\\\0]+)\| *(\d{1,9}) *\|? *(.*)")
_BAR_HEADER = "image_name|comment_number|comment"
KAGGLE_FILE, _KAGGLE = "captions.txt", "image,caption"  # what Kaggle has, and its header
_LISTS = "Images.txt"
_FOLDERS = (
    *("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"),
    *("flickr30k-images", "flickr30k_images"),
)


def open_flickr8k(path: Path, asked: Request) -> Source:
    """Open lines `name.jpg#k<TAB>caption`, or rows `name.jpg,caption` below `image,caption`.

    Or Flickr30k's results.csv: below `image_name| comment_number| comment` lines `name.jpg| k|
    caption`. Ids are the photo names, in the order of the file. Photos that are missing from the
    folder (by default one of a usual name next to the file) are left out and counted.

    split: a name such as "train", with a list *.trainImages.txt next to the file, or a file with
    one photo name per line; by default "train" if there are such lists, else "all". Raises
    CompoclipError for a malformed line and without any photo, UsageError for an unknown split.
    """
    usual = (path.parent / name for name in _FOLDERS if (path.parent / name).is_dir())
    root = asked.images if asked.images is not None else next(usual, path.parent)
    captions = _token_file(path)
    builder = RowBuilder(path, root)
    chosen = Split(asked.split)
    parts = _parts(path, asked.split, chosen.name)
    listed = [name for name, part in (parts or {}).items() if part == chosen.name]
    builder.left_out[NO_CAPTIONS] = sum(name not in captions for name in listed)
    with reading(root):
        present = set(os.listdir(root))
    for name, texts in captions.items():
        if not chosen.takes(chosen.name if parts is None else parts.get(name)):
            continue
        if name in present:
            builder.add(name, name, texts)
        else:
            builder.left_out[NO_PHOTO] += 1
    builder.left_out.update(chosen.left_out("photo"))
    some = not builder.left_out[NO_PHOTO] or present.intersection(captions)
    require(some, root, f"holds none of the photos of {path}; pass --images")
    return builder.build(f"Flickr8k token file {path}{chosen}")


def _token_file(path: Path) -> dict[str, list[str]]:
    """The captions of each photo name, in the order of the file."""
    captions: dict[str, list[str]] = {}
    if next((line for _, line in read_lines(path)), "") == _KAGGLE:
        for number, row in read_delimited(path):
            name = row["image"].strip()
            good = name and not set(name) & set("/\\\0")
            require(good, f"{path}, row {number}", f"{name!r} is no photo name; fix it")
            captions.setdefault(name, []).append(row["caption"])
        return captions
    for _, name, _, caption in token_lines(path):
        captions.setdefault(name, []).append(caption)
    return captions


def token_lines(path: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yield (file and line for messages, photo, number of the caption, caption) of a token file."""
    form, shown = _LINE, "name.jpg#k<TAB>caption"
    for number, line in read_lines(path):
        if number == 1 and is_bar_header(line):
            form, shown = _BAR_LINE, "name.jpg| k| caption"
        elif line.strip():
            match = form.fullmatch(line)
            if match is None:
                raise CompoclipError(f"{path}: line {number} is not {shown!r}; fix the line")
            yield f"{path}: line {number}", match[1], int(match[2]), match[3] or ""


def is_token_line(line: str) -> bool:
    """Return whether a line is one of a token file, or the header of Kaggle's or Flickr30k's."""
    return line == _KAGGLE or is_bar_header(line) or _LINE.fullmatch(line) is not None


def is_bar_header(line: str) -> bool:
    """Return whether a line is the header of Flickr30k's results.csv."""
    return line.replace(" ", "") == _BAR_HEADER


def _parts(path: Path, split: str | None, name: str) -> dict[str, str] | None:
    """The split of every listed photo; None if all photos are read. name: the split to read."""
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
        if not lists:
            raise NoUseError("split", f"{path}: no *{_LISTS} beside it, so it takes no --split")
        have = ", ".join(file.name for file in lists.values())
        raise UsageError(
            f"{path}: no list for split {name!r} beside it (lists there: {have}); name one with "
            f"--split, or take everything: --split {ALL}"
        )
    listed = [*lists.items(), (name, found)]
    lines = ((part, line.strip()) for part, file in listed for _, line in read_lines(file))
    return {photo: part for part, photo in lines if photo}
