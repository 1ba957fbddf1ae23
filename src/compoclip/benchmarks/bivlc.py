"""BiVLC: SugarCrepe with a picture of the negative caption too (Miranda et al., NeurIPS 2024).

The hub keeps the pictures inside its table, so export it: the pictures as files, the rest as
`<root>/bivlc/bivlc.jsonl`, one object a line, or as `<root>/bivlc/bivlc.parquet` with the same
columns (option `annotations`: another such file):

    {"image": "000000565045.jpg", "caption": "...", "negative_caption": "...",
     "negative_image": "0_negative.jpg", "type": "replace", "subtype": "obj"}

Image names are relative to `<root>/bivlc/images` (argument `images`: another folder). Sub-tasks are
`<type>_<subtype>`. The three scores of Winoground with strict ties; the headline is the group score
over all items, `text` and `image` are the paper's I2T and T2I, all three also by type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.benchmarks import files, sugarcrepe
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import of_cases, select
from compoclip.errors import CompoclipError

_COLUMNS = ("image", "caption", "negative_caption", "negative_image", "type", "subtype")
_SCORES = ("group", "text", "image")
META = Meta(
    id="bivlc",
    title="BiVLC",
    citation="Miranda et al., BiVLC: Extending Vision-Language Compositionality Evaluation with "
    "Text-to-Image Retrieval, NeurIPS 2024 Datasets and Benchmarks",
    source="dataset-hub page imirandam/BiVLC, exported to files; photos: COCO val2017 and SDXL-DPO",
    licence="MIT",
    access="open; export the table's pictures to bivlc/images and its rows to bivlc/bivlc.jsonl",
    files=("bivlc/bivlc.jsonl",),
    archives=("bivlc/bivlc.parquet",),
    images=("bivlc/images",),
    parts=sugarcrepe.META.parts,
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills=sugarcrepe.META.skills,
    expected={
        "replace_obj": 1200,
        "replace_att": 437,
        "replace_rel": 462,
        "swap_obj": 81,
        "swap_att": 278,
        "add_obj": 399,
        "add_att": 76,
    },
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read BiVLC as GROUP cases (photo and caption, negative picture and caption).

    Layout: see the module. Raises CompoclipError for absent or malformed files, UsageError for an
    unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    path = annotations or _found(root / "bivlc")
    photos = images or root / "bivlc" / "images"
    cases = [case for case in _cases(path, photos) if case.subtask in kept]
    if not cases:
        raise CompoclipError(f"{path}: no rows of {', '.join(kept)}; export the table again")
    digest = files.data_hash({"rows": path})
    return of_cases(META, kept, cases, digest, _rules(kept), "group")


def _found(folder: Path) -> Path:
    parquet = folder / "bivlc.parquet"
    return parquet if parquet.is_file() else folder / "bivlc.jsonl"


def _rules(kept: Sequence[str]) -> dict[str, Aggregate]:
    rules = {each: Aggregate(tuple(kept), "micro", metric=each) for each in _SCORES}
    rules["paper"] = rules["group"]
    for kind in dict.fromkeys(name.split("_")[0] for name in kept):
        parts = tuple(name for name in META.parts if name.startswith(kind))
        rules |= {f"{kind}_{each}": Aggregate(parts, "micro", metric=each) for each in _SCORES}
    return rules


def _cases(path: Path, photos: Path) -> list[Case]:
    cases = []
    numbers: Counter[str] = Counter()
    for where, row in _rows(path):
        image, caption, negative, negative_image, kind, subtype = (
            files.text(row, name, where) for name in _COLUMNS
        )
        subtask = f"{kind}_{subtype}"
        if subtask not in META.parts:
            raise CompoclipError(
                f"{where}: type {kind!r} with subtype {subtype!r} is unknown; known: "
                f"{', '.join(META.parts)}"
            )
        refs = tuple(
            ImageRef(files.image_path(photos, name, where)) for name in (image, negative_image)
        )
        key = f"{subtask}/{numbers[subtask]}"
        numbers[subtask] += 1
        cases.append(Case(key, Form.GROUP, refs, (caption, negative), subtask))
    return cases


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    if path.suffix != ".parquet":
        return [(f"{path}: line {line}", row) for line, row in files.read_jsonl(path)]
    try:
        schema = pq.read_schema(path)
        absent = [name for name in _COLUMNS if name not in schema.names]
        inside = [n for n in _COLUMNS if n in schema.names and not _is_text(schema.field(n).type)]
        rows = [] if absent or inside else pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise CompoclipError(
            f"{path}: cannot be read as Parquet ({reason}); export the table again"
        ) from error
    if absent:
        raise CompoclipError(f"{path}: no column {absent[0]!r}; export the table again")
    if inside:
        raise CompoclipError(
            f"{path}: column {inside[0]!r} holds no text; write the pictures to files and put "
            "their names there"
        )
    return [(f"{path}: row {index}", row) for index, row in enumerate(rows)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
