"""Parsing every caption before training, so that workers only look parses up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

from compoclip.captions.store import ParseStore
from compoclip.captions.types import Caption
from compoclip.captions.words import is_cut
from compoclip.console import track
from compoclip.data.cachefile import cache_folder
from compoclip.data.sample import Source

_KEPT = 1 << 14  # parses each process keeps in memory


class StoredCaptions:
    """Parses by caption text, read from the store on demand; may be sent to worker processes.

    cut: how many captions of the source were too long to be parsed whole.
    Millions of parses would not fit into the memory of each worker, the few most recent ones do.
    """

    def __init__(self, store: ParseStore, cut: int = 0) -> None:
        self.cut = cut
        self._store = store
        self._recent = lru_cache(_KEPT)(self._find)

    def __getitem__(self, text: str) -> Caption:
        """The parse of a caption; one that is not stored is parsed now.

        Raises CompoclipError when the store cannot be read.
        """
        return self._recent(text)

    def _find(self, text: str) -> Caption:
        return self._store.get(text) or self._store.get_or_parse([text])[text]

    def __reduce__(self) -> tuple[type[StoredCaptions], tuple[ParseStore, int]]:
        return StoredCaptions, (self._store, self.cut)


def prepare_captions(
    source: Source, store: ParseStore | None = None, workers: int | None = None
) -> StoredCaptions:
    """Parse all captions of `source` that `store` does not know yet, showing progress.

    store: by default one file in the user's cache folder, shared by all runs. workers: processes
    that parse, by default one for each available core; they are started for thousands of captions
    only, as fresh interpreters (a script that calls this needs its `__main__` guard). An
    interrupted run continues where it was. Raises CompoclipError when the store cannot be written.
    """
    if store is None:
        store = ParseStore(cache_folder() / "parses.sqlite")
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    cut = 0

    def captions() -> Iterator[str]:
        nonlocal cut
        for text in track(_captions(source), "parsing captions", unit="captions"):
            cut += is_cut(text)
            yield text

    store.fill(captions(), workers)
    return StoredCaptions(store, cut)


def _captions(source: Source) -> Iterator[str]:
    """All captions, without reading images where the source can tell them apart."""
    captions = getattr(source, "captions", None)
    if callable(captions):
        yield from captions()
        return
    for index in range(len(source)):
        yield from source[index].captions
