"""The analysis of a caption for all rewrites: its words, noun phrases and scene graph.

A caption is a row of mentions (noun phrases) with a link before each: the words between it and the
mention before. Links decide whether swapping two mentions can change the truth: in "a cat and a
dog" and "a cat next to a dog" it cannot, in "a cat on a dog" it can. The scene graph has the
attributes of each thing and the relations of two things, in the caption's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import NamedTuple

from compoclip.captions.clip_text import token_key
from compoclip.captions.lists import CONTRACTED_NOT, word_lists
from compoclip.captions.subgraphs import (
    SubGraph,
    decompose,
    phrase,
    pieces,
    relation_words,
    tokens_in,
    worded,
)
from compoclip.captions.tagger import lemma_of
from compoclip.captions.tagrules import Columns, Patterns
from compoclip.captions.types import NOUNS, PLURALS, Caption, SceneGraph, Span
from compoclip.rewrites.edit import RULES, SENTENCE_ENDS
from compoclip.rewrites.relations import (
    PREPOSITIONS,
    RELATIONS,
    is_symmetric,
    phrases,
    preposition_size,
)

# "There is no red star" stays true when the star turns blue. "no" and the like reach from
# themselves to the end of the clause; "not", "or", "might", "only" reach over the whole clause.
_BOUNDARIES = SENTENCE_ENDS | {";", "but", "\n"}


def _unasserted(lows: tuple[str, ...]) -> frozenset[int]:
    """Indices of tokens under a negation, an alternative or a doubt."""
    no, whole, text = RULES["no"], RULES["not"], " ".join(lows)
    contracted = any(end in text for end in CONTRACTED_NOT)
    if no.isdisjoint(lows) and whole.isdisjoint(lows) and not contracted:
        return frozenset()  # nearly always
    indices: set[int] = set()
    start = 0
    for end in [*(i for i, low in enumerate(lows) if low in _BOUNDARIES), len(lows)]:
        clause = lows[start:end]
        reach = next((at for at, word in enumerate(clause) if word in no), len(clause))
        if any(word in whole or word.endswith(CONTRACTED_NOT) for word in clause):
            reach = 0
        indices.update(range(start + reach, end))
        start = end + 1
    return frozenset(indices)


# --- How the noun phrases of a caption hang together, as far as rewrites need to know. ---

_COORDINATORS = frozenset(
    ("and", "or", ",", ";", ".", ":", "&", "/", "-", "plus", "while", "as", "but", "nor", "whilst")
)
_RELATIVE = frozenset(("that", "which", "who", "whose", "where", "there"))
_SYMMETRIC_PAIRS = {tuple(pair.split()) for pair in RELATIONS["symmetric pairs"]}


class MentionLink(Enum):
    """How a mention is tied to what stands before it."""

    START = "start"
    COORDINATED = "coordinated"  # and, comma, while; starts something of its own
    SYMMETRIC = "symmetric"  # next to, with, hugging; also "X is a Y"
    PLACE = "place"  # on, in, of, sitting on
    ACTION = "action"  # riding, looking at, bigger than


#: The links of a mention that starts something of its own.
STARTS = (MentionLink.START, MentionLink.COORDINATED)


class Mention(NamedTuple):
    """A noun phrase: tokens [first, stop), its head token, and the link before it.

    words: lemmas of the link without "and", auxiliaries and adverbs. root: index of the mention
    whose clause this one belongs to (itself when it starts one).
    """

    first: int
    stop: int
    head: int
    link: MentionLink
    words: tuple[str, ...]
    root: int


@dataclass(frozen=True, eq=False)
class Reading:
    """The analysis of a caption: by token, by mention, and by object of its scene graph.

    Members about objects are computed on first use; they are empty without a graph.

    Attributes:
        owner: For every token the mention it belongs to, or -1.
        phrasal: Tokens of phrasal prepositions ("in front of").
        unasserted: Tokens that the caption does not claim ("no", "or", "might").
        lows, lemmas: Text and lemma of every token in lower case.
    """

    caption: Caption
    mentions: tuple[Mention, ...]
    owner: tuple[int, ...]
    phrasal: frozenset[int]
    unasserted: frozenset[int]
    lows: tuple[str, ...]
    lemmas: tuple[str, ...]

    def asserted(self, index: int) -> bool:
        """Return whether the caption asserts token `index` (no "not", "no", "or" governs it)."""
        return index not in self.unasserted

    def head_lemma(self, mention: int) -> str:
        """Return the lemma of the head noun of a mention, in lower case."""
        return self.lemmas[self.mentions[mention].head]

    def compound(self, head: int) -> int:
        """Return the first token of the compound noun that ends at a token: "fire hydrant"."""
        first, owner = head, self.owner[head]
        while first and self.owner[first - 1] == owner:
            if self.caption.tokens[first - 1].pos not in NOUNS:
                break
            first -= 1
        return first

    def owner_at(self, index: int) -> int:
        """Return the mention at a token, -1 outside of mentions and behind the caption."""
        return self.owner[index] if index < len(self.owner) else -1

    def last_mention(self, index: int) -> int:
        """Return the mention at a token, else the last one before it, -1 without one."""
        return max(self.owner[: index + 1], default=-1)

    @cached_property
    def graph(self) -> SceneGraph:
        """Return the scene graph in the caption's words."""
        return worded(self.caption)

    @cached_property
    def subgraphs(self) -> tuple[SubGraph, ...]:
        """Return all sub-graphs, asserted or not."""
        return decompose(self.graph)

    @cached_property
    def said(self) -> frozenset[tuple[str, ...]]:
        """Return the token keys of the caption and of its sub-graphs."""
        return frozenset(map(token_key, (self.caption.text, *map(phrase, self.subgraphs))))

    @property
    def _graph(self) -> SceneGraph:
        return self.caption.graph or SceneGraph()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the name of each object in lemmas, in lower case."""
        return tuple(node.name.lower() for node in self._graph.objects)

    @cached_property
    def attributes(self) -> tuple[tuple[str, ...], ...]:
        """Return the attributes of each object except numbers, in lower case."""
        return tuple(
            tuple([a.name.lower() for a in node.attributes if a.kind != "number"])
            for node in self._graph.objects
        )

    @cached_property
    def plural(self) -> tuple[bool, ...]:
        """Return whether each object is named in the plural."""
        last = [tokens_in(self.caption, node.span)[-1:] for node in self._graph.objects]
        return tuple(any(token.tag in PLURALS for token in tokens) for tokens in last)

    @cached_property
    def links(self) -> Mapping[tuple[int, int], Sequence[str]]:
        """Return the words of all relations from one object to another."""
        words_by_pair: dict[tuple[int, int], list[str]] = {}
        for relation in self.graph.relations:
            words_by_pair.setdefault((relation.subject, relation.object), []).append(
                relation_words(relation)
            )
        return words_by_pair

    @cached_property
    def columns(self) -> Columns:
        """Return the columns of `EXCEPTIONS`: m is "in" for the words of noun phrases."""
        tokens, inside = self.caption.tokens, ["in" if i >= 0 else "" for i in self.owner]
        return self.lows, self.lemmas, [t.pos for t in tokens], [t.tag for t in tokens], inside

    @cached_property
    def words(self) -> frozenset[str]:
        """Return every word as written and as lemma, in lower case."""
        return frozenset((*self.lows, *self.lemmas))

    @cached_property
    def things(self) -> tuple[str, ...]:
        """Return the names of all objects, then all other nouns."""
        tagged = zip(self.caption.tokens, self.lemmas, strict=True)
        nouns = (lemma for token, lemma in tagged if token.pos == "NOUN")
        return tuple(dict.fromkeys((*self.names, *nouns)))

    def described(self, index: int) -> tuple[int, ...]:
        """Return the objects with the word at token `index` as attribute."""
        start = self.caption.tokens[index].start
        nodes = enumerate(self._graph.objects)
        of_all = [(number, a.span) for number, node in nodes for a in node.attributes]
        matches = [number for number, span in of_all if span.start <= start < span.end]
        return tuple(dict.fromkeys(matches))

    def related_by(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of objects that the words at tokens [first, stop) relate."""
        start, end = self.caption.tokens[first].start, self.caption.tokens[stop - 1].end
        return tuple(
            [
                (relation.subject, relation.object)
                for relation in self._graph.relations
                if relation.span.start < end and start < relation.span.end
            ]
        )

    def holds(self, word: str) -> bool:
        """Return whether the caption contains the word or phrase, in the singular or plural."""
        low = word.lower()
        if " " in low:
            return f" {low} " in f" {self.caption.text.lower()} " or low in self.names
        return low in self.words or lemma_of(low, "NOUN", "NNS") in self.words

    def asserts(self, subgraph: SubGraph) -> bool:
        """Return whether the caption claims every part of the sub-graph."""
        doubtful = [self.caption.tokens[index] for index in self.unasserted]
        return not any(
            span.start < doubt.end and doubt.start < span.end
            for _, span in pieces(subgraph)
            for doubt in doubtful
        )

    def tag(self, span: Span) -> str:
        """Return the Penn tag of the first token in the span, or ""."""
        return next((token.tag for token in tokens_in(self.caption, span)), "")


