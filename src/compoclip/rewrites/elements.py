"""The replaceable elements of a caption, each with its candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagger import PLURAL_ONLY
from compoclip.captions.types import Token, word_set
from compoclip.rewrites.edit import MASS_NOUNS, inflect
from compoclip.rewrites.exchange import (
    KNOWN_PHRASES,
    UNIVERSAL,
    contradicting,
    exclusive,
    families,
    head_lemma,
    not_things,
    related,
)
from compoclip.rewrites.structure import MentionLink, Structure, of_last

# --- Candidate lemmas for replacing a word, with weights; looked up once per word. ---
#
# The built-in families come first, because their members exclude one another. Words outside them
# take WordNet's antonyms and co-hyponyms, weighted by how often the lemma occurs.

Weighted = tuple[tuple[str, int], ...]

_ENOUGH = 3
FIXED_ADJECTIVES = word_set(
    "other different several many few more most various such own another next close multiple "
    "numerous certain able ready sure half only much less least last first second third due main "
    "real possible available stuffed nearby near far entire complete"
)
_LIGHT_VERBS = word_set(
    "be have do get make take go show include feature contain see use try seem appear look let "
    "keep put set come be need want like surround consist"
)
# Sorts and stages of things, which can be true besides the word: a dog may be a pet and a female.
_SORTS = word_set(
    "male female adult young pet stray prey game body world creature being individual member "
    "survivor larva offspring mascot specimen product item unit piece part element structure "
    "relief failure hero friend enemy companion owner student patient employee comrade fool "
    "native local visitor stranger host neighbor neighbour leader worker expert"
)
_WITHOUT_SINGULAR = MASS_NOUNS | PLURAL_ONLY | {"people", "cattle"}
_INTRANSITIVE = frozenset(("posture", "mood"))
_TALL = frozenset(("people", "beings", "occupations", "athletes", "animals", "plants", "buildings"))
_LIVING = frozenset(("people", "beings", "occupations", "athletes", "animals"))


@lru_cache(maxsize=65536)
def entity(compound: str, head: str, *, single: bool, plural: bool) -> Weighted:
    """Candidates for a noun, given with its compound ("fire hydrant") and by its head.

    single: the word follows "a" or "an". plural: it is one. Either way it must name a thing one can
    count.
    """
    unfit = _WITHOUT_SINGULAR if single else MASS_NOUNS if plural else frozenset[str]()
    lemma = compound if families(compound, "NOUN") or lexicon().known(compound, "NOUN") else head
    found = exclusive(lemma, "NOUN")
    if not found and families(lemma, "ADJ") & UNIVERSAL:  # "dressed in red"
        found = exclusive(lemma, "ADJ")
    found = found or _siblings(lemma)
    parts = compound.split(" ")
    return _weighted(
        "NOUN",
        (
            word
            for word in found
            if word not in not_things()
            and word not in _SORTS
            and word not in unfit
            and not any(related(part, word, "NOUN") for part in {lemma, *parts})
        ),
    )


def _siblings(lemma: str) -> tuple[str, ...]:
    """Words of the same kind by WordNet: the closest ones if there are enough, usual ones first."""
    found = lexicon().cohyponyms(lemma, "NOUN", 1, 1)
    if len(found) < _ENOUGH:
        found = lexicon().cohyponyms(lemma, "NOUN")
    usual = tuple(word for word in found if lexicon().count(word, "NOUN"))
    return usual or found


def is_name_of_a_thing(adjective: str, noun: str) -> bool:
    """Whether the two words name one thing together, as "hot dog" does and "red star" does not."""
    if families(adjective, "ADJ") & UNIVERSAL:
        return False
    phrase = f"{adjective} {noun}"
    return bool(families(phrase, "NOUN")) or lexicon().known(phrase, "NOUN")


@lru_cache(maxsize=16384)
def modifier(lemma: str, tag: str, head: str) -> Weighted:
    """Candidates for an adjective that describes `head` ("" when unknown).

    Comparatives and superlatives only take opposites: what is bigger may also be taller.
    """
    if lemma in FIXED_ADJECTIVES:
        return ()
    compared = tag != "JJ"
    found = tuple(w for w in exclusive(lemma, "ADJ") if w != "medium")
    if not found:
        found = lexicon().antonyms(lemma, "ADJ")
        if not compared:
            found = tuple(dict.fromkeys((*found, *lexicon().cohyponyms(lemma, "ADJ"))))
    fitting = (w for w in found if fits(lemma, w, head))
    return _weighted("ADJ", (w for w in fitting if not lexicon().related(lemma, w, "ADJ")))


def fits(lemma: str, word: str, head: str) -> bool:
    """Whether the opposite suits the noun: old men are not new, short hair is not tall."""
    kinds = families(head, "NOUN")
    if lemma == "old" and kinds:
        return word == ("young" if kinds & _LIVING else "new")
    if lemma == "short" and kinds:
        return word == ("tall" if kinds & _TALL else "long")
    return True


@lru_cache(maxsize=16384)
def verb(lemma: str, transitive: bool) -> Weighted:
    """Candidates for a verb with or without an object of its own.

    Verbs outside the families only take antonyms: WordNet's co-hyponyms of verbs are ways of doing
    one thing, and often hold together ("skate", "slide").
    """
    if lemma in _LIGHT_VERBS:
        return ()
    found = tuple(
        word
        for word in exclusive(lemma, "VERB")
        if bool(families(word, "VERB") & _INTRANSITIVE) != transitive
    )
    if not found:
        found = lexicon().antonyms(lemma, "VERB")
    return _weighted("VERB", (w for w in found if not related(lemma, w, "VERB")))


def _weighted(pos: str, words: Iterable[str]) -> Weighted:
    return tuple((word, max(lexicon().count(word, pos), 1)) for word in dict.fromkeys(words))


# --- The replaceable elements of a caption, each with its candidates. ---

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
    """Whether the caption has two entities and a relation or a modifier."""
    if len(s.mentions) < 2:
        return False
    related = any(m.link not in (MentionLink.START, MentionLink.COORDINATED) for m in s.mentions)
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
        options = entity(name, lemma, single=single, plural=plural)
        tag = "NNS" if plural else "NN"
        yield Element("entity", first, mention.head + 1, "NOUN", tag, options)


def names_together(tokens: tuple[Token, ...], index: int) -> bool:
    """Whether the adjective at `index` and the noun after it are one name ("hot dog")."""
    if index + 1 >= len(tokens) or tokens[index].pos != "ADJ" or tokens[index + 1].pos != "NOUN":
        return False
    return is_name_of_a_thing(tokens[index].text.lower(), tokens[index + 1].lemma.lower())


def _is_counted(before: tuple[Token, ...]) -> bool:
    for token in before:
        low = token.text.lower()
        if low in _MANY or (token.pos == "NUM" and low not in ("one", "1")):
            return True
    return False


def only_listed(s: Structure, place: int) -> bool:
    """Whether a mention is only named ("a star and a ball"): another thing may be there too."""
    mention = s.mentions[place]
    tied = mention.link not in (MentionLink.START, MentionLink.COORDINATED)
    following = s.mentions[place + 1] if place + 1 < len(s.mentions) else None
    tied = tied or (
        following is not None and following.link not in (MentionLink.START, MentionLink.COORDINATED)
    )
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
        options = modifier(lemma, token.tag, head)
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
        options = verb(s.lemmas[index], transitive)
        yield Element("relation", index, index + 1, "VERB", token.tag, options)
