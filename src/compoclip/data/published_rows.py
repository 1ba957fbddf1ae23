"""Rows and lines of data sets in the layouts in which they are published: which photo, captions and
edits they name. `sources.published` makes sources of them, benchmarks items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from compoclip.data.columns import UNIT_CAPTION
from compoclip.errors import CompoclipError
from compoclip.tables import read_lines
from compoclip.typed import is_a, read_fields

Row = tuple[str, int, Any]
"""File and number for messages, the number, and the row."""
SampleFields = dict[str, Any]
"""A sample of a row: its photo, captions, extra columns, and what its id ends with."""


@dataclass(frozen=True)
class PublishedRows:
    """The columns of a published set.

    keys: the columns that every row has, and their types. photo: the one that names the photo,
    which may be null. samples: column of a sample -> column of
    the row, or a function that returns the samples of a row, given the row, its number from 1 and
    its place for messages. numbered: whether ids end in a number of the row.
    """

    name: str
    photo: str
    keys: Mapping[str, Any]
    samples: Mapping[str, str] | Callable[[Mapping[str, Any], int, str], Iterable[SampleFields]]
    numbered: bool = True

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row has all columns that the set always has."""
        return all(name in row for name, kind in self.keys.items() if not is_a(None, kind))

    def samples_of(self, row: Any, number: int, origin: str) -> Iterable[SampleFields]:
        """Return the samples of one row; raise CompoclipError for one of other columns."""
        fields = read_fields(with_photo(row, self.photo), self.keys, origin)
        if callable(self.samples):
            return self.samples(fields, number, origin)
        return [{ours: fields.get(theirs) for ours, theirs in self.samples.items()}]


def with_photo(row: Any, photo: str) -> Any:
    """Return a row with "" instead of null in the column that names its photo."""
    return {**row, photo: ""} if isinstance(row, dict) and row.get(photo, "") is None else row


def _last(path: str | None, parts: int = 1) -> str | None:
    """The last parts of a path of the authors' machine."""
    if path is None:
        return None
    return "/".join(PurePosixPath(path.replace("\\", "/").strip()).parts[-parts:])


def _original(row: Mapping[str, Any], number: int, origin: str) -> Iterator[SampleFields]:
    sentences = [read_fields(sentence, {"raw": object}, origin) for sentence in row["sentences"]]
    yield {
        "photo": row["filename"] and "/".join(filter(None, (row["filepath"], row["filename"]))),
        "captions": [sentence["raw"] for sentence in sentences],
    }


def _edits(row: Mapping[str, Any], number: int, origin: str) -> Iterator[SampleFields]:
    keys = {"edited_image_path": str, "edited_caption": str}
    plain = {"photo": row["image_path"], "captions": row["caption"]}
    for edit in [read_fields(entry, keys, f"{origin}: an edit") for entry in row["negatives"]]:
        negative = {"negatives": [edit["edited_caption"]]}
        yield {**plain, **negative, "negative_image": edit["edited_image_path"]}
    if not row["negatives"]:
        yield plain


_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)


def _positions(row: Mapping[str, Any], number: int, origin: str) -> Iterator[SampleFields]:
    mirror = bool(_SIDES.search(row["captions"]))  # else another picture shows the other position
    yield {
        "photo": _last(row["images"]),
        "captions": row["captions"],
        "negatives": [row["neg_captions"]],
        "negative_image": "" if mirror else f"up_down/{_last(row['neg_images'])}",
        "mirror": mirror,
    }


def _attributes(row: Mapping[str, Any], number: int, origin: str) -> Iterator[SampleFields]:
    plain = {"photo": _last(row["images"]), "captions": row["captions"]}
    pairs = 0
    for kind in (part for part in ("noun", "adj", "rev") if f"{part}_captions" in row):
        names = f"{kind}_captions", f"{kind}_images"
        fields = read_fields(row, dict.fromkeys(names, str), origin)
        caption, image = (fields[name] for name in names)
        if "nonexistent" not in (caption.strip(), image.strip()):
            pairs += 1
            edit = {"negatives": [caption], "negative_image": _last(image, 2)}
            yield {**plain, **edit, "id": f"{number - 1}/{kind}"}
    if not pairs:
        yield {**plain, "id": number - 1}


