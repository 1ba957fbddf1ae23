"""Sub-graph texts as rewrites of their own, one text each: what MosaiCLIP trains with.

Unlike other rewrites they keep only a part of the caption ("black cat on mat"). The edits of a
negative are the places where it differs from the sub-graph that it was made from.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain

from compoclip.captions.subgraphs import SubGraph
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.graph_reading import Reading, read_graph
from compoclip.rewrites.graph_slots import ATTR, NO_CANDIDATE, OBJ, REL, Transform, slots_of
from compoclip.rewrites.graph_texts import (
    NO_GRAPH,
    NO_SUBGRAPH,
    POSITIVE,
    GraphFilter,
    positive_text,
    usable_subgraphs,
)
from compoclip.rewrites.graph_vocabulary import GraphVocabulary, default_vocabulary
from compoclip.rewrites.tokenkey import same_to_clip
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS, SAME_TOKENS


@dataclass(frozen=True)
class GraphNegative:
    """A negative of one category, `name`: a sub-graph and an edit of it, both drawn uniformly.

    vocabulary: words for replacements, the shipped ones by default. graph_filter: "valid" refuses
    negatives that may be true, "none" does not.
    """

    name: str
    version: str = "2"
    keeps_meaning: bool = False
    vocabulary: GraphVocabulary | None = None
    graph_filter: GraphFilter = "valid"

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn negative, or `Refused`: "no-graph", "no-sub-graph", or what broke a rule."""
        found = _usable(caption)
        if isinstance(found, Refused):
            return found
        reading, usable = found
        vocabulary = self.vocabulary or default_vocabulary()
        transform = Transform(reading, vocabulary, self.graph_filter == "valid")
        slots = [s for s in chain.from_iterable(map(slots_of, usable)) if s.category == self.name]
        reason = NO_CANDIDATE
        for slot in rng.sample(slots, min(MAX_DRAWS, len(slots))):
            result = transform.draw(slot, rng)
            if isinstance(result, Refused):
                reason = result.reason
            elif same_to_clip(result.text, caption.text):
                reason = SAME_TOKENS
            else:
                return result
        return Refused(reason)


@dataclass(frozen=True)
class GraphPositive:
    """The text of one sub-graph, drawn uniformly from all that the caption asserts."""

    name: str = POSITIVE
    version: str = "2"
    keeps_meaning: bool = True

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn text, or `Refused`: "empty-caption", "no-graph", "no-sub-graph", ..."""
        found = _usable(caption)
        return found if isinstance(found, Refused) else positive_text(rng.choice(found[1]))


GRAPH_OBJ = GraphNegative(OBJ)
GRAPH_REL = GraphNegative(REL)
GRAPH_ATTR = GraphNegative(ATTR)


def _usable(caption: Caption) -> tuple[Reading, tuple[SubGraph, ...]] | Refused:
    """The caption's reading and its sub-graphs, at least one; or the commonest reason for none."""
    if not caption.tokens:
        return Refused(EMPTY)
    reading = read_graph(caption)
    if reading is None:
        return Refused(NO_GRAPH)
    usable, refused = usable_subgraphs(reading)
    if usable:
        return reading, usable
    return Refused(refused.most_common(1)[0][0] if refused else NO_SUBGRAPH)
