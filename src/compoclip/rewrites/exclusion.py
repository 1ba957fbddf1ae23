"""Which words exclude one another: families, WordNet, and the candidates that may replace a word.

"Exclude" is what a negative needs: what may well be true besides the original word (a dog is a pet,
a red cup may be small, a man a skier) is no candidate (docs/decisions.md, rules 5 and 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product

from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import word_lists
from compoclip.captions.tagger import PLURAL_ONLY, lemma_of
from compoclip.rewrites.edit import MASS_NOUNS, RULES

#: Why words may not take each other's place.
RELATED, MAY_HOLD, INDEPENDENT = "related-words", "may-hold-as-well", "independent-attributes"

# --- Built-in families of words that exclude one another, for words of everyday pictures. ---
#
# Every family is a row of cells (see data/families.txt). Words of one cell may name the same thing
# ("mug/cup", "red/crimson") and never replace each other; words of different cells of a family
# exclude each other. WordNet's co-hyponyms do not promise that: by its hierarchy a "dog" may turn
# into a "pet" and "large" into "tall", which can still be true.

#: Families that any visible thing has a value of, so values of two of them can hold together.
UNIVERSAL = frozenset(("colour", "size", "pattern", "material", "shape"))
#: Those of which a thing that has one value could have had any other.
ANY_THING = frozenset(("colour", "size", "pattern"))
PEOPLE = frozenset(("people", "occupations", "athletes"))
_HUMAN = PEOPLE | {"beings"}
_LIVING = _HUMAN | {"animals"}
_TALL = _LIVING | {"plants", "buildings"}
_FAMILIES = word_lists(__file__, "families")
#: Nouns that name no thing in the picture.
NO_THINGS = _FAMILIES["NO THINGS"]
#: Nouns that nothing can stand for: no things, measures, surroundings.
NOT_THINGS = NO_THINGS | _FAMILIES["MEASURES"]
#: Things of which there is some in most pictures, named or not.
EVERYWHERE = RULES["everywhere"]
Cells = tuple[tuple[str, ...], ...]
#: (lemma, weight) of candidates.
Weighted = tuple[tuple[str, int], ...]


@lru_cache(maxsize=8)
def _index(pos: str) -> tuple[Mapping[str, Sequence[tuple[str, int]]], Mapping[str, Cells]]:
    """Word -> its (family, cell) pairs; family -> its cells."""
    cells: dict[str, Cells] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    section = "NOUN" if pos == "PROPN" else pos
    lines = _FAMILIES.rows(section) if section in ("NOUN", "ADJ", "VERB") else ()
    rows = [(name, text) for name, _, text in (line.partition(": ") for line in lines)]
    if pos == "ADJ":
        rows += [(line, line) for line in _FAMILIES.rows("OPPOSITES")]
    for family, text in rows:
        cells[family] = tuple(tuple(c.replace("_", " ").split("/")) for c in text.split())
        for number, cell in enumerate(cells[family]):
            for word in cell:
                places.setdefault(word, []).append((family, number))
    return places, cells


@lru_cache(maxsize=65536)
def families(lemma: str, pos: str) -> frozenset[str]:
    """Names of the families that hold the word; empty when it is in none."""
    return frozenset(family for family, _ in _index(pos)[0].get(lemma.lower(), ()))


def members(family: str, pos: str) -> tuple[str, ...]:
    """The words of a family."""
    return tuple([word for cell in _index(pos)[1][family] for word in cell])


def may_coincide(a: str, b: str, pos: str) -> bool:
    """Return whether both words share a cell of the lists, so that they can mean the same."""
    places = _index(pos)[0]
    return a == b or not set(places.get(a.lower(), ())).isdisjoint(places.get(b.lower(), ()))


@lru_cache(maxsize=16384)
def exclusive(lemma: str, pos: str) -> tuple[str, ...]:
    """First words of the other cells of every family of the word: what it certainly is not."""
    places, cells = _index(pos)
    words: dict[str, None] = {}
    for family, number in places.get(lemma.lower(), ()):
        for other, cell in enumerate(cells[family]):
            if other != number and not any(may_coincide(lemma, w, pos) for w in cell):
                words[cell[0]] = None
    return tuple(words)


@lru_cache(maxsize=1 << 18)
def related(a: str, b: str, pos: str) -> bool:
    """Return whether two lemmas can mean the same or one is a kind of the other.

    WordNet looks at every sense ("skirt" is also a woman); nouns of different families differ.
    """
    if a == b or may_coincide(a, b, pos):
        return True
    if pos == "NOUN":
        in_a, in_b = families(a, pos), families(b, pos)
        if in_a and in_b and not in_a & in_b and not (in_a & _HUMAN and in_b & _HUMAN):
            return False
    first, second = sorted((a, b))
    return lexicon().related(first, second, pos)


def contrast(mine: Iterable[str], theirs: Iterable[str]) -> str | None:
    """Why no attribute of one thing denies one of another thing, or None when one may.

    Only then an exchange of the attributes, or of the things, says something else.
    """
    apart = [pair for pair in product(mine, theirs) if not related(*pair, "ADJ")]
    if not apart:
        return RELATED
    # A thing can well be both, as "red" and "large": then nothing is contradicted.
    kinds = [[families(word, "ADJ") & UNIVERSAL for word in pair] for pair in apart]
    return INDEPENDENT if all(a and b and not a & b for a, b in kinds) else None


def excluded(a: str, b: str) -> bool:
    """Return whether two adjectives exclude each other.

    They share a family of the lists, but no cell, and neither belongs to a family in which the
    other has no opposite ("golden" is a material and a colour, "dark" a colour and a lightness).
    """
    mine, theirs = families(a, "ADJ"), families(b, "ADJ")
    if not mine & theirs or may_coincide(a, b, "ADJ") or may_coincide(b, "medium", "ADJ"):
        return False
    if mine & theirs <= UNIVERSAL and (mine ^ theirs) - UNIVERSAL:
        return False
    return "colour" in mine or not (theirs - mine) & UNIVERSAL


@lru_cache(maxsize=65536)
def deny(a: str, b: str) -> bool:
    """Return whether two adjectives cannot describe the same thing."""
    return excluded(a, b) or a in exclusive(b, "ADJ") or b in exclusive(a, "ADJ")


# --- Candidate lemmas for replacing a word, with weights; looked up once per word. ---
#
# The built-in families come first, because their members exclude one another. Adjectives and verbs
# outside them take WordNet's antonyms, nouns the words of families of their field; weighted by how
# often the lemma occurs.


def _weighted(pos: str, words: Iterable[str]) -> Weighted:
    return tuple((word, max(lexicon().count(word, pos), 1)) for word in dict.fromkeys(words))


@lru_cache(maxsize=65536)
def entity(compound: str, *, single: bool, plural: bool) -> Weighted:
    """Candidates for a noun, given with its compound ("fire hydrant").

    single: the word follows "a" or "an". plural: it is one. Either way it must name a thing one can
    count.
    """
    head = head_noun(compound)
    unfit = NOT_THINGS | RULES["sorts"]
    if single or plural:
        unfit |= MASS_NOUNS
    if single:
        unfit |= PLURAL_ONLY | {"people", "cattle"}
    lemma = compound if families(compound, "NOUN") or not families(head, "NOUN") else head
    words: Iterable[str] = exclusive(lemma, "NOUN")
    if not words and families(lemma, "ADJ") & UNIVERSAL:  # "dressed in red"
        words = exclusive(lemma, "ADJ")
    if not words:  # Words of things of the same field of WordNet: what is made, what grows, ...
        # Its co-hyponyms are no candidates: "plot" beside "field", "sportsman" beside "player".
        fields = sorted(lexicon().fields(head, "NOUN"))
        words = [word for field in fields for word in _by_field().get(field, ())]
    parts = {lemma, *compound.split(" ")}
    fit = (word for word in words if word not in unfit)
    return _weighted("NOUN", (w for w in fit if not any(related(p, w, "NOUN") for p in parts)))


@lru_cache(maxsize=1)
def _by_field() -> Mapping[int, Iterable[str]]:
    """The first word of every cell of things, by its field."""
    words_by_field: dict[int, dict[str, None]] = {}
    for family, cells in _index("NOUN")[1].items():
        for cell in cells if family not in _FAMILIES["NAMED ELSEWHERE"] else ():
            for field in lexicon().fields(cell[0], "NOUN"):
                words_by_field.setdefault(field, {})[cell[0]] = None
    return words_by_field


@lru_cache(maxsize=16384)
def modifier(lemma: str, head: str) -> Weighted:
    """Candidates for an adjective that describes `head` ("" when unknown).

    Of its families, else its opposites: what WordNet has beside it often holds as well (cute and
    picturesque).
    """
    if lemma in RULES["fixed adjectives"]:
        return ()
    words = [w for w in exclusive(lemma, "ADJ") if w != "medium"]
    if not words:
        universal = families(lemma, "ADJ") & UNIVERSAL
        words = [
            w
            for w in lexicon().antonyms(lemma, "ADJ")
            if lexicon().count(w, "ADJ") and (universal or not families(w, "ADJ") & UNIVERSAL)
        ]
    fitting = (w for w in words if fits(lemma, w, head))
    return _weighted("ADJ", (w for w in fitting if not lexicon().related(lemma, w, "ADJ")))


def fits(lemma: str, word: str, head: str) -> bool:
    """Return whether the opposite suits the noun: old men are not new, short hair is not tall."""
    kinds, skies = families(head, "NOUN"), head in RULES["skies"]
    match lemma:
        case "old":
            return word == ("young" if is_living(head) else "new")
        case "little":
            return not kinds & PEOPLE  # who is young
        case "young":
            return head not in RULES["young"]
        case "clear":
            return skies == ("weather" in families(word, "ADJ"))
        case "open":
            return bool(kinds - {"places"})  # "a closed field"
        case "short" if kinds:
            return word == ("tall" if kinds & _TALL else "long")
    if lemma in RULES["weather"] and not skies:
        return bool((families(lemma, "ADJ") & families(word, "ADJ")) - {"weather"})
    return True


@lru_cache(maxsize=16384)
def verb(lemma: str, transitive: bool) -> Weighted:
    """Candidates for a verb with or without an object of its own.

    Verbs outside the families only take antonyms: WordNet's co-hyponyms of verbs are ways of doing
    one thing, and often hold together ("skate", "slide").
    """
    if lemma in RULES["light verbs"]:
        return ()
    words = [
        word
        for word in exclusive(lemma, "VERB")
        if families(word, "VERB").isdisjoint(("posture", "mood")) == transitive
    ] or lexicon().antonyms(lemma, "VERB")
    return _weighted("VERB", (w for w in words if not related(lemma, w, "VERB")))


# --- What kinds of things two nouns name. ---

_PERSON, _GROUP, _BODY, _ANIMAL = 18, 14, 8, 5  # WordNet's lexicographer files
_PARTS = tuple(
    tuple(frozenset(filter(None, cell.split(", "))) for cell in row) for row in RULES.cells("parts")
)


@lru_cache(maxsize=65536)
def same_thing(a: str, b: str) -> bool:
    """Return whether two nouns, by their names or their heads, may name the same kind of thing."""
    rest, space, last = b.rpartition(" ")
    singular = rest + space + lemma_of(last, "NOUN", "NNS")
    names = product({a, head_noun(a)}, {b, last, singular})
    return any(related(x, y, "NOUN") for x, y in names)


@lru_cache(maxsize=65536)
def both_people(a: str, b: str) -> bool:
    """Return whether both may name the same people: "man", "skier", but not "man", "woman"."""
    first, second = head_noun(a), head_noun(b)
    return second not in exclusive(first, "NOUN") and _someone(first) and _someone(second)


def names_people(lemma: str) -> bool:
    """Return whether the lists know the noun for people, by their age, role or sport."""
    return lemma in RULES["anyone"] or bool(families(lemma, "NOUN") & PEOPLE)


@lru_cache(maxsize=16384)
def is_living(lemma: str) -> bool:
    """Return whether the noun names people or animals, which alone sit where they do not stand."""
    if kinds := families(lemma, "NOUN"):
        return bool(kinds & _LIVING)
    return _someone(lemma) or _ANIMAL in lexicon().fields(lemma, "NOUN")


def _someone(lemma: str) -> bool:
    """Return whether the noun can name people, by the lists or by WordNet."""
    return names_people(lemma) or bool(lexicon().fields(lemma, "NOUN") & {_PERSON, _GROUP})


@lru_cache(maxsize=65536)
def is_part(whole: str, part: str) -> bool:
    """Return whether a thing of this name has, wears or is seen with the other."""
    names, head = families(head_noun(whole), "NOUN"), head_noun(part)
    if _someone(head_noun(whole)):
        names |= PEOPLE
    if names & {*PEOPLE, "animals"} and lexicon().fields(head, "NOUN") == {_BODY}:
        return True
    of_part = families(head, "NOUN")
    return any(
        names & wholes and (of_part & kinds or part in words or head in words)
        for wholes, kinds, words in _PARTS
    )


def head_noun(noun: str) -> str:
    """The last word of a compound noun."""
    return noun.rpartition(" ")[2]
