"""A tagged caption cut into the pieces that scene graphs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compoclip.captions.graph_words import NEGATIONS, PLACES, QUANTITIES
from compoclip.captions.tagwords import PHRASAL
from compoclip.captions.types import Caption, Chunk, Token

Kind = Literal["noun", "verb", "be", "preposition", "adjective", "and", "comma", "relative", "stop"]
_RELATIVES = frozenset({"WDT", "WP", "WP$", "WRB"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens `first` to `stop` of a caption that act as one: a noun phrase, a verb with its
    auxiliaries, a preposition of one or more words, a predicate adjective, a joint.

    `head` is the token that decides (main verb, head noun). `names` are the lemmas that name a
    relation, `words` the same as written. `negated`: "is not", "no dog", "without".
    """

    kind: Kind
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
    preposition = _preposition(tokens, at)
    if preposition is not None:
        return preposition
    chunk = starts.get(at)
    if chunk is not None:
        negated = token.lemma in NEGATIONS
        return Unit("noun", at, chunk.stop, chunk.head, negated=negated)
    if token.pos in ("VERB", "AUX") or (token.tag == "TO" and _is(tokens, at + 1, "VERB")):
        return _verb(tokens, at)
    if token.tag == "CC" or token.text == "&":
        return Unit("and", at, at + 1, at)
    if token.pos == "ADJ" or token.tag == "CD":
        return Unit("adjective", at, at + 1, at)
    if token.tag in _RELATIVES:
        return Unit("relative", at, at + 1, at)
    if token.tag == ",":
        return Unit("comma", at, at + 1, at)
    if token.pos == "SCONJ" or token.tag in (".", ":"):
        return Unit("stop", at, at + 1, at)
    return None


def _preposition(tokens: Sequence[Token], at: int) -> Unit | None:
    """ "in front of", "on the left side of", "on"; None when no preposition begins here."""
    token = tokens[at]
    if token.pos != "ADP" and token.lemma != "full":
        low = token.text.lower()
        if low not in PHRASAL:
            return None
    else:
        low = token.text.lower()
    for phrase in PHRASAL.get(low, ()):
        if tuple(t.text.lower() for t in tokens[at : at + len(phrase)]) == phrase:
            return _made(tokens, at, at + len(phrase), phrase)
    if token.lemma == "full":
        follows = at + 1 < len(tokens) and tokens[at + 1].text.lower() == "of"
        return _made(tokens, at, at + 2, ("full", "of")) if follows else None
    if token.pos != "ADP":
        return None
    stop = at + 1
    while stop < len(tokens) and (
        tokens[stop].pos in ("DET", "ADJ") or tokens[stop].lemma in ("left", "right")
    ):
        stop += 1
    if stop + 1 < len(tokens) and low != "of" and tokens[stop].text.lower() in PLACES:
        inner = [t.text.lower() for t in tokens[at + 1 : stop] if t.pos != "DET"]
        if tokens[stop + 1].text.lower() == "of":
            names = (low, *inner, tokens[stop].text.lower(), "of")
            return _made(tokens, at, stop + 2, names)
    return _made(tokens, at, at + 1, (low,))


def _made(tokens: Sequence[Token], first: int, stop: int, names: Sequence[str]) -> Unit:
    words = tuple(t.text.lower() for t in tokens[first:stop])
    return Unit("preposition", first, stop, first, tuple(names), words, words[0] in NEGATIONS)


def _verb(tokens: Sequence[Token], at: int) -> Unit:
    """A verb with the auxiliaries, negations and adverbs around it; "be" when it has no verb."""
    main = -1
    negated = False
    stop = at
    here = at
    while here < len(tokens):
        token = tokens[here]
        if token.lemma in NEGATIONS or token.text.lower().endswith("n't"):
            negated = True
        if token.pos == "VERB":
            if main >= 0 and not _continues(tokens, main, here):
                break
            main = here
            stop = here + 1
        elif token.pos == "AUX":
            if main >= 0:
                break
            stop = here + 1
        elif token.pos in ("ADV", "PART"):
            pass
        else:
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
    return any(t.tag == "TO" for t in tokens[main + 1 : here]) or tokens[main].lemma in (
        "go",
        "begin",
        "start",
    )


def _is(tokens: Sequence[Token], at: int, pos: str) -> bool:
    return at < len(tokens) and tokens[at].pos == pos


def quantity(tokens: Sequence[Token], unit: Unit) -> bool:
    """Whether a noun phrase only counts or measures what follows its "of"."""
    return tokens[unit.head].text.lower() in QUANTITIES
