"""Names of splits: which of them data name, and which stand for train, val and test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from compoclip.errors import UsageError, names_listed, require

TRAIN, VAL, TEST, ALL = "train", "val", "test", "all"
COLUMN = "split"  # of tables that say the split of every row
# Karpathy's "train" leaves out the part of COCO val2014 that everybody trains on as well.
_TRAINED_ON = (TRAIN, "restval", "training")
_OTHER_NAMES = {VAL: (VAL, "validation", "valid", "dev", "eval"), TEST: (TEST, "testing")}
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
    """Return the names among `names` that a split goes by, ignoring case: "train" takes "restval",
    too, and "val" and "test" the first there is of their other names, such as "dev"."""
    split = split.lower()
    usual = _TRAINED_ON if split == TRAIN else _OTHER_NAMES.get(split, (split,))
    present = [[name for name in names if name.lower() == other] for other in usual]
    spelled = [same for same in present if same]
    return tuple(name for same in (spelled if split == TRAIN else spelled[:1]) for name in same)


def held_out_split(names: Collection[str]) -> str | None:
    """Return the split to measure on, test or else val; None where none of the names is one."""
    return next((split for split in (TEST, VAL) if members_of(split, names)), None)


def named_splits(names: Sequence[str], split: str | None) -> list[str]:
    """Return the split that each name of a file stands for, "" for all if none is named after one.

    split: the one to read, which may be any beginning of their names.
    """
    splits = [split if split and name.startswith(split) else split_of(name) for name in names]
    if not any(splits):
        return splits
    return [part or name.split("-")[0] for part, name in zip(splits, names)]


def rows_decide(parts: Collection[str], rows_say_splits: Callable[[], bool]) -> bool:
    """Return whether rows decide, not the names of parts: these tell no splits apart.

    So it is where all parts are of one split, but their rows say which they are of:
    `test-000.parquet` of Flickr30k holds all three. rows_say_splits: asked only of such parts.
    """
    return len({*parts}) == 1 and rows_say_splits()


def require_split(split: str | None, names: Collection[str], origin: object) -> tuple[str, ...]:
    """Return the names of a split, None being the training split.

    Raises UsageError that lists the splits there are when it is not among them.
    """
    members = members_of(split or TRAIN, names)
    have = names_listed(sorted(name or "samples of no split" for name in names))
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
