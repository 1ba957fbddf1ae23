"""Base noun phrases from tags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compoclip.captions.lists import WORDS
from compoclip.captions.types import NOUNS, Chunk, Token

_STARTS = frozenset({"DET", "NUM"})
_NO_NOUNS = frozenset({"EX", "WDT", "WP", "WRB", "PRP$"})  # pronouns that stand for no noun


def noun_chunks(tokens: Sequence[Token]) -> tuple[Chunk, ...]:
    """Return the base noun phrases of a tagged caption."""
    chunks: list[Chunk] = []
    at = 0
    while at < len(tokens):
        if reciprocal(tokens, at):
            at += 2
            continue
        stop = _phrase_end(tokens, at)
        if stop > at:
            chunks.append(Chunk(at, stop, stop - 1))
            at = stop
        else:
            if tokens[at].pos == "PRON" and tokens[at].tag not in _NO_NOUNS:
                chunks.append(Chunk(at, at + 1, at))
            at += 1
    return tuple(chunks)


def reciprocal(tokens: Sequence[Token], at: int) -> bool:
    """Return whether "each other" or "one another" stands at a token, with no noun behind it."""
    pair = " ".join([t.low for t in tokens[at : at + 2]])
    return pair in ("each other", "one another") and not (
        at + 2 < len(tokens) and tokens[at + 2].pos in NOUNS
    )


def _phrase_end(tokens: Sequence[Token], first: int) -> int:
    """The end of the noun phrase that begins at `first`; `first` without one."""
    at = first
    while at < len(tokens) and (
        tokens[at].pos in _STARTS
        or tokens[at].tag == "PRP$"
        or (at == first and tokens[at].tag == "PDT")
    ):
        at += 1
    opened = at > first
    end = first
    while at < len(tokens):
        token = tokens[at]
        if token.pos in NOUNS:
            at += 1
            end = at
        elif token.tag == "POS" and end == at and (owned := _phrase_end(tokens, at + 1)) > at + 1:
            return owned
        elif end == at and end > first and _goes_between(tokens, at):
            at += 1
        elif end == at and end > first:
            break  # a modifier behind the noun opens nothing of this phrase
        elif _modifies(tokens, at, opened) or _joins(tokens, at, first):
            at += 1
        else:
            break
    return end


def _modifies(tokens: Sequence[Token], at: int, opened: bool) -> bool:
    """Return whether token `at` is a prenominal modifier; the noun is looked up ahead."""
    token = tokens[at]
    if token.pos in ("ADJ", "NUM"):
        return True
    before = tokens[at - 1] if at else token
    # A preposition that takes no gerund: "near sleeping men".
    place = before.pos == "ADP" and before.lemma not in WORDS["taking deeds"]
    if token.tag == "VBN" or (token.tag == "VBG" and (opened or place)):
        return _noun_ahead(tokens, at + 1)
    if token.pos == "ADV":
        follower = tokens[at + 1] if at + 1 < len(tokens) else None
        degree = token.lemma in WORDS["intensifiers"] or token.lemma.endswith("ly")
        if follower is None or not (opened or degree):
            return False
        return follower.pos == "ADJ" or follower.tag == "VBN"
    return token.pos == "PUNCT" and token.text in ("-", "–")


def _goes_between(tokens: Sequence[Token], at: int) -> bool:
    """Return whether it stands between nouns: "snow covered hill", "two baby black sheep"."""
    follows = at + 1 < len(tokens) and tokens[at + 1].pos in NOUNS | {"ADJ"}
    joins = tokens[at].tag == "VBN" and follows
    material = tokens[at].pos == "ADJ" and tokens[at - 1].low in WORDS["materials"]
    return (joins or material) and _noun_ahead(tokens, at + 1)


def _noun_ahead(tokens: Sequence[Token], at: int) -> bool:
    while at < len(tokens) and (tokens[at].pos == "ADJ" or tokens[at].tag in ("VBN", "VBG")):
        at += 1
    return at < len(tokens) and tokens[at].pos in NOUNS


def _joins(tokens: Sequence[Token], at: int, first: int) -> bool:
    """ "and" or a comma between two adjectives of one noun."""
    if at == first or at + 1 >= len(tokens):
        return False
    before, after = tokens[at - 1], tokens[at + 1]
    joint = tokens[at].tag == "CC" or tokens[at].text == ","
    if not (joint and before.pos == "ADJ" and after.pos == "ADJ"):
        return False
    follows = at + 2  # "red, white and blue flags": more may be joined before the noun
    if follows < len(tokens) and (tokens[follows].tag == "CC" or tokens[follows].text == ","):
        return _joins(tokens, follows, first)
    return _noun_ahead(tokens, at + 1)


# --- Long captions as separate sentences (CLIC). ---

#: Fewest and most words of a sentence for training.
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


def sentences(caption: str) -> tuple[str, ...]:
    """Split a long caption into sentences for training.

    A sentence ends at ". " before a capital, unless the dot belongs to an abbreviation ("St.") or
    an initial. Openings such as "The image shows" are removed, runs of blanks become one.

    Args:
        caption: One or more sentences.

    Returns:
        The sentences of 4 to 34 words, in order; the first is the main one.
    """
    text = " ".join(caption.split())
    parts, start = [], 0
    for stop in _STOP.finditer(text):
        word = stop.group(1).lstrip("(\"'").lower()
        if word in WORDS["abbreviations"] or (len(word) == 1 and word.isalpha() and word != "i"):
            continue
        parts.append(text[start : stop.end()].strip())
        start = stop.end()
    bare = []
    for part in (*parts, text[start:]):
        opening = _PREFIX.match(part)
        rest = part[opening.end() :] if opening else part
        bare.append(rest[0].upper() + rest[1:] if opening else rest)
    return tuple(part for part in bare if LEAST_WORDS <= len(part.split()) <= MOST_WORDS)


# --- The caption clean-up of BLIP's and ARO's evaluation code. ---

_MARKS = re.compile(r'[.!"()*#:;~]')
_BLANKS = re.compile(r"\s{2,}")


def pre_caption(text: str, words: int) -> str:
    """Clean a caption as the evaluation code of BLIP and ARO does.

    Args:
        text: A caption.
        words: Number of words to keep.

    Returns:
        The first `words` words of the text in lower case, with each of . ! " ( ) * # : ; ~ and each
        run of blanks replaced by one blank.
    """
    text = _BLANKS.sub(" ", _MARKS.sub(" ", text.lower())).strip()
    return " ".join(text.split(" ")[:words])
