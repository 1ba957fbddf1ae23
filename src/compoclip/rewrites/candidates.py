"""Candidate lemmas for replacing a word, with weights; looked up once per word.

The built-in families come first, because their members exclude one another. Words outside them take
WordNet's antonyms and co-hyponyms, weighted by how often the lemma occurs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from compoclip.captions.lemmas import PLURAL_ONLY
from compoclip.captions.lexicon import lexicon
from compoclip.captions.words import word_set
from compoclip.rewrites.categories import UNIVERSAL, exclusive, families, not_things
from compoclip.rewrites.exchange import related
from compoclip.rewrites.inflect import MASS_NOUNS

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
