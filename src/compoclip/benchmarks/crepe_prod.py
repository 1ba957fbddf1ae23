"""CREPE productivity: a region and its caption among five hard negatives (Ma et al., CVPR 2023).

Read from every `<root>/crepe/prod_hard_negatives/TYPE/prod_vg_hard_negs_TYPE_complexity_C.csv` for
TYPE atom, swap and negate, whatever C there are (option `annotations`: another folder than
`prod_hard_negatives`; the files may lie anywhere below it). Columns (others are ignored):

    image_id,caption,hard_negs,x,y,width,height
    13,"computer on floor. floor under computer.","['computer inside floor. ...', ...]",237.0,...

hard_negs is a Python list or set of five texts, written out; the texts of a set, which has no
order, are sorted. Photos: `<image_id>.jpg` in `<root>/vg/VG_100K` or `VG_100K_2` (argument
`images`: another folder than `vg`), cropped to the box, which may reach beyond the photo.

Metric: the caption scores best of six; a tie is wrong. Headline `vl_compo`: plain mean of atom,
swap and negate, each over all its items. Aggregates `complexity_C`, `atom_complexity_C` and so on
are the curve over the complexity: the first is the mean of atom and swap that MosaiCLIP plots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, of_cases, select
from compoclip.errors import CompoclipError

TYPES = ("atom", "swap", "negate")
META = Meta(
    id="crepe_prod",
    title="CREPE productivity",
    citation="Ma et al., CREPE: Can Vision-Language Foundation Models Reason Compositionally?, "
    "CVPR 2023",
    source="repository RAIVNLab/CREPE, the authors' zip; photos: Visual Genome",
    licence="none stated; regions from Visual Genome, CC BY 4.0",
    access="open",
    files=tuple(f"crepe/prod_hard_negatives/{name}/*.csv" for name in TYPES),
    elsewhere={
        f"crepe/prod_hard_negatives/{name}/*.csv": "crepe/prod_hard_negatives/**/"
        f"prod_vg_hard_negs_{name}_complexity_*.csv"
        for name in TYPES
    },
    images=("vg/VG_100K", "vg/VG_100K_2"),
    parts=TYPES,
    chance={"": 1 / 6},
    skills={"atom": "object", "swap": "role", "negate": "negation"},
    expected={"atom": 16727, "swap": 6652, "negate": 16336},
)
_TOTALS = {"atom": (16727, 17698), "swap": (6652, 7405), "negate": (16336, 17303)}
"""Rows of complexities 4 to 12 as published, and rows behind the published scores of vl_compo."""

_NAME = re.compile(r"prod_vg_hard_negs_(atom|swap|negate)_complexity_(\d{1,3})\.csv")
_COLUMNS = ("image_id", "caption", "hard_negs", "x", "y", "width", "height")
_NEGATIVES = 5
_REMEDY = "unpack the official archive there, or select the parts you have, e.g. crepe_prod:atom"


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read CREPE productivity; layout: see the module. `subtasks`: atom, swap, negate.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    folder = annotations or root / "crepe" / "prod_hard_negatives"
    paths = _files(folder, kept)
    regions = Regions(images or root / "vg")
    cases: list[Case] = []
    for (name, complexity), path in paths.items():
        for index, (where, row) in enumerate(tables.read_rows(path, _COLUMNS, _REMEDY)):
            negatives = tables.texts(row, "hard_negs", where)
            if len(negatives) != _NEGATIVES:
                raise CompoclipError(
                    f"{where}: {len(negatives)} hard negatives instead of {_NEGATIVES}; fetch the "
                    "official file again"
                )
            cases.append(
                Case(
                    id=f"{name}/{complexity}/{index}",
                    form=Form.CHOOSE_TEXT,
                    images=(regions.of(row, where),),
                    texts=(files.text(row, "caption", where), *negatives),
                    subtask=name,
                    labels={"complexity": str(complexity)},
                )
            )
    digest = files.data_hash({path.name: path for path in paths.values()})
    expected = _expected(Counter(case.subtask for case in cases), kept)
    return of_cases(META, kept, cases, digest, _rules(paths), "vl_compo", expected=expected)


class Regions:
    """Regions of Visual Genome photos, which lie in either of two folders below `vg`."""

    def __init__(self, vg: Path) -> None:
        self._folder = vg / "VG_100K"
        self._photos = by_stem([self._folder, vg / "VG_100K_2"])

    def of(self, row: tables.Row, where: str) -> ImageRef:
        """The box (x, y, width, height) of the photo `image_id` that a row names.

        Raises CompoclipError starting with `where` when the row names none.
        """
        key = files.text(row, "image_id", where)
        path = self._photos.get(key) or files.image_path(self._folder, f"{key}.jpg", where)
        return ImageRef(path, tables.box(row, where))


def _files(folder: Path, kept: Sequence[str]) -> dict[tuple[str, int], Path]:
    """(type, complexity) -> file, in the order of the types and of growing complexity."""
    found: dict[tuple[str, int], Path] = {}
    for path in sorted(folder.rglob("*.csv")):
        if match := _NAME.fullmatch(path.name):
            key = (match[1], int(match[2]))
            if key in found:
                raise CompoclipError(f"{path}: {found[key]} has the same name; keep one of them")
            found[key] = path
    for name in kept:
        if not any(name == each for each, _ in found):
            raise CompoclipError(
                f"{folder}: no prod_vg_hard_negs_{name}_complexity_*.csv below it; {_REMEDY}"
            )
    return {key: found[key] for name in kept for key in sorted(found) if key[0] == name}


def _rules(paths: dict[tuple[str, int], Path]) -> dict[str, Aggregate]:
    """The mean of the three types, and the curves over the complexities that are there."""
    levels = {name: {str(c) for each, c in paths if each == name} for name in TYPES}

    def at(name: str, level: int) -> Aggregate:
        others = frozenset(levels[name] - {str(level)})
        return Aggregate((name,), macro_by="complexity", exclude=others)

    rules = {"vl_compo": Aggregate(TYPES)}
    for level in sorted({c for _, c in paths}):
        for name in TYPES:
            if str(level) in levels[name]:
                rules[f"{name}_complexity_{level}"] = at(name, level)
        both = tuple(at(name, level) for name in ("atom", "swap") if str(level) in levels[name])
        if len(both) == 2:
            rules[f"complexity_{level}"] = Aggregate(both)
    return rules


def _expected(here: Counter[str], kept: Sequence[str]) -> dict[str, int]:
    """The smallest known total of each type that is no less than what was read."""
    return {
        name: next((total for total in _TOTALS[name] if total >= here[name]), here[name])
        for name in kept
    }
