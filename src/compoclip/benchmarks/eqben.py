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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import keep, of_cases, select
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
    parts=("ag", "youcook2", "gebc", "kubric_loc", "kubric_cnt", "kubric_attr", "sd"),
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills={
        "ag": "relation",
        "youcook2": "relation",
        "gebc": "relation",
        "kubric_loc": "spatial",
        "kubric_cnt": "counting",
        "kubric_attr": "attribute",
        "sd": "object",
    },
    expected={
        "ag": 195872,
        "youcook2": 45849,
        "gebc": 1814,
        "kubric_loc": 2000,
        "kubric_cnt": 2000,
        "kubric_attr": 2000,
        "sd": 1513,
    },
)
_KUBRIC = Aggregate(("kubric_loc", "kubric_cnt", "kubric_attr"))
_FIVE = ("youcook2", "gebc", "ag", _KUBRIC, "sd")
_RULES = {
    "vl_compo": Aggregate(_FIVE, metric="group"),
    "text": Aggregate(_FIVE, metric="text"),
    "image": Aggregate(_FIVE, metric="image"),
    "kubric": _KUBRIC,
}
_PREFIX = "eqben"


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
    cap: int | None = None,
    jpg: bool = False,
) -> Benchmark:
    """Read EqBen as GROUP cases; layout: see the module.

    cap: most items of a sub-task, None for all. jpg: the photos are of the JPEG edition. Raises
    CompoclipError for an absent or malformed file, UsageError for an unknown sub-task, a cap below
    one, or the JPEG edition without `jpg`.
    """
    kept = select(META.id, META.parts, subtasks)
    if cap is not None and cap < 1:
        raise UsageError(f"eqben: cap must be at least 1, not {cap}; leave it out for all items")
    path = annotations or root / "eqben" / "annotation.json"
    found = _cases(path, images or root / "eqben" / "images", kept, jpg)
    left_out = 0
    for name, cases in found.items():
        if cap is not None and len(cases) > cap:
            left_out += len(cases) - cap
            found[name] = _smallest(cases, cap)
    if not any(found.values()):
        raise CompoclipError(f"{path}: no items of {', '.join(kept)}; is this the official file?")
    expected = keep(META.expected, kept)
    stated = [f"cap {cap}"] * (cap is not None) + ["jpg"] * jpg
    return of_cases(
        META,
        kept,
        (case for name in kept for case in found[name]),
        files.data_hash({"annotation": path}, stated),
        _RULES,
        "vl_compo",
        expected={n: count if cap is None else min(count, cap) for n, count in expected.items()},
        left_out={f"items beyond the cap of {cap} a sub-task": left_out},
    )


def _cases(path: Path, photos: Path, kept: Sequence[str], jpg: bool) -> dict[str, list[Case]]:
    """The cases of each sub-task. Photos that several cases show are one object."""
    found: dict[str, list[Case]] = {name: [] for name in META.parts}
    refs: dict[str, ImageRef] = {}
    for index, value in enumerate(files.items(files.read_json(path), str(path))):
        where = f"{path}: row {index}"
        row = files.record(value, where)
        if "image0" not in row and "image" in row:
            raise CompoclipError(
                f"{where}: this is the randomised annotation, whose key is not public; get "
                "private_info_global.json"
            )
        names = [files.text(row, f"image{i}", where) for i in range(2)]
        subtask = names[0].partition("/")[0].removeprefix(_PREFIX)
        if subtask not in found:
            raise CompoclipError(
                f"{where}: {names[0]!r:.80} belongs to no known part; known first folders: "
                f"{', '.join(_PREFIX + name for name in META.parts)}"
            )
        texts = tuple(_caption(row, f"caption{i}", where) for i in range(2))
        if subtask not in kept:
            continue
        for name in names:
            if name not in refs:
                refs[name] = _image(photos, name, jpg, where, check=not refs)
        group = found[subtask]
        group.append(
            Case(
                id=f"{subtask}/{len(group)}",
                form=Form.GROUP,
                images=tuple(refs[name] for name in names),
                texts=texts,
                subtask=subtask,
            )
        )
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
