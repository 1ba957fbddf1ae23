"""How the noun phrases of a caption hang together, as far as rewrites need to know.

A caption is read as a row of mentions (noun phrases) with a link before each: the words between it
and the mention before. Links say whether exchanging two mentions can change what is true: "a cat
and a dog" and "a cat next to a dog" cannot, "a cat on a dog" can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, wraps
from typing import NamedTuple, TypeVar

from compoclip.captions.tagwords import PREPOSITIONS, is_symmetric
from compoclip.captions.types import Caption, Token, word_set

# --- Which words of a caption it does not simply assert, so that editing them proves nothing. ---
#
# "There is no red star" stays true when the star turns blue; "a cat or a dog" may stay true when
# the dog turns into a cow.

_BOUNDARIES = frozenset((".", "!", "?", ";", "but", "\n"))
# These open a scope that runs to the end of the clause ...
_NO = word_set("no without neither nor none nobody nothing lacking missing minus except")
# ... and these colour the whole clause.
_NOT = word_set(
    "not n't n’t cannot never or either maybe perhaps possibly probably might may could would "
    "should if only unless hardly barely almost supposedly fake pretend"
)


_TRIGGERS = _NO | _NOT


def unasserted(tokens: tuple[Token, ...], lows: tuple[str, ...] | None = None) -> frozenset[int]:
    """Indices of tokens under a negation, an alternative or a doubt.

    "no", "without" and the like reach from themselves to the end of the clause; "not", "or",
    "might", "only" reach over the whole clause. Clauses end at . ! ? ; and "but". lows: the texts
    of the tokens in lower case, if they are known.
    """
    if lows is None:
        lows = tuple([token.text.lower() for token in tokens])
    if _TRIGGERS.isdisjoint(lows) and not any(word.endswith(("n't", "n’t")) for word in lows):
        return frozenset()
    found: set[int] = set()
    start = 0
    for index in range(len(lows) + 1):
        if index < len(lows) and lows[index] not in _BOUNDARIES:
            continue
        found.update(_clause(lows, start, index))
        start = index + 1
    return frozenset(found)


def _clause(lows: tuple[str, ...], start: int, stop: int) -> range:
    reach = stop
    for index in range(start, stop):
        word = lows[index]
        if word in _NOT or word.endswith(("n't", "n’t")):
            return range(start, stop)
        if word in _NO:
            reach = min(reach, index)
    return range(reach, stop)


# --- What was read off a caption, remembered while its rewrites are made. ---

S = TypeVar("S")
T = TypeVar("T")


def of_last(read: Callable[[S], T]) -> Callable[[S], T]:
    """`read`, a pure function, that keeps its value for the object it was asked about last.

    The rewrites of one caption are made one after another and begin with the same reading. Objects
    are told apart by identity, as hashing a parsed caption would take longer than reading it. Safe
    among threads: what is kept is exchanged as a whole.
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

NOUNS = frozenset(("NN", "NNS"))
_COORDINATORS = frozenset(
    ("and", "or", ",", ";", ".", ":", "&", "/", "-", "plus", "while", "as", "but", "nor", "whilst")
)
_RELATIVE = frozenset(("that", "which", "who", "whose", "where", "there"))
_STATIC = word_set(
    "sit stand lie lay kneel crouch squat lean rest hang sleep park place locate situate position "
    "perch pose display live stay wait walk run play swim float graze drive"
)
_PLACE_PREPOSITIONS = word_set(
    "on in at inside within upon atop under above over below beneath underneath behind outside "
    "of from during for"
) | {"on top of", "in front of", "in the middle of"}
#: Phrasal prepositions and positions that the preposition table does not hold.
_MORE_PHRASES = frozenset(
    (
        "on the left of",
        "on the right of",
        "on the left side of",
        "on the right side of",
        "to the side of",
        "to the rear of",
        "in the back of",
        "in the front of",
        "on the top of",
        "on the bottom of",
        "in the corner of",
        "to the left",
        "to the right",
        "on the left",
        "on the right",
        "in the middle",
        "in the front",
        "in the back",
        "in front",
    )
)
_PHRASES = {tuple(p.split()) for p in {*PREPOSITIONS, *_MORE_PHRASES} if " " in p}
_LONGEST = max(map(len, _PHRASES))
#: How long the phrases with this first word are, longest first.
_SIZES = {
    head: sorted({len(phrase) for phrase in _PHRASES if phrase[0] == head}, reverse=True)
    for head in {phrase[0] for phrase in _PHRASES}
}


