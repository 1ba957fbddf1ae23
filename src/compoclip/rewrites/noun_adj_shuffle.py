"""Hard negatives by shuffling nouns among themselves, and adjectives (the first order of ARO)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from compoclip.captions.types import Caption, Span
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, SpanChange, moved_text
from compoclip.rewrites.legality import items, parts, parts_of
from compoclip.rewrites.reading import Reading

_TAGS = ("NN", "JJ")


def _shuffled(s: Reading, rng: random.Random) -> Iterator[CandidateEdit]:
    """Puts the nouns of a caption in another order, and the adjectives in another."""
    caption = s.caption
    kinds = [
        [i for i, token in enumerate(caption.tokens) if token.tag.startswith(tag)] for tag in _TAGS
    ]
    if all(len({s.lows[i] for i in places}) < 2 for places in kinds):
        return
    said, before = items(s), parts_of(s)
    same = _sense(caption, range(len(caption.tokens)))
    for _ in range(MAX_DRAWS):
        order = list(range(len(caption.tokens)))
        for places in kinds:
            for place, source in zip(places, rng.sample(places, len(places))):
                order[place] = source
        moved = [(to, at) for to, at in enumerate(order) if to != at]
        if not moved or parts([said[i] for i in order]) == before:
            continue
        if same is not None and _sense(caption, order) == same:
            continue  # "a small red cat" for "a red small cat"
        changes = [
            SpanChange(to, to + 1, moved_text(caption, (at, at + 1), to)) for to, at in moved
        ]
        yield CandidateEdit("shuffle:nouns-adjectives", changes)


def _sense(caption: Caption, order: Sequence[int]) -> object:
    """Return the scene graph with the words in another order; None when it is unknown."""
    if caption.graph is None or not caption.graph.objects:
        return None
    tokens = caption.tokens

    def words_in(span: Span) -> str:
        within = (i for i, t in enumerate(tokens) if span.start <= t.start and t.end <= span.end)
        return " ".join(tokens[order[i]].text.lower() for i in within)

    things = [
        (words_in(thing.span), *sorted(words_in(attribute.span) for attribute in thing.attributes))
        for thing in caption.graph.objects
    ]
    links = ((things[r.subject], r.name, things[r.object]) for r in caption.graph.relations)
    return sorted(things), sorted(links)


NOUN_ADJ_SHUFFLE = SampledRewrite("noun-adj-shuffle", "1", False, "nothing-to-shuffle", _shuffled)
