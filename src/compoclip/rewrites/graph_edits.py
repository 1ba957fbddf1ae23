"""Which words of a graph negative differ from its positive, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compoclip.captions.subgraphs import SubGraph, relation_words
from compoclip.captions.types import GraphAttribute, Span
from compoclip.rewrites.base import Edit

#: Name and span of a piece in the positive; the same piece in the negative, with place.
_Piece = tuple[str, Span]


def edits_between(positive: SubGraph, negative: SubGraph) -> tuple[Edit, ...]:
    """The changed pieces: their range in the caption, and in the text of the negative.

    Pieces are attributes, nouns and relations. Exchanged ones are listed where they are now, with
    the range of what stood there; attributes or objects that were added have an empty range.
    """
    found: list[Edit] = []
    at = 0
    for old, new in _aligned(positive, negative):
        text = " ".join(name for name, _ in new)
        if [name for name, _ in old] != [name for name, _ in new]:
            start, end = _hull([span for _, span in old or new])
            found.append(Edit(start, end, at, at + len(text)))
        at += len(text) + bool(text)
    return tuple(found)


def _aligned(
    positive: SubGraph, negative: SubGraph
) -> Iterator[tuple[Sequence[_Piece], Sequence[_Piece]]]:
    """Runs of pieces at the same place in both, in the order of the text."""
    for index, new in enumerate(negative.objects):
        if index >= len(positive.objects):
            relation = negative.relations[index - 1]
            added = [(relation_words(relation), relation.span)]
            yield [], [*added, *_attributes(new.attributes), (new.name, new.span)]
            continue
        old = positive.objects[index]
        if index:
            links = (positive.relations[index - 1], negative.relations[index - 1])
            was, is_now = ([(relation_words(r), r.span)] for r in links)
            yield was, is_now
        before, after = _attributes(old.attributes), _attributes(new.attributes)
        if len(before) == len(after):
            yield from (([a], [b]) for a, b in zip(before, after))
        else:
            nothing = ("", Span(old.span.start, old.span.start))
            yield before or [nothing], after
        yield [(old.name, old.span)], [(new.name, new.span)]


def _attributes(attributes: Sequence[GraphAttribute]) -> list[_Piece]:
    return [(a.name, a.span) for a in attributes]


def _hull(spans: Sequence[Span]) -> tuple[int, int]:
    return min(span.start for span in spans), max(span.end for span in spans)
