"""Splits of the data: the training split is read unless the user names another one.

Readers say of every row which split it is of, by a column, a field, a folder or the name of a file;
`part_of` decides for all of them. `--split all` reads everything, test data included. Data without
splits are split by a hash of the photo.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compoclip.data.sources import Source
from compoclip.errors import UsageError, require

TRAIN, VAL, TEST, ALL = "train", "val", "test", "all"
COLUMN = "split"  # of tables that say the split of every row
# Karpathy's "train" leaves out the part of COCO val2014 that everybody trains on as well.
_TRAINED_ON = (TRAIN, "restval", "training")
_OTHER_NAMES = {VAL: (VAL, "validation", "valid", "dev", "eval"), TEST: (TEST, "testing")}
_HEAD = 1 << 16  # bytes of a photo that decide its split; photos alike in these go together
_KNOWN = re.compile(
    r"(restval|train(ing)?|val(id(ation)?)?|dev|test(ing)?|eval)(?![a-z])", re.IGNORECASE
)


class NoUseError(UsageError):
    """An option was given to a format that has no use for it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{message}; leave it out")
        self.option = option


def split_of(name: str) -> str:
    """Return the split that the name of a file or folder begins with ("val-000.tar"), or ""."""
    match = _KNOWN.match(name)
    return match[1].lower() if match else ""


def members_of(split: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names among `names` that a split goes by: "train" takes "restval", too,
    and "val" and "test" the first there is of their other names, such as "dev"."""
    if split == TRAIN:
        return tuple(name for name in _TRAINED_ON if name in names)
    others = _OTHER_NAMES.get(split, (split,))
    return tuple(name for name in others if name in names)[:1]


def named_splits(names: Sequence[str], split: str | None) -> list[str]:
    """Return the split that each name of a file stands for, "" for all if none is named after one.

    split: the one to read, which may be any beginning of their names.
    """
    splits = [split if split and name.startswith(split) else split_of(name) for name in names]
    if not any(splits):
        return splits
    return [part or name.split("-")[0] for part, name in zip(splits, names)]


def require_split(split: str | None, names: Collection[str], origin: object) -> tuple[str, ...]:
    """Return the names of a split, None being the training split.

    Raises UsageError that lists the splits there are when it is not among them.
    """
    members = members_of(split or TRAIN, names)
    have = ", ".join(sorted(name or "samples of no split" for name in names))
    ask = "" if split else "; name one with --split, or take everything: --split all"
    require(members, origin, f"no split {split or TRAIN!r}; it has: {have}{ask}", UsageError)
    return members


def others_left_out(counts: Counter[str], members: Sequence[str], noun: str) -> dict[str, int]:
    """Return the numbers of what is in other splits than the training split, by reason."""
    return {
        f"{noun} of {f'split {name!r}' if name else 'no split'} (--split all takes it)": number
        for name, number in sorted(counts.items())
        if name not in members
    }


def part_of(source: Source, split: str | None, held_out: float, split_seed: int) -> Source:
    """Return a split of opened data.

    Args:
        source: All of the data, which are read once for all their splits.
        split: A name, "all", or None for everything where the data name no splits, else "train".
        held_out: Share of the photos in each of val and test, where a hash decides.
        split_seed: Seed of the hash.

    Raises:
        UsageError: For a split that the data do not have, and a share outside (0, 0.5).
    """
    counts = source.split_counts()
    if split == ALL or (split is None and not any(counts)):
        return source
    if not any(counts):
        if split in (TRAIN, VAL, TEST):
            return by_hash(source, split, held_out, split_seed)
        message = f"{source.describe()}: names no splits, so takes no --split {split}"
        raise NoUseError("split", message)
    members = require_split(split, counts, source.describe())
    rows = np.flatnonzero(np.isin(list(source.column(COLUMN)), members))
    more = f", split {split or TRAIN}" if len(members) < len(counts) else ""
    left_out = {} if split else others_left_out(counts, members, "sample")
    return source.take(rows, source.describe() + more, left_out, splits=members)


def by_hash(source: Source, split: str, share: float, seed: int) -> Source:
    """Return a split ("train", "val" or "test") of data without splits.

    A hash of the seed, the size and the first bytes of a photo's file decides. All rows and copies
    of a photo are in one split, and adding photos moves no other photo. share: of the photos in
    each of val and test. Raises UsageError for a share outside (0, 0.5), and for an empty split.
    """
    if not 0 < share < 0.5:
        raise UsageError(f"--held-out {share:g}: must lie between 0 and 0.5")
    numbers = hash_numbers(source, seed)
    parts = np.select([numbers < share, numbers < 2 * share], [VAL, TEST], TRAIN)
    rows = np.flatnonzero(parts == split)
    what = f"split {split}: {len(rows):,} of {len(source):,} photos, by a hash of the photo"
    if not len(rows):
        raise UsageError(f"{source.describe()}, {what}; raise --held-out {share:g}")
    return source.take(rows, f"{source.describe()}, {what}", {})


def hash_numbers(source: Source, seed: int) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for the photo of each sample; it is computed once."""
    if seed not in source.hashes:
        numbers = [_number(source[index].image, seed) for index in range(len(source))]
        source.hashes[seed] = np.array(numbers)
    return source.hashes[seed]


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
