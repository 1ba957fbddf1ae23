"""Foils in the manner of CREPE (Ma et al., CVPR 2023): atom, swap and negate.

An atom is an object, an attribute or a relation of the caption. The type is drawn first, uniformly
among those that give a foil, so that rare types are not crowded out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from compoclip.captions.types import Caption, Token
from compoclip.rewrites.attested import Draw, first_fluent
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.edit import (
    EMPTY,
    MAX_DRAWS,
    SpanChange,
    apply_changes,
    check,
    first_valid,
    inflect,
)
from compoclip.rewrites.exclusion import NOT_THINGS, UNIVERSAL, families
from compoclip.rewrites.legality import (
    has_namesake,
    is_many,
    may_tie_alike,
    states_place,
    subject_of,
)
from compoclip.rewrites.negclip import SpanPair, candidates, drawn_swap
from compoclip.rewrites.reading import MentionLink, Reading, read
from compoclip.rewrites.relations import phrases
from compoclip.rewrites.replace import (
    NO_CANDIDATE,
    TOO_FEW,
    drawn,
    drawn_candidate,
    elements,
    enough_elements,
)

_TYPES = {"entity": "object", "modifier": "attribute", "relation": "relation"}
_SWAPS = {
    "noun": "object",
    "plural-noun": "object",
    "adjective": "attribute",
    "verb": "relation",
}


@dataclass(frozen=True)
class CrepeAtom:
    """One object, attribute or relation gives way to another of its type that excludes it."""

    name: str = "crepe-atom"
    version: str = "5"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn foil, or `Refused`: "too-few-elements", "no-candidate" or a rule."""
        if not caption.tokens:
            return Refused(EMPTY)
        reading = read(caption)
        if not enough_elements(reading):
            return Refused(TOO_FEW)
        atoms = elements(reading)
        kinds = [kind for kind in _TYPES if any(atom.kind == kind for atom in atoms)]

        def draw(kind: str) -> Draw:
            atom = rng.choice([atom for atom in atoms if atom.kind == kind])
            word = drawn_candidate(atom, rng)
            return drawn(reading, atom, word, self.name, f"atom:{_TYPES[kind]}")

        reason = NO_CANDIDATE
        for kind in rng.sample(kinds, len(kinds)):
            result = first_fluent((draw(kind) for _ in range(MAX_DRAWS)), reason)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


@dataclass(frozen=True)
class CrepeSwap:
    """Two objects, two attributes or two relations change places."""

    name: str = "crepe-swap"
    version: str = "5"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn foil, or `Refused`: "no-legal-pair", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        pairs = [
            SpanPair(_SWAPS[pair.group], pair.a, pair.b)
            for pair in candidates(caption)
            if pair.group in _SWAPS
        ]
        pairs += _contradicting_relations(read(caption))
        return drawn_swap(caption, pairs, rng, self.name)


def _contradicting_relations(s: Reading) -> Iterator[SpanPair]:
    """Pairs of prepositions that exclude each other: only their exchange denies something."""
    places = [e for e in elements(s) if e.pos == "ADP"]
    words = [" ".join(t.text.lower() for t in s.caption.tokens[e.first : e.stop]) for e in places]
    for (a, said), (b, other) in combinations(zip(places, words), 2):
        if other in dict(a.candidates) or said in dict(b.candidates):
            yield SpanPair("relation", (a.first, a.stop), (b.first, b.stop))


# --- Negated foils in the manner of CREPE (Ma et al., CVPR 2023). ---
#
# Three ways, drawn uniformly among those that apply: "X not R Y" denies a relation
# in place, "{caption}. There is no X." denies an object behind the caption, "There is no X R Y."
# denies all. A model can tell such texts by their "not" and "no" alone: train on them only by
# choice.

NOTHING_TO_DENY = "nothing-to-deny"
_NEGATED = {"VBZ": "does not", "VBP": "do not", "VBD": "did not"}


@dataclass(frozen=True)
class CrepeNegate:
    """Denies one relation or one object of the caption."""

    name: str = "crepe-negate"
    version: str = "6"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn foil, or `Refused`: "nothing-to-deny", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        reading = read(caption)
        ways = {
            "negate:relation": list(_in_place(reading)),
            "negate:object": list(_behind(reading)),
            "negate:statement": list(_instead(reading)),
        }
        attempts = (
            _checked(caption, foil, self.name, rule)
            for rule in rng.sample(list(ways), len(ways))
            for foil in rng.sample(ways[rule], len(ways[rule]))
        )
        return first_valid(attempts, NOTHING_TO_DENY)


@dataclass(frozen=True)
class Denial:
    """Says of one thing of the caption that it is not there, and nothing else: "No cat."."""

    name: str = "denial"
    version: str = "1"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn text, or `Refused`: "nothing-to-deny", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        reading = read(caption)
        things = [place for place in range(len(reading.mentions)) if _is_thing(reading, place)]
        attempts = (
            _checked(caption, _alone(reading, place, rng), self.name, "denial:object")
            for place in rng.sample(things, len(things))
        )
        return first_valid(attempts, NOTHING_TO_DENY)


Foil = tuple[str, tuple[Edit, ...]]


def _checked(caption: Caption, foil: Foil, name: str, rule: str) -> Rewritten | Refused:
    text, edits = foil
    failed = check(caption, text, edits)
    return Rewritten(text, name, False, rule, edits) if failed is None else Refused(failed)


