"""Whether a word takes "a" or "an"."""

from __future__ import annotations

import re

_CONSONANT_SOUND = re.compile(
    r"(?:one(?![a-z])|ones|once|eu|ewe|u(?=[bcfhjkqrst][aeiou])|uni(?!m|n|dent))",
    re.IGNORECASE,
)
_VOWEL_SOUND = re.compile(r"(?:hour|honest|honou?r|heir|herb(?!i))", re.IGNORECASE)
# Acronyms read letter by letter although they could be spoken as a word.
_SPELT = frozenset(("SUV", "MRI", "LED", "FBI"))
_VOWEL_LETTER_NAMES = frozenset("AEFHILMNORSX")


def article_for(word: str) -> str:
    """ "a" or "an", by the first sound of `word`; "a" when it starts with no letter or digit."""
    if not word:
        return "a"
    if word[0].isdigit():
        return "an" if re.match(r"8|1[18](?!\d)", word) else "a"
    if word in _SPELT or (len(word) > 1 and word.isupper() and not re.search("[AEIOU]", word[1:])):
        return "an" if word[0] in _VOWEL_LETTER_NAMES else "a"
    if len(word) == 1 or (word[0].isupper() and word[1] == "-"):
        return "an" if word[0].upper() in _VOWEL_LETTER_NAMES else "a"
    if _VOWEL_SOUND.match(word):
        return "an"
    if word[0].lower() in "aeiou" and not _CONSONANT_SOUND.match(word):
        return "an"
    return "a"


def repaired(article: str, word: str) -> str:
    """The article in the form that `word` needs, with the capital of the old one."""
    new = article_for(word)
    return new.capitalize() if article[:1].isupper() else new
