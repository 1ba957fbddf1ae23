"""Sub-graph texts of a caption, positives and their hard negatives (MosaiCLIP).

Unlike other rewrites they cover only a part of the caption ("black cat on mat").
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Literal

from compoclip.captions.subgraphs import SubGraph, phrase
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten, fits_context, same_to_clip, token_key
from compoclip.rewrites.driver import UNATTESTED, SampledRewrite
from compoclip.rewrites.edit import DOUBLED, MAX_DRAWS, SAME_TOKENS, TOO_LONG, doubles_a_word
from compoclip.rewrites.exclusion import NO_THINGS
from compoclip.rewrites.graph_edits import (
    CATEGORIES,
    NO_CANDIDATE,
    GraphVocabulary,
    Slot,
    Transform,
    default_vocabulary,
    slots_of,
)
from compoclip.rewrites.legality import NO_THING, NOT_ASSERTED
from compoclip.rewrites.reading import Reading, read

# --- Sub-graph texts of a caption, positives and their hard negatives (MosaiCLIP). ---

POSITIVE = "graph-positive"
#: How often a pair is of c_obj, c_rel, c_attr.
FINE_TUNING = (0.08, 0.46, 0.46)
GraphFilter = Literal["valid", "none"]


#: The level of words that captions do not show together: taken when nothing else is left.
UNSEEN = -1
NO_GRAPH = "no-graph"
NO_SUBGRAPH = "no-sub-graph"
NOT_SURE = "unclear-attachment"
ENOUGH_POSITIVES = "enough-positives"
TAKEN = "equals-another-text"


@dataclass(frozen=True)
class GraphTexts:
    """The sub-graph texts of a caption; no two of them, nor one and the caption, are equal to CLIP.

    Attributes:
        positives: Texts of sub-graphs.
        negatives: Edited positives.
        pair: For each negative the index of its positive.
        refused: Counts of refusals by rewrite name and reason.
    """

    positives: tuple[Rewritten, ...] = ()
    negatives: tuple[Rewritten, ...] = ()
    pair: tuple[int, ...] = ()
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)


def sample_graph_texts(
    caption: Caption,
    rng: random.Random,
    weights: tuple[float, float, float] = FINE_TUNING,
    positives: int = 3,
    negatives: int = 6,
    vocabulary: GraphVocabulary | None = None,
    graph_filter: GraphFilter = "valid",
) -> GraphTexts:
    """Sample (positive, negative) pairs of a parsed caption (MosaiCLIP, Singh et al., EMNLP 2023).

    Repeat until there are `negatives` negatives or no pair is left: sample a category by `weights`
    among the ones with pairs left, then one of its pairs uniformly, without replacement. Take the
    pair if its positive is already chosen or fewer than `positives` are, and its texts are new to
    CLIP. Every positive has a negative. The caption itself is not among the texts.

    Args:
        caption: With a graph. Without one, or with an empty one, the result has no texts, and
            `refused` says why.
        rng: Source of all randomness.
        weights: Weights of c_obj, c_rel and c_attr.
        positives: Most positives.
        negatives: Most negatives.
        vocabulary: Words for negatives, the shipped ones by default.
        graph_filter: "valid" refuses negatives that may be true; "none" takes all, as the paper
            does.

    Raises:
        ValueError: For weights that are negative or all zero.
    """
    if min(weights) < 0 or not any(weights):
        raise ValueError(f"weights must be at least 0 and not all 0, got {weights}")
    texts = GraphTexts()
    reading = read(caption)
    if not reading.subgraphs:
        texts.refused[POSITIVE, NO_GRAPH if caption.graph is None else NO_SUBGRAPH] += 1
        return texts
    transform = Transform(reading, vocabulary or default_vocabulary(), graph_filter == "valid")
    open_slots: dict[str, list[Slot]] = {category: [] for category in CATEGORIES}
    usable, refused = usable_subgraphs(reading)
    texts.refused.update({(POSITIVE, reason): count for reason, count in refused.items()})
    for slot in chain.from_iterable(map(slots_of, usable)):
        open_slots[slot.category].append(slot)
    later: dict[str, list[Slot]] = {category: [] for category in CATEGORIES}
    least = 1
    chosen: list[SubGraph] = []
    made: list[tuple[Rewritten, int]] = []
    taken = {token_key(caption.text)}
    while len(made) < negatives:
        left = [(c, w) for c, w in zip(CATEGORIES, weights) if w and open_slots[c]]
        if not left and least > UNSEEN:
            open_slots, least = later, UNSEEN
            continue
        if not left:
            break
        (category,) = rng.choices([c for c, _ in left], [w for _, w in left])
        slots = open_slots[category]
        slot = slots.pop(rng.randrange(len(slots)))
        new = slot.positive not in chosen
        if new and len(chosen) >= positives:
            texts.refused[category, ENOUGH_POSITIVES] += 1
            continue
        result = transform.draw(slot, rng, least)
        if isinstance(result, Refused):
            if result.reason == UNATTESTED and least > UNSEEN:
                later[category].append(slot)
                continue
            texts.refused[category, result.reason] += 1
            continue
        keys = [token_key(result.text), *([token_key(phrase(slot.positive))] if new else [])]
        if not taken.isdisjoint(keys):
            texts.refused[category, TAKEN] += 1
            continue
        taken.update(keys)
        if new:
            chosen.append(slot.positive)
        made.append((result, chosen.index(slot.positive)))
    return GraphTexts(
        tuple(map(positive_text, chosen)),
        tuple(result for result, _ in made),
        tuple(index for _, index in made),
        texts.refused,
    )


def positive_text(subgraph: SubGraph) -> Rewritten:
    """The text of a sub-graph; it says a part of the caption, so nothing of it is edited."""
    rule = "relation" if subgraph.relations else "object"
    return Rewritten(phrase(subgraph), POSITIVE, True, rule, ())


def usable_subgraphs(reading: Reading) -> tuple[tuple[SubGraph, ...], Counter[str]]:
    """The sub-graphs that can be positives, and how many cannot, by reason."""
    usable: list[SubGraph] = []
    refused: Counter[str] = Counter()
    for subgraph in reading.subgraphs:
        text = phrase(subgraph)
        if not reading.asserts(subgraph):
            refused[NOT_ASSERTED] += 1
        elif not subgraph.sure:
            refused[NOT_SURE] += 1
        elif any(node.name.rpartition(" ")[2] in NO_THINGS for node in subgraph.objects):
            refused[NO_THING] += 1
        elif token_key(text) == token_key(reading.caption.text):
            refused[TAKEN] += 1
        elif doubles_a_word(text, reading.caption):
            refused[DOUBLED] += 1
        elif not fits_context(text):
            refused[TOO_LONG] += 1
        else:
            usable.append(subgraph)
    return tuple(usable), refused


# --- Sub-graph texts as rewrites, one text each: what MosaiCLIP trains with. ---
#
# Unlike other rewrites they cover only a part of the caption ("black cat on mat"). The edits of a
# negative are the places where it differs from the sub-graph that it was made from.


def _negatives(s: Reading, rng: random.Random, category: str) -> Iterator[Rewritten | Refused]:
    """Edits a sub-graph: one edit of the category of its name, both sampled uniformly."""
    usable = _usable(s)
    if isinstance(usable, Refused):
        yield usable
        return
    transform = Transform(s, default_vocabulary())
    slots = [s for s in chain.from_iterable(map(slots_of, usable)) if s.category == category]
    for slot in rng.sample(slots, min(MAX_DRAWS, len(slots))):
        result = transform.draw(slot, rng)
        same = isinstance(result, Rewritten) and same_to_clip(result.text, s.caption.text)
        yield Refused(SAME_TOKENS) if same else result


def _positive(s: Reading, rng: random.Random) -> Iterator[Rewritten | Refused]:
    """The text of one sub-graph, sampled uniformly from all that the caption asserts."""
    usable = _usable(s)
    yield usable if isinstance(usable, Refused) else positive_text(rng.choice(usable))


def _usable(s: Reading) -> tuple[SubGraph, ...] | Refused:
    """The sub-graphs that can be positives, at least one; or the commonest reason for none."""
    if s.caption.graph is None:
        return Refused(NO_GRAPH)
    usable, refused = usable_subgraphs(s)
    return usable or Refused(refused.most_common(1)[0][0] if refused else NO_SUBGRAPH)


GRAPH_OBJ, GRAPH_REL, GRAPH_ATTR = (
    SampledRewrite(name, "5", False, NO_CANDIDATE, partial(_negatives, category=name))
    for name in CATEGORIES
)
GRAPH_POSITIVE = SampledRewrite(POSITIVE, "3", True, NO_SUBGRAPH, _positive)
