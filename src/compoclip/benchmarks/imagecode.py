"""ImageCoDe: a long description of one of ten very similar photos (Krojer et al., ACL 2022).

Read from `<root>/imagecode/valid_data.json` (option `annotations`: another file; the labels of the
test set are hidden):

    {"open-images-2056_a4b3c2": {"5": "A deer head is mounted horizontally next to a painting"}}

The key is a folder below `<root>/imagecode/image-sets` (argument `images`: another folder) with ten
photos `img<number>.jpg`, "5" the place of the right one in the order of the numbers. Where not all
ten photos are there, `img0` to `img9` are expected. Folders called `open-images...` hold static
photos, the others neighbouring frames of a video.

Metric: the right one of ten scores best; a tie is wrong. Headline `vl_compo`: over all items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile, repository
from compoclip.errors import CompoclipError

_REPOSITORY = repository("McGill-NLP/imagecode", "15b993f545c6e659d80afa133c313f2b377e89f5")
_ZENODO = "https://zenodo.org/record/6518944/files"
META = Meta(
    id="imagecode",
    title="ImageCoDe",
    citation="Krojer et al., Image Retrieval from Contextual Descriptions, ACL 2022",
    source="repository McGill-NLP/imagecode, data/valid_data.json; photos: Zenodo record 6518944",
    licence="MIT; photos by their sources",
    access="open",
    files=("imagecode/valid_data.json",),
    images=("imagecode/image-sets",),
    chance={"": 1 / 10},
    remote=(
        RemoteFile("imagecode/valid_data.json", f"{_REPOSITORY}/data/valid_data.json"),
        RemoteFile("imagecode/image-sets", f"{_ZENODO}/image-sets.zip", archive=True),
    ),
    **facts({"static": Subtask("relation", 430), "video": Subtask("relation", 1872)}),
)
_PHOTOS = 10
_PLACES = frozenset(map(str, range(_PHOTOS)))
_STATIC = "open-images"
_NUMBERED = re.compile(r"img(\d{1,6})")


def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "imagecode" / "valid_data.json"
    data.files["valid_data"] = path
    sets = data.photos("imagecode/image-sets")
    for name, value in files.record(files.read_json(path), str(path)).items():
        where = f"{path}: set {name!r:.80}"
        subtask = "static" if name.startswith(_STATIC) else "video"
        rows = files.record(value, where)
        if subtask not in data.parts:
            continue
        photos = _photos(files.image_path(sets, name, where))
        for index in rows:
            if index not in _PLACES:
                raise CompoclipError(
                    f"{where}: {index!r:.80} is no place among {_PHOTOS} photos; "
                    "fetch the official file again"
                )
            yield Case(
                id=f"{name}/{index}",
                form=Form.CHOOSE_IMAGE,
                images=photos,
                texts=(files.text(rows, index, where),),
                subtask=subtask,
                truth=int(index),
                labels={"set": name},
            )


def _photos(folder: Path) -> tuple[ImageRef, ...]:
    """The ten photos of a set in the order of their numbers."""
    there = {
        int(match[1]): path
        for stem, path in by_stem([folder]).items()
        if (match := _NUMBERED.fullmatch(stem))
    }
    if len(there) > _PHOTOS:
        raise CompoclipError(
            f"{folder}: {len(there)} photos instead of {_PHOTOS}; unpack the official archive again"
        )
    if len(there) < _PHOTOS:  # then at least one of these is absent, and counts as missing
        there = {n: there.get(n, folder / f"img{n}.jpg") for n in range(_PHOTOS)}
    return tuple(ImageRef(there[number]) for number in sorted(there))


IMAGECODE = CaseReader(
    META,
    _cases,
    dict.fromkeys(("vl_compo", "paper"), Aggregate(META.parts, "micro")),
    "vl_compo",
    empty="no descriptions; fetch the official file again",
)
