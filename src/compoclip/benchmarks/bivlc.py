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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files, sugarcrepe, tables
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import of_cases, select
from compoclip.benchmarks.photo_set import find_tables
from compoclip.errors import CompoclipError

_PICTURES = ("image", "negative_image")
_TEXTS = ("caption", "negative_caption", "type", "subtype")
_SCORES = ("group", "text", "image")
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
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills=sugarcrepe.META.skills,
    expected={
        "replace_obj": 1200,
        "replace_att": 437,
        "replace_rel": 462,
        "swap_obj": 81,
        "swap_att": 278,
        "add_obj": 399,
        "add_att": 76,
    },
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read BiVLC as GROUP cases (photo and caption, negative picture and caption).

    Layout: see the module. Raises CompoclipError for absent or malformed files, UsageError for an
    unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    paths = (annotations,) if annotations else find_tables(root / "bivlc")
    paths = paths or (root / "bivlc" / "bivlc.jsonl",)
    photos = images or root / "bivlc" / "images"
    cases = [case for case in _cases(paths, photos) if case.subtask in kept]
    if not cases:
        raise CompoclipError(f"{paths[0]}: no rows of {', '.join(kept)}; fetch the files again")
    digest = files.data_hash(
        {"rows": paths[0]} if len(paths) == 1 else {path.name: path for path in paths}
    )
    return of_cases(META, kept, cases, digest, _rules(kept), "group")


def _rules(kept: Sequence[str]) -> dict[str, Aggregate]:
    rules = {each: Aggregate(tuple(kept), "micro", metric=each) for each in _SCORES}
    rules["paper"] = rules["group"]
    for kind in dict.fromkeys(name.split("_")[0] for name in kept):
        parts = tuple(name for name in META.parts if name.startswith(kind))
        rules |= {f"{kind}_{each}": Aggregate(parts, "micro", metric=each) for each in _SCORES}
    return rules


def _cases(paths: Sequence[Path], photos: Path) -> list[Case]:
    cases: list[Case] = []
    numbers: Counter[str] = Counter()
    seen: dict[str, ImageRef] = {}
    places: dict[object, str] = {}
    for path in paths:
        for where, row, refs in _rows(path, photos, seen):
            caption, negative, kind, subtype = (files.text(row, name, where) for name in _TEXTS)
            subtask = f"{kind}_{subtype}"
            if subtask not in META.parts:
                raise CompoclipError(
                    f"{where}: type {kind!r:.40} with subtype {subtype!r:.40} is unknown; known: "
                    f"{', '.join(META.parts)}"
                )
            files.once((subtask, caption, negative, *refs), where, places)
            key = f"{subtask}/{numbers[subtask]}"
            numbers[subtask] += 1
            cases.append(Case(key, Form.GROUP, refs, (caption, negative), subtask))
    return cases


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
            held[name][index]
            if name in held
            else ImageRef(files.image_path(photos, files.text(row, name, where), where))
            for name in _PICTURES
        )
        yield where, row, (image, negative)
