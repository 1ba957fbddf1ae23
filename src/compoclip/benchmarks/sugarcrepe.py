"""SugarCrepe and SugarCrepe++: one photo, true captions and a fluent false one.

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

Photos of both: `<root>/coco/val2017/<filename>` (argument `images`: another folder).
Ties are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, Meta
from compoclip.benchmarks.reader import CaseReader, Part, Reading, facts
from compoclip.benchmarks.sources import repository

_PARTS = {
    "replace_obj": Part("object", 1652, 361_126, "b2437942135d07797b28a6e8e330f0ca"),
    "replace_att": Part("attribute", 788, 176_843, "c4abc204e421179f65101fb9b2ce0c37"),
    "replace_rel": Part("relation", 1406, 312_629, "2f8ba0b65bfe6f5f6e6ac9b0b627bb60"),
    "swap_obj": Part("role", 245, 57_569, "1f705fc159498dcb184fc46f9bf1d3fc"),
    "swap_att": Part("binding", 666, 154_665, "6be5f4f7876623e957e86b72256ff70b"),
    "add_obj": Part("addition", 2062, 484_593, "b799493a91ce27a02b9725d9dc79ce72"),
    "add_att": Part("addition", 692, 158_863, "ff9fbe14f9d26e0ca65eecb6e47f27bf"),
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


def _cases(data: Reading, *, annotations: Path | None = None) -> Iterator[Case]:
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
    "replace_obj": Part("invariance", 1652, 456_601, "b91a2e5eab440b8b78ff7b4fb06c84ea"),
    "replace_att": Part("invariance", 788, 226_275, "51e13607a5cab3b2159b0d69f96452c9"),
    "replace_rel": Part("invariance", 1406, 392_738, "2011ea5c63662d4b48b8fdb48774b3ae"),
    "swap_obj": Part("invariance", 245, 74_611, "7b88edf0230b868c1025eec83b596644"),
    "swap_att": Part("invariance", 666, 198_206, "06a3922725654ab02090011ced65042b"),
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


def _triples(data: Reading, *, annotations: Path | None = None) -> Iterator[Case]:
    folder = annotations or data.root / "sugarcrepe_pp"
    for part in data.parts:
        seen: set[object] = set()
        for _, where, row in data.rows(part, folder / f"{part}.json"):
            key = files.identifier(row, "id", where, seen)
            texts = files.texts(row, _PLUS_TEXTS, where)
            image = files.photo(data.photos("coco/val2017"), row, "filename", where)
            yield Case(f"{part}/{key}", Form.TRIPLE, (image,), texts, part)


def _texts(data: Reading, *, annotations: Path | None = None) -> Iterator[Case]:
    for case in _triples(data, annotations=annotations):
        yield replace(case, form=Form.TEXT_ONLY, images=())


SUGARCREPE_PP = CaseReader(PLUS, _triples, _PLUS_RULES, "clic")
SUGARCREPE_PP_TOT = CaseReader(TEXT_ONLY, _texts, _PLUS_RULES, "clic")
