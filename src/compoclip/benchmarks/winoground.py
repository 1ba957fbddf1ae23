"""Winoground, ColorSwap and COLA: two photos, two captions of (nearly) the same words.

**Winoground** (Thrush et al., CVPR 2022) is read from `<root>/winoground/examples.jsonl` (option
`annotations`: another file), one object a line:

    {"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "...",
     "caption_1": "...", "tag": "...", "secondary_tag": "...", "num_main_preds": 1,
     "collapsed_tag": "Object"}

Images: `<root>/winoground/images/<image_0>.png` (argument `images`: another folder; a name that
has a suffix keeps it). Some are RGBA; they are converted when decoded. The group score is also
split by `collapsed_tag` (Object, Relation, Both).

**ColorSwap**, with the colour words exchanged (Burapacheep et al., 2024), is read from
`<root>/colorswap/test.json` (option `split`: train; option `annotations`: another file), one JSON
list:

    [{"id": 0, "caption_1": "someone holding a yellow umbrella wearing a white dress",
      "caption_2": "...", "image_1": "images/img_0_1.png", "image_2": "images/img_0_2.png",
      "image_source": "midjourney", "caption_source": "human"}]

Image names are relative to `<root>/colorswap` (argument `images`: another folder).

**COLA, multi-object part**: two photos of the same things with other attributes and relations (Ray
et al., NeurIPS 2023), is read from `<root>/cola/COLA_multiobjects_matching_benchmark.json` (option
`annotations`: another file), one JSON list:

    [["https://.../vg_gqa_images/2390970.jpg", "standing tall long giraffe to the right of brown
      giraffe", "https://.../vg_gqa_images/2388902.jpg", "brown giraffe behind tall white giraffe"]]

The last part of an address is the photo's Visual Genome id; photos: `<root>/vg/VG_100K` and
`<root>/vg/VG_100K_2` (argument `images`: one other folder). Nothing is fetched.

All have Winoground's three scores with strict ties, each an aggregate of its own. The headline is
the group score; that of COLA and its `paper` rule are the image score (each caption prefers its own
photo), as in the official evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, close
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import repository
from compoclip.errors import CompoclipError, UsageError


def _rules(part: str) -> dict[str, Aggregate]:
    rules = {score: Aggregate((part,), "micro", metric=score) for score in SCORES}
    return rules | dict.fromkeys(("vl_compo", "paper"), rules["group"])


_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
_TAGS = ("tag", "secondary_tag", "num_main_preds", "collapsed_tag")
META = Meta(
    id="winoground",
    title="Winoground",
    citation="Thrush et al., Winoground: Probing Vision and Language Models for Visio-Linguistic "
    "Compositionality, CVPR 2022",
    source="dataset-hub page facebook/winoground: data/examples.jsonl and data/images.zip",
    licence="META images research licence; the images must not be passed on",
    status="gated",
    access="gated: accept the terms on the dataset page, then unpack images.zip",
    files=("winoground/examples.jsonl",),
    images=("winoground/images",),
    chance=PAIR_CHANCE,
    **facts({"winoground": Subtask("role", 400)}),
)


def _winoground(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    photos = data.photos("winoground/images")
    seen: set[object] = set()
    path = annotations or data.root / "winoground" / "examples.jsonl"
    for _, where, row in data.lines("examples", path):
        key = files.identifier(row, "id", where, seen)
        names = files.texts(row, ("image_0", "image_1"), where)
        images = tuple(
            ImageRef(files.image_path(photos, _with_suffix(name), where)) for name in names
        )
        texts = files.texts(row, ("caption_0", "caption_1"), where)
        labels = {tag: str(row[tag]) for tag in _TAGS if row.get(tag) not in (None, "")}
        yield Case(key, Form.GROUP, images, texts, "winoground", labels=labels)


def _with_suffix(name: str) -> str:
    return name if name.lower().endswith(_SUFFIXES) else f"{name}.png"


def _by_tag(data: Loading) -> dict[str, Aggregate]:
    rules = _rules("winoground")
    values = {case.labels["collapsed_tag"] for case in data.cases if "collapsed_tag" in case.labels}
    for value in sorted(values):
        rules[f"group_{value.lower()}"] = Aggregate(
            META.parts, macro_by="collapsed_tag", exclude=frozenset(values - {value})
        )
    return rules


_EMPTY = "no examples; fetch the official file again"
WINOGROUND = CaseReader(META, _winoground, _by_tag, "group", empty=_EMPTY)

# --- ColorSwap. ---

_SIZES = {"test": 300, "train": 700}
_SOURCES = ("image_source", "caption_source")


def _colorswap(
    data: Loading, *, annotations: Path | None = None, split: str = "test"
) -> Iterator[Case]:
    if split not in _SIZES:
        raise UsageError(f"colorswap has no split {split!r}; {close(split, _SIZES)}")
    data.expected = {"colorswap": _SIZES[split]}
    if split != "test":
        data.name += f"_{split}"
    photos = data.photos("colorswap")
    seen: set[object] = set()
    for _, where, row in data.rows(split, annotations or data.root / f"colorswap/{split}.json"):
        images = tuple(files.photo(photos, row, f"image_{i}", where) for i in (1, 2))
        key = files.identifier(row, "id", where, seen)
        texts = files.texts(row, ("caption_1", "caption_2"), where)
        labels = {each: str(row[each]) for each in _SOURCES if row.get(each)}
        yield Case(key, Form.GROUP, images, texts, "colorswap", labels=labels)


COLORSWAP = CaseReader(
    Meta(
        id="colorswap",
        title="ColorSwap",
        citation="Burapacheep et al., ColorSwap: A Color and Word Order Dataset for Multimodal "
        "Evaluation, Findings of ACL 2024",
        source="dataset-hub page stanfordnlp/colorswap: test.json and the folder images",
        licence="MIT",
        status="gated",
        access="gated: accept the terms on the dataset page",
        files=("colorswap/test.json",),
        images=("colorswap/images",),
        chance=PAIR_CHANCE,
        **facts({"colorswap": Subtask("binding", 300)}),
    ),
    _colorswap,
    _rules("colorswap"),
    "group",
    empty=_EMPTY,
)

# --- COLA. ---

_COLA_FILE = "COLA_multiobjects_matching_benchmark.json"
_COLA_META = Meta(
    id="cola",
    title="COLA (multi-object)",
    citation="Ray et al., Cola: A Benchmark for Compositional Text-to-image Retrieval, NeurIPS "
    "2023 Datasets and Benchmarks",
    source="repository arijitray1993/COLA, folder data; photos: Visual Genome",
    licence="MIT",
    access="open",
    images=("vg/VG_100K", "vg/VG_100K_2"),
    chance=PAIR_CHANCE,
    **facts(
        {"multi_object": Subtask("binding", 210, 56_746, "25d8f5d5d5fa593e13a83bf5e29d60dd")},
        lambda _: f"cola/{_COLA_FILE}",
        repository("arijitray1993/COLA", "1fa52fba9cff4e6ffb7bfcf3550838748347273b") + "/data",
    ),
)
_COLA_RULES = {each: Aggregate(_COLA_META.parts, "micro", metric=each) for each in reversed(SCORES)}


def _cola(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "cola" / _COLA_FILE
    folders = (
        (data.images,) if data.images else tuple(data.root / each for each in _COLA_META.images)
    )
    photos = by_stem(folders)
    for index, where, value in data.values("multi_object", path):
        row = files.items(value, where)
        if len(row) != 4:
            raise CompoclipError(
                f"{where}: expected [address 1, caption 1, address 2, caption 2], found {len(row)}"
            )
        texts = [files.nonempty(each, f"{where}: entry {k}") for k, each in enumerate(row)]
        names = [PurePosixPath(address) for address in texts[::2]]
        refs = tuple(
            ImageRef(photos.get(each.stem) or files.image_path(folders[0], each.name, where))
            for each in names
        )
        yield Case(f"multi_object/{index}", Form.GROUP, refs, tuple(texts[1::2]), "multi_object")


COLA = CaseReader(
    _COLA_META,
    _cola,
    {**_COLA_RULES, "paper": _COLA_RULES["image"]},
    "image",
    empty="no pairs; fetch the official file again",
)
