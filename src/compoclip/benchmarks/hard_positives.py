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

from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile, repository
from compoclip.errors import CompoclipError

_NAMES = {
    "attribute": "vl_checklist_attributes",
    "relation": "vl_checklist_relations",
    "swap": "visual_genome_attribution",
}
_FILES = tuple(
    f"{folder}/{name}.json" for name in _NAMES.values() for folder in ("data", "swapped_data")
)
_KEYS = ("image_id", "image_path", "true_caption", "false_caption")
_REPOSITORY = repository("amitakamath/hard_positives")
META = Meta(
    id="hard_positives",
    title="Hard Positives",
    citation="Kamath et al., The Hard Positive Truth about Vision-Language Compositionality, "
    "ECCV 2024",
    source="repository amitakamath/hard_positives; photos: Visual Genome",
    licence="none stated",
    access="open",
    files=tuple(f"hard_positives/{file}" for file in _FILES),
    images=("vg/VG_100K", "vg/VG_100K_2", "aro/images"),
    chance={
        "/original": 1 / 2,
        "/second": 1 / 2,
        "/augmented": 1 / 3,
        "/brittleness": 1 / 3,
        "/both_below": 1 / 3,
    },
    remote=tuple(
        RemoteFile(f"hard_positives/{file}", f"{_REPOSITORY}/{file}", keys=_KEYS)
        for file in _FILES
        if "vl_checklist" in file
    ),
    **facts(
        {
            "attribute": Subtask("invariance", 10575),
            "relation": Subtask("invariance", 16868),
            "swap": Subtask("invariance", 28748),
        }
    ),
)


def _cases(
    reading: Loading,
    *,
    data: Path | None = None,
    swapped: Path | None = None,
    aro_images: Path | None = None,
) -> Iterator[Case]:
    first = data or reading.root / "hard_positives" / "data"
    second = swapped or reading.root / "hard_positives" / "swapped_data"
    for part in reading.parts:
        path, other = (folder / f"{_NAMES[part]}.json" for folder in (first, second))
        photos = reading.photos("vg")
        remedy = "select the parts you have, e.g. hard_positives:attribute,relation"
        if part == "swap":
            photos = aro_images or reading.root / "aro" / "images"
            remedy = f"copy ARO's {path.name} there, or {remedy}"
        rows = list(reading.rows(f"data/{part}", path, remedy))
        twins = list(reading.rows(f"swapped_data/{part}", other, remedy))
        if len(rows) != len(twins):
            raise CompoclipError(
                f"{other}: {len(twins)} rows, but {path} has {len(rows)}; the two are joined by "
                "position, fetch both again"
            )
        for (index, where, row), (_, there, twin) in zip(rows, twins):
            _agree(row, twin, where, there)
            name = files.text(row, "image_path", where).removeprefix("data/")
            box = files.box(row, where) if part == "swap" else None
            image = ImageRef(files.image_path(photos, name, where), box)
            texts = (
                files.text(row, "true_caption", where),
                files.text(twin, "true_caption", there),
                files.text(row, "false_caption", where),
            )
            yield Case(f"{part}/{index}", Form.TRIPLE, (image,), texts, part)


def _agree(row: dict[str, object], twin: dict[str, object], where: str, there: str) -> None:
    for key in ("image_id", "false_caption"):
        mine, theirs = files.field(row, key, where), files.field(twin, key, there)
        if str(mine) != str(theirs):
            raise CompoclipError(
                f"{there}: {key} {theirs!r:.80} differs from {mine!r:.80} in the row it belongs to "
                "in the data folder; the files are joined by position, fetch both again"
            )


_REPLACE, _SWAP = ("attribute", "relation"), ("swap",)
HARD_POSITIVES = CaseReader(
    META,
    _cases,
    rules={
        "replace": Aggregate(_REPLACE),
        "replace_original": Aggregate(_REPLACE, metric="original"),
        "replace_brittleness": Aggregate(_REPLACE, metric="brittleness"),
        "swap": Aggregate(_SWAP),
        "swap_original": Aggregate(_SWAP, metric="original"),
        "swap_brittleness": Aggregate(_SWAP, metric="brittleness"),
    },
    headline="replace",
)
