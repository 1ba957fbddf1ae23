"""Drawing in this process or over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any


@contextmanager
def mapper(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map` over `workers` fresh processes, in this one for fewer than two; results in order."""
    if workers < 2:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield pool.map
