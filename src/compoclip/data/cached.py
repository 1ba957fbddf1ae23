"""Cached features of the photos of a source, by a frozen image tower.

A folder holds parts of up to a thousand photos, each a cache (`files.load_arrays`) of a tensor
(photos, crops, 1 + P, C): the pooled feature of each crop, then P patches. A run uses the parts of
a killed run; damaged parts are made again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from compoclip.console import counted, note, track
from compoclip.errors import CompoclipError, require
from compoclip.files import (
    free_bytes,
    load_arrays,
    only_writer,
    reason,
    save_arrays,
    write_atomically,
    write_json,
)
from compoclip.models.work import CachedAt

Encode = Callable[[range], tuple[NDArray[np.float32], dict[int, str]]]
"""Numbers of n photos -> (n, crops, 1 + P, C) features; number -> why a photo is unreadable."""

_PART_BYTES = 64 << 20
_PART_PHOTOS = 1000
_TENSOR, _BAD = "features", "bad"


def features_folder(root: Path, record: Mapping[str, Any]) -> Path:
    """Return the folder of features that depend on what `record` states."""
    return root / f"features-{_digest(record)}"


def _digest(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class CachedFeatures:
    """Features of the photos of a source, computed once and read from disk one by one.

    root: holds the folder of the features, named by the hash of `record`: everything that they
    depend on, JSON-ready. shape: (crops, 1 + P, C) of a photo's features. at: the place in the
    tower at which they are taken. rows: name of a photo (`photo_key`) -> its number. pooled:
    whether patches are left on disk.
    """

    def __init__(
        self,
        root: Path,
        record: Mapping[str, Any],
        shape: tuple[int, int, int],
        at: CachedAt,
        rows: Mapping[str, int],
        pooled: bool = False,
    ) -> None:
        self._digest = _digest(record)
        self.folder = features_folder(root, record)
        self._read = slice(1 if pooled else None)
        self.at, self._record, self._rows = at, record, rows
        self._photo_bytes = 4 * math.prod(shape)
        self._per_part = max(1, min(_PART_PHOTOS, _PART_BYTES // self._photo_bytes))
        count, size = len(rows), self._per_part
        self._parts = [range(n, min(count, n + size)) for n in range(0, count, size)]
        self._bad: dict[int, str] = {}
        self._maps: dict[int, Any] = {}  # part -> its features, mapped into memory

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the memory maps: workers map for themselves."""
        return {**self.__dict__, "_maps": {}}

    def make(self, encode: Encode) -> None:
        """Make the parts that are missing or damaged.

        Raises CompoclipError when they do not fit on the disk or the folder cannot be written.
        """
        images = counted(len(self._rows), "image")
        if not self._lacking():
            note(f"  features of {images} are in {self.folder}")
            return
        with only_writer(self.folder, folder=True, wait=True):
            lacking = self._lacking()
            photos = sum(len(self._parts[part]) for part in lacking)
            size, free = photos * self._photo_bytes, free_bytes(self.folder)
            megabytes = f"{size / 1e6:,.0f} MB"
            if size > free:
                raise CompoclipError(
                    f"{self.folder}: features of {counted(photos, 'image')} take {megabytes} and "
                    f"{free / 1e6:,.0f} MB are free: name a folder on another disk (--features), "
                    "take fewer --crops, or leave --cache-frozen out"
                )
            cached = f"cached in {self.folder} ({megabytes})"
            note(f"  encoding features of {photos} of {images}, {cached}")
            write_json(self.folder / "features.json", self._record)
            for part in track(lacking, "encoding images once", len(lacking), "parts"):
                features, bad = encode(self._parts[part])
                unreadable = np.frombuffer(json.dumps(bad).encode(), np.uint8)
                arrays: dict[str, NDArray[Any]] = {_TENSOR: features, _BAD: unreadable}
                save = partial(save_arrays, arrays=arrays, made_from=[self._digest, part])
                write_atomically(self._path(part), save)

    def open(self) -> None:
        """Read the list of unreadable photos. Raises CompoclipError for missing parts."""
        for part in range(len(self._parts)):
            path = self._path(part)
            try:
                with safe_open(path, "numpy") as file:
                    stated = json.loads(file.get_tensor(_BAD).tobytes())
            except (OSError, ValueError, SafetensorError) as error:
                raise CompoclipError(f"{path}: {reason(error)}; start again") from error
            self._bad |= {int(number): str(cause) for number, cause in stated.items()}

    def some(self, limit: int) -> dict[str, torch.Tensor]:
        """Return name -> the (1, C) pooled feature of its first crop, of at most so many photos.

        They are spread evenly over the source; unreadable ones are left out.
        """
        names = [name for name, row in self._rows.items() if row not in self._bad]
        step = max(1, math.ceil(len(names) / limit))
        return {name: self.of(name, 0)[:1] for name in names[::step]}

    def of(self, photo: str, crop: int) -> torch.Tensor:
        """Return (1 + P, C) float32 features of a crop of a photo.

        Raises CompoclipError for an unreadable photo and for one that was added later.
        """
        row = self._rows.get(photo, -1)
        require(
            row >= 0,
            photo,
            "has no cached features, because it was added after caching; start the run again",
        )
        if row in self._bad:
            raise CompoclipError(self._bad[row])
        part, place = divmod(row, self._per_part)
        if part not in self._maps:
            file: Any = safe_open(self._path(part), "pt")
            self._maps[part] = file.get_slice(_TENSOR)
        features: torch.Tensor = self._maps[part][place, crop, self._read]
        return features

    def _path(self, part: int) -> Path:
        return self.folder / f"part-{part:06d}.safetensors"

    def _lacking(self) -> list[int]:
        """The parts that are missing or damaged."""
        parts = range(len(self._parts))
        return [n for n in parts if load_arrays(self._path(n), [self._digest, n]) is None]
