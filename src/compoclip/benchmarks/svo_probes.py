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
from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile, repository

_PARTS = {"subj": Subtask("object"), "verb": Subtask("relation"), "obj": Subtask("object")}
_COLUMNS = ("sentence", "pos_url", "neg_url", *(f"{name}_neg" for name in _PARTS))
_REPOSITORY = repository("google-deepmind/svo_probes")
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
    chance={"": 1 / 2},
    remote=(
        RemoteFile("svo_probes/svo_probes.csv", f"{_REPOSITORY}/svo_probes.csv", keys=_COLUMNS),
    ),
    **facts(_PARTS),
)


def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "svo_probes" / "svo_probes.csv"
    data.files["svo_probes"] = path
    folder = data.photos("svo_probes/images")
    photos = by_stem([folder])

    def photo(url: str) -> ImageRef:
        key = url_key(url)
        return ImageRef(photos.get(key) or folder / f"{key}.jpg")

    rows = tables.read_rows(path, _COLUMNS, "put the official file there")
    for index, (where, row) in enumerate(rows):
        flagged = [name for name in _PARTS if tables.flag(row, f"{name}_neg", where)]
        if len(flagged) != 1:
            data.left_out["rows with several flags" if flagged else "rows without a flag"] += 1
            continue
        (part,) = flagged
        images = tuple(photo(url) for url in files.texts(row, ("pos_url", "neg_url"), where))
        texts = files.texts(row, ("sentence",), where)
        yield Case(f"{part}/{index}", Form.CHOOSE_IMAGE, images, texts, part)


def url_key(url: str) -> str:
    """The name, without suffix, that a photo is stored under: the md5 of its address."""
    return hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()


SVO_PROBES = CaseReader(
    META,
    _cases,
    {"vl_compo": Aggregate(META.parts)},
    "vl_compo",
    empty="no rows with exactly one flag; fetch the official file again",
)
