"""Sub-graph texts of a caption, positives and their hard negatives (MosaiCLIP, METHODS 5.5)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from compoclip.captions.subgraphs import SubGraph, phrase
from compoclip.captions.types import Caption
from compoclip.captions.words import word_set
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.graph_reading import Reading, read_graph
from compoclip.rewrites.graph_slots import CATEGORIES, Slot, Transform, slots_of
from compoclip.rewrites.graph_validity import NO_THING
from compoclip.rewrites.graph_vocabulary import GraphVocabulary, default_vocabulary
from compoclip.rewrites.tokenkey import fits_context, token_key
from compoclip.rewrites.validity import DOUBLED, TOO_LONG, doubles_a_word

POSITIVE = "graph-positive"
#: [D-mosaic-p1]: how often a pair is of c_obj, c_rel, c_attr.
FINE_TUNING, PRE_TRAINING = (0.08, 0.46, 0.46), (0.15, 0.425, 0.425)
GraphFilter = Literal["valid", "none"]

# The picture, parts of it, and what is no thing in it.
_NO_THINGS = word_set(
    "side top bottom front back middle center centre corner edge end left right rear background "
    "backdrop foreground distance view picture photo photograph image shot scene close-up drawing "
    "up ups closeup number sketch illustration part color colour size shape way"
)

NO_GRAPH = "no-graph"
NO_SUBGRAPH = "no-sub-graph"
NOT_ASSERTED = "not-asserted"
NOT_SURE = "unclear-attachment"
ENOUGH_POSITIVES = "enough-positives"
TAKEN = "equals-another-text"


@dataclass(frozen=True)
class GraphTexts:
    """The sub-graph texts drawn for a caption, each different to CLIP from the others and from it.

    pair: for each negative the index of the positive that it was made from. refused: how often no
    text came of something, by rewrite name and reason.
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
    """Draw (positive, negative) pairs of a parsed caption ([D-mosaic-sample]).

    Until there are `negatives` or no pair is left: draw a category by `weights` (c_obj, c_rel,
    c_attr) among those with pairs left, then one of its pairs uniformly, without replacement. The
    pair is taken if its positive is already chosen or fewer than `positives` are, and its texts are
    new to CLIP. A positive never comes without a negative. The caption itself is not among the
    texts. Without a parse, or with nothing to say about it, there are none, and `refused` says why.

    vocabulary: words for negatives, the shipped ones by default. graph_filter: "valid" refuses
    negatives that may be true; "none" takes them as they come, as the paper does. Raises ValueError
    for weights that are negative or all zero.
    """
    if min(weights) < 0 or not any(weights):
        raise ValueError(f"weights must be at least 0 and not all 0, got {weights}")
    texts = GraphTexts()
    reading = read_graph(caption)
    if reading is None or not reading.subgraphs:
        texts.refused[POSITIVE, NO_GRAPH if reading is None else NO_SUBGRAPH] += 1
        return texts
    transform = Transform(reading, vocabulary or default_vocabulary(), graph_filter == "valid")
    open_slots: dict[str, list[Slot]] = {category: [] for category in CATEGORIES}
    usable, refused = usable_subgraphs(reading)
    texts.refused.update({(POSITIVE, reason): count for reason, count in refused.items()})
    for slot in chain.from_iterable(map(slots_of, usable)):
        open_slots[slot.category].append(slot)
    chosen: list[SubGraph] = []
    made: list[tuple[Rewritten, int]] = []
    taken = {token_key(caption.text)}
    while len(made) < negatives:
        left = [(c, w) for c, w in zip(CATEGORIES, weights) if w and open_slots[c]]
        if not left:
            break
        (category,) = rng.choices([c for c, _ in left], [w for _, w in left])
        slots = open_slots[category]
        slot = slots.pop(rng.randrange(len(slots)))
        new = slot.positive not in chosen
        if new and len(chosen) >= positives:
            texts.refused[category, ENOUGH_POSITIVES] += 1
            continue
        result = transform.draw(slot, rng)
        if isinstance(result, Refused):
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
    """The sub-graphs that can be positives, and how many cannot, by reason.

    Left out are those that the caption does not assert ("no dog", "a cat or a dog") or may not mean
    ("horse with hat" of "a man on a horse with a hat"), that speak of the picture or a place in it
    ("lower left corner"), that are the whole caption to CLIP, that double a word, or are too long.
    """
    usable: list[SubGraph] = []
    refused: Counter[str] = Counter()
    for subgraph in reading.subgraphs:
        text = phrase(subgraph)
        if not reading.asserts(subgraph):
            refused[NOT_ASSERTED] += 1
        elif not subgraph.sure:
            refused[NOT_SURE] += 1
        elif any(node.name.rpartition(" ")[2] in _NO_THINGS for node in subgraph.objects):
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
