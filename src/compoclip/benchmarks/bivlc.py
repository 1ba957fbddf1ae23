"""BiVLC: SugarCrepe with a picture of the negative caption too (Miranda et al., NeurIPS 2024).

Read from the hub's Parquet files, `<root>/bivlc/*.parquet` or `<root>/bivlc/data/*.parquet`, which
hold the pictures, or from `<root>/bivlc/bivlc.jsonl`, one object a line, with the pictures as files
(option `annotations`: another such file):

    {"image": "000000565045.jpg", "caption": "...", "negative_caption": "...",
     "negative_image": "0_negative.jpg", "type": "replace", "subtype": "obj"}

Image names are relative to `<root>/bivlc/images` (argument `images`: another folder); Parquet may
hold names, too. SugarCrepe asks several questions about one photo: a picture that stands in several
rows of Parquet is known by its bytes to be one photo. Sub-tasks are `<type>_<subtype>`. The three
scores of Winoground with strict ties; the headline is the group score over all items, `text` and
`image` are the paper's I2T and T2I, all three also by type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files, sugarcrepe, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.photo_set import find_tables
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Reading
from compoclip.errors import CompoclipError

_PICTURES = ("image", "negative_image")
_TEXTS = ("caption", "negative_caption", "type", "subtype")
META = Meta(
    id="bivlc",
    title="BiVLC",
    citation="Miranda et al., BiVLC: Extending Vision-Language Compositionality Evaluation with "
    "Text-to-Image Retrieval, NeurIPS 2024 Datasets and Benchmarks",
    source="dataset-hub page imirandam/BiVLC; photos: COCO val2017 and SDXL-DPO, in its tables",
    licence="MIT",
    access="open; put the Parquet files of the dataset page into bivlc",
    files=("bivlc/bivlc.jsonl",),
    archives=("bivlc/*.parquet", "bivlc/data/*.parquet"),
    images=("bivlc/images",),
    parts=sugarcrepe.META.parts,
    chance=PAIR_CHANCE,
    skills=sugarcrepe.META.skills,
    expected=dict(zip(sugarcrepe.META.parts, (1200, 437, 462, 81, 278, 399, 76))),
)


def _rules(data: Reading) -> dict[str, Aggregate]:
    rules = {each: Aggregate(data.parts, "micro", metric=each) for each in SCORES}
    rules["paper"] = rules["group"]
    for kind in dict.fromkeys(name.split("_")[0] for name in data.parts):
        parts = tuple(name for name in META.parts if name.startswith(kind))
        rules |= {f"{kind}_{each}": Aggregate(parts, "micro", metric=each) for each in SCORES}
    return rules


def _cases(data: Reading, *, annotations: Path | None = None) -> Iterator[Case]:
    paths = (annotations,) if annotations else find_tables(data.root / "bivlc")
    paths = paths or (data.root / "bivlc" / "bivlc.jsonl",)
    data.files |= {"rows": paths[0]} if len(paths) == 1 else {path.name: path for path in paths}
    numbers: Counter[str] = Counter()
    seen: dict[str, ImageRef] = {}
    places: dict[object, str] = {}
    for path in paths:
        for where, row, refs in _rows(path, data.photos("bivlc/images"), seen):
            caption, negative, kind, subtype = files.texts(row, _TEXTS, where)
            subtask = f"{kind}_{subtype}"
            if subtask not in META.parts:
                raise CompoclipError(
                    f"{where}: type {kind!r:.40} with subtype {subtype!r:.40} is unknown; known: "
                    f"{', '.join(META.parts)}"
                )
            files.once((subtask, caption, negative, *refs), where, places)
            key = f"{subtask}/{numbers[subtask]}"
            numbers[subtask] += 1
            yield Case(key, Form.GROUP, refs, (caption, negative), subtask)


def _rows(
    path: Path, photos: Path, seen: dict[str, ImageRef]
) -> Iterator[tuple[str, Mapping[str, Any], tuple[ImageRef, ImageRef]]]:
    """(file and row for messages, row, its two pictures)."""
    rows: Iterable[tuple[str, Mapping[str, Any]]]
    held: dict[str, list[ImageRef]] = {}
    if path.suffix == ".parquet":
        inside = tables.picture_columns(path)
        held = {name: tables.pictures(path, name, seen) for name in _PICTURES if name in inside}
        read = tables.parquet_rows(path, (*_PICTURES, *_TEXTS))
        rows = ((f"{path}: row {number}", row) for number, row in enumerate(read, 1))
    else:
        rows = ((f"{path}: line {line}", row) for line, row in files.read_jsonl(path))
    for index, (where, row) in enumerate(rows):
        image, negative = (
            held[name][index] if name in held else files.photo(photos, row, name, where)
            for name in _PICTURES
        )
        yield where, row, (image, negative)


BIVLC = CaseReader(META, _cases, _rules, "group", empty="no rows of PARTS; fetch the files again")
