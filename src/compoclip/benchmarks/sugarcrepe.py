"""SugarCrepe, SugarCrepe++ and BiVLC: one photo, true captions and a fluent false one.

**SugarCrepe** (Hsieh et al., NeurIPS 2023) is read from
`<root>/sugarcrepe/{replace,swap}_{obj,att}.json, replace_rel.json, add_{obj,att}.json` (option
`annotations`: another folder). Each file is one JSON object, index text -> row; the keys need not
be contiguous:

    {"0": {"filename": "000000565045.jpg", "caption": "...", "negative_caption": "..."}}

Headline `vl_compo`: plain mean of replace, swap and add, each an item-weighted mean of its files.
The group macros (`replace`, `swap`, `add`) are those of CLIC's tables; `micro` is the SugarCrepe
paper's own overall number.

**SugarCrepe++** (Dumpala et al., NeurIPS 2024) is read from
`<root>/sugarcrepe_pp/{replace_obj,replace_att,replace_rel,swap_att,swap_obj}.json` (option
`annotations`: another folder). Each file is one JSON list with two true captions a row:

    [{"id": 0, "filename": "000000565045.jpg", "caption": "...", "caption2": "...",
      "negative_caption": "..."}]

The main metric of the image-to-text task `sugarcrepe_pp` is "augmented", the paper's ITT: both
captions beat the negative. The text-only task `sugarcrepe_pp_tot` uses no photo: the true captions
must be closer to each other than either is to the negative; the official code tests both, its
readme names only the first. `replace` and `swap` are plain means of their files, as in CLIC's
tables; the headline `clic` is the mean of these two. Captions differ from SugarCrepe's in more than
a thousand rows, so the two are never to be compared row by row.

Photos of both: `<root>/coco/val2017/<filename>` (argument `images`: another folder). A tie is
wrong.

**BiVLC** (Miranda et al., NeurIPS 2024) adds a picture of the negative caption. It is read from the
hub's Parquet files, `<root>/bivlc/*.parquet` or `<root>/bivlc/data/*.parquet`, which hold the
pictures, or from `<root>/bivlc/bivlc.jsonl`, one object a line, with the pictures as files
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.photo_set import find_tables
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import repository
from compoclip.errors import CompoclipError

_PARTS = {
    "replace_obj": Subtask("object", 1652, 361_126, "b2437942135d07797b28a6e8e330f0ca"),
    "replace_att": Subtask("attribute", 788, 176_843, "c4abc204e421179f65101fb9b2ce0c37"),
    "replace_rel": Subtask("relation", 1406, 312_629, "2f8ba0b65bfe6f5f6e6ac9b0b627bb60"),
    "swap_obj": Subtask("role", 245, 57_569, "1f705fc159498dcb184fc46f9bf1d3fc"),
    "swap_att": Subtask("binding", 666, 154_665, "6be5f4f7876623e957e86b72256ff70b"),
    "add_obj": Subtask("addition", 2062, 484_593, "b799493a91ce27a02b9725d9dc79ce72"),
    "add_att": Subtask("addition", 692, 158_863, "ff9fbe14f9d26e0ca65eecb6e47f27bf"),
}
META = Meta(
    id="sugarcrepe",
    title="SugarCrepe",
    citation="Hsieh et al., SugarCrepe: Fixing Hackable Benchmarks for Vision-Language "
    "Compositionality, NeurIPS 2023 Datasets and Benchmarks",
    source="repository RAIVNLab/sugar-crepe, folder data; photos: COCO val2017",
    licence="MIT; captions from COCO, CC BY 4.0",
    access="open",
    images=("coco/val2017",),
    chance={"": 1 / 2},
    **facts(
        _PARTS,
        "sugarcrepe/{}.json".format,
        repository("RAIVNLab/sugar-crepe", "0047054b243992f0fad63d6f64f7544862daf846") + "/data",
    ),
)
_GROUPS = {
    "replace": ("replace_obj", "replace_att", "replace_rel"),
    "swap": ("swap_obj", "swap_att"),
    "add": ("add_obj", "add_att"),
}


def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    folder = annotations or data.root / "sugarcrepe"
    for part in data.parts:
        path = data.files[part] = folder / f"{part}.json"
        for key, value in files.record(files.read_json(path), str(path)).items():
            where = f"{path}: row {key!r:.80}"
            row = files.record(value, where)
            image = files.photo(data.photos("coco/val2017"), row, "filename", where)
            texts = files.texts(row, ("caption", "negative_caption"), where)
            yield Case(f"{part}/{key}", Form.CHOOSE_TEXT, (image,), texts, part)


SUGARCREPE = CaseReader(
    META,
    _cases,
    rules={
        **{name: Aggregate(parts) for name, parts in _GROUPS.items()},
        "vl_compo": Aggregate(tuple(Aggregate(parts, "micro") for parts in _GROUPS.values())),
        "paper": Aggregate(META.parts, "micro"),
    },
    headline="vl_compo",
)

# --- SugarCrepe++, with photos and as texts alone. ---

_PLUS_PARTS = {
    "replace_obj": Subtask("invariance", 1652, 456_601, "b91a2e5eab440b8b78ff7b4fb06c84ea"),
    "replace_att": Subtask("invariance", 788, 226_275, "51e13607a5cab3b2159b0d69f96452c9"),
    "replace_rel": Subtask("invariance", 1406, 392_738, "2011ea5c63662d4b48b8fdb48774b3ae"),
    "swap_obj": Subtask("invariance", 245, 74_611, "7b88edf0230b868c1025eec83b596644"),
    "swap_att": Subtask("invariance", 666, 198_206, "06a3922725654ab02090011ced65042b"),
}
PLUS = Meta(
    id="sugarcrepe_pp",
    title="SugarCrepe++ (image-to-text)",
    citation="Dumpala et al., SUGARCREPE++ Dataset: Vision-Language Model Sensitivity to Semantic "
    "and Lexical Alterations, NeurIPS 2024 Datasets and Benchmarks",
    source="repository Sri-Harsha/scpp, folder data; photos: COCO val2017",
    licence="MIT; captions CC BY 4.0",
    access="open",
    same_rows_as="sugarcrepe",
    images=("coco/val2017",),
    chance={"/augmented": 1 / 3, "/original": 1 / 2, "/second": 1 / 2},
    **facts(
        _PLUS_PARTS,
        "sugarcrepe_pp/{}.json".format,
        repository("Sri-Harsha/scpp", "c083bbf039a5ca215acaf25e7ee736d2ea6f3864") + "/data",
    ),
)
TEXT_ONLY = replace(
    PLUS,
    id="sugarcrepe_pp_tot",
    title="SugarCrepe++ (text-only)",
    source="repository Sri-Harsha/scpp, folder data; needs no photos",
    images=(),
)
_PLUS_TEXTS = ("caption", "caption2", "negative_caption")
_REPLACE, _SWAP = Aggregate(_GROUPS["replace"]), Aggregate(_GROUPS["swap"])
_PLUS_RULES = {"replace": _REPLACE, "swap": _SWAP, "clic": Aggregate((_REPLACE, _SWAP))}


def _triples(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    folder = annotations or data.root / "sugarcrepe_pp"
    for part in data.parts:
        seen: set[object] = set()
        for _, where, row in data.rows(part, folder / f"{part}.json"):
            key = files.identifier(row, "id", where, seen)
            texts = files.texts(row, _PLUS_TEXTS, where)
            image = files.photo(data.photos("coco/val2017"), row, "filename", where)
            yield Case(f"{part}/{key}", Form.TRIPLE, (image,), texts, part)


def _texts(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    for case in _triples(data, annotations=annotations):
        yield replace(case, form=Form.TEXT_ONLY, images=())


SUGARCREPE_PP = CaseReader(PLUS, _triples, _PLUS_RULES, "clic")
SUGARCREPE_PP_TOT = CaseReader(TEXT_ONLY, _texts, _PLUS_RULES, "clic")

# --- BiVLC. ---

_PICTURES = ("image", "negative_image")
_BIVLC_TEXTS = ("caption", "negative_caption", "type", "subtype")
_BIVLC_META = Meta(
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
    parts=META.parts,
    chance=PAIR_CHANCE,
    skills=META.skills,
    expected=dict(zip(META.parts, (1200, 437, 462, 81, 278, 399, 76))),
)


def _bivlc_rules(data: Loading) -> dict[str, Aggregate]:
    rules = {each: Aggregate(data.parts, "micro", metric=each) for each in SCORES}
    rules["paper"] = rules["group"]
    for kind in dict.fromkeys(name.split("_")[0] for name in data.parts):
        parts = tuple(name for name in _BIVLC_META.parts if name.startswith(kind))
        rules |= {f"{kind}_{each}": Aggregate(parts, "micro", metric=each) for each in SCORES}
    return rules


def _pictured(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    paths = (annotations,) if annotations else find_tables(data.root / "bivlc")
    paths = paths or (data.root / "bivlc" / "bivlc.jsonl",)
    data.files |= {"rows": paths[0]} if len(paths) == 1 else {path.name: path for path in paths}
    numbers: Counter[str] = Counter()
    seen: dict[str, ImageRef] = {}
    places: dict[object, str] = {}
    for path in paths:
        for where, row, refs in _pictured_rows(path, data.photos("bivlc/images"), seen):
            caption, negative, kind, subtype = files.texts(row, _BIVLC_TEXTS, where)
            subtask = f"{kind}_{subtype}"
            if subtask not in _BIVLC_META.parts:
                raise CompoclipError(
                    f"{where}: type {kind!r:.40} with subtype {subtype!r:.40} is unknown; known: "
                    f"{', '.join(_BIVLC_META.parts)}"
                )
            files.once((subtask, caption, negative, *refs), where, places)
            key = f"{subtask}/{numbers[subtask]}"
            numbers[subtask] += 1
            yield Case(key, Form.GROUP, refs, (caption, negative), subtask)


def _pictured_rows(
    path: Path, photos: Path, seen: dict[str, ImageRef]
) -> Iterator[tuple[str, Mapping[str, Any], tuple[ImageRef, ImageRef]]]:
    """(file and row for messages, row, its two pictures)."""
    rows: Iterable[tuple[str, Mapping[str, Any]]]
    held: dict[str, list[ImageRef]] = {}
    if path.suffix == ".parquet":
        inside = tables.picture_columns(path)
        held = {name: tables.pictures(path, name, seen) for name in _PICTURES if name in inside}
        read = tables.table_rows(path, (*_PICTURES, *_BIVLC_TEXTS))
        rows = ((f"{path}: row {number}", row) for number, row in enumerate(read, 1))
    else:
        rows = ((f"{path}: line {line}", row) for line, row in files.read_jsonl(path))
    for index, (where, row) in enumerate(rows):
        image, negative = (
            held[name][index] if name in held else files.photo(photos, row, name, where)
            for name in _PICTURES
        )
        yield where, row, (image, negative)


BIVLC = CaseReader(
    _BIVLC_META, _pictured, _bivlc_rules, "group", empty="no rows of PARTS; fetch the files again"
)
