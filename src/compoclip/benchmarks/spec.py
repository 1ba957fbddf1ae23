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

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta, TiePolicy
from compoclip.benchmarks.files import of_cases, select
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
    parts=tuple(f"{folder}_{direction}" for folder in _SKILLS for direction in _FILES),
    chance={},
    skills={f"{f}_{direction}": skill for f, skill in _SKILLS.items() for direction in _FILES},
)
_FOLDERS = {f: Aggregate(tuple(f"{f}_{direction}" for direction in _FILES)) for f in _SKILLS}
_RULES = {
    **_FOLDERS,
    **{each: Aggregate(tuple(f"{folder}_{each}" for folder in _SKILLS)) for each in _FILES},
    "vl_compo": Aggregate(tuple(_FOLDERS.values())),
}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read SPEC as CHOOSE_TEXT and CHOOSE_IMAGE cases; layout: see the module.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    base = annotations or root / "spec"
    places = {name: name.rsplit("_", 1) for name in kept}
    paths = {name: base / folder / _FILES[way] for name, (folder, way) in places.items()}
    cases: list[Case] = []
    for name, (folder, way) in places.items():
        photos = (images or root / "spec") / folder
        cases += _cases(paths[name], name, photos, way == "i2t")
    digest = files.data_hash(paths)
    return of_cases(META, kept, cases, digest, _RULES, "vl_compo", ties=TiePolicy.FIRST)


def _cases(path: Path, subtask: str, photos: Path, choose_text: bool) -> list[Case]:
    remedy = "put it there or select the parts you have, e.g. spec:count_*"
    cases = []
    for index, value in enumerate(files.items(files.read_json(path, remedy), str(path))):
        where = f"{path}: row {index}"
        row = files.record(value, where)
        query = files.text(row, "query", where)
        listed = files.items(files.field(row, "keys", where), f"{where}: 'keys'")
        keys = tuple(files.nonempty(key, f"{where}: key {k}") for k, key in enumerate(listed))
        label = files.number(row, "label", where)
        if len(keys) < 2 or label not in range(len(keys)):
            raise CompoclipError(
                f"{where}: label {label:g} of {len(keys)} keys; expected at least two keys and the "
                "number of the right one, from 0"
            )
        names = (query,) if choose_text else keys
        cases.append(
            Case(
                id=f"{subtask}/{index}",
                form=Form.CHOOSE_TEXT if choose_text else Form.CHOOSE_IMAGE,
                images=tuple(ImageRef(files.image_path(photos, name, where)) for name in names),
                texts=keys if choose_text else (query,),
                subtask=subtask,
                truth=int(label),
            )
        )
    if not cases:
        raise CompoclipError(f"{path}: no rows; fetch the official file again")
    return cases
