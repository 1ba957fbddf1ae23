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

from compoclip.captions.clip_text import same_to_clip, token_key
from compoclip.captions.subgraphs import SubGraph, phrase
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.driver import NO_CANDIDATE, UNATTESTED, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, SAME_TOKENS, text_refusal
from compoclip.rewrites.exclusion import NO_THINGS, head_noun
from compoclip.rewrites.graph_edits import (
    CATEGORIES,
    GraphVocabulary,
    Slot,
    Transform,
    default_vocabulary,
    slots_of,
)
from compoclip.rewrites.legality import NO_THING, NOT_ASSERTED
from compoclip.rewrites.reading import Reading, read

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
    reading = read(caption)
    usable, reasons = usable_subgraphs(reading)
    refused = Counter({(POSITIVE, reason): count for reason, count in reasons.items()})
    if not reading.subgraphs:
        refused[POSITIVE, NO_GRAPH if caption.graph is None else NO_SUBGRAPH] += 1
    transform = Transform(reading, vocabulary or default_vocabulary(), graph_filter == "valid")
    open_slots: dict[str, list[Slot]] = {category: [] for category in CATEGORIES}
    later: dict[str, list[Slot]] = {category: [] for category in CATEGORIES}
    for slot in chain.from_iterable(map(slots_of, usable)):
        open_slots[slot.category].append(slot)
    min_level = 1
    chosen: list[SubGraph] = []
    rewritten: list[tuple[Rewritten, int]] = []
    taken = {token_key(caption.text)}
    while len(rewritten) < negatives:
        left = {c: w for c, w in zip(CATEGORIES, weights) if w and open_slots[c]}
        if not left and min_level == UNSEEN:
            break
        if not left:
            open_slots, min_level = later, UNSEEN
            continue
        (category,) = rng.choices(list(left), list(left.values()))
        slots = open_slots[category]
        slot = slots.pop(rng.randrange(len(slots)))
        new = slot.positive not in chosen
        if new and len(chosen) >= positives:
            refused[category, ENOUGH_POSITIVES] += 1
            continue
        result = transform.draw(slot, rng, min_level)
        if isinstance(result, Refused):
            if result.reason == UNATTESTED and min_level > UNSEEN:
                later[category].append(slot)
            else:
                refused[category, result.reason] += 1
            continue
        keys = {token_key(result.text), *([token_key(phrase(slot.positive))] if new else [])}
        if taken & keys:
            refused[category, TAKEN] += 1
            continue
        taken |= keys
        if new:
            chosen.append(slot.positive)
        rewritten.append((result, chosen.index(slot.positive)))
    texts, pair = zip(*rewritten) if rewritten else ((), ())
    return GraphTexts(tuple(map(_positive_text, chosen)), texts, pair, refused)


def _positive_text(subgraph: SubGraph) -> Rewritten:
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
        if not reading.asserts(subgraph):
            refused[NOT_ASSERTED] += 1
        elif not subgraph.sure:
            refused[NOT_SURE] += 1
        elif any(head_noun(node.name) in NO_THINGS for node in subgraph.objects):
            refused[NO_THING] += 1
        elif reason := text_refusal(phrase(subgraph), reading.caption.text, reading.caption):
            refused[TAKEN if reason == SAME_TOKENS else reason] += 1
        else:
            usable.append(subgraph)
    return tuple(usable), refused


# --- Sub-graph texts as rewrites, one text each: what MosaiCLIP trains with. ---
#
# The edits of a negative are the places where it differs from the sub-graph that it was made from.


def _texts(s: Reading, rng: random.Random, category: str) -> Iterator[Rewritten | Refused]:
    """The text of one sub-graph or one edit of it, sampled uniformly."""
    usable, refused = usable_subgraphs(s)
    if not usable:
        common = refused.most_common(1)[0][0] if refused else NO_SUBGRAPH
        yield Refused(NO_GRAPH if s.caption.graph is None else common)
    elif category == POSITIVE:
        yield _positive_text(rng.choice(usable))
    else:
        transform = Transform(s, default_vocabulary())
        slots = [x for x in chain.from_iterable(map(slots_of, usable)) if x.category == category]
        for slot in rng.sample(slots, min(MAX_DRAWS, len(slots))):
            result = transform.draw(slot, rng)
            same = isinstance(result, Rewritten) and same_to_clip(result.text, s.caption.text)
            yield Refused(SAME_TOKENS) if same else result


GRAPH_OBJ, GRAPH_REL, GRAPH_ATTR, GRAPH_POSITIVE = (
    SampledRewrite(name, version, positive, none, partial(_texts, category=name))
    for name, version, positive, none in (
        *((category, "5", False, NO_CANDIDATE) for category in CATEGORIES),
        (POSITIVE, "3", True, NO_SUBGRAPH),
    )
)
