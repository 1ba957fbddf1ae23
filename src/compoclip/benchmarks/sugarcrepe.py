"""SugarCrepe: one photo, a true and a fluent false caption (Hsieh et al., NeurIPS 2023).

Read from `<root>/sugarcrepe/{replace,swap}_{obj,att}.json, replace_rel.json, add_{obj,att}.json`
(option `annotations`: another folder). Each file is one JSON object, index text -> row; the keys
need not be contiguous:

    {"0": {"filename": "000000565045.jpg", "caption": "...", "negative_caption": "..."}}

Images: `<root>/coco/val2017/<filename>` (argument `images`: another folder). A tie is wrong.
Headline `vl_compo`: plain mean of replace, swap and add, each an item-weighted mean of its files.
The group macros (`replace`, `swap`, `add`) are those of CLIC's tables; `micro` is the SugarCrepe
paper's own overall number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import of_cases, select

META = Meta(
    id="sugarcrepe",
    title="SugarCrepe",
    citation="Hsieh et al., SugarCrepe: Fixing Hackable Benchmarks for Vision-Language "
    "Compositionality, NeurIPS 2023 Datasets and Benchmarks",
    source="repository RAIVNLab/sugar-crepe, folder data; photos: COCO val2017",
    licence="MIT; captions from COCO, CC BY 4.0",
    access="open",
    files=(
        "sugarcrepe/replace_obj.json",
        "sugarcrepe/replace_att.json",
        "sugarcrepe/replace_rel.json",
        "sugarcrepe/swap_obj.json",
        "sugarcrepe/swap_att.json",
        "sugarcrepe/add_obj.json",
        "sugarcrepe/add_att.json",
    ),
    images=("coco/val2017",),
    parts=(
        "replace_obj",
        "replace_att",
        "replace_rel",
        "swap_obj",
        "swap_att",
        "add_obj",
        "add_att",
    ),
    chance={"": 1 / 2},
    skills={
        "replace_obj": "object",
        "replace_att": "attribute",
        "replace_rel": "relation",
        "swap_obj": "role",
        "swap_att": "binding",
        "add_obj": "addition",
        "add_att": "addition",
    },
    expected={
        "replace_obj": 1652,
        "replace_att": 788,
        "replace_rel": 1406,
        "swap_obj": 245,
        "swap_att": 666,
        "add_obj": 2062,
        "add_att": 692,
    },
    hashes={
        "sugarcrepe/replace_obj.json": "b2437942135d07797b28a6e8e330f0ca",
        "sugarcrepe/replace_att.json": "c4abc204e421179f65101fb9b2ce0c37",
        "sugarcrepe/replace_rel.json": "2f8ba0b65bfe6f5f6e6ac9b0b627bb60",
        "sugarcrepe/swap_obj.json": "1f705fc159498dcb184fc46f9bf1d3fc",
        "sugarcrepe/swap_att.json": "6be5f4f7876623e957e86b72256ff70b",
        "sugarcrepe/add_obj.json": "b799493a91ce27a02b9725d9dc79ce72",
        "sugarcrepe/add_att.json": "ff9fbe14f9d26e0ca65eecb6e47f27bf",
    },
)

_GROUPS = {
    "replace": ("replace_obj", "replace_att", "replace_rel"),
    "swap": ("swap_obj", "swap_att"),
    "add": ("add_obj", "add_att"),
}
_RULES = {name: Aggregate(parts) for name, parts in _GROUPS.items()} | {
    "vl_compo": Aggregate(tuple(Aggregate(parts, "micro") for parts in _GROUPS.values())),
    "paper": Aggregate(META.parts, "micro"),
}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read SugarCrepe; see the module for the layout. `subtasks`: names or patterns ("swap_*").

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    folder = annotations or root / "sugarcrepe"
    photos = images or root / "coco" / "val2017"
    paths = {name: folder / f"{name}.json" for name in kept}
    cases = [case for name in kept for case in _cases(paths[name], name, photos)]
    return of_cases(META, kept, cases, files.data_hash(paths), _RULES, "vl_compo")


def _cases(path: Path, subtask: str, photos: Path) -> list[Case]:
    cases = []
    for key, value in files.record(files.read_json(path), str(path)).items():
        where = f"{path}: row {key!r:.80}"
        row = files.record(value, where)
        image = files.image_path(photos, files.text(row, "filename", where), where)
        texts = (files.text(row, "caption", where), files.text(row, "negative_caption", where))
        cases.append(Case(f"{subtask}/{key}", Form.CHOOSE_TEXT, (ImageRef(image),), texts, subtask))
    return cases
