"""Negations in queries: the wanted and the denied part of a text."""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.captions.lists import CONTRACTED_NOT, PhraseTable, word_lists
from compoclip.captions.types import Caption, beginning, word_spans

_ABSENCE = word_lists(__file__, "absence")
_DENYING = PhraseTable(_ABSENCE["denying"])
_SUBSTITUTES = _ABSENCE.keys_of("denying alone")  # "nobody" denies people
_DENYING_ALONE = PhraseTable(_SUBSTITUTES)
_PLACES = PhraseTable(_ABSENCE["places"])
_NO_ABSENCES = PhraseTable(_ABSENCE["no absences"])
_NAMES_WITH_FREE = _ABSENCE["free of what no photo shows"]
_FREE = "-free"
_LINKS = ("or", "nor", "and", "of")  # between noun phrases that are denied together
_ENDS = (".", "!", "?", ";", ",", "but")  # of what a negation reaches
_DANGLING = ("ADP", "AUX", "CCONJ", "PRON", "SCONJ", "PUNCT")  # "with" no hat, "who is" not old
_DANGLING_WORDS = ("where", "has", "have", "having", "had")  # "that has" no hat


@dataclass(frozen=True)
class _Denial:
    """The part of a caption that one negation denies.

    first, stop: tokens that are not part of what is wanted. phrases: what is denied. adjective:
    whether it is one, such as "car-free".
    """

    first: int
    stop: int
    phrases: tuple[str, ...]
    adjective: bool = False


def split_negation(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a text such as "a man without a hat or glasses on a bike" into the wanted and the
    negated part, here "a man on a bike" and ("a hat", "glasses").

    "without", "no", "free of" and the like deny the noun phrases behind them that "or", "and" and
    "of" join, or else the words up to the end of the clause; "nobody" and "nothing" deny people and
    objects; "a car-free street" denies "car". The words stand in `data/absence.txt`, with those
    that deny nothing a photo could show ("a no smoking sign", "a sugar-free soda"). What is quoted
    denies nothing. A text that denies nothing, or asks for nothing else, is returned as it is.

    Args:
        text: The query.
    """
    denied: list[str] = []
    while split := _split_once(text):
        text, more = split
        denied += more
    return text, tuple(denied)


def _split_once(text: str) -> tuple[str, tuple[str, ...]] | None:
    if not any(_may_deny(text[start:end].lower()) for start, end in word_spans(beginning(text))):
        return None
    from compoclip.captions.parser import parse  # here: few texts deny, and its tagger takes long

    caption = parse(text)
    lows = [token.text.lower() for token in caption.tokens]
    denial = _first_denial(caption, lows)
    if denial is None:
        return None
    before, after = denial.first, denial.stop
    of_a_noun = after < len(lows) and caption.tokens[after].pos == "NOUN"
    # Of "a car-free street" what stands before belongs to the noun.
    while before and _dangles(caption, before - 1) and not (denial.adjective and of_a_noun):
        before -= 1
    while not before and after < len(lows) and _dangles(caption, after):
        after += 1
    rest = f"{_words(caption, 0, before)} {_words(caption, after, len(lows))}"
    rest = rest.replace(" ,", ",").strip(" ,.;")
    return (rest, denial.phrases) if rest and denial.phrases else None


def _may_deny(low: str) -> bool:
    """Return whether a denial may begin with a word."""
    listed = low in _DENYING.sizes or low in _DENYING_ALONE.sizes
    return listed or low.endswith((_FREE, *CONTRACTED_NOT))


def _dangles(caption: Caption, at: int) -> bool:
    token = caption.tokens[at]
    return token.pos in _DANGLING or token.text.lower() in _DANGLING_WORDS


def _words(caption: Caption, first: int, stop: int) -> str:
    tokens = caption.tokens
    return caption.text[tokens[first].start : tokens[stop - 1].end] if first < stop else ""


def _first_denial(caption: Caption, lows: list[str]) -> _Denial | None:
    passed, quoted = 0, False
    for at, low in enumerate(lows):
        quoted ^= low in ('"', "“", "”")
        passed = max(passed, at + _NO_ABSENCES.size_at(lows, at))
        if quoted or at < passed:
            continue
        if size := _DENYING_ALONE.size_at(lows, at):
            if lows[at + size : at + size + 1] != ["'s"]:
                return _pronoun(caption, lows, at, at + size)
        elif low.endswith(_FREE) and low.removesuffix(_FREE) not in _NAMES_WITH_FREE | {""}:
            return _Denial(at, at + 1, (low.removesuffix(_FREE),), adjective=True)
        elif low == "no" and lows[at + 1 : at + 2] and lows[at + 1].isdigit():
            continue  # "no 7"
        elif size := _DENYING.size_at(lows, at) or int(low.endswith(CONTRACTED_NOT)):
            return _noun_phrases(caption, lows, at, at + size)
    return None


def _end(lows: list[str], at: int) -> int:
    return next((k for k in range(at, len(lows)) if lows[k] in _ENDS), len(lows))


def _with_place(caption: Caption, lows: list[str], stop: int) -> int:
    """Return where a denied phrase ends with the place behind it, "on it" but not "on the bed"."""
    after = stop + _PLACES.size_at(lows, stop)
    return stop if any(chunk.first == after for chunk in caption.chunks) else after


def _pronoun(caption: Caption, lows: list[str], at: int, stop: int) -> _Denial:
    phrase = _SUBSTITUTES[" ".join(lows[at:stop])]
    if stop < len(lows) and caption.tokens[stop].pos in ("AUX", "VERB"):
        end = _end(lows, stop)  # "nobody is sitting on the bench"
        acting = stop + (caption.tokens[stop].pos == "AUX")
        return _Denial(at, end, (f"{phrase} {_words(caption, acting, end)}".strip(),))
    return _Denial(at, _with_place(caption, lows, stop), (phrase,))


def _noun_phrases(caption: Caption, lows: list[str], at: int, first: int) -> _Denial:
    end = _end(lows, first)
    spans: list[tuple[int, int]] = []
    for chunk in caption.chunks:
        start, stop = max(chunk.first, first), chunk.stop
        if start < stop <= end and not spans:
            spans = [(first, stop)]
        elif spans and stop <= end and start == spans[-1][1] + 1 and lows[start - 1] in _LINKS:
            counted = caption.tokens[start].pos in ("DET", "NUM")
            if lows[at] == "no" and lows[start - 1] == "and" and counted:
                break  # "no windows and a red chair" asks for the chair
            joined = spans.pop()[0] if lows[start - 1] == "of" else start
            spans.append((joined, stop))
    spans = spans or [(first, end)]
    phrases = tuple(phrase for span in spans if (phrase := _words(caption, *span)))
    return _Denial(at, _with_place(caption, lows, spans[-1][1]), phrases)
