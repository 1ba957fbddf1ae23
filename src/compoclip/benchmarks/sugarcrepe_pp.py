"""SugarCrepe++, image-to-text task: two true captions and a false one (Dumpala et al., 2024).

Read from `<root>/sugarcrepe_pp/{replace_obj,replace_att,replace_rel,swap_att,swap_obj}.json`
(option `annotations`: another folder). Each file is one JSON list:

    [{"id": 0, "filename": "000000565045.jpg", "caption": "...", "caption2": "...",
      "negative_caption": "..."}]

Images: `<root>/coco/val2017/<filename>` (argument `images`: another folder). Main metric is
"augmented", the paper's ITT: both captions beat the negative; ties are wrong. The text-only task
TOT is the benchmark `sugarcrepe_pp_tot`. `replace` and `swap` are plain means of their files, as
in CLIC's tables; the headline `clic` is the mean of these two. Captions differ from SugarCrepe's in
more than a thousand rows, so the two are never to be compared row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import of_cases, select

SUBTASKS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att")
META = Meta(
    id="sugarcrepe_pp",
    title="SugarCrepe++ (image-to-text)",
    citation="Dumpala et al., SUGARCREPE++ Dataset: Vision-Language Model Sensitivity to Semantic "
    "and Lexical Alterations, NeurIPS 2024 Datasets and Benchmarks",
    source="repository Sri-Harsha/scpp, folder data; photos: COCO val2017",
    licence="MIT; captions CC BY 4.0",
    access="open",
    same_rows_as="sugarcrepe",
    files=tuple(f"sugarcrepe_pp/{name}.json" for name in SUBTASKS),
    images=("coco/val2017",),
    parts=SUBTASKS,
    chance={"/augmented": 1 / 3, "/original": 1 / 2, "/second": 1 / 2},
    skills=dict.fromkeys(SUBTASKS, "invariance"),
    expected={
        "replace_obj": 1652,
        "replace_att": 788,
        "replace_rel": 1406,
        "swap_obj": 245,
        "swap_att": 666,
    },
    hashes={
        "sugarcrepe_pp/replace_obj.json": "b91a2e5eab440b8b78ff7b4fb06c84ea",
        "sugarcrepe_pp/replace_att.json": "51e13607a5cab3b2159b0d69f96452c9",
        "sugarcrepe_pp/replace_rel.json": "2011ea5c63662d4b48b8fdb48774b3ae",
        "sugarcrepe_pp/swap_obj.json": "7b88edf0230b868c1025eec83b596644",
        "sugarcrepe_pp/swap_att.json": "06a3922725654ab02090011ced65042b",
    },
)

_REPLACE = Aggregate(("replace_obj", "replace_att", "replace_rel"))
_SWAP = Aggregate(("swap_obj", "swap_att"))
RULES = {"replace": _REPLACE, "swap": _SWAP, "clic": Aggregate((_REPLACE, _SWAP))}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read SugarCrepe++ as TRIPLE cases (caption, caption2, negative); layout: see the module.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    photos = images or root / "coco" / "val2017"
    return read(META, annotations or root / "sugarcrepe_pp", photos, subtasks)


def read(found: Meta, folder: Path, photos: Path | None, subtasks: Sequence[str]) -> Benchmark:
    """The benchmark of `found`: TRIPLE cases with `photos`, TEXT_ONLY cases without."""
    kept = select(found.id, SUBTASKS, subtasks)
    paths = {name: folder / f"{name}.json" for name in kept}
    cases = [case for name in kept for case in _cases(paths[name], name, photos)]
    return of_cases(found, kept, cases, files.data_hash(paths), RULES, "clic")


def _cases(path: Path, subtask: str, photos: Path | None) -> list[Case]:
    cases = []
    seen: set[object] = set()
    for index, value in enumerate(files.items(files.read_json(path), str(path))):
        where = f"{path}: row {index}"
        row = files.record(value, where)
        key = files.identifier(row, "id", where, seen)
        texts = tuple(
            files.text(row, name, where) for name in ("caption", "caption2", "negative_caption")
        )
        name = files.text(row, "filename", where)
        images = () if photos is None else (ImageRef(files.image_path(photos, name, where)),)
        form = Form.TEXT_ONLY if photos is None else Form.TRIPLE
        cases.append(Case(f"{subtask}/{key}", form, images, texts, subtask))
    return cases
