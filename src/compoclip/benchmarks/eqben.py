"""EqBen: two photos that differ a little, each with its caption (Wang et al., ICCV 2023).

Read from `<root>/eqben/annotation.json` (option `annotations`: another file), the annotation that
the authors published in 2023 as `private_info_global.json`, one JSON list:

    [{"image0": "eqbenag/.../a.png", "image1": "eqbenag/.../b.png", "caption0": "...",
      "caption1": "..."}]

The first folder of image0 names the sub-task. A caption may be a list, of which the first is used
(the Action Genome part has several). The older randomised form ({image, caption}, four rows an
item) needs a key that is not public. Photos: `<root>/eqben/images/<image0>` (argument `images`:
another folder); those of YouCook2 are `.npy` arrays with blue first. jpg=true: the `.png` photos
are those of the smaller JPEG edition.

Scored as Winoground; ties are wrong. Headline `vl_compo`: the mean of the five group scores
YouCook2, GEBC, AG, Kubric (itself the mean of location, counting and attribute) and SD; `text` and
`image` are the same mean of the other two scores. cap=20000 keeps the items with the smallest hash
of their id in each sub-task (the FSC-CLIP paper caps its two largest at random); the rest is
counted as left out, and results under different caps are never compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Loading, Subtask, facts
from compoclip.errors import CompoclipError, UsageError

META = Meta(
    id="eqben",
    title="EqBen",
    citation="Wang et al., Equivariant Similarity for Vision-Language Foundation Models, ICCV 2023",
    source="repository Wangt-CN/EqBen: private_info_global.json, saved as annotation.json, and the "
    "image archive (100 GB) or its JPEG edition (23 GB)",
    licence="Apache-2.0",
    access="open",
    files=("eqben/annotation.json",),
    images=("eqben/images",),
    chance=PAIR_CHANCE,
    **facts(
        {
            "ag": Subtask("relation", 195872),
            "youcook2": Subtask("relation", 45849),
            "gebc": Subtask("relation", 1814),
            "kubric_loc": Subtask("spatial", 2000),
            "kubric_cnt": Subtask("counting", 2000),
            "kubric_attr": Subtask("attribute", 2000),
            "sd": Subtask("object", 1513),
        }
    ),
)
_KUBRIC = Aggregate(("kubric_loc", "kubric_cnt", "kubric_attr"))
_FIVE = ("youcook2", "gebc", "ag", _KUBRIC, "sd")
_MEANS = {score: Aggregate(_FIVE, metric=score) for score in SCORES}
_PREFIX = "eqben"


def _cases(
    data: Loading, *, annotations: Path | None = None, cap: int | None = None, jpg: bool = False
) -> Iterator[Case]:
    """cap: most items of a sub-task, None for all. jpg: the photos are of the JPEG edition."""
    if cap is not None and cap < 1:
        raise UsageError(f"eqben: cap must be at least 1, not {cap}; leave it out for all items")
    found = _found(data, annotations or data.root / "eqben" / "annotation.json", jpg)
    if cap is not None:
        data.stated.append(f"cap {cap}")
        data.expected = {name: min(count, cap) for name, count in data.expected.items()}
    data.stated += ["jpg"] * jpg
    for cases in found.values():
        kept = cases if cap is None else _smallest(cases, cap)
        data.left_out[f"items beyond the cap of {cap} a sub-task"] += len(cases) - len(kept)
        yield from kept


def _found(data: Loading, path: Path, jpg: bool) -> dict[str, list[Case]]:
    """The cases of each sub-task. Photos that several cases show are one object."""
    found: dict[str, list[Case]] = {name: [] for name in data.parts}
    photos = data.photos("eqben/images")
    refs: dict[str, ImageRef] = {}
    for _, where, row in data.rows("annotation", path):
        if "image0" not in row and "image" in row:
            raise CompoclipError(
                f"{where}: this is the randomised annotation, whose key is not public; get "
                "private_info_global.json"
            )
        names = files.texts(row, ("image0", "image1"), where)
        subtask = names[0].partition("/")[0].removeprefix(_PREFIX)
        if subtask not in META.parts:
            raise CompoclipError(
                f"{where}: {names[0]!r:.80} belongs to no known part; known first folders: "
                f"{', '.join(_PREFIX + name for name in META.parts)}"
            )
        texts = tuple(_caption(row, f"caption{i}", where) for i in range(2))
        if subtask not in found:
            continue
        for name in names:
            if name not in refs:
                refs[name] = _image(photos, name, jpg, where, check=not refs)
        images, group = tuple(refs[name] for name in names), found[subtask]
        group.append(Case(f"{subtask}/{len(group)}", Form.GROUP, images, texts, subtask))
    return found


def _caption(row: dict[str, Any], key: str, where: str) -> str:
    """A caption, or the first of a list of captions."""
    value = files.field(row, key, where)
    if isinstance(value, list) and value:
        value = value[0]
    return files.nonempty(value, f"{where}: {key!r}")


def _image(photos: Path, name: str, jpg: bool, where: str, check: bool) -> ImageRef:
    if not name.endswith(".png"):
        return ImageRef(files.image_path(photos, name, where))
    twin = name.removesuffix(".png") + ".jpg"
    path = files.image_path(photos, twin if jpg else name, where)
    if check and not jpg and not path.is_file() and (photos / twin).is_file():
        raise UsageError(f"{photos}: these photos are of the JPEG edition; say eqben,jpg=true")
    return ImageRef(path)


def _smallest(cases: Sequence[Case], cap: int) -> list[Case]:
    """The `cap` cases with the smallest hash of their id, in their own order."""
    order = sorted(
        range(len(cases)),
        key=lambda i: hashlib.blake2b(cases[i].id.encode(), digest_size=8).digest(),
    )
    return [cases[i] for i in sorted(order[:cap])]


EQBEN = CaseReader(
    META,
    _cases,
    rules={
        "vl_compo": _MEANS["group"],
        "text": _MEANS["text"],
        "image": _MEANS["image"],
        "kubric": _KUBRIC,
    },
    headline="vl_compo",
    empty="no items of PARTS; is this the official file?",
)
