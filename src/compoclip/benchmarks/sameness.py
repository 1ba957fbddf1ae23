"""When two texts are the same: four levels, from the bytes of the file to letters alone.

Every count of equal texts depends on what is ignored, so it is always stated with its level
(`IGNORED`). Texts with the same words in another order have the levels words and letters alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from compoclip.rewrites.tokenkey import token_key

STORED, TOKENIZED, WORDS, LETTERS = "stored", "tokenized", "words", "letters"
IGNORED: Mapping[str, str] = MappingProxyType(
    {
        STORED: "the same string, as in the file",
        TOKENIZED: "the same token ids of CLIP's tokenizer, which ignores case and blanks",
        WORDS: "the same runs of letters, digits and apostrophes, case and punctuation ignored",
        LETTERS: 'the same runs of letters and digits: "the cat\'s" is "the", "cat", "s"',
    }
)
"""Level -> what makes texts the same at that level, the strictest first."""
LEVELS = tuple(IGNORED)
_WORDS = re.compile(r"[\w']+")
_LETTERS = re.compile(r"[^\W_]+")


@lru_cache(maxsize=1 << 14)
def words(text: str) -> tuple[str, ...]:
    """Runs of letters, digits, "_" and apostrophes, lower case."""
    return tuple(_WORDS.findall(text.lower()))


@lru_cache(maxsize=1 << 14)
def letters(text: str) -> tuple[str, ...]:
    """Runs of letters and digits, lower case."""
    return tuple(_LETTERS.findall(text.lower()))


_tokens = lru_cache(maxsize=1 << 14)(token_key)


def key(text: str, level: str) -> object:
    """Equal for texts that are the same at `level`."""
    if level == STORED:
        return text
    return {TOKENIZED: _tokens, WORDS: words, LETTERS: letters}[level](text)


def same(a: str, b: str) -> str | None:
    """The first of LEVELS at which the texts are the same, None for different texts."""
    return next((level for level in LEVELS if key(a, level) == key(b, level)), None)


def same_bag(a: str, b: str) -> str | None:
    """WORDS or LETTERS when the texts hold the same words as often, in whatever order."""
    for level, split in ((WORDS, words), (LETTERS, letters)):
        one, two = split(a), split(b)
        if len(one) == len(two) and sorted(one) == sorted(two):
            return level
    return None