#: Exceptions of rewrites by what stands around a word; see data/exceptions.txt.
_EXCEPTIONS = word_lists(__file__, "exceptions")
EXCEPTIONS = {
    name: Patterns("wlptm", _EXCEPTIONS.cells(name), {}) for name in _EXCEPTIONS.names() if name
}
_last: list[Reading] = []


def read(caption: Caption) -> Reading:
    """Analyse a caption: its mentions and the links between them. Its graph is read on first use.

    Args:
        caption: Any caption, even without chunks or graph.

    Returns:
        The reading; the last one is cached.
    """
    last = _last[:]  # another thread may replace it
    if last and last[0].caption is caption:
        return last[0]
    tokens = caption.tokens
    lows = tuple([token.text.lower() for token in tokens])
    lemmas = tuple([token.lemma.lower() for token in tokens])
    phrasal = frozenset([i for start, stop in phrases(lows) for i in range(start, stop)])
    # Noun chunks outside phrasal prepositions, and single nouns outside chunks.
    spans, covered = [], set(phrasal)
    for chunk in sorted(caption.chunks, key=lambda chunk: chunk.first):
        if chunk.head not in phrasal and chunk.first not in covered:
            spans.append((chunk.first, chunk.stop, chunk.head))
            covered.update(range(chunk.first, chunk.stop))
    for index, token in enumerate(tokens):
        if token.pos in NOUNS and index not in covered:
            spans.append((index, index + 1, index))
    mentions: list[Mention] = []
    owner = [-1 for _ in tokens]
    before = root = 0
    for place, (first, stop, head) in enumerate(sorted(spans)):
        link = MentionLink.START
        words: tuple[str, ...] = ()
        if place:
            between = [
                (lows[i], lemmas[i], tokens[i].pos, tokens[i].tag, i in phrasal)
                for i in range(before, first)
            ]
            link, words = _link(tuple(between))
        root = place if link in STARTS else root
        mentions.append(Mention(first, stop, head, link, words, root))
        for index in range(first, stop):
            owner[index] = place
        before = stop
    doubtful = _unasserted(lows)
    reading = Reading(caption, tuple(mentions), tuple(owner), phrasal, doubtful, lows, lemmas)
    _last[:] = [reading]
    return reading


