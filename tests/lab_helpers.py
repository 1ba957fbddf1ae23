"""What tests of the lab share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self


class Here:
    """In the place of `Workers`: each task is done in this process, which has imported torch and
    read the word lists already."""

    def __init__(self, count: int, **_: object) -> None:
        assert count == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def as_done(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        return map(work, tasks)
