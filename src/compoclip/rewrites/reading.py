"""The analysis of a caption for all rewrites: its words, noun phrases and scene graph.

A caption is a row of mentions (noun phrases) with a link before each: the words between it and the
mention before. Links decide whether swapping two mentions can change the truth: in "a cat and a
dog" and "a cat next to a dog" it cannot, in "a cat on a dog" it can. The scene graph has the
attributes of each thing and the relations of two things, in the caption's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, wraps
from typing import NamedTuple, TypeVar

from compoclip.captions.lists import word_lists
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
from compoclip.captions.types import Caption, GraphObject, SceneGraph, Span, Token
from compoclip.rewrites.base import token_key
from compoclip.rewrites.relations import (
    PLACING_VERBS,
    PREPOSITIONS,
    is_symmetric,
    phrases,
    preposition_size,
)

_LISTS = word_lists(__file__, "rules")

# --- Which words of a caption it does not simply assert, so that editing them proves nothing. ---
#
# "There is no red star" stays true when the star turns blue; "a cat or a dog" may stay true when
# the dog turns into a cow.

_BOUNDARIES = frozenset((".", "!", "?", ";", "but", "\n"))
_NO = _LISTS.words("no")  # these open a scope that runs to the end of the clause,
_NOT = _LISTS.words("not")  # these colour the whole clause
_CONTRACTED = ("n't", "n’t")
_TRIGGERS = _NO | _NOT


def unasserted(tokens: tuple[Token, ...], lows: tuple[str, ...] | None = None) -> frozenset[int]:
    """Indices of tokens under a negation, an alternative or a doubt.

    "no", "without" and the like reach from themselves to the end of the clause; "not", "or",
    "might", "only" reach over the whole clause. Clauses end at . ! ? ; and "but". lows: the texts
    of the tokens in lower case, if they are known.
    """
    if lows is None:
        lows = tuple([token.text.lower() for token in tokens])
    if _TRIGGERS.isdisjoint(lows) and not any(word.endswith(_CONTRACTED) for word in lows):
        return frozenset()
    found: set[int] = set()
    start = 0
    for index in range(len(lows) + 1):
        if index < len(lows) and lows[index] not in _BOUNDARIES:
            continue
        clause = lows[start:index]
        if any(word in _NOT or word.endswith(_CONTRACTED) for word in clause):
            found.update(range(start, index))
        else:
            reach = next((at for at, word in enumerate(clause) if word in _NO), len(clause))
            found.update(range(start + reach, index))
        start = index + 1
    return frozenset(found)


# --- Memoised readings of one caption. ---

S = TypeVar("S")
T = TypeVar("T")


def of_last(read: Callable[[S], T]) -> Callable[[S], T]:
    """Memoise a pure function for the object it was called with last.

    The rewrites of one caption run one after another and begin with the same reading. Objects are
    compared by identity, as hashing a parsed caption would take longer than reading it. Safe among
    threads: the cached pair is replaced at once.
    """
    last: tuple[S, T] | None = None

    @wraps(read)
    def remembered(source: S) -> T:
        nonlocal last
        known = last
        if known is not None and known[0] is source:
            return known[1]
        value = read(source)
        last = (source, value)
        return value

    return remembered


# --- How the noun phrases of a caption hang together, as far as rewrites need to know. ---

_COORDINATORS = frozenset(
    ("and", "or", ",", ";", ".", ":", "&", "/", "-", "plus", "while", "as", "but", "nor", "whilst")
)
_RELATIVE = frozenset(("that", "which", "who", "whose", "where", "there"))
_RELATIONS = word_lists(__file__, "relations")
_STATIC_VERBS = PLACING_VERBS | _RELATIONS.words("verbs within a place")
_PLACE_PREPOSITIONS = _RELATIONS.words("of places")
_SYMMETRIC_PAIRS = {tuple(pair.split()) for pair in _RELATIONS.words("symmetric pairs")}
_SYMMETRIC_WORDS = _RELATIONS.words("symmetric words")

_Word = tuple[str, str, str, str, bool]
"""A token: lower-case text and lemma, part of speech, tag, whether in a phrasal preposition."""
_PLURAL_TAGS = frozenset(("NNS", "NNPS"))


class MentionLink(Enum):
    """How a mention is tied to what stands before it."""

    START = "start"
    COORDINATED = "coordinated"  # and, comma, while; starts something of its own
    SYMMETRIC = "symmetric"  # next to, with, hugging; also "X is a Y"
    PLACE = "place"  # on, in, of, sitting on
    ACTION = "action"  # riding, looking at, bigger than


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
        caption: The caption.
        mentions: Noun phrases in order.
        owner: For every token the mention it belongs to, or -1.
        phrasal: Tokens of phrasal prepositions ("in front of").
        unasserted: Tokens that the caption does not claim ("no", "or", "might").
        lows: Text of every token in lower case.
        lemmas: Lemma of every token in lower case.
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
    def _objects(self) -> Sequence[GraphObject]:
        return self.caption.graph.objects if self.caption.graph else ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the name of each object in lemmas, in lower case."""
        return tuple(node.name.lower() for node in self._objects)

    @cached_property
    def attributes(self) -> tuple[tuple[str, ...], ...]:
        """Return the attributes of each object except numbers, in lower case."""
        return tuple(
            tuple([a.name.lower() for a in node.attributes if a.kind != "number"])
            for node in self._objects
        )

    @cached_property
    def plural(self) -> tuple[bool, ...]:
        """Return whether each object is named in the plural."""
        last = [tokens_in(self.caption, node.span)[-1:] for node in self._objects]
        return tuple(any(token.tag in _PLURAL_TAGS for token in tokens) for tokens in last)

    @cached_property
    def links(self) -> Mapping[tuple[int, int], Sequence[str]]:
        """Return the words of all relations from one object to another."""
        found: dict[tuple[int, int], list[str]] = {}
        for relation in self.graph.relations:
            ends = (relation.subject, relation.object)
            found.setdefault(ends, []).append(relation_words(relation))
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """Return every word as written and as lemma, in lower case."""
        return frozenset((*self.lows, *self.lemmas))

    @cached_property
    def things(self) -> tuple[str, ...]:
        """Return the names of all objects, then all other nouns."""
        nouns = (
            lemma
            for token, lemma in zip(self.caption.tokens, self.lemmas, strict=True)
            if token.pos == "NOUN"
        )
        return tuple(dict.fromkeys((*self.names, *nouns)))

    def described(self, index: int) -> tuple[int, ...]:
        """Return the objects with the word at token `index` as attribute."""
        start = self.caption.tokens[index].start
        found = [
            number
            for number, node in enumerate(self._objects)
            for a in node.attributes
            if a.span.start <= start < a.span.end
        ]
        return tuple(dict.fromkeys(found))

    def related_by(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of objects that the words at tokens [first, stop) relate."""
        start, end = self.caption.tokens[first].start, self.caption.tokens[stop - 1].end
        relations = self.caption.graph.relations if self.caption.graph else ()
        here = (each for each in relations if each.span.start < end and start < each.span.end)
        return tuple([(each.subject, each.object) for each in here])

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
        tokens = tokens_in(self.caption, span)
        return tokens[0].tag if tokens else ""


@of_last
def read(caption: Caption) -> Reading:
    """Analyse a caption: its mentions and the links between them. Its graph is read on first use.

    Args:
        caption: Any caption, even without chunks or graph.

    Returns:
        The reading; the last one is cached.
    """
    tokens = caption.tokens
    lows = tuple([token.text.lower() for token in tokens])
    lemmas = tuple([token.lemma.lower() for token in tokens])
    phrasal = frozenset([i for start, stop in phrases(lows) for i in range(start, stop)])
    mentions: list[Mention] = []
    owner = [-1] * len(tokens)
    before = root = 0
    for place, (first, stop, head) in enumerate(_mention_spans(caption, phrasal)):
        link = MentionLink.START
        words: tuple[str, ...] = ()
        if place:
            between = [
                (lows[i], lemmas[i], tokens[i].pos, tokens[i].tag, i in phrasal)
                for i in range(before, first)
            ]
            link, words = _link(tuple(between))
        if link in (MentionLink.START, MentionLink.COORDINATED):
            root = place
        mentions.append(Mention(first, stop, head, link, words, root))
        owner[first:stop] = [place] * (stop - first)
        before = stop
    scope = unasserted(tokens, lows)
    return Reading(caption, tuple(mentions), tuple(owner), phrasal, scope, lows, lemmas)


def _mention_spans(caption: Caption, phrasal: frozenset[int]) -> list[tuple[int, int, int]]:
    """Noun chunks outside phrasal prepositions, and single nouns outside chunks, in order."""
    spans = []
    covered = set(phrasal)
    for first, stop, head in sorted([(c.first, c.stop, c.head) for c in caption.chunks]):
        if head in phrasal or first in covered:
            continue
        spans.append((first, stop, head))
        covered.update(range(first, stop))
    for index, token in enumerate(caption.tokens):
        if token.pos in ("NOUN", "PROPN") and index not in covered:
            spans.append((index, index + 1, index))
    spans.sort()
    return spans


@lru_cache(maxsize=1 << 16)
def _link(between: tuple[_Word, ...]) -> tuple[MentionLink, tuple[str, ...]]:
    """The kind and the words of the link made of the tokens `between` two mentions."""
    low = [word for word, *_ in between]
    copula = any(w in ("is", "are", "was", "were", "be", "been", "'s") for w in low)
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
    words = tuple(w if pos != "VERB" else lemma for w, lemma, pos, _ in core)
    if not core:
        return MentionLink.COORDINATED, ()
    plain = [w for w, *_ in core]
    if all(w in _COORDINATORS for w in plain):
        return MentionLink.COORDINATED, ()
    both_ways = is_symmetric(plain) or is_symmetric(low) or plain[-1] in _SYMMETRIC_WORDS
    same_as = plain[-1] == "as" and ("as" in plain[:-1] or "same" in low)
    if both_ways or same_as or tuple(plain[-2:]) in _SYMMETRIC_PAIRS:
        return MentionLink.SYMMETRIC, words
    if plain[-1] in _COORDINATORS:
        return MentionLink.COORDINATED, ()
    verbs = [(lemma, tag) for _, lemma, pos, tag in core if pos == "VERB"]
    if not verbs:
        compared = any(tag in ("JJR", "RBR") or w == "than" for w, _, _, tag in core)
        return (MentionLink.ACTION if compared else MentionLink.PLACE), words
    if core[-1][2] == "VERB":
        return MentionLink.ACTION, words
    preposition = " ".join(plain[len(plain) - preposition_size(plain) :])
    lemma, tag = verbs[-1]
    stays = lemma in _STATIC_VERBS or preposition in ("of",)
    if preposition in _PLACE_PREPOSITIONS and (stays or tag != "VBN"):
        return MentionLink.PLACE, words
    return MentionLink.ACTION, words