def _enhanced(row: Mapping[str, Any], number: int, origin: str) -> Iterator[SampleFields]:
    photo = f"COCO_train2014_{row['image_id']:012d}.jpg"
    yield {"photo": photo, "captions": row["original"], "negatives": row["enhanced"]}


KARPATHY = PublishedRows(
    "Karpathy JSON",
    "image",
    {"image": str, "caption": str | list},
    {"photo": "image", "captions": "caption"},
    numbered=False,
)
ORIGINAL = PublishedRows(
    "Karpathy JSON",
    "filename",
    {"filename": str, "split": str, "sentences": list, "filepath": str | None},
    _original,
    numbered=False,
)
IN_JSON = (
    PublishedRows(
        "DeGLA captions",
        "image_id",
        {"image_id": int, "original": str, "enhanced": list[str]},
        _enhanced,
    ),
    PublishedRows(
        "VisMin edits", "image_path", {"image_path": str, "caption": str, "negatives": list}, _edits
    ),
)
UNITS = PublishedRows(  # CS-CLIP
    "units",
    "image_path",
    {UNIT_CAPTION: str, "image_path": str, "swap_negatives": list[str] | None},
    {"photo": "image_path", "captions": UNIT_CAPTION, "negatives": "swap_negatives"},
)
_COUNTERFACTUALS = (
    (("neg_captions", "neg_images"), _positions),
    *(((f"{kind}_captions",), _attributes) for kind in ("noun", "adj", "rev")),
)
IN_TABLES = tuple(
    PublishedRows(
        "Flickr30k-Counterfactuals",
        "images",
        dict.fromkeys(("captions", "images", *more), str),
        read,
    )
    for more, read in _COUNTERFACTUALS
)


def is_blip(row: Mapping[str, Any]) -> bool:
    """Return whether a row is one of BLIP's files of Karpathy's splits, and not the user's own."""
    photo = row.get("image")
    folders = isinstance(photo, str) and photo.startswith(_BLIP_FOLDERS)
    return row.keys() >= {"image", "caption"} and ("image_id" in row or folders)


_BLIP_FOLDERS = ("val2014/", "train2014/", "test2014/", "flickr30k-images/")


def numbered(rows: Iterable[Any], noun: str) -> Iterator[Row]:
    """Yield rows for `published.open_rows`, counted from 1; noun: the file and a word."""
    yield from ((f"{noun} {number}", number, row) for number, row in enumerate(rows, 1))


# --- Lines of token files: Flickr8k's, Flickr30k's results.csv, and Kaggle's copy. ---

# "name#k", then a TAB; three lines of a copy in wide use have a blank there instead.
_LINE = re.compile(r"([^#/\\\0]+)#(\d{1,9})(?:[\t ](.*))?")
# "name| k| caption" of Flickr30k's results.csv, one line of which lacks the second bar.
_BAR_LINE = re.compile(r"([^|/\\\0]+)\| *(\d{1,9}) *\|? *(.*)")
_BAR_HEADER = "image_name|comment_number|comment"
KAGGLE_FILE, KAGGLE_HEADER = "captions.txt", "image,caption"  # what Kaggle has, and its header


def token_lines(path: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yield (file and line for messages, photo, number of the caption, caption) of a token file."""
    form, layout = _LINE, "name.jpg#k<TAB>caption"
    for number, line in read_lines(path):
        if number == 1 and is_bar_header(line):
            form, layout = _BAR_LINE, "name.jpg| k| caption"
        elif line.strip():
            match = form.fullmatch(line)
            if match is None:
                raise CompoclipError(f"{path}: line {number} is not {layout!r}; fix the line")
            yield f"{path}: line {number}", match[1], int(match[2]), match[3] or ""


def is_token_line(line: str) -> bool:
    """Return whether a line is one of a token file, or the header of Kaggle's or Flickr30k's."""
    return line == KAGGLE_HEADER or is_bar_header(line) or _LINE.fullmatch(line) is not None


def is_bar_header(line: str) -> bool:
    """Return whether a line is the header of Flickr30k's results.csv."""
    return line.replace(" ", "") == _BAR_HEADER