@lru_cache(maxsize=1 << 16)
def _link(
    between: tuple[tuple[str, str, str, str, bool], ...],
) -> tuple[MentionLink, tuple[str, ...]]:
    """The link between mentions, of tokens (low, lemma, pos, tag, whether in a phrase)."""
    low = [word for word, *_ in between]
    copula = not {"is", "are", "was", "were", "be", "been", "'s"}.isdisjoint(low)
    core = [
        (w, lemma, pos, tag)
        for w, lemma, pos, tag, phrasal in between
        if phrasal
        or not (
            w in _RELATIVE
            or pos == "AUX"
            or (pos == "ADV" and w not in PREPOSITIONS and w != "together")
            or (pos == "PUNCT" and w not in _COORDINATORS)
        )
    ]
    if not core:
        linked = MentionLink.SYMMETRIC if copula or not between else MentionLink.ACTION
        return linked, ("be",) if copula else ()
    while core and core[0][0] in _COORDINATORS:
        core = core[1:]
    if not core:
        return MentionLink.COORDINATED, ()
    words = tuple(w if pos != "VERB" else lemma for w, lemma, pos, _ in core)
    plain = [w for w, *_ in core]
    last = plain[-1]
    both_ways = is_symmetric(plain) or is_symmetric(low) or last in RELATIONS["symmetric words"]
    same_as = last == "as" and ("as" in plain[:-1] or "same" in low)
    if both_ways or same_as or tuple(plain[-2:]) in _SYMMETRIC_PAIRS:
        return MentionLink.SYMMETRIC, words
    if last in _COORDINATORS:
        return MentionLink.COORDINATED, ()
    verbs = [(lemma, tag) for _, lemma, pos, tag in core if pos == "VERB"]
    if not verbs:
        compared = any(tag in ("JJR", "RBR") or w == "than" for w, _, _, tag in core)
        return (MentionLink.ACTION if compared else MentionLink.PLACE), words
    preposition = " ".join(plain[len(plain) - preposition_size(plain) :])
    lemma, tag = verbs[-1]
    stays = lemma in RELATIONS["static verbs"] or preposition == "of" or tag != "VBN"
    place = preposition in RELATIONS["of places"] and stays
    return (MentionLink.PLACE if place else MentionLink.ACTION), words
