"""ColorSwap: two pictures, two captions with the colour words exchanged (Burapacheep et al., 2024).

Read from `<root>/colorswap/test.json` (option `split`: train; option `annotations`: another file),
one JSON list:

    [{"id": 0, "caption_1": "someone holding a yellow umbrella wearing a white dress",
      "caption_2": "...", "image_1": "images/img_0_1.png", "image_2": "images/img_0_2.png",
      "image_source": "midjourney", "caption_source": "human"}]

Image names are relative to `<root>/colorswap` (argument `images`: another folder). Winoground's
three scores with strict ties; the headline is the group score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import close, of_cases, select
from compoclip.errors import CompoclipError, UsageError

_SIZES = {"test": 300, "train": 700}
_SCORES = ("group", "text", "image")
_SOURCES = ("image_source", "caption_source")
META = Meta(
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
    parts=("colorswap",),
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills={"colorswap": "binding"},
    expected={"colorswap": 300},
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
    split: str = "test",
) -> Benchmark:
    """Read ColorSwap as GROUP cases; layout: see the module.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task or
    split.
    """
    kept = select(META.id, META.parts, subtasks)
    if split not in _SIZES:
        raise UsageError(f"colorswap has no split {split!r}; {close(split, _SIZES)}")
    path = annotations or root / "colorswap" / f"{split}.json"
    rules = {each: Aggregate(META.parts, "micro", metric=each) for each in _SCORES}
    rules |= dict.fromkeys(("vl_compo", "paper"), rules["group"])
    cases = _cases(path, images or root / "colorswap")
    expected = {"colorswap": _SIZES[split]}
    digest = files.data_hash({split: path})
    made = of_cases(META, kept, cases, digest, rules, "group", expected=expected)
    return made if split == "test" else replace(made, name=f"{META.id}_{split}")


def _cases(path: Path, photos: Path) -> list[Case]:
    cases = []
    seen: set[object] = set()
    for index, value in enumerate(files.items(files.read_json(path), str(path))):
        where = f"{path}: row {index}"
        row = files.record(value, where)
        names = [files.text(row, f"image_{i}", where) for i in (1, 2)]
        cases.append(
            Case(
                id=files.identifier(row, "id", where, seen),
                form=Form.GROUP,
                images=tuple(ImageRef(files.image_path(photos, each, where)) for each in names),
                texts=tuple(files.text(row, f"caption_{i}", where) for i in (1, 2)),
                subtask="colorswap",
                labels={each: str(row[each]) for each in _SOURCES if row.get(each)},
            )
        )
    if not cases:
        raise CompoclipError(f"{path}: no examples; fetch the official file again")
    return cases