_Word = tuple[str, str, str, str, bool]
"""Text and lemma in lower case, part of speech, tag, and whether in a phrasal preposition."""


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


@dataclass(frozen=True, slots=True)
class Structure:
    """The mentions of a caption in order, and which mention each token belongs to (or -1).

    lows, lemmas: text and lemma of every token in lower case.
    """

    caption: Caption
    mentions: tuple[Mention, ...]
    owner: tuple[int, ...]
    phrasal: frozenset[int]
    unasserted: frozenset[int]
    lows: tuple[str, ...]
    lemmas: tuple[str, ...]

    def asserted(self, index: int) -> bool:
        """Whether the caption claims what token `index` says (no "not", "no", "or" governs it)."""
        return index not in self.unasserted


@of_last
def structure_of(caption: Caption) -> Structure:
    """Reads the structure off tokens and chunks; works for any caption, even without chunks."""
    tokens = caption.tokens
    lows = tuple([token.text.lower() for token in tokens])
    lemmas = tuple([token.lemma.lower() for token in tokens])
    phrasal = frozenset([i for start, stop in _phrases(lows) for i in range(start, stop)])
    spans = _mention_spans(caption, phrasal)
    mentions: list[Mention] = []
    for place, (first, stop, head) in enumerate(spans):
        before = spans[place - 1][1] if place else 0
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
        else:
            root = mentions[-1].root if mentions else place
        mentions.append(Mention(first, stop, head, link, words, root))
    owner = [-1] * len(tokens)
    for number, mention in enumerate(mentions):
        for index in range(mention.first, mention.stop):
            owner[index] = number
    scope = unasserted(tokens, lows)
    return Structure(caption, tuple(mentions), tuple(owner), phrasal, scope, lows, lemmas)


def phrases(tokens: tuple[Token, ...]) -> list[tuple[int, int]]:
    """Token spans of phrasal prepositions such as "in front of", longest first, left to right."""
    return _phrases(tuple([token.text.lower() for token in tokens]))


def _phrases(low: tuple[str, ...]) -> list[tuple[int, int]]:
    found = []
    end = 0
    for index, word in enumerate(low):
        if word not in _SIZES or index < end:
            continue
        for size in _SIZES[word]:
            if low[index : index + size] in _PHRASES:
                end = index + size
                found.append((index, end))
                break
    return found


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
    if _symmetric(plain, low):
        return MentionLink.SYMMETRIC, words
    if plain[-1] in _COORDINATORS:
        return MentionLink.COORDINATED, ()
    verbs = [(lemma, tag) for _, lemma, pos, tag in core if pos == "VERB"]
    if not verbs:
        compared = any(tag in ("JJR", "RBR") or w == "than" for w, _, _, tag in core)
        return (MentionLink.ACTION if compared else MentionLink.PLACE), words
    if core[-1][2] == "VERB":
        return MentionLink.ACTION, words
    preposition = " ".join(plain[len(plain) - _preposition_size(plain) :])
    lemma, tag = verbs[-1]
    stays = lemma in _STATIC or preposition in ("of",)
    if preposition in _PLACE_PREPOSITIONS and (stays or tag != "VBN"):
        return MentionLink.PLACE, words
    return MentionLink.ACTION, words


def _preposition_size(words: list[str]) -> int:
    for size in range(min(_LONGEST, len(words)), 1, -1):
        if tuple(words[-size:]) in _PHRASES:
            return size
    return 1


def _symmetric(core: list[str], low: list[str]) -> bool:
    """Whether the link is, or ends in, a relation that holds in both directions."""
    if is_symmetric(core) or is_symmetric(low):
        return True
    if core[-1] == "as" and ("as" in core[:-1] or "same" in low):
        return True
    return tuple(core[-2:]) in _SYMMETRIC_PAIRS or core[-1] in _SYMMETRIC_WORDS


_SYMMETRIC_PAIRS = frozenset(
    (
        ("similar", "to"),
        ("equal", "to"),
        ("identical", "to"),
        ("different", "from"),
        ("far", "from"),
        ("away", "from"),
        ("apart", "from"),
        ("parallel", "to"),
        ("perpendicular", "to"),
        ("close", "by"),
    )
)
_SYMMETRIC_WORDS = word_set(
    "resembling matching overlapping intersecting crossing joining sharing like"
)
