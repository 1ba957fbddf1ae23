"""VisMin-bench and NaturalBench-Retrieval: two photos, two captions, Winoground's three scores.

**VisMin-bench** (Awal et al., NeurIPS 2024), pairs that differ in one object, attribute, count or
place, is read as the dataset page has it: all Arrow shards in `<root>/vismin_bench`, or all
Parquet files there, either also in its folder `data` (option `annotations`: one such file, or
another folder), with the columns image_0, image_1 (the encoded pictures), text_0, text_1 and
category (object, attribute, relation or counting); text i belongs to image i. (An early upload was
permuted and came with a file of solutions: the counts of the categories and CLIP's published
scores tell the two apart.) Headline `group`: plain mean of the four categories; `mean` is the
mean of the twelve numbers (three scores of four categories), as published. "relation" means
places, left and right, above and below: a place-blind encoder finds one caption better for both
photos and scores far below chance.

**NaturalBench-Retrieval** (Li et al., NeurIPS 2024), pairs of photos of Flickr30k that models
confuse, is read from `<root>/naturalbench/metadata.json` with the folder `images` beside it, or
from the archive as published, `<root>/naturalbench/NaturalBench-Retrieval.zip`, which is not
unpacked (option `annotations`: another file, argument `images`: another folder), one JSON list:

    [{"index": 0, "image_0": "0_0.jpg", "image_1": "0_1.jpg", "caption_0": "...",
      "caption_1": "..."}]

The paper counts 1,200 pairs; its percentages are fractions of 1,227, which are expected here. The
pairs were chosen as failures of LAION-400M's ViT-L/14 and of BLIP-2, which puts these and their kin
at a disadvantage; the photos are of all splits of Flickr30k, so that training on it has seen some.

All ties are wrong, as in the official evaluations.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.photo_set import find_tables
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Loading, Subtask, facts
from compoclip.errors import CompoclipError

_PICTURES = ("image_0", "image_1")
_CATEGORIES = {
    "object": Subtask("object", 579),
    "attribute": Subtask("attribute", 294),
    "relation": Subtask("spatial", 622),
    "counting": Subtask("counting", 589),
}
META = Meta(
    id="vismin_bench",
    title="VisMin-bench",
    citation="Awal et al., VisMin: Visual Minimal-Change Understanding, NeurIPS 2024",
    source="dataset-hub page mair-lab/vismin-bench; its tables hold the photos",
    licence="CC BY 4.0",
    access="open; put the Arrow or Parquet files of the dataset page into vismin_bench",
    files=("vismin_bench/*.arrow",),
    archives=("vismin_bench/data/*.arrow", "vismin_bench/*.parquet", "vismin_bench/data/*.parquet"),
    images=("vismin_bench",),
    chance=PAIR_CHANCE,
    **facts(_CATEGORIES),
)


def _shards(folder: Path) -> tuple[Path, ...]:
    """The Arrow files of a folder or of its `data` folder, else the Parquet files."""
    for place in (folder, folder / "data"):
        if found := sorted(place.glob("*.arrow")):
            return tuple(found)
    return find_tables(folder)


def _vismin(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    place = annotations or data.root / "vismin_bench"
    paths = (place,) if place.is_file() else _shards(place)
    if not paths:
        raise CompoclipError(
            f"{place}: no such file, or holds no .arrow or .parquet; put it there"
        ) from FileNotFoundError(place)
    seen: dict[str, ImageRef] = {}
    numbers: Counter[str] = Counter()
    for path in paths:
        data.files[path.name] = path
        rows = tables.table_rows(path, (*_PICTURES, "text_0", "text_1", "category"))
        held = set(_PICTURES) - {*tables.picture_columns(path)}
        if held:
            raise CompoclipError(
                f"{path}: {min(held)!r} holds no encoded pictures; get the dataset page's table"
            )
        pairs = zip(*(tables.pictures(path, name, seen) for name in _PICTURES))
        for number, (row, refs) in enumerate(zip(rows, pairs), 1):
            where = f"{path}: row {number}"
            category = files.text(row, "category", where).strip().lower()
            if category not in META.parts:
                raise CompoclipError(
                    f"{where}: category {category!r:.40} is unknown; known: {', '.join(META.parts)}"
                )
            texts = files.texts(row, ("text_0", "text_1"), where)
            key = f"{category}/{numbers[category]}"
            numbers[category] += 1
            yield Case(key, Form.GROUP, refs, texts, category)


_MEANS = {score: Aggregate(META.parts, metric=score) for score in SCORES}
VISMIN = CaseReader(
    META,
    _vismin,
    rules={**_MEANS, "mean": Aggregate(tuple(_MEANS.values()))},
    headline="group",
    empty="no rows of PARTS; fetch the files again",
)

# --- NaturalBench-Retrieval. ---

_ARCHIVE, _METADATA = "NaturalBench-Retrieval.zip", "metadata.json"
_NATURAL = Meta(
    id="naturalbench_retrieval",
    title="NaturalBench-Retrieval",
    citation="Li et al., NaturalBench: Evaluating Vision-Language Models on Natural Adversarial "
    "Samples, NeurIPS 2024 Datasets and Benchmarks",
    source=f"dataset-hub page BaiqiL/NaturalBench: {_ARCHIVE}; photos: Flickr30k",
    licence="Apache-2.0; photos under Flickr30k's terms",
    access=f"open; put {_ARCHIVE} into naturalbench",
    files=(f"naturalbench/{_METADATA}",),
    archives=(f"naturalbench/{_ARCHIVE}",),
    images=("naturalbench/images",),
    parts=("naturalbench_retrieval",),
    chance=PAIR_CHANCE,
    skills={},  # whatever models fail at
    expected={"naturalbench_retrieval": 1227},
)


def _natural(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    folder = data.root / "naturalbench"
    path = annotations or folder / _METADATA
    packed = path if path.suffix.lower() == ".zip" else folder / _ARCHIVE
    inside = packed == path or (annotations is None and not path.is_file() and packed.is_file())
    members: dict[str, str] = {}
    if inside:
        ((where_from, content),) = files.read_members(packed, {"rows": _METADATA}).values()
        data.files["rows"] = content
        values = files.items(files.parse_json(content, where_from), where_from)
        rows = ((f"{where_from}: row {k}", value) for k, value in enumerate(values))
        members = _members(packed)
    else:
        rows = ((where, value) for _, where, value in data.values("rows", path))
    seen: set[object] = set()
    for where, value in rows:
        row = files.record(value, where)
        key = files.identifier(row, "index", where, seen)
        names = files.texts(row, _PICTURES, where)
        if inside and data.images is None:
            refs = tuple(_member(packed, members, name, where) for name in names)
        else:
            photos = data.images or path.parent / "images"
            refs = tuple(
                ImageRef(files.image_path(photos, name.removeprefix("images/"), where))
                for name in names
            )
        texts = files.texts(row, ("caption_0", "caption_1"), where)
        yield Case(key, Form.GROUP, refs, texts, _NATURAL.id)


def _members(archive: Path) -> dict[str, str]:
    """File name -> member, of the photos in the archive."""
    with zipfile.ZipFile(archive) as opened:  # read_members has been through its directory
        names = [name for name in opened.namelist() if "__MACOSX" not in name]
    return {PurePosixPath(name).name: name for name in names if not name.endswith("/")}


def _member(archive: Path, members: dict[str, str], name: str, where: str) -> ImageRef:
    found = members.get(PurePosixPath(name).name)
    if found is None:
        raise CompoclipError(f"{where}: the archive holds no {name!r:.80}; fetch it again")
    return ImageRef(archive, member=found)


NATURALBENCH = CaseReader(
    _NATURAL,
    _natural,
    rules={score: Aggregate(_NATURAL.parts, "micro", metric=score) for score in SCORES},
    headline="group",
    empty="no pairs; fetch the official file again",
)
