"""Parsing every caption before training, so that workers only look parses up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from compoclip.captions.chunks import sentences
from compoclip.captions.store import ParseStore
from compoclip.captions.types import Caption, is_cut
from compoclip.console import note, track
from compoclip.data.plans import Composed, ImagePlan
from compoclip.data.sample import Sample, Source
from compoclip.files import cache_folder

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


# --- A source of long captions, cut into sentences. ---

FEW_SENTENCES = "sample of fewer than two sentences"


class SentenceSource:
    """The samples of a source with one caption each that holds two sentences or more.

    Their captions are these sentences, the first the main one. left_out: that of the source, and
    how many samples have fewer sentences.
    """

    def __init__(self, source: Source, kept: Iterable[int]) -> None:
        """kept: the indices of the samples whose captions can be cut."""
        self._source = source
        self._kept = np.fromiter(kept, np.int64)
        few = len(source) - len(self._kept)
        before: Mapping[str, int] = getattr(source, "left_out", {})
        self.left_out: Mapping[str, int] = {**before, FEW_SENTENCES: few}

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self._kept):
            raise IndexError(index)
        sample = self._source[int(self._kept[index])]
        # Numbers of neighbours are those of the whole source.
        return replace(sample, captions=sentences(sample.captions[0]), neighbours=())

    def captions(self) -> Iterator[str]:
        """All sentences in order, without touching the images."""
        wanted = iter(self._kept.tolist())
        following = next(wanted, None)
        for index, captions in enumerate(caption_lists(self._source)):
            if index == following:
                yield from sentences(captions[0])
                following = next(wanted, None)

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        return f"{self._source.describe()}, cut into sentences"


def with_sentences(source: Source, images: ImagePlan) -> Source:
    """The source that an image plan wants: with long captions cut into sentences, or as it is.

    Captions are long when most samples have one alone, of two usable sentences or more; they are
    cut for composed images, whose texts take several of a sample.
    """
    if not (isinstance(images, Composed) and images.sentences == "auto"):
        return source
    kept = [
        index
        for index, captions in enumerate(caption_lists(source))
        if len(captions) == 1 and len(sentences(captions[0])) > 1
    ]
    if 2 * len(kept) <= len(source):
        return source
    note("long captions: each is cut into sentences, the first of them its main caption")
    return SentenceSource(source, kept)


def caption_lists(source: Source) -> Iterable[tuple[str, ...]]:
    """The captions of each sample, without reading images where the source can tell them apart."""
    read = getattr(source, "caption_lists", None)
    if callable(read):
        yield from read()
        return
    for index in range(len(source)):
        yield source[index].captions
