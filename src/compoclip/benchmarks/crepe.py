"""CREPE: a region of a photo and its caption among hard negatives (Ma et al., CVPR 2023).

Photos of both parts: `<image_id>.jpg` in `<root>/vg/VG_100K` or `VG_100K_2` (argument `images`:
another folder than `vg`), cropped to the box, which may reach beyond the photo. The caption has to
score best; a tie is wrong. Columns that are not named here are ignored. Lists of texts are Python
lists or sets, written out; the texts of a set, which has no order, are sorted.

**Productivity** (`crepe_prod`) is read from every
`<root>/crepe/prod_hard_negatives/TYPE/prod_vg_hard_negs_TYPE_complexity_C.csv` for TYPE atom, swap
and negate, whatever C there are (option `annotations`: another folder than `prod_hard_negatives`;
the files may lie anywhere below it):

    image_id,caption,hard_negs,x,y,width,height
    13,"computer on floor. floor under computer.","['computer inside floor. ...', ...]",237.0,...

hard_negs holds five texts. Headline `vl_compo`: plain mean of atom, swap and negate, each over all
its items. Aggregates `complexity_C`, `atom_complexity_C` and so on are the curve over the
complexity: the first is the mean of atom and swap that MosaiCLIP plots.

**Systematicity** (`crepe_syst`) is about seen and unseen compounds of one pre-training set. Whether
a compound was seen depends on what the model was pre-trained on, so that set must be stated (option
`pretrained`: cc12m, yfcc, laion, or another one that files are there of). The benchmark means
nothing for models pre-trained on anything else. The set is part of the benchmark's name, e.g.
"crepe_syst_cc12m". It is read from
`<root>/crepe/syst_hard_negatives/syst_vg_hard_negs_{seen,unseen}_compounds_in_SET.csv` (option
`annotations`: another folder):

    image_id,caption,x,y,width,height,valid_hard_negs_atom,valid_hard_negs_comp,
    valid_hard_negs_combined

The last three are lists: four atom and six comp negatives, and any number of both kinds together. A
row whose list is empty has no such item. Sub-tasks comp_seen (7-way), comp_unseen, atom_seen
(5-way), atom_unseen; MosaiCLIP's CU and AU are the two unseen ones, the headline `unseen` is their
mean. combined_seen and combined_unseen are in the files, but in no published table nor in the
official evaluation: they are measured where they are asked for ("crepe_syst:combined_*").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, close
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.errors import CompoclipError, UsageError

_BOX = ("image_id", "caption", "x", "y", "width", "height")


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


# --- Productivity. ---

_TYPES = {
    "atom": Subtask("object", 16727),
    "swap": Subtask("role", 6652),
    "negate": Subtask("negation", 16336),
}
_FOLDER = "crepe/prod_hard_negatives"
META = Meta(
    id="crepe_prod",
    title="CREPE productivity",
    citation="Ma et al., CREPE: Can Vision-Language Foundation Models Reason Compositionally?, "
    "CVPR 2023",
    source="repository RAIVNLab/CREPE, the authors' zip; photos: Visual Genome",
    licence="none stated; regions from Visual Genome, CC BY 4.0",
    access="open",
    files=tuple(f"{_FOLDER}/{name}/*.csv" for name in _TYPES),
    elsewhere={
        f"{_FOLDER}/{name}/*.csv": f"{_FOLDER}/**/prod_vg_hard_negs_{name}_complexity_*.csv"
        for name in _TYPES
    },
    images=("vg/VG_100K", "vg/VG_100K_2"),
    chance={"": 1 / 6},
    **facts(_TYPES),
)
_TOTALS = {"atom": (16727, 17698), "swap": (6652, 7405), "negate": (16336, 17303)}
"""Rows of complexities 4 to 12 as published, and rows behind the published scores of vl_compo."""
_NAME = re.compile(r"prod_vg_hard_negs_(atom|swap|negate)_complexity_(\d{1,3})\.csv")
_NEGATIVES = 5
_REMEDY = "unpack the official archive there, or select the parts you have, e.g. crepe_prod:atom"


def _productivity(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    paths = _files(annotations or data.root / _FOLDER, data.parts)
    data.files |= {path.name: path for path in paths.values()}
    regions = Regions(data.photos("vg"))
    counts: Counter[str] = Counter()
    for (name, complexity), path in paths.items():
        rows = tables.read_rows(path, (*_BOX[:2], "hard_negs", *_BOX[2:]), _REMEDY)
        for index, (where, row) in enumerate(rows):
            negatives = tables.texts(row, "hard_negs", where)
            if len(negatives) != _NEGATIVES:
                raise CompoclipError(
                    f"{where}: {len(negatives)} hard negatives instead of {_NEGATIVES}; fetch the "
                    "official file again"
                )
            counts[name] += 1
            yield Case(
                id=f"{name}/{complexity}/{index}",
                form=Form.CHOOSE_TEXT,
                images=(regions.of(row, where),),
                texts=(files.text(row, "caption", where), *negatives),
                subtask=name,
                labels={"complexity": str(complexity)},
            )
    data.expected = _expected(counts, data.parts)


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
            ) from FileNotFoundError(folder)
    return {key: found[key] for name in kept for key in sorted(found) if key[0] == name}


def _curves(data: Loading) -> dict[str, Aggregate]:
    """The mean of the three types, and the curves over the complexities that are there."""
    found = map(_NAME.fullmatch, data.files)
    there = [(match[1], str(int(match[2]))) for match in found if match]

    def at(name: str, level: str) -> Aggregate:
        others = frozenset(each for kind, each in there if kind == name and each != level)
        return Aggregate((name,), macro_by="complexity", exclude=others)

    rules = {"vl_compo": Aggregate(META.parts)}
    for level in sorted({each for _, each in there}, key=int):
        here = {name: at(name, level) for name in META.parts if (name, level) in there}
        rules |= {f"{name}_complexity_{level}": rule for name, rule in here.items()}
        if "atom" in here and "swap" in here:
            rules[f"complexity_{level}"] = Aggregate((here["atom"], here["swap"]))
    return rules


def _expected(here: Counter[str], kept: Sequence[str]) -> dict[str, int]:
    """The smallest known total of each type that is no less than what was read."""
    return {
        name: next((total for total in _TOTALS[name] if total >= here[name]), here[name])
        for name in kept
    }


CREPE_PROD = CaseReader(META, _productivity, _curves, "vl_compo")

# --- Systematicity. ---

SETS = ("cc12m", "yfcc", "laion")
_SKILLS = {"comp": "binding", "atom": "object", "combined": "binding"}
_SEEN = ("seen", "unseen")
_PUBLISHED = tuple(f"{kind}_{seen}" for kind in ("comp", "atom") for seen in _SEEN)
_SYSTEMATICITY = Meta(
    id="crepe_syst",
    title="CREPE systematicity",
    citation=META.citation,
    source=META.source,
    licence=META.licence,
    access="open; only for models pre-trained on CC12M, YFCC15M or LAION-400M",
    files=("crepe/syst_hard_negatives/*.csv",),
    images=META.images,
    chance={name: 1 / 7 if name.startswith("comp") else 1 / 5 for name in _PUBLISHED},
    requires="pretrained",
    **facts({f"{kind}_{seen}": Subtask(_SKILLS[kind]) for kind in _SKILLS for seen in _SEEN}),
)


def _systematicity(
    data: Loading, *, pretrained: str | None = None, annotations: Path | None = None
) -> Iterator[Case]:
    """pretrained: what the models to be measured were pre-trained on, e.g. cc12m."""
    if pretrained is None:
        raise UsageError(
            "crepe_syst is about compounds seen in pre-training: say what the model was "
            f"pre-trained on, as crepe_syst,pretrained=SET with SET one of {', '.join(SETS)}"
        )
    folder = annotations or data.root / "crepe" / "syst_hard_negatives"
    known = {*SETS, *(path.stem.rpartition("_in_")[2] for path in folder.glob("*_in_*.csv"))}
    if pretrained not in known:
        raise UsageError(
            f"crepe_syst: no pre-training set {pretrained!r}; {close(pretrained, sorted(known))}"
        )
    data.name += f"_{pretrained}"
    data.stated.append(f"pretrained {pretrained}")
    regions = Regions(data.photos("vg"))
    found: dict[str, list[Case]] = {name: [] for name in data.parts}
    for seen in _SEEN:
        kinds = [name.partition("_")[0] for name in data.parts if name.endswith(f"_{seen}")]
        if not kinds:
            continue
        path = folder / f"syst_vg_hard_negs_{seen}_compounds_in_{pretrained}.csv"
        data.files[seen] = path
        columns = (*_BOX, *(f"valid_hard_negs_{kind}" for kind in kinds))
        remedy = "unpack the official archive there, or select a part, e.g. crepe_syst:comp_unseen"
        for index, (where, row) in enumerate(tables.read_rows(path, columns, remedy)):
            image = regions.of(row, where)
            caption = files.text(row, "caption", where)
            for kind in kinds:
                negatives = tables.texts(row, f"valid_hard_negs_{kind}", where)
                if not negatives:
                    data.left_out[f"rows without {kind} negatives"] += 1
                    continue
                part, texts = f"{kind}_{seen}", (caption, *negatives)
                case = Case(f"{part}/{index}", Form.CHOOSE_TEXT, (image,), texts, part)
                found[part].append(case)
    if not any(found.values()):
        raise CompoclipError(f"{folder}: no rows with hard negatives in the files of {pretrained}")
    for cases in found.values():
        yield from cases


CREPE_SYST = CaseReader(
    _SYSTEMATICITY,
    _systematicity,
    rules={
        **{seen: Aggregate((f"comp_{seen}", f"atom_{seen}")) for seen in ("unseen", "seen")},
        **{kind: Aggregate((f"{kind}_seen", f"{kind}_unseen")) for kind in _SKILLS},
    },
    headline="unseen",
    usual=_PUBLISHED,
)
