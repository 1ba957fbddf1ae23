"""Splits of the data: the training split is read unless the user names another one.

`--split all` reads everything, test data included. Data without splits are split by `by_hash`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from compoclip.data.sources import Source
from compoclip.errors import UsageError

TRAIN, VAL, TEST, ALL = "train", "val", "test", "all"
COLUMN = "split"  # of tables that say the split of every row
# Karpathy's "train" leaves out the part of COCO val2014 that everybody trains on as well.
_TRAINED_ON = (TRAIN, "restval")
_HEAD = 1 << 16  # bytes of a photo that decide its split; photos alike in these go together
_KNOWN = re.compile(r"(restval|train(ing)?|val(id(ation)?)?|dev|test|eval)(?![a-z])", re.IGNORECASE)


class NoUseError(UsageError):
    """An option was given to a format that has no use for it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{message}; leave it out")
        self.option = option


class Split:
    """Takes the samples of one split and counts the others.

    wanted: its name; None for the training split, "all" for every sample. "train" takes "restval",
    too.
    """

    def __init__(self, wanted: str | None) -> None:
        self.name = wanted or TRAIN
        self._asked = wanted is not None
        self._names = _TRAINED_ON if self.name == TRAIN else (self.name,)
        self._taken = 0
        self._others: Counter[str] = Counter()

    def takes(self, split: str | None) -> bool:
        """Return whether samples of a split (None: of no split) are read; count the others."""
        if self.name == ALL or split in self._names:
            self._taken += 1
            return True
        self._others[split or ""] += 1
        return False

    def named(self, name: str) -> str | None:
        """Return the split that the name of a file or folder begins with, if it begins with one."""
        return self.name if name.startswith(self.name) else split_of(name)

    def require(self, origin: object) -> None:
        """Raise UsageError, naming the splits there are, when there are only others."""
        if self._others and not self._taken:
            if self._asked and {*self._others} == {""}:
                raise NoUseError("split", f"{origin}: names no splits, so takes no --split")
            have = ", ".join(sorted(name or "samples of no split" for name in self._others))
            ask = "" if self._asked else "; name one with --split, or take everything: --split all"
            raise UsageError(f"{origin}: no split {self.name!r}; it has: {have}{ask}")

    def left_out(self, noun: str = "sample") -> dict[str, int]:
        """Return the numbers left out by default, not by request, by reason."""
        if self._asked:
            return {}
        return {
            f"{noun} of {f'split {name!r}' if name else 'no split'} (--split all takes it)": number
            for name, number in sorted(self._others.items())
        }

    def __str__(self) -> str:
        """Return ", split train", for descriptions; nothing when every sample is read."""
        return f", split {self.name}" if self._others else ""


def split_of(name: str) -> str | None:
    """Return the split that the name of a file or folder begins with ("val-000.tar"), if any."""
    found = _KNOWN.match(name)
    return found and found.group(1).lower()


def files_of(
    files: Sequence[Path], wanted: str | None, origin: object
) -> tuple[list[Path], dict[str, int]]:
    """Return the files of a split by the beginning of their names, and how many are left out.

    wanted: see `Split`. When none is asked for and no file is named after one, all are taken.
    Raises UsageError for a split that no file is named after.
    """
    split = Split(wanted)
    if wanted is None and not any(split_of(file.name) for file in files):
        return list(files), {}
    chosen = [f for f in files if split.takes(split.named(f.name) or f.name.split("-")[0])]
    split.require(origin)
    return chosen, split.left_out("file")


def by_hash(source: Source, split: str, share: float, seed: int) -> Source:
    """Return a split ("train", "val" or "test") of data without splits.

    A hash of the seed, the size and the first bytes of a photo's file decides. All rows and copies
    of a photo are in one split, and adding photos moves no other photo. share: of the photos in
    each of val and test. Raises UsageError for a share outside (0, 0.5), and for an empty split.
    """
    if not 0 < share < 0.5:
        raise UsageError(f"--held-out {share:g}: must lie between 0 and 0.5")
    numbers = np.array([_number(source[index].image, seed) for index in range(len(source))])
    parts = np.select([numbers < share, numbers < 2 * share], [VAL, TEST], TRAIN)
    kept = np.flatnonzero(parts == split)
    what = f"split {split}: {len(kept):,} of {len(source):,} photos, by a hash of the photo"
    if not len(kept):
        raise UsageError(f"{source.describe()}, {what}; raise --held-out {share:g}")
    return source.take(kept, f"{source.describe()}, {what}", {})


def _number(image: Path | bytes, seed: int) -> float:
    """A number from 0 to 1 by the photo, or by the name of an unreadable file."""
    try:
        if isinstance(image, bytes):
            head, size = image[:_HEAD], len(image)
        else:
            with image.open("rb") as file:
                head, size = file.read(_HEAD), image.stat().st_size
    except OSError:  # decoding reports it
        head, size = os.fsencode(Path(str(image)).name), 0
    digest = blake2b(f"{seed} {size} ".encode() + head, digest_size=8).digest()
    return float(int.from_bytes(digest, "big") / 2**64)


def require_one_split(path: Path, split: str | None) -> None:
    """Raise UsageError when a split is asked for of a file that holds one split already."""
    if split not in (None, ALL):
        raise UsageError(f"{path}: holds one split already; leave out split {split!r}")
