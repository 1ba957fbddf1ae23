"""SPEC: size, position, existence and count in rendered pictures (Peng et al., CVPR 2024).

Read from six folders `<root>/spec/{absolute_size,relative_size,absolute_spatial,relative_spatial,
existence,count}` (option `annotations`: another place of the six), each with two JSON lists:

    image2text.json   [{"query": "images/1.png", "keys": ["two cups", "one cup"], "label": 0}]
    text2image.json   [{"query": "two cups", "keys": ["images/1.png", "images/2.png"], "label": 0}]

Image names are relative to their folder (argument `images`: another place of the six folders). The
best candidate must be that of `label`; of equal ones the first is taken. Chance is the mean of one
over the number of candidates, from the files. Headline `vl_compo`: plain mean of the six folders,
a folder being the mean of its two directions (sub-tasks `<folder>_i2t` and `<folder>_t2i`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta, TiePolicy
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.errors import CompoclipError

_SKILLS = {
    "absolute_size": "attribute",
    "relative_size": "relation",
    "absolute_spatial": "spatial",
    "relative_spatial": "spatial",
    "existence": "negation",
    "count": "counting",
}
_FILES = {"i2t": "image2text.json", "t2i": "text2image.json"}
META = Meta(
    id="spec",
    title="SPEC",
    citation="Peng et al., Synthesize, Diagnose, and Optimize: Towards Fine-Grained "
    "Vision-Language Understanding, CVPR 2024",
    source="dataset-hub page wjpoom/SPEC; pictures included",
    licence="none stated",
    access="open; unpack the archive of the dataset page",
    files=tuple(f"spec/{folder}/{name}" for folder in _SKILLS for name in _FILES.values()),
    images=tuple(f"spec/{folder}" for folder in _SKILLS),
    chance={},
    **facts({f"{folder}_{way}": Subtask(_SKILLS[folder]) for folder in _SKILLS for way in _FILES}),
)
_FOLDERS = {name: Aggregate(tuple(f"{name}_{way}" for way in _FILES)) for name in _SKILLS}
_REMEDY = "put it there or select the parts you have, e.g. spec:count_*"


def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    for part in data.parts:
        folder, way = part.rsplit("_", 1)
        path = (annotations or data.root / "spec") / folder / _FILES[way]
        photos = data.photos("spec") / folder
        empty = True
        for index, where, row in data.rows(part, path, _REMEDY):
            empty = False
            yield _case(row, part, index, photos, where)
        if empty:
            raise CompoclipError(f"{path}: no rows; fetch the official file again")


def _case(row: dict[str, object], part: str, index: int, photos: Path, where: str) -> Case:
    query = files.text(row, "query", where)
    listed = files.items(files.field(row, "keys", where), f"{where}: 'keys'")
    keys = tuple(files.nonempty(key, f"{where}: key {k}") for k, key in enumerate(listed))
    label = files.number(row, "label", where)
    if len(keys) < 2 or label not in range(len(keys)):
        raise CompoclipError(
            f"{where}: label {label:g} of {len(keys)} keys; expected at least two keys and the "
            "number of the right one, from 0"
        )
    to_text = part.endswith("_i2t")
    names = (query,) if to_text else keys
    return Case(
        id=f"{part}/{index}",
        form=Form.CHOOSE_TEXT if to_text else Form.CHOOSE_IMAGE,
        images=tuple(ImageRef(files.image_path(photos, name, where)) for name in names),
        texts=keys if to_text else (query,),
        subtask=part,
        truth=int(label),
    )


SPEC = CaseReader(
    META,
    _cases,
    rules={
        **_FOLDERS,
        **{way: Aggregate(tuple(f"{folder}_{way}" for folder in _SKILLS)) for way in _FILES},
        "vl_compo": Aggregate(tuple(_FOLDERS.values())),
    },
    headline="vl_compo",
    ties=TiePolicy.FIRST,
)
