"""SVO-Probes: a sentence, its photo and one in which a single word of it is wrong (Hendricks and
Nematzadeh, Findings of ACL 2021).

Read from `<root>/svo_probes/svo_probes.csv` (option `annotations`: another file). Columns (others
are ignored):

    sentence,pos_url,neg_url,subj_neg,verb_neg,obj_neg

The flags say which word the negative photo gets wrong; only rows with exactly one flag belong to a
sub-task (subj, verb, obj), the others are counted as left out. Photos lie in
`<root>/svo_probes/images` (argument `images`: another folder) under the md5 of their address, e.g.
`<md5 of pos_url>.jpg`. Many addresses are dead, so a score covers a part of the items and says
which.

Metric: the sentence scores higher with its own photo; a tie is wrong. (The paper asks for a match
probability above one half, which a dual encoder does not have.) Headline `vl_compo`: plain mean of
the three sub-tasks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, of_cases, select
from compoclip.errors import CompoclipError

META = Meta(
    id="svo_probes",
    title="SVO-Probes",
    citation="Hendricks and Nematzadeh, Probing Image-Language Transformers for Verb "
    "Understanding, Findings of ACL 2021",
    source="repository google-deepmind/svo_probes; photos: the addresses in its file",
    licence="CC BY 4.0; the photos belong to their owners",
    status="partly dead",
    access="partly dead addresses: fetch each photo and name it by the md5 of its address",
    files=("svo_probes/svo_probes.csv",),
    images=("svo_probes/images",),
    parts=("subj", "verb", "obj"),
    chance={"": 1 / 2},
    skills={"subj": "object", "verb": "relation", "obj": "object"},
)
COLUMNS = ("sentence", "pos_url", "neg_url", *(f"{name}_neg" for name in META.parts))
_RULES = {"vl_compo": Aggregate(META.parts)}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read SVO-Probes as CHOOSE_IMAGE cases; layout: see the module.

    Raises CompoclipError for an absent or malformed file, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    path = annotations or root / "svo_probes" / "svo_probes.csv"
    folder = images or root / "svo_probes" / "images"
    photos = by_stem([folder])

    def photo(url: str) -> ImageRef:
        key = url_key(url)
        return ImageRef(photos.get(key) or folder / f"{key}.jpg")

    cases: list[Case] = []
    left_out: Counter[str] = Counter()
    for index, (where, row) in enumerate(
        tables.read_rows(path, COLUMNS, "put the official file there")
    ):
        flagged = [name for name in META.parts if tables.flag(row, f"{name}_neg", where)]
        if len(flagged) != 1:
            left_out["rows with several flags" if flagged else "rows without a flag"] += 1
            continue
        urls = (files.text(row, key, where) for key in ("pos_url", "neg_url"))
        case = Case(
            id=f"{flagged[0]}/{index}",
            form=Form.CHOOSE_IMAGE,
            images=tuple(photo(url) for url in urls),
            texts=(files.text(row, "sentence", where),),
            subtask=flagged[0],
        )
        if case.subtask in kept:
            cases.append(case)
    if not cases:
        raise CompoclipError(
            f"{path}: no rows with exactly one flag; fetch the official file again"
        )
    digest = files.data_hash({"svo_probes": path})
    return of_cases(META, kept, cases, digest, _RULES, "vl_compo", left_out=left_out)


def url_key(url: str) -> str:
    """The name, without suffix, that a photo is stored under: the md5 of its address."""
    return hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
