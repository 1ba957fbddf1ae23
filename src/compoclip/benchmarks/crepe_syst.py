"""CREPE systematicity: seen and unseen compounds of one pre-training set (Ma et al., CVPR 2023).

Whether a compound was seen depends on what the model was pre-trained on, so that set must be
stated (option `pretrained`: cc12m, yfcc, laion, or another one that files are there of). The
benchmark means nothing for models pre-trained on anything else. The set is part of the benchmark's
name, e.g. "crepe_syst_cc12m".

Read from `<root>/crepe/syst_hard_negatives/syst_vg_hard_negs_{seen,unseen}_compounds_in_SET.csv`
(option `annotations`: another folder). Columns (others are ignored):

    image_id,caption,x,y,width,height,valid_hard_negs_atom,valid_hard_negs_comp,
    valid_hard_negs_combined

The last three are Python lists or sets of texts, written out: four atom and six comp negatives, and
any number of both kinds together. A row whose list is empty has no such item. Photos and boxes: see
`crepe_prod`.

Metric: the caption scores best; a tie is wrong. Sub-tasks comp_seen (7-way), comp_unseen, atom_seen
(5-way), atom_unseen; MosaiCLIP's CU and AU are the two unseen ones, the headline `unseen` is their
mean. combined_seen and combined_unseen are in the files, but in no published table nor in the
official evaluation: they are measured where they are asked for ("crepe_syst:combined_*").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import crepe_prod, files, tables
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, Meta
from compoclip.benchmarks.files import close, of_cases, select
from compoclip.errors import CompoclipError, UsageError

SETS = ("cc12m", "yfcc", "laion")
_PUBLISHED = ("comp_seen", "comp_unseen", "atom_seen", "atom_unseen")
META = Meta(
    id="crepe_syst",
    title="CREPE systematicity",
    citation=crepe_prod.META.citation,
    source=crepe_prod.META.source,
    licence=crepe_prod.META.licence,
    access="open; only for models pre-trained on CC12M, YFCC15M or LAION-400M",
    files=("crepe/syst_hard_negatives/*.csv",),
    images=crepe_prod.META.images,
    parts=(*_PUBLISHED, "combined_seen", "combined_unseen"),
    chance={"comp_seen": 1 / 7, "comp_unseen": 1 / 7, "atom_seen": 1 / 5, "atom_unseen": 1 / 5},
    skills={
        "comp_seen": "binding",
        "comp_unseen": "binding",
        "atom_seen": "object",
        "atom_unseen": "object",
        "combined_seen": "binding",
        "combined_unseen": "binding",
    },
    requires="pretrained",
)
_RULES = {
    "unseen": Aggregate(("comp_unseen", "atom_unseen")),
    "seen": Aggregate(("comp_seen", "atom_seen")),
    "comp": Aggregate(("comp_seen", "comp_unseen")),
    "atom": Aggregate(("atom_seen", "atom_unseen")),
    "combined": Aggregate(("combined_seen", "combined_unseen")),
}
_COLUMNS = ("image_id", "caption", "x", "y", "width", "height")


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    pretrained: str | None = None,
    annotations: Path | None = None,
) -> Benchmark:
    """Read CREPE systematicity; layout: see the module.

    pretrained: what the models to be measured were pre-trained on, e.g. cc12m. Raises
    UsageError when it is not stated, unknown, or a sub-task is; CompoclipError for absent or
    malformed files.
    """
    kept = select(META.id, META.parts, subtasks or _PUBLISHED)
    if pretrained is None:
        raise UsageError(
            "crepe_syst is about compounds seen in pre-training: say what the model was "
            f"pre-trained on, as crepe_syst,pretrained=SET with SET one of {', '.join(SETS)}"
        )
    folder = annotations or root / "crepe" / "syst_hard_negatives"
    known = {*SETS, *(path.stem.rpartition("_in_")[2] for path in folder.glob("*_in_*.csv"))}
    if pretrained not in known:
        raise UsageError(
            f"crepe_syst: no pre-training set {pretrained!r}; {close(pretrained, sorted(known))}"
        )
    regions = crepe_prod.Regions(images or root / "vg")
    left_out: Counter[str] = Counter()
    found: dict[str, list[Case]] = {name: [] for name in kept}
    paths: dict[str, Path] = {}
    for seen in ("seen", "unseen"):
        kinds = [name.partition("_")[0] for name in kept if name.endswith(f"_{seen}")]
        if not kinds:
            continue
        path = folder / f"syst_vg_hard_negs_{seen}_compounds_in_{pretrained}.csv"
        paths[seen] = path
        columns = (*_COLUMNS, *(f"valid_hard_negs_{kind}" for kind in kinds))
        remedy = f"unpack the official archive there, or select a part, e.g. {META.id}:comp_unseen"
        for index, (where, row) in enumerate(tables.read_rows(path, columns, remedy)):
            image = regions.of(row, where)
            caption = files.text(row, "caption", where)
            for kind in kinds:
                negatives = tables.texts(row, f"valid_hard_negs_{kind}", where)
                if not negatives:
                    left_out[f"rows without {kind} negatives"] += 1
                    continue
                part = f"{kind}_{seen}"
                case = Case(
                    f"{part}/{index}", Form.CHOOSE_TEXT, (image,), (caption, *negatives), part
                )
                found[part].append(case)
    cases = tuple(case for name in kept for case in found[name])
    if not cases:
        raise CompoclipError(f"{folder}: no rows with hard negatives in the files of {pretrained}")
    digest = files.data_hash(paths, [f"pretrained {pretrained}"])
    made = of_cases(META, kept, cases, digest, _RULES, "unseen", left_out=left_out)
    return replace(made, name=f"{META.id}_{pretrained}")
