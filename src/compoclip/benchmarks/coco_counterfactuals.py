"""Pairs of COCO-Counterfactuals as a retrieval set, both members of every pair in the gallery.

A JSON Lines file with the fields `id`, `image_0`, `image_1`, `caption_0`, `caption_1`; image i
shows caption i. Image names may lack their suffix.

The published scores use a random 30 % of the 17,410 pairs, and which ones is not known. Taken are
the pairs whose ids have the smallest hashes (blake2b, 128 bit, of the id as UTF-8 text).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.caption_files import Captioned
from compoclip.benchmarks.photos import SUFFIXES, by_stem
from compoclip.errors import CompoclipError

PAIRS = 5223
ALL_PAIRS = 17410


def read_counterfactuals(
    path: Path, folder: Path, pairs: int | None
) -> tuple[tuple[Captioned, ...], dict[str, int]]:
    """The chosen pairs in file order, each as two photos with a caption, and what was left out.

    folder: of the photos, where names without a suffix are looked up. pairs: how many to take, None
    for all. Raises CompoclipError for malformed rows, an id or an image that occurs twice, and a
    file without rows.
    """
    seen: set[object] = set()
    names: set[str] = set()
    rows: dict[str, tuple[Captioned, Captioned]] = {}
    stems = by_stem((folder,))
    for number, row in files.read_jsonl(path):
        where = f"{path}: line {number}"
        key = files.identifier(row, "id", where, seen)
        members = []
        for k in (0, 1):
            name = files.text(row, f"image_{k}", where)
            if name in names:
                raise CompoclipError(f"{where}: image {name!r:.80} is listed twice; fetch it again")
            names.add(name)
            if not name.lower().endswith(SUFFIXES):
                name = stems[name].name if name in stems else f"{name}.jpg"
            members.append(Captioned(name, (files.text(row, f"caption_{k}", where),)))
        rows[key] = (members[0], members[1])
    if not rows:
        raise CompoclipError(f"{path}: holds no pairs; fetch the official file again")
    chosen = set(sorted(rows, key=_digest)[:pairs])
    photos = tuple(photo for key, both in rows.items() if key in chosen for photo in both)
    rest = len(rows) - len(chosen)
    reason = f"pairs beyond the {pairs} with the smallest hashes of their ids"
    return photos, {} if pairs is None else {reason: rest}


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
