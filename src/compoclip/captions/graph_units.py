"""A tagged caption cut into the pieces that scene graphs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compoclip.captions.graph_words import NEGATIONS, PLACES
from compoclip.captions.tagwords import PHRASAL
from compoclip.captions.types import Caption, Chunk, Token

UnitKind = Literal[
    "noun", "verb", "be", "preposition", "adjective", "and", "comma", "relative", "while", "stop"
]
_RELATIVES = frozenset({"WDT", "WP", "WP$", "WRB"})
#: Verbs that hand their subject to the verb behind them: "going skiing".
_STARTING = frozenset({"go", "begin", "start"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens `first` to `stop` of a caption that act as one: a noun phrase, a verb with its
    auxiliaries, a form of "be", a preposition of one or more words, an adjective, a joint.

    `head` is the token that decides (main verb, head noun). `names` are the lemmas that name a
    relation, `words` the same as written. `negated`: "is not", "no dog", "without".
    """

    kind: UnitKind
    first: int
    stop: int
    head: int
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    negated: bool = False


def units(caption: Caption) -> list[Unit]:
    """The units of a caption in order, without what no graph needs (adverbs, "there")."""
    tokens = caption.tokens
    starts = {chunk.first: chunk for chunk in caption.chunks}
    found: list[Unit] = []
    at = 0
    while at < len(tokens):
        unit = _unit(tokens, starts, at)
        if unit is None:
            at += 1
        else:
            found.append(unit)
            at = unit.stop
    return found


def _unit(tokens: Sequence[Token], starts: dict[int, Chunk], at: int) -> Unit | None:
    token = tokens[at]
    if token.text.lower() == "that" and at and tokens[at - 1].pos == "NOUN":
        return Unit("relative", at, at + 1, at)
    preposition = _preposition(tokens, at)
    if preposition is not None:
        return preposition
    chunk = starts.get(at)
    if chunk is not None:
        return Unit("noun", at, chunk.stop, chunk.head, negated=token.lemma in NEGATIONS)
    if token.pos in ("VERB", "AUX") or (token.tag == "TO" and _is_verb(tokens, at + 1)):
        return _verb(tokens, at)
    if token.pos == "ADJ" or token.tag == "CD":
        return Unit("adjective", at, at + 1, at)
    kind = _joint(token)
    return Unit(kind, at, at + 1, at) if kind else None


def _joint(token: Token) -> UnitKind | None:
    if token.tag == "CC" or token.text == "&":
        return "and"
    if token.tag in _RELATIVES:
        return "relative"
    if token.tag == ",":
        return "comma"
    if token.pos == "SCONJ":
        return "while"
    return "stop" if token.tag in (".", ":") else None


def _preposition(tokens: Sequence[Token], at: int) -> Unit | None:
    """ "in front of", "on the left side of", "on"; None when no preposition begins here."""
    low = tokens[at].text.lower()
    for phrase in PHRASAL.get(low, ()):
        if tuple(t.text.lower() for t in tokens[at : at + len(phrase)]) == phrase:
            return _made(tokens, at, at + len(phrase), phrase)
    if low == "full" and at + 1 < len(tokens) and tokens[at + 1].text.lower() == "of":
        return _made(tokens, at, at + 2, ("full", "of"))
    if tokens[at].pos != "ADP":
        return None
    stop = at + 1
    while stop < len(tokens) and (
        tokens[stop].pos in ("DET", "ADJ") or tokens[stop].text.lower() in ("left", "right")
    ):
        stop += 1
    # "at the left of": the last modifier may be the place itself
    for place in (stop, stop - 1):
        if place + 1 < len(tokens) and place > at and low != "of":
            name = tokens[place].text.lower()
            if name in PLACES and tokens[place + 1].text.lower() == "of":
                inner = [t.text.lower() for t in tokens[at + 1 : place] if t.pos != "DET"]
                return _made(tokens, at, place + 2, (low, *inner, name, "of"))
    return _made(tokens, at, at + 1, (low,))


def _made(tokens: Sequence[Token], first: int, stop: int, names: Sequence[str]) -> Unit:
    words = tuple(t.text.lower() for t in tokens[first:stop])
    return Unit("preposition", first, stop, first, tuple(names), words, words[0] in NEGATIONS)


def _verb(tokens: Sequence[Token], at: int) -> Unit:
    """A verb with the auxiliaries, negations and adverbs around it; "be" when it has no verb."""
    main = -1
    negated = False
    stop = here = at
    while here < len(tokens):
        token = tokens[here]
        negated = negated or token.lemma in NEGATIONS or token.text.lower().endswith("n't")
        if token.pos == "VERB":
            if main >= 0 and not _continues(tokens, main, here):
                break
            main, stop = here, here + 1
        elif token.pos == "AUX":
            if main >= 0:
                break
            stop = here + 1
        elif token.pos not in ("ADV", "PART"):
            break
        here += 1
    if main < 0:
        return Unit("be", at, stop, stop - 1, negated=negated)
    names, words = [tokens[main].lemma], [tokens[main].text.lower()]
    while stop < len(tokens) and tokens[stop].tag == "RP":
        names.append(tokens[stop].text.lower())
        words.append(tokens[stop].text.lower())
        stop += 1
    while stop < len(tokens) and tokens[stop].pos == "ADV":
        stop += 1
    return Unit("verb", at, stop, main, tuple(names), tuple(words), negated)


def _continues(tokens: Sequence[Token], main: int, here: int) -> bool:
    """Whether the verb `here` takes over from `main`: "trying to hit", "going skiing"."""
    purpose = any(t.tag == "TO" for t in tokens[main + 1 : here])
    return purpose or tokens[main].lemma in _STARTING


def _is_verb(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].pos == "VERB"
