"""Negatives that mean the same as their caption: one word exchanged for a WordNet synonym."""

from __future__ import annotations

from functools import lru_cache

from compoclip.benchmarks.sameness import letters
from compoclip.captions.lemmas import lemma_of
from compoclip.captions.lexicon import lexicon

_TAGS = {"NOUN": "NNS", "VERB": "VBZ", "ADJ": "JJR", "ADV": "RBR"}
"""Part of speech -> the inflected form to undo."""
_MOST_WORDS = 2


def exchanged(a: str, b: str) -> tuple[str, str] | None:
    """The one stretch that differs, as lower-case words of both texts; None where words were only
    put in or left out, or the stretch is longer than two words."""
    one, two = letters(a), letters(b)
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    end = 0
    while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
        end += 1
    old, new = one[start : len(one) - end], two[start : len(two) - end]
    if not (1 <= len(old) <= _MOST_WORDS and 1 <= len(new) <= _MOST_WORDS):
        return None
    return " ".join(old), " ".join(new)


@lru_cache(maxsize=1 << 14)
def synonymous(old: str, new: str) -> bool:
    """Whether a dominant sense of both is the same, as the same part of speech.

    Forms of one word (man, men) are not synonyms. See `captions.lexicon` for dominant senses.
    """
    known = lexicon()
    for kind in _TAGS:
        for one in _lemmas(old, kind):
            for two in _lemmas(new, kind):
                if one == two:
                    return False
                if set(known.dominant(one, kind)) & set(known.dominant(two, kind)):
                    return True
    return False


def _lemmas(text: str, kind: str) -> set[str]:
    head, blank, last = text.rpartition(" ")
    return {text, head + blank + lemma_of(last, kind, _TAGS[kind])}
