"""Long captions as separate sentences (CLIC, METHODS 7)."""

from __future__ import annotations

import re

from compoclip.captions.words import word_set

#: Words of a sentence that is kept, least and most.
LEAST_WORDS, MOST_WORDS = 4, 34

_SCENE = "image|photo|photograph|picture|scene|painting|illustration|drawing"
_SHOWS = "shows|displays|depicts|features|captures|presents|portrays|illustrates|contains|is of"
# "The image shows a dog", "This is a photo of a dog", "In this picture, a dog", "A photo of a dog".
_PREFIX = re.compile(
    rf"(?:(?:the|this|an?) (?:{_SCENE}) (?:also )?(?:{_SHOWS})"
    rf"|(?:this|it) is an? (?:{_SCENE}) (?:of|showing|depicting)"
    rf"|an? (?:{_SCENE}) (?:of|showing|depicting)"
    rf"|in (?:the|this) (?:{_SCENE}),?(?: we can see| you can see)?)(?::| that)? (?=\S)",
    re.IGNORECASE,
)
_STOP = re.compile(r"(\S+)\. (?=[A-Z])")
_ABBREVIATIONS = word_set(
    "mr mrs ms dr prof st mt ft jr sr vs no nr approx dept est gen gov hon inc ltd co corp ave "
    "blvd rd capt col lt sgt sen rep rev e.g i.e u.s u.k a.m p.m"
)


def sentences(caption: str) -> tuple[str, ...]:
    """The sentences of a long caption that a model can learn from, in order.

    A sentence ends at ". " before a capital, unless the dot belongs to an abbreviation ("St.") or
    an initial. Openings such as "The image shows" are taken off. Sentences of 4 to 34 words are
    kept; the first is the main one. Runs of blanks become one.
    """
    text = " ".join(caption.split())
    parts, start = [], 0
    for stop in _STOP.finditer(text):
        word = stop.group(1).lstrip("(\"'").lower()
        if word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "i"):
            continue
        parts.append(text[start : stop.end()].strip())
        start = stop.end()
    bare = [_without_opening(part) for part in (*parts, text[start:])]
    return tuple(part for part in bare if LEAST_WORDS <= len(part.split()) <= MOST_WORDS)


def _without_opening(sentence: str) -> str:
    """The sentence without an opening that is about the image, with a capital again."""
    opening = _PREFIX.match(sentence)
    if opening is None:
        return sentence
    rest = sentence[opening.end() :]
    return rest[0].upper() + rest[1:]
