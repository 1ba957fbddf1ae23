"""The replaceable elements of a caption, each with its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compoclip.captions.types import Token
from compoclip.rewrites import candidates
from compoclip.rewrites.categories import not_things
from compoclip.rewrites.exchange import head_lemma, related
from compoclip.rewrites.inflect import inflect
from compoclip.rewrites.relations import KNOWN_PHRASES, contradicting
from compoclip.rewrites.remember import of_last
from compoclip.rewrites.structure import Link, Structure

_ADJECTIVE_TAGS = frozenset(("JJ", "JJR", "JJS"))
_NOUN_PARTS = ("NOUN", "PROPN")
_MANY = frozenset(("these", "those", "both", "many", "several", "few"))
_PHRASES_BY_FIRST: dict[str, list[tuple[str, ...]]] = {}
for _phrase in KNOWN_PHRASES:
    _PHRASES_BY_FIRST.setdefault(_phrase[0], []).append(_phrase)


class Element(NamedTuple):
    """Tokens [first, stop) that one of the weighted candidate lemmas may replace.

    kind: "entity", "modifier" or "relation". pos: part of speech of the candidates. tag: the form
    (Penn Treebank) that a candidate takes.
    """

    kind: str
    first: int
    stop: int
    pos: str
    tag: str
    candidates: tuple[tuple[str, int], ...]

    def form(self, lemma: str) -> str:
        """The candidate as it reads in the caption."""
        return inflect(lemma, self.tag) if self.pos in ("NOUN", "VERB", "ADJ") else lemma


def enough_elements(s: Structure) -> bool:
    """Whether the caption has two entities and a relation or a modifier (METHODS 17.3)."""
    if len(s.mentions) < 2:
        return False
    related = any(m.link not in (Link.START, Link.COORDINATED) for m in s.mentions)
    return related or any(t.pos == "ADJ" for t in s.caption.tokens)


@of_last
def elements(s: Structure) -> tuple[Element, ...]:
    """All elements with at least one candidate, by kind, in order of place."""
    relations = list(_prepositions(s))
    inside = {i for e in relations for i in range(e.first, e.stop)}
    found = [*_entities(s), *_modifiers(s, inside), *relations, *_verbs(s, inside)]
    return tuple([element for element in found if element.candidates])


def _entities(s: Structure) -> Iterator[Element]:
    tokens = s.caption.tokens
    lows, lemmas = s.lows, s.lemmas
    for place, mention in enumerate(s.mentions):
        head = tokens[mention.head]
        lemma = lemmas[mention.head]
        if head.pos != "NOUN" or lemma in not_things() or not s.asserted(mention.head):
            continue
        if lemmas.count(lemma) > 1 or only_listed(s, place):
            continue
        first = mention.head
        while first > mention.first and (
            tokens[first - 1].pos in _NOUN_PARTS
            or (first == mention.head and names_together(tokens, first - 1))
        ):
            first -= 1
        compound = " ".join(lows[first : mention.head])
        plural = head.tag == "NNS" or _is_counted(tokens[mention.first : first])
        single = first > 0 and lows[first - 1] in ("a", "an")
        name = f"{compound} {lemma}".strip()
        options = candidates.entity(name, lemma, single=single, plural=plural)
        tag = "NNS" if plural else "NN"
        yield Element("entity", first, mention.head + 1, "NOUN", tag, options)


def names_together(tokens: tuple[Token, ...], index: int) -> bool:
    """Whether the adjective at `index` and the noun after it are one name ("hot dog")."""
    if index + 1 >= len(tokens) or tokens[index].pos != "ADJ" or tokens[index + 1].pos != "NOUN":
        return False
    return candidates.is_name_of_a_thing(
        tokens[index].text.lower(), tokens[index + 1].lemma.lower()
    )


def _is_counted(before: tuple[Token, ...]) -> bool:
    for token in before:
        low = token.text.lower()
        if low in _MANY or (token.pos == "NUM" and low not in ("one", "1")):
            return True
    return False


def only_listed(s: Structure, place: int) -> bool:
    """Whether a mention is only named ("a star and a ball"): another thing may be there too."""
    mention = s.mentions[place]
    tied = mention.link not in (Link.START, Link.COORDINATED)
    following = s.mentions[place + 1] if place + 1 < len(s.mentions) else None
    tied = tied or (following is not None and following.link not in (Link.START, Link.COORDINATED))
    described = any(t.pos == "ADJ" for t in s.caption.tokens[mention.first : mention.head])
    return not (tied or described)


def _modifiers(s: Structure, skipped: set[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index, token in enumerate(tokens):
        if token.pos != "ADJ" or token.tag not in _ADJECTIVE_TAGS or not s.asserted(index):
            continue
        if index in skipped or index in s.phrasal or names_together(tokens, index):
            continue
        lemma = s.lemmas[index]
        if lemma == "same":
            yield from _same(s, index)
            continue
        owner = s.owner[index]
        if owner < 0 and token.tag == "JJR" and may_tie_alike(s, index, index + 2):
            continue
        if owner >= 0 and _has_namesake(s, owner):
            continue
        head = head_lemma(s, owner) if owner >= 0 else ""
        options = candidates.modifier(lemma, token.tag, head)
        yield Element("modifier", index, index + 1, "ADJ", token.tag, options)


def may_tie_alike(s: Structure, first: int, stop: int) -> bool:
    """Whether the relation at tokens [first, stop) may tie a thing to one of the same kind.

    "A star above a star" says nothing that "a star below a star" denies.
    """
    before = first
    while before >= 0 and s.owner[before] < 0:
        before -= 1
    if before < 0 or stop >= len(s.owner) or s.owner[stop] < 0:
        return False
    place = s.owner[before]
    right = head_lemma(s, s.owner[stop])
    return any(
        related(head_lemma(s, left), right, "NOUN")
        for left in range(s.mentions[place].root, place + 1)
    )


def _has_namesake(s: Structure, place: int) -> bool:
    """Whether another mention may be of the same kind, and so have the replaced property."""
    mine = head_lemma(s, place)
    for other in range(len(s.mentions)):
        if other != place and related(mine, head_lemma(s, other), "NOUN"):
            return True
    return False


def _same(s: Structure, index: int) -> Iterator[Element]:
    """ "the same colour" -> "a different colour"."""
    before = s.caption.tokens[index - 1] if index else None
    owner = s.owner[index]
    if before is None or before.text.lower() != "the" or owner < 0:
        return
    plural = s.caption.tokens[s.mentions[owner].head].tag == "NNS"
    text = "different" if plural else "a different"
    yield Element("modifier", index - 1, index + 1, "ADJ", "JJ", ((text, 1),))


def _prepositions(s: Structure) -> Iterator[Element]:
    end = 0
    for index, word in enumerate(s.lows):
        if index < end or word not in _PHRASES_BY_FIRST:
            continue
        for phrase in _PHRASES_BY_FIRST[word]:
            stop = index + len(phrase)
            if s.lows[index:stop] != phrase:
                continue
            if states_place(s, index, stop):
                alike = may_tie_alike(s, index, stop)
                options = () if alike else contradicting(" ".join(phrase))
                yield Element("relation", index, stop, "ADP", "IN", options)
            end = stop
            break


def states_place(s: Structure, first: int, stop: int) -> bool:
    """Whether the preposition ties a thing to a thing, and is no part of a verb or of a clause."""
    tokens = s.caption.tokens
    if not s.asserted(first) or (stop - first == 1 and tokens[first].pos not in ("ADP", "ADV")):
        return False
    if first and tokens[first - 1].tag == "VBN" and tokens[first].text.lower() in ("in", "with"):
        return False
    if first and tokens[first - 1].pos == "ADJ" and tokens[first].text.lower() == "with":
        return False
    owner = s.owner[stop] if stop < len(tokens) else -1
    if owner < 0 or s.mentions[owner].first != stop:
        return tokens[stop - 1].text.lower() in ("left", "right")
    if tokens[first].text.lower() == "with" and tokens[stop].tag == "PRP$":
        return False
    return tokens[s.mentions[owner].head].lemma.lower() not in not_things()


def _verbs(s: Structure, skipped: set[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index, token in enumerate(tokens):
        if token.pos != "VERB" or s.owner[index] >= 0 or not s.asserted(index):
            continue
        if index in skipped or index in s.phrasal:
            continue
        transitive = index + 1 < len(tokens) and s.owner[index + 1] >= 0
        options = candidates.verb(s.lemmas[index], transitive)
        yield Element("relation", index, index + 1, "VERB", token.tag, options)
