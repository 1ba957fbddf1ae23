"""Drawing in this process or over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from compoclip.workers import Workers


@contextmanager
def mapper(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map` over `workers` fresh processes, in this one for fewer than two; results in order."""
    if workers < 2:
        yield map
        return
    with Workers(workers) as pool:
        yield pool.map
