"""Features of the photos of a source, kept on disk: what a frozen image tower makes of them.

A folder holds parts of up to a thousand photos, each a cache (`files.load_arrays`) of a tensor
(photos, crops, 1 + P, C): of every crop the pooled feature, then P patches. A run goes on with the
parts that a killed one has left; damaged ones are made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from compoclip.console import counted, note, track
from compoclip.errors import CompoclipError
from compoclip.files import (
    load_arrays,
    only_writer,
    reason,
    save_arrays,
    write_atomically,
    write_json,
)
from compoclip.models.work import KeptAt

Encode = Callable[[range], tuple[NDArray[np.float32], dict[int, str]]]
"""Numbers of n photos -> (n, crops, 1 + P, C) features, and of those that cannot be read why."""

_PART_BYTES = 64 << 20
_PART_PHOTOS = 1000
_TENSOR, _BAD = "features", "bad"


@dataclass(frozen=True)
class KeptSpec:
    """What features are of: two with equal records hold the same.

    Args:
        record: All that they depend on, JSON-ready: tower, pixels, crops, photos.
        photos: Their number.
        shape: (crops, 1 + P, C) of a photo's features.
    """

    record: Mapping[str, Any]
    photos: int
    shape: tuple[int, int, int]

    @property
    def digest(self) -> str:
        """A hash of the record."""
        text = json.dumps(self.record, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @property
    def photo_bytes(self) -> int:
        """Of the features of a photo."""
        return 4 * math.prod(self.shape)

    @property
    def per_part(self) -> int:
        """Photos of a part."""
        return max(1, min(_PART_PHOTOS, _PART_BYTES // self.photo_bytes))

    @property
    def parts(self) -> int:
        """Their number."""
        return -(-self.photos // self.per_part)

    def numbers(self, part: int) -> range:
        """The photos of a part."""
        return range(part * self.per_part, min(self.photos, (part + 1) * self.per_part))


@dataclass
class KeptFeatures:
    """The features of the photos of a source, read from disk one by one.

    Args:
        at: Where they were taken.
        rows: Name of a photo (`photo_key`) -> its number.
        spec: What they are of.
        folder: Where they lie.
        bad: Photos that could not be read, by number, and why.
    """

    at: KeptAt
    rows: Mapping[str, int]
    spec: KeptSpec
    folder: Path
    bad: dict[int, str] = field(default_factory=dict)
    _maps: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is mapped: workers map for themselves."""
        return {**self.__dict__, "_maps": {}}

    def of(self, photo: str, crop: int) -> torch.Tensor:
        """(1 + P, C) float32 features of a crop of a photo.

        Raises CompoclipError for a photo that could not be read, or that came to the data later.
        """
        row = self.rows.get(photo)
        if row is None:
            raise CompoclipError(f"{photo}: came after features were kept; start the run again")
        if row in self.bad:
            raise CompoclipError(self.bad[row])
        part, place = divmod(row, self.spec.per_part)
        if part not in self._maps:
            self._maps[part] = _mapped(_path(self.folder, part), self._shape(part))
        return torch.from_numpy(np.array(self._maps[part][place, crop]))

    def _shape(self, part: int) -> tuple[int, ...]:
        return len(self.spec.numbers(part)), *self.spec.shape


def features_folder(root: Path, spec: KeptSpec) -> Path:
    """Where features of that kind lie below `root`."""
    return root / f"features-{spec.digest}"


def keep_features(folder: Path, spec: KeptSpec, encode: Encode) -> None:
    """Make the parts that are missing or damaged.

    Raises CompoclipError when they do not fit the disk, and when the folder cannot be written.
    Parts that are finished stay.
    """
    if not _lacking(folder, spec):
        note(f"  features of {counted(spec.photos, 'image')} are in {folder}")
        return
    with only_writer(folder, folder=True, wait=True):
        lacking = _lacking(folder, spec)
        photos = sum(len(spec.numbers(part)) for part in lacking)
        size = photos * spec.photo_bytes
        _require_room(folder, size, photos)
        note(
            f"  features of {photos} of {counted(spec.photos, 'image')} are encoded now, and kept "
            f"in {folder} ({size / 1e6:,.0f} MB)"
        )
        write_json(folder / "features.json", spec.record)
        for part in track(lacking, "encoding images once", len(lacking), "parts"):
            _make(folder, spec, part, encode)


def open_features(
    folder: Path, spec: KeptSpec, at: KeptAt, rows: Mapping[str, int]
) -> KeptFeatures:
    """Open features that `keep_features` has made. Raises CompoclipError for missing parts."""
    bad: dict[int, str] = {}
    for part in range(spec.parts):
        try:
            with safe_open(_path(folder, part), "numpy") as file:
                stated = json.loads(file.get_tensor(_BAD).tobytes())
        except (OSError, ValueError, SafetensorError) as error:
            raise CompoclipError(f"{_path(folder, part)}: {reason(error)}; start again") from error
        bad |= {int(number): str(why) for number, why in stated.items()}
    return KeptFeatures(at, rows, spec, folder, bad)


def _path(folder: Path, part: int) -> Path:
    return folder / f"part-{part:06d}.safetensors"


def _lacking(folder: Path, spec: KeptSpec) -> list[int]:
    """The parts that are missing or damaged."""
    parts = range(spec.parts)
    return [n for n in parts if load_arrays(_path(folder, n), [spec.digest, n]) is None]


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The features in a safetensors file: the length of a header, that header, all numbers."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, _ = json.loads(file.read(length))[_TENSOR]["data_offsets"]
    return np.memmap(path, "<f4", "r", 8 + length + begin, shape)


def _require_room(folder: Path, size: int, photos: int) -> None:
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    with suppress(OSError):
        free = shutil.disk_usage(place).free
        if size > free:
            raise CompoclipError(
                f"{folder}: features of {counted(photos, 'image')} take {size / 1e6:,.0f} MB and "
                f"{free / 1e6:,.0f} MB are free: name a folder on another disk (--features), take "
                "fewer --crops, or leave --cache-frozen out"
            )


def _make(folder: Path, spec: KeptSpec, part: int, encode: Encode) -> None:
    features, bad = encode(spec.numbers(part))
    arrays: dict[str, NDArray[Any]] = {_TENSOR: features}
    arrays[_BAD] = np.frombuffer(json.dumps(bad).encode(), np.uint8)
    write_atomically(
        _path(folder, part), lambda place: save_arrays(place, arrays, [spec.digest, part])
    )
