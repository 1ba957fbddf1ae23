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

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, of_cases, select
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
    files=(f"cola/{_FILE}",),
    images=("vg/VG_100K", "vg/VG_100K_2"),
    parts=("multi_object",),
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills={"multi_object": "binding"},
    expected={"multi_object": 210},
    hashes={f"cola/{_FILE}": "25d8f5d5d5fa593e13a83bf5e29d60dd"},
)
_RULES = {each: Aggregate(META.parts, "micro", metric=each) for each in ("image", "text", "group")}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read COLA's pairs as GROUP cases; layout: see the module.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    path = annotations or root / "cola" / _FILE
    folders = (images,) if images else (root / "vg" / "VG_100K", root / "vg" / "VG_100K_2")
    cases = _cases(path, folders[0], by_stem(folders))
    digest = files.data_hash({"multi_object": path})
    rules = {**_RULES, "paper": _RULES["image"]}
    return of_cases(META, kept, cases, digest, rules, "image")


def _cases(path: Path, folder: Path, photos: Mapping[str, Path]) -> list[Case]:
    cases = []
    for index, value in enumerate(files.items(files.read_json(path), str(path))):
        where = f"{path}: row {index}"
        row = files.items(value, where)
        if len(row) != 4:
            raise CompoclipError(
                f"{where}: expected [address 1, caption 1, address 2, caption 2], found "
                f"{len(row)} entries"
            )
        texts = [files.nonempty(each, f"{where}: entry {k}") for k, each in enumerate(row)]
        names = [PurePosixPath(address) for address in texts[::2]]
        refs = tuple(
            ImageRef(photos.get(each.stem) or files.image_path(folder, each.name, where))
            for each in names
        )
        cases.append(
            Case(f"multi_object/{index}", Form.GROUP, refs, tuple(texts[1::2]), "multi_object")
        )
    if not cases:
        raise CompoclipError(f"{path}: no pairs; fetch the official file again")
    return cases
