"""COLA, multi-object part: two photos of the same things with other attributes and relations (Ray
et al., NeurIPS 2023).

Read from `<root>/cola/COLA_multiobjects_matching_benchmark.json` (option `annotations`: another
file), one JSON list:

    [["https://.../vg_gqa_images/2390970.jpg", "standing tall long giraffe to the right of brown
      giraffe", "https://.../vg_gqa_images/2388902.jpg", "brown giraffe behind tall white giraffe"]]

The last part of an address is the photo's Visual Genome id; photos: `<root>/vg/VG_100K` and
`<root>/vg/VG_100K_2` (argument `images`: one other folder). Nothing is fetched. The official score
and headline is the image score (each caption prefers its own photo, ties wrong); text and group
scores are aggregates of their own. `paper`: the image score.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import PAIR_CHANCE, SCORES, CaseReader, Part, Reading, facts
from compoclip.benchmarks.sources import repository
from compoclip.errors import CompoclipError

_FILE = "COLA_multiobjects_matching_benchmark.json"
META = Meta(
    id="cola",
    title="COLA (multi-object)",
    citation="Ray et al., Cola: A Benchmark for Compositional Text-to-image Retrieval, NeurIPS "
    "2023 Datasets and Benchmarks",
    source="repository arijitray1993/COLA, folder data; photos: Visual Genome",
    licence="MIT",
    access="open",
    images=("vg/VG_100K", "vg/VG_100K_2"),
    chance=PAIR_CHANCE,
    **facts(
        {"multi_object": Part("binding", 210, 56_746, "25d8f5d5d5fa593e13a83bf5e29d60dd")},
        lambda _: f"cola/{_FILE}",
        repository("arijitray1993/COLA", "1fa52fba9cff4e6ffb7bfcf3550838748347273b") + "/data",
    ),
)
_RULES = {each: Aggregate(META.parts, "micro", metric=each) for each in reversed(SCORES)}


def _cases(data: Reading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "cola" / _FILE
    folders = (data.images,) if data.images else tuple(data.root / each for each in META.images)
    photos = by_stem(folders)
    for index, where, value in data.values("multi_object", path):
        row = files.items(value, where)
        if len(row) != 4:
            raise CompoclipError(
                f"{where}: expected [address 1, caption 1, address 2, caption 2], found "
                f"{len(row)} entries"
            )
        texts = [files.nonempty(each, f"{where}: entry {k}") for k, each in enumerate(row)]
        names = [PurePosixPath(address) for address in texts[::2]]
        refs = tuple(
            ImageRef(photos.get(each.stem) or files.image_path(folders[0], each.name, where))
            for each in names
        )
        yield Case(f"multi_object/{index}", Form.GROUP, refs, tuple(texts[1::2]), "multi_object")


COLA = CaseReader(
    META,
    _cases,
    {**_RULES, "paper": _RULES["image"]},
    "image",
    empty="no pairs; fetch the official file again",
)