def _alone(s: Reading, place: int, rng: random.Random) -> Foil:
    """ "A cat on a mat" -> "There is no cat." or "No cat."."""
    form = rng.choice(("No {thing}.", "There {be} no {thing}."))
    text = form.format(thing=_name(s, place, described=False), be=_be(s, place))
    return text, (Edit(0, len(s.caption.text), 0, len(text)),)


def _in_place(s: Reading) -> Iterator[Foil]:
    """ "A cat on a mat" -> "A cat not on a mat"; "a man rides" -> "a man does not ride"."""
    for first, _ in _relations(s):
        token = s.caption.tokens[first]
        if token.pos == "VERB" and token.tag in _NEGATED:
            change = SpanChange(first, first + 1, f"{_NEGATED[token.tag]} {token.lemma.lower()}")
        elif token.text == "with":
            change = SpanChange(first, first + 1, "without")
        else:
            change = SpanChange(first, first + 1, f"not {token.text}")
        yield apply_changes(s.caption, [change])


def _behind(s: Reading) -> Iterator[Foil]:
    """ "A cat on a mat" -> "A cat on a mat. There is no cat."."""
    text = s.caption.text.rstrip()
    stop = "" if text.endswith((".", "!", "?")) else "."
    for place in range(len(s.mentions)):
        if _is_thing(s, place):
            added = f"{stop} There {_be(s, place)} no {_name(s, place, described=False)}."
            edit = Edit(len(text), len(s.caption.text), len(text), len(text) + len(added))
            yield text + added, (edit,)


def _instead(s: Reading) -> Iterator[Foil]:
    """ "A black cat on a mat" -> "There is no black cat on a mat."."""
    tokens = s.caption.tokens
    for first, stop in _relations(s):
        x, z = _sides(s, first, stop)
        if s.mentions[x].root != x:
            continue  # "a girl in sunglasses standing on grass": who stands there?
        end = s.mentions[z].stop
        verb = tokens[first]
        said = s.caption.text[verb.start : tokens[end - 1].end]
        if verb.pos == "VERB" and verb.tag in _NEGATED:
            said = inflect(verb.lemma.lower(), "VBG") + said[len(verb.text) :]
        new = f"There {_be(s, x)} no {_name(s, x, described=True)} {said}."
        yield new, (Edit(0, len(s.caption.text), 0, len(new)),)


def _relations(s: Reading) -> Iterator[tuple[int, int]]:
    """Spans of verbs and prepositions that relate two adjacent things, and can be denied.

    "A star not above a star" is true of the lower one, so things must differ.
    """
    tokens = s.caption.tokens
    whole = dict(phrases(s.lows))
    for place in range(1, len(s.mentions)):
        before, mention = s.mentions[place - 1], s.mentions[place]
        if mention.link in (MentionLink.START, MentionLink.COORDINATED) or not _is_thing(
            s, place - 1
        ):
            continue
        first, stop = _core(tokens, before.stop, mention.first)
        if first >= stop or not s.asserted(first) or not _is_thing(s, place):
            continue
        if tokens[first].pos == "VERB":
            if subject_of(s, (first, first + 1)) != place - 1:
                continue
        elif whole.get(first, first + 1) != stop or not states_place(s, first, stop):
            continue
        if may_tie_alike(s, first, stop) or has_namesake(s, place - 1, place):
            continue
        yield first, stop


def _core(tokens: tuple[Token, ...], first: int, stop: int) -> tuple[int, int]:
    """The link without leading auxiliaries and "that"; empty when it holds a clause mark."""
    while first < stop and (tokens[first].pos == "AUX" or tokens[first].text.lower() == "that"):
        first += 1
    marks = ("CCONJ", "SCONJ", "PUNCT", "PRON", "PART")
    return (first, first) if any(t.pos in marks for t in tokens[first:stop]) else (first, stop)


def _sides(s: Reading, first: int, stop: int) -> tuple[int, int]:
    before = max(i for i in range(first) if s.owner[i] >= 0)
    return s.owner[before], s.owner[stop]


def _is_thing(s: Reading, place: int) -> bool:
    """Whether the mention asserts a thing of its own, by a common noun ("is chestnut" does not)."""
    head = s.caption.tokens[s.mentions[place].head]
    return (
        head.pos == "NOUN"
        and s.mentions[place].words != ("be",)
        and s.asserted(s.mentions[place].head)
        and s.head_lemma(place) not in NOT_THINGS
        and not families(head.lemma, "ADJ") & UNIVERSAL
    )


def _be(s: Reading, place: int) -> str:
    return "are" if s.caption.tokens[s.mentions[place].head].tag == "NNS" else "is"


def _name(s: Reading, place: int, *, described: bool) -> str:
    """The mention without determiner and number; only its noun unless `described`."""
    mention, tokens = s.mentions[place], s.caption.tokens
    first = mention.head
    while first > mention.first and tokens[first - 1].pos in ("NOUN", "PROPN"):
        first -= 1
    while described and first > mention.first and tokens[first - 1].pos == "ADJ":
        if is_many(tokens[first - 1]):
            break  # "no many trucks"
        first -= 1
    text = s.caption.text[tokens[first].start : tokens[mention.head].end]
    return text if tokens[first].pos == "PROPN" else text.lower()
