"""A source of long captions, cut into sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from compoclip.captions.sentences import sentences
from compoclip.console import note
from compoclip.data.plans import Composed, ImagePlan
from compoclip.data.sample import Sample, Source

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
