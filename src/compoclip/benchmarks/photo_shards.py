"""Photos in tar shards with a label beside each, as CLIP_benchmark publishes its sets.

    <folder>/classnames.txt                            one name a line, in the order of the labels
    <folder>/zeroshot_classification_templates.txt     one template a line, placeholder {c}
    <folder>/test/0.tar, 1.tar, ... (or in the folder itself)

A sample is the members that share a name up to the first dot of the file name: an image, and its
label as `.cls` (a number) or, where several classes are true, as `.npy` (a vector of 0 and 1).
"""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from compoclip import files as room_files
from compoclip.benchmarks.archives import DAMAGED_TAR
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.photo_set import SUFFIXES, PhotoSet
from compoclip.benchmarks.prompts import read_names
from compoclip.errors import CompoclipError

_NAMES, _TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"
_LABEL_BYTES = 1 << 20
_NO_IMAGE = "samples without an image"


def find_shards(folder: Path) -> tuple[Path, ...]:
    """The shards of a folder, or else of its `test` folder, in the order of their numbers."""
    for place in (folder, folder / "test"):
        found = sorted(place.glob("*.tar"), key=_number)
        if found:
            return tuple(found)
    return ()


def _number(path: Path) -> tuple[list[int], str]:
    return [int(each) for each in re.findall(r"\d+", path.stem)], path.name


def read_shards(folder: Path, shards: tuple[Path, ...]) -> PhotoSet:
    """Read all samples. Raises CompoclipError for damaged shards and samples without a label."""
    left_out: Counter[str] = Counter()
    images: list[ImageRef] = []
    labels: list[tuple[int, ...]] = []
    keys: list[str] = []
    for shard in shards:
        for key, image, label in _samples(shard):
            if image is None:
                left_out[_NO_IMAGE] += 1
            elif label is None:
                raise CompoclipError(f"{shard}: sample {key!r:.80} has no .cls or .npy label")
            else:
                images.append(ImageRef(shard, member=image))
                labels.append(label)
                keys.append(f"{shard.name}@{image} {','.join(map(str, label))}")
    if not images:
        raise CompoclipError(f"{shards[0]}: holds no photo; fetch the shards again")
    names, templates = folder / _NAMES, folder / _TEMPLATES
    return PhotoSet(
        images=tuple(images),
        labels=tuple(labels),
        names=read_names(names, folder.name) if names.is_file() else (),
        keys=tuple(keys),
        templates=templates if templates.is_file() else None,
        left_out=dict(left_out),
    )


def _samples(shard: Path) -> Iterator[tuple[str, str | None, tuple[int, ...] | None]]:
    """(key, image member, label) of each sample, in file order."""
    found: dict[str, tuple[str | None, tuple[int, ...] | None]] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                member.name.encode()  # half a character could be written to no result
                folder, _, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                if not member.isreg() or not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                image, label = found.get(key, (None, None))
                if f".{suffix.lower()}" in SUFFIXES:
                    if image is not None:
                        raise CompoclipError(
                            f"{shard}: two images of sample {key!r:.80}; fetch the shard again"
                        )
                    image = member.name
                elif suffix in ("cls", "npy") and member.size <= _LABEL_BYTES:
                    if label is not None:
                        raise CompoclipError(
                            f"{shard}: two labels of sample {key!r:.80}; fetch the shard again"
                        )
                    stream = archive.extractfile(member)
                    data = stream.read() if stream else b""
                    label = _label(data, suffix, f"{shard}: {member.name!r:.80}")
                found[key] = image, label
    except OSError as error:
        raise room_files.unreadable(shard, error) from error
    except DAMAGED_TAR as error:
        reason = room_files.reason(error)
        raise CompoclipError(
            f"{shard}: not a whole tar file ({reason}); fetch the shard again"
        ) from error
    for key, (image, label) in found.items():
        yield key, image, label


def _label(data: bytes, suffix: str, where: str) -> tuple[int, ...]:
    if suffix == "cls":
        text = data.decode("ascii", "replace").strip()
        if not text.isdigit() or len(text) > 6:
            raise CompoclipError(f"{where}: label {text[:40]!r} is no whole number from 0")
        return (int(text),)
    try:
        vector = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a damaged header fails in many ways
        raise CompoclipError(f"{where}: not a numpy vector of 0 and 1") from error
    if vector.ndim != 1 or not np.isin(vector, (0, 1)).all() or not vector.any():
        raise CompoclipError(f"{where}: not a numpy vector of 0 and 1 with a 1")
    return tuple(np.flatnonzero(vector).tolist())
