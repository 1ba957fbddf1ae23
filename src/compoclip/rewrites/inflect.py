"""Put a lemma into the form of the word it replaces (Penn Treebank tags), with lemminflect."""

from __future__ import annotations

from functools import lru_cache

from compoclip.captions.lemmas import PLURAL_ONLY, lemma_of
from compoclip.captions.words import word_set

#: Nouns for stuff, of which there are no two: they are no replacement for a plural.
MASS_NOUNS = word_set(
    "bread rice meat lettuce corn grass snow sand gravel coffee tea milk beer juice soda wine "
    "broccoli produce equipment furniture luggage food water soup cheese pasta bacon beef pork ham "
    "butter garlic honey ice jam lemonade macaroni spaghetti sushi popcorn seafood seaweed spinach "
    "toast stew dirt mud soil moss smoke soap toothpaste perfume champagne lightning"
) | {"ice cream", "toilet paper"}
# Plurals that the dictionary lists second, or does not list.
_PLURALS = {"fish": "fish", "hoof": "hooves", "box": "boxes", "leaf": "leaves"}
_INFLECTED = frozenset(("NNS", "VBG", "VBD", "VBN", "VBZ", "JJR", "JJS", "RBR", "RBS"))
_COMPARED = {"JJR": "more", "JJS": "most", "RBR": "more", "RBS": "most"}


@lru_cache(maxsize=65536)
def inflect(lemma: str, tag: str) -> str:
    """`lemma` in the form `tag`; the last word of a noun phrase, the first of a phrasal verb.

    Tags without inflection (NN, JJ, VB, VBP, ...) return the lemma. Unknown words follow the
    regular rules; long adjectives are compared with "more" and "most".
    """
    if tag not in _INFLECTED:
        return lemma
    words = lemma.split(" ")
    place = 0 if tag.startswith("V") else len(words) - 1
    words[place] = _inflect_word(words[place], tag)
    return " ".join(words)


def _inflect_word(word: str, tag: str) -> str:
    if tag == "NNS":
        if word in _PLURALS:
            return _PLURALS[word]
        if word in PLURAL_ONLY or _is_plural(word):
            return word  # a plural already: "shorts", "skis"
    from lemminflect import getInflection  # reads its tables on import

    compared = _COMPARED.get(tag)
    forms = getInflection(word, tag, inflect_oov=compared is None)
    if forms:
        return str(forms[0])
    return f"{compared} {word}" if compared else word


def _is_plural(word: str) -> bool:
    """Whether the word is the plural of another: "skis", "fries"; "bus" and "glass" are not."""
    from lemminflect import getInflection

    singular = lemma_of(word, "NOUN", "NNS")
    return word.endswith("s") and singular != word and word in getInflection(singular, "NNS")
