"""Which split of the data is read: that for training, unless another one is asked for.

Data sets hold what models are tested on beside what they are trained on. Reading all of it takes
`--split all`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compoclip.errors import UsageError

TRAIN, ALL = "train", "all"
COLUMN = "split"  # of tables that say the split of every row
# Karpathy's "train" leaves out the part of COCO val2014 that everybody trains on as well.
_TRAINED_ON = (TRAIN, "restval")
_KNOWN = re.compile(r"(restval|train(ing)?|val(id(ation)?)?|dev|test|eval)(?![a-z])", re.IGNORECASE)


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


def require_one_split(path: Path, split: str | None) -> None:
    """Raise UsageError when a split is asked for of a file that holds one split already."""
    if split not in (None, ALL):
        raise UsageError(f"{path}: holds one split already; leave out split {split!r}")
