"""Hard Positives: caption, rewording with the same meaning, hard negative (Kamath et al., 2024).

Read from two folders joined **by position** (options `data` and `swapped`: other folders):

    <root>/hard_positives/data/NAME.json          [{image_id, true_caption: c, false_caption: c_n,
                                                    image_path}]
    <root>/hard_positives/swapped_data/NAME.json  the same with true_caption: c_p

NAME: `vl_checklist_attributes` and `vl_checklist_relations` (REPLACE; image_path such as
"data/VG_100K_2/2401814.jpg", whole image) and `visual_genome_attribution` (SWAP; ARO's file with
bbox_x, bbox_y, bbox_w, bbox_h, cropped to that box). image_id and false_caption of the two rows
must agree. Images: `<root>/vg/{VG_100K,VG_100K_2}` without the leading "data/", and
`<root>/aro/images` for SWAP (argument `images` and option `aro_images`: other folders).

Texts of a case: (c, c_p, c_n). Metrics (see `evaluation.forms`): original, augmented, brittleness,
both_below; ties are wrong. The headline `replace` is the plain mean of the two REPLACE files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import of_cases, select
from compoclip.errors import CompoclipError

_NAMES = {
    "attribute": "vl_checklist_attributes",
    "relation": "vl_checklist_relations",
    "swap": "visual_genome_attribution",
}
META = Meta(
    id="hard_positives",
    title="Hard Positives",
    citation="Kamath et al., The Hard Positive Truth about Vision-Language Compositionality, "
    "ECCV 2024",
    source="repository amitakamath/hard_positives; photos: Visual Genome",
    licence="none stated",
    access="open",
    files=tuple(
        f"hard_positives/{folder}/{name}.json"
        for name in _NAMES.values()
        for folder in ("data", "swapped_data")
    ),
    images=("vg/VG_100K", "vg/VG_100K_2", "aro/images"),
    parts=tuple(_NAMES),
    chance={
        "/original": 1 / 2,
        "/second": 1 / 2,
        "/augmented": 1 / 3,
        "/brittleness": 1 / 3,
        "/both_below": 1 / 3,
    },
    skills=dict.fromkeys(_NAMES, "invariance"),
    expected={"attribute": 10575, "relation": 16868, "swap": 28748},
)

_REPLACE = ("attribute", "relation")
_RULES = {
    "replace": Aggregate(_REPLACE),
    "replace_original": Aggregate(_REPLACE, metric="original"),
    "replace_brittleness": Aggregate(_REPLACE, metric="brittleness"),
    "swap": Aggregate(("swap",)),
    "swap_original": Aggregate(("swap",), metric="original"),
    "swap_brittleness": Aggregate(("swap",), metric="brittleness"),
}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    data: Path | None = None,
    swapped: Path | None = None,
    aro_images: Path | None = None,
) -> Benchmark:
    """Read Hard Positives as TRIPLE cases; layout: see the module.

    Raises CompoclipError for absent, malformed or misaligned files, UsageError for an unknown
    sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    first = data or root / "hard_positives" / "data"
    second = swapped or root / "hard_positives" / "swapped_data"
    vg = images or root / "vg"
    crops = aro_images or root / "aro" / "images"
    cases: list[Case] = []
    paths: dict[str, Path] = {}
    for name in kept:
        pair = (first / f"{_NAMES[name]}.json", second / f"{_NAMES[name]}.json")
        paths |= {f"data/{name}": pair[0], f"swapped_data/{name}": pair[1]}
        cases += _cases(*pair, name, crops if name == "swap" else vg)
    return of_cases(META, kept, cases, files.data_hash(paths), _RULES, "replace")


def _cases(path: Path, other: Path, subtask: str, photos: Path) -> list[Case]:
    remedy = "select the parts you have, e.g. hard_positives:attribute,relation"
    if subtask == "swap":
        remedy = f"copy ARO's {path.name} there, or {remedy}"
    rows = files.items(files.read_json(path, remedy), str(path))
    rewordings = files.items(files.read_json(other, remedy), str(other))
    if len(rows) != len(rewordings):
        raise CompoclipError(
            f"{other}: {len(rewordings)} rows, but {path} has {len(rows)}; the two are joined by "
            "position, fetch both again"
        )
    cases = []
    for index, (value, reworded) in enumerate(zip(rows, rewordings)):
        where, there = f"{path}: row {index}", f"{other}: row {index}"
        row, twin = files.record(value, where), files.record(reworded, there)
        _agree(row, twin, where, there)
        name = files.text(row, "image_path", where)
        box = files.box(row, where) if subtask == "swap" else None
        image = files.image_path(photos, name.removeprefix("data/"), where)
        texts = (
            files.text(row, "true_caption", where),
            files.text(twin, "true_caption", there),
            files.text(row, "false_caption", where),
        )
        cases.append(
            Case(f"{subtask}/{index}", Form.TRIPLE, (ImageRef(image, box),), texts, subtask)
        )
    return cases


def _agree(row: dict[str, object], twin: dict[str, object], where: str, there: str) -> None:
    for key in ("image_id", "false_caption"):
        mine, theirs = files.field(row, key, where), files.field(twin, key, there)
        if str(mine) != str(theirs):
            raise CompoclipError(
                f"{there}: {key} {theirs!r:.80} differs from {mine!r:.80} in the row it belongs to "
                "in the data folder; the files are joined by position, fetch both again"
            )
