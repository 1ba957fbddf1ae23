"""From caption text to the oracle's tokens: longest known phrase first, places in one piece."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from compoclip.world.geometry import POSITIONS
from compoclip.world.lexicon import (
    ADJECTIVES,
    BACKGROUND_COLOURS,
    NOUNS,
    NUMBERS,
    PLACES,
    RELATIONS,
    listed,
)


class Mark(Enum):
    """What a token is to the grammar."""

    DETERMINER = auto()
    NUMBER = auto()
    ADJECTIVE = auto()
    NOUN = auto()
    BACKGROUND = auto()
    PLACE = auto()
    POSITION = auto()
    RELATION = auto()
    LACKING = auto()
    BE = auto()
    THERE = auto()
    THAT = auto()
    NOT = auto()
    JOIN = auto()
    STOP = auto()
    WORD = auto()


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A word or phrase of the text, lower case, and its role."""

    mark: Mark
    text: str


_CLOSED: dict[str, Mark] = {
    **dict.fromkeys(
        ("a", "an", "another", "the", "this", "no", "some", "several"), Mark.DETERMINER
    ),
    **dict.fromkeys(("all", "both", "every", "each", "many", "most", "few"), Mark.DETERMINER),
    **dict.fromkeys(("a pair of", "a couple of", "a few", "any"), Mark.DETERMINER),
    **dict.fromkeys(("exactly", "at least"), Mark.DETERMINER),
    **dict.fromkeys(("without", "lacking", "without any", "minus", "except"), Mark.LACKING),
    **dict.fromkeys(("is", "are"), Mark.BE),
    **dict.fromkeys(("that", "which"), Mark.THAT),
    **dict.fromkeys(("and", "but", ",", ";", "and also"), Mark.JOIN),
    **dict.fromkeys((".", "!"), Mark.STOP),
    **dict.fromkeys(("background", "backdrop"), Mark.BACKGROUND),
    "there": Mark.THERE,
    "not": Mark.NOT,
}
_ALIASES = {"isn't": ("is", "not"), "aren't": ("are", "not"), "there's": ("there", "is")}
_TAILS = listed("corner side edge part half area region portion end quadrant section third")
_SCREENS = listed("picture image photo photograph scene frame canvas drawing")
_LEADS = listed("at in on near to toward towards")
_FILLERS = listed(
    "located placed positioned sitting situated shown drawn standing lying floating resting "
    "appearing seen partly partially directly just also"
)
"""Words that add nothing to the preposition that follows them."""
_PREFIX = re.compile(
    r"^(?:(?:an?|the|this) )?(?:picture|image|photo|photograph|drawing|illustration|rendering)"
    r"(?: of| showing| with| that shows) "
)
_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*|[.,;!?:]")


def _known() -> dict[str, Mark]:
    known: dict[str, Mark] = {}
    known |= dict.fromkeys(BACKGROUND_COLOURS, Mark.ADJECTIVE)
    known |= dict.fromkeys(ADJECTIVES, Mark.ADJECTIVE)
    known |= dict.fromkeys(NOUNS, Mark.NOUN)
    known |= dict.fromkeys(PLACES, Mark.PLACE)
    known |= dict.fromkeys(NUMBERS, Mark.NUMBER)
    known |= dict.fromkeys(RELATIONS, Mark.RELATION)
    return known | _CLOSED


_KNOWN = _known()
_LONGEST = max(phrase.count(" ") for phrase in _KNOWN) + 1
_CONTENT = frozenset((Mark.ADJECTIVE, Mark.NOUN, Mark.BACKGROUND, Mark.NUMBER, Mark.WORD))


def lex(text: str) -> list[Lexeme]:
    """The lexemes of a caption. A leading "a picture of" and filler words are dropped."""
    words: list[str] = []
    for word in _WORD.findall(_PREFIX.sub("", text.lower().strip())):
        words.extend(_ALIASES.get(word, (word,)))
    lexemes: list[Lexeme] = []
    i = 0
    while i < len(words):
        place = _place(words, i)
        if place is not None:
            lexemes.append(Lexeme(Mark.POSITION, place[0]))
            i = place[1]
            continue
        for length in range(min(_LONGEST, len(words) - i), 0, -1):
            phrase = " ".join(words[i : i + length])
            if phrase in _KNOWN:
                lexemes.append(Lexeme(_KNOWN[phrase], phrase))
                break
        else:
            length = 1
            if words[i] not in _FILLERS:
                lexemes.append(Lexeme(Mark.WORD, words[i]))
        i += length
    return lexemes


def _place(words: list[str], start: int) -> tuple[str, int] | None:
    """A place such as "in the upper left corner of the picture" at `start`, and where it ends.

    The name is one of `geometry.POSITIONS`; "?" for a place that is none of them; "!" for a place
    with a property no place has ("the red corner").
    """
    if words[start] not in _LEADS:
        return None
    i = start + 1
    if i < len(words) and words[i] == "the":
        i += 1
    parts: list[str] = []
    odd = False
    while i < len(words):
        pieces = words[i].split("-") if words[i] not in PLACES else [words[i]]
        if all(piece in PLACES for piece in pieces):
            parts.extend(PLACES[piece] for piece in pieces)
        elif words[i] in ADJECTIVES or words[i] in BACKGROUND_COLOURS:
            odd = True
        else:
            break
        i += 1
    tail = i < len(words) and words[i] in _TAILS
    i += tail
    if not parts and not (odd and tail):
        return None
    screen = words[i : i + 3]
    if len(screen) == 3 and screen[:2] == ["of", "the"] and screen[2] in _SCREENS:
        i += 3
    elif i < len(words) and (words[i] == "of" or _KNOWN.get(words[i], Mark.WORD) in _CONTENT):
        return None
    if odd:
        return "!", i
    corner = tail and words[start:i].count("corner") > 0 and len(set(parts)) < 2
    ordered = sorted(set(parts), key=lambda part: part in ("left", "right"))
    name = " ".join(ordered)
    return (name if name in POSITIONS and not corner else "?"), i
