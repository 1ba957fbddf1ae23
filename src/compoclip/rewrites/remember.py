"""What was read off a caption, remembered while its rewrites are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def of_last(read: Callable[[S], T]) -> Callable[[S], T]:
    """`read`, a pure function, that keeps its value for the object it was asked about last.

    The rewrites of one caption are made one after another and begin with the same reading. Objects
    are told apart by identity, as hashing a parsed caption would take longer than reading it. Safe
    among threads: what is kept is exchanged as a whole.
    """
    last: tuple[S, T] | None = None

    @wraps(read)
    def remembered(source: S) -> T:
        nonlocal last
        known = last
        if known is not None and known[0] is source:
            return known[1]
        value = read(source)
        last = (source, value)
        return value

    return remembered
