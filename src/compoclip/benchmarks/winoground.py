"""Winoground: two photos, two captions of the same words (Thrush et al., CVPR 2022).

Read from `<root>/winoground/examples.jsonl` (option `annotations`: another file), one object a
line:

    {"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "...",
     "caption_1": "...", "tag": "...", "secondary_tag": "...", "num_main_preds": 1,
     "collapsed_tag": "Object"}

Images: `<root>/winoground/images/<image_0>.png` (argument `images`: another folder; a name that
has a suffix keeps it). Some are RGBA; they are converted when decoded. Strict ties. The headline
is the group score; text and image scores are aggregates of their own, and the group score is also
split by `collapsed_tag` (Object, Relation, Both).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import of_cases, select
from compoclip.errors import CompoclipError

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
    parts=("winoground",),
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills={"winoground": "role"},
    expected={"winoground": 400},
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read Winoground as GROUP cases; layout: see the module.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    path = annotations or root / "winoground" / "examples.jsonl"
    cases = _cases(path, images or root / "winoground" / "images")
    digest = files.data_hash({"examples": path})
    return of_cases(META, kept, cases, digest, _rules(cases), "group")


def _rules(cases: Sequence[Case]) -> dict[str, Aggregate]:
    rules = {
        name: Aggregate(META.parts, "micro", metric=name) for name in ("group", "text", "image")
    }
    rules |= dict.fromkeys(("vl_compo", "paper"), rules["group"])
    values = {case.labels["collapsed_tag"] for case in cases if "collapsed_tag" in case.labels}
    for value in sorted(values):
        rules[f"group_{value.lower()}"] = Aggregate(
            META.parts, macro_by="collapsed_tag", exclude=frozenset(values - {value})
        )
    return rules


def _cases(path: Path, photos: Path) -> list[Case]:
    cases = []
    seen: set[object] = set()
    for line, row in files.read_jsonl(path):
        where = f"{path}: line {line}"
        key = files.identifier(row, "id", where, seen)
        names = (files.text(row, f"image_{i}", where) for i in range(2))
        cases.append(
            Case(
                id=key,
                form=Form.GROUP,
                images=tuple(
                    ImageRef(files.image_path(photos, _with_suffix(name), where)) for name in names
                ),
                texts=tuple(files.text(row, f"caption_{i}", where) for i in range(2)),
                subtask="winoground",
                labels={tag: str(row[tag]) for tag in _TAGS if row.get(tag) not in (None, "")},
            )
        )
    if not cases:
        raise CompoclipError(f"{path}: no examples; fetch the official file again")
    return cases


def _with_suffix(name: str) -> str:
    return name if name.lower().endswith(_SUFFIXES) else f"{name}.png"
