"""The oracle's grammar: a recursive-descent parser from lexemes to logical forms.

It knows nothing of how captions are made. Modifiers attach to the nearest noun; "and" joins
adjectives before a noun, properties after "is", and statements otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from compoclip_world.geometry import POSITIONS
from compoclip_world.lexicon import (
    ADJECTIVES,
    BACKGROUND_COLOURS,
    BACKGROUND_TEXTURES,
    COLOUR_NOUNS,
    NOUNS,
    NUMBERS,
    PLACES,
    RELATIONS,
    listed,
)
from compoclip_world.logic import (
    Attribute,
    Background,
    Claim,
    Exists,
    Form,
    Lacking,
    Modifier,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    Statement,
)

# --- From caption text to the oracle's tokens: longest known phrase first, places in one piece. ---


Mark = Enum(
    "Mark",
    "DETERMINER NUMBER ADJECTIVE NOUN BACKGROUND PLACE POSITION RELATION LACKING BE THERE THAT NOT "
    "JOIN STOP WORD",
)
"""The role of a token in the grammar."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A word or phrase of the text, lower case, and its role."""

    mark: Mark
    text: str


_CLOSED: dict[str, Mark] = {
    phrase: mark
    for mark, phrases in (
        (
            Mark.DETERMINER,
            "a|an|another|the|this|no|some|several|all|both|every|each|many|most|few",
        ),
        (Mark.DETERMINER, "a pair of|a couple of|a few|any|exactly|at least"),
        (Mark.LACKING, "without|lacking|without any|minus|except"),
        (Mark.BE, "is|are"),
        (Mark.THAT, "that|which"),
        (Mark.JOIN, "and|but|,|;|and also"),
        (Mark.STOP, ".|!"),
        (Mark.BACKGROUND, "background|backdrop"),
        (Mark.THERE, "there"),
        (Mark.NOT, "not"),
    )
    for phrase in phrases.split("|")
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
_ABSENT = re.compile(
    r"\b(?:an?|the) ([^,.;]+?) (?:is|are) (?:missing|gone|absent|not there)\b"
    r"|\bno ([^,.;]+?) (?:is|are) in the picture\b"
    r"|(?:\bthe picture has no|\ba picture without any|\bthere (?:is|are) not any) ([^,.;]+)"
    r"|(?:\bthe picture does not have|\bthere is nothing that is|^not) an? ([^,.;]+)$"
)
"""Other wordings of "there is no X"."""
_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*|[.,;!?:]")


_KNOWN: dict[str, Mark] = {
    **dict.fromkeys((*BACKGROUND_COLOURS, *ADJECTIVES), Mark.ADJECTIVE),
    **dict.fromkeys(NOUNS, Mark.NOUN),
    **dict.fromkeys(PLACES, Mark.PLACE),
    **dict.fromkeys(NUMBERS, Mark.NUMBER),
    **dict.fromkeys(RELATIONS, Mark.RELATION),
    **_CLOSED,
}
_LONGEST = max(phrase.count(" ") for phrase in _KNOWN) + 1
_CONTENT = frozenset((Mark.ADJECTIVE, Mark.NOUN, Mark.BACKGROUND, Mark.NUMBER, Mark.WORD))


def lex(text: str) -> list[Lexeme]:
    """The lexemes of a caption. A leading "a picture of" and filler words are dropped."""
    words: list[str] = []
    stated = _ABSENT.sub(r"there is no \1\2\3\4", _PREFIX.sub("", text.lower().strip()))
    for word in _WORD.findall(stated):
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


# --- The oracle's grammar: a recursive-descent parser from lexemes to logical forms. ---

_SCREEN_RELATIONS = frozenset(("touching", "inside", "front", "above", "with"))
"""Relation readings of the words that put a thing before a background ("on", "against", ...)."""
_PHRASE = frozenset((Mark.ADJECTIVE, Mark.NOUN, Mark.BACKGROUND, Mark.PLACE, Mark.WORD))
_PREDICATE = frozenset((Mark.ADJECTIVE, Mark.RELATION, Mark.POSITION, Mark.NOT, Mark.LACKING))
_COUNTED = {
    "the": Quantifier.THE, "this": Quantifier.THE,
    "exactly": Quantifier.EXACTLY, "at least": Quantifier.SOME,
}  # fmt: skip
"""Determiners that a number may follow."""
_DETERMINERS: dict[str, tuple[Quantifier | None, int]] = {
    **dict.fromkeys(("the", "this"), (Quantifier.THE, 1)),
    **dict.fromkeys(("a pair of", "a couple of"), (Quantifier.EXACTLY, 2)),
    **dict.fromkeys(("several", "a few"), (Quantifier.SOME, 3)),
    **dict.fromkeys(("some", "any"), (None, 1)),
    **dict.fromkeys(("a", "an"), (Quantifier.SOME, 1)),
    "no": (Quantifier.NONE, 1),
}
_START = frozenset((Mark.DETERMINER, Mark.NUMBER))


class UngrammaticalError(ValueError):
    """The text is no caption of the grammar; the message says where reading stopped."""


def parse(text: str) -> Form:
    """The logical form of a caption. Raises UngrammaticalError outside the grammar."""
    return _Parser(lex(text)).form()


def read_attribute(word: str) -> Attribute:
    """The property that an adjective names; family "foreign" for an unknown word."""
    family, value = ADJECTIVES.get(word, ("foreign", word))
    return Attribute(family, value)


def read_background(word: str) -> Background:
    """The claim that a word makes about the background; unknown words are kept as colours."""
    if word in BACKGROUND_TEXTURES:
        return Background(texture=BACKGROUND_TEXTURES[word])
    return Background(colour=BACKGROUND_COLOURS.get(word, word))


class _Parser:
    def __init__(self, lexemes: list[Lexeme]) -> None:
        self._lexemes = lexemes
        self._at = 0

    def form(self) -> Form:
        """All sentences of the caption as one conjunction."""
        statements: list[Statement] = []
        while self._mark() is not None:
            statements.extend(self._item())
            if self._mark() is None:
                break
            if self._mark() not in (Mark.JOIN, Mark.STOP):
                raise self._stuck()
            while self._mark() in (Mark.JOIN, Mark.STOP):
                joined = self._take().mark is Mark.JOIN
            if self._mark() is None and joined:
                raise self._stuck()
        if not statements:
            raise UngrammaticalError("nothing is said")
        return tuple(statements)

    def _mark(self, ahead: int = 0) -> Mark | None:
        place = self._at + ahead
        return self._lexemes[place].mark if place < len(self._lexemes) else None

    def _take(self) -> Lexeme:
        self._at += 1
        return self._lexemes[self._at - 1]

    def _took(self, mark: Mark) -> bool:
        """Take the next lexeme if it has that mark; return whether it has."""
        matches = self._mark() is mark
        self._at += matches
        return matches

    def _need(self, mark: Mark) -> None:
        if not self._took(mark):
            raise self._stuck()

    def _stuck(self) -> UngrammaticalError:
        rest = " ".join(lexeme.text for lexeme in self._lexemes[self._at :][:3])
        return UngrammaticalError(f"cannot read {rest!r}" if rest else "the text ends too early")

    def _item(self) -> list[Statement]:
        if self._took(Mark.THERE):
            self._need(Mark.BE)
        negated = self._took(Mark.NOT)
        phrase = self._noun_phrase()
        if isinstance(phrase, tuple):
            return list(self._background_claim(phrase, negated))
        if negated:
            phrase = replace(phrase, quantifier=Quantifier.NONE, number=1)
        if self._took(Mark.BE):
            return [Claim(phrase, self._predicates())]
        return [Exists(phrase)]

    def _background_claim(
        self, said: tuple[Background, ...], negated: bool
    ) -> tuple[Background, ...]:
        if negated:
            raise self._stuck()
        if self._took(Mark.BE):
            negated = self._took(Mark.NOT)
            words = self._words()
            if not words or any(w.mark is Mark.NOUN for w in words):
                raise self._stuck()
            if negated and len(words) > 1:
                raise self._stuck()
            claims = [read_background(word.text) for word in words]
            said = tuple(b for b in said if b.colour or b.texture)
            said += tuple(Background(c.colour, c.texture, negated) for c in claims)
        return said

    def _words(self) -> list[Lexeme]:
        """Adjectives and nouns in a row; "and" and commas between adjectives are skipped."""
        words: list[Lexeme] = []
        while True:
            if self._mark() in _PHRASE:
                words.append(self._take())
            elif (
                words
                and words[-1].mark is Mark.ADJECTIVE
                and self._mark() is Mark.JOIN
                and self._mark(1) is Mark.ADJECTIVE
            ):
                self._take()
            else:
                return words

    def _predicates(self) -> tuple[Modifier, ...]:
        modifiers: list[Modifier] = []
        while True:
            negated = self._took(Mark.NOT)
            if self._mark() in (Mark.ADJECTIVE, Mark.WORD):
                attribute = read_attribute(self._take().text)
                modifiers.append(Attribute(attribute.family, attribute.value, negated))
            elif self._mark() in (Mark.RELATION, Mark.POSITION, Mark.LACKING):
                modifiers.extend(self._trailing(negated))
            else:
                raise self._stuck()
            if self._mark() in _PREDICATE and self._mark() is not Mark.ADJECTIVE:
                continue
            more = self._mark(1) in _PREDICATE or self._mark(1) is Mark.WORD
            if self._mark() is not Mark.JOIN or not more:
                return tuple(modifiers)
            self._take()

    def _noun_phrase(self) -> NounPhrase | tuple[Background, ...]:
        quantifier, number = self._quantifier()
        words = self._words()
        heads = [i for i, w in enumerate(words) if w.mark in (Mark.NOUN, Mark.BACKGROUND)]
        if not words or len(heads) > 1:
            raise self._stuck()
        if not heads and words[-1].mark is Mark.ADJECTIVE and words[-1].text not in COLOUR_NOUNS:
            raise UngrammaticalError(f"no noun after {words[-1].text!r}")
        head = heads[0] if heads else len(words) - 1
        after = words[head + 1 :]
        if any(w.mark is not Mark.WORD for w in after):
            raise UngrammaticalError(f"cannot read {after[0].text!r} after {words[head].text!r}")
        if words[head].mark is Mark.BACKGROUND:
            if after or self._mark() in (Mark.RELATION, Mark.LACKING):
                return self._odd_background()
            said = tuple(read_background(w.text) for w in words[:head])
            return said or (Background(),)
        noun = words[head].text
        (sure, maybe), plural = NOUNS.get(noun, ((frozenset[str](), frozenset[str]()), False))
        if quantifier is None:
            quantifier, number = Quantifier.SOME, 2 if plural else 1
        elif plural and number == 1 and quantifier is Quantifier.THE:
            number = 2
        modifiers: list[Modifier] = []
        for word in words[:head]:
            if word.mark is Mark.PLACE:
                modifiers.append(Position(PLACES[word.text]))
            else:
                modifiers.append(read_attribute(word.text))
        modifiers.extend(self._unknown(after))
        while self._mark() in (Mark.RELATION, Mark.POSITION, Mark.LACKING, Mark.NOT, Mark.THAT):
            if self._took(Mark.THAT):
                self._need(Mark.BE)
                modifiers.extend(self._predicates())
                continue
            modifiers.extend(self._trailing(self._took(Mark.NOT)))
        return NounPhrase(sure, noun, tuple(modifiers), quantifier, number, maybe)

    def _odd_background(self) -> tuple[Background, ...]:
        """A background that stands in a relation to something: no background does."""
        if self._mark() not in (Mark.RELATION, Mark.LACKING):
            raise self._stuck()
        if RELATIONS.get(self._take().text, (None, False))[0] in ("behind", "around", "with"):
            raise UngrammaticalError("a background behind something")
        self._noun_phrase()
        return (Background(impossible=True),)

    def _unknown(self, words: list[Lexeme]) -> list[Modifier]:
        """Unknown words after a noun: an unknown relation, or a foreign property."""
        if not words:
            return []
        if not self._took(Mark.RELATION) and self._mark() not in _START:
            return [Attribute("foreign", word.text) for word in words]
        phrase = self._noun_phrase()
        if isinstance(phrase, tuple):
            raise UngrammaticalError(f"cannot read {words[0].text!r} before a background")
        return [Relation(None, phrase)]

    def _trailing(self, negated: bool) -> tuple[Modifier, ...]:
        """One relation, position or "without" that follows a noun or "is"."""
        if self._mark() is Mark.POSITION:
            place = self._take().text
            if place == "!":
                return (Attribute("impossible", "place"),)
            return (Position(None if place == "?" else place, negated),)
        if self._took(Mark.LACKING):
            phrase = self._noun_phrase()
            if negated or isinstance(phrase, tuple):
                raise self._stuck()
            return (Lacking(replace(phrase, quantifier=Quantifier.SOME, number=1)),)
        self._need(Mark.RELATION)
        word = self._lexemes[self._at - 1].text
        if word == "in" and self._mark() in (Mark.JOIN, Mark.STOP, None):
            raise self._stuck()
        name, opposite = RELATIONS[word]
        phrase = self._noun_phrase()
        if isinstance(phrase, tuple):
            if name not in _SCREEN_RELATIONS:
                return (Background(impossible=True),)
            if negated and len(phrase) > 1:
                raise UngrammaticalError("a negated background with several properties")
            return tuple(Background(b.colour, b.texture, negated, b.impossible) for b in phrase)
        return (Relation(name, phrase, negated != opposite),)

    def _quantifier(self) -> tuple[Quantifier | None, int]:
        """The determiner: quantifier (None without one) and number."""
        if self._mark() is Mark.NUMBER:
            return Quantifier.EXACTLY, NUMBERS[self._take().text]
        if self._mark() is not Mark.DETERMINER:
            return None, 1
        word = self._take().text
        if word in _COUNTED and self._mark() is Mark.NUMBER:
            return _COUNTED[word], NUMBERS[self._take().text]
        if word not in _DETERMINERS:
            raise UngrammaticalError(f"cannot read {word!r}")
        return _DETERMINERS[word]
