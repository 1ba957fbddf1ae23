"""Hard positives that tell a relation of place from its other side."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from compoclip.captions.lists import word_lists
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import (
    EMPTY,
    SENTENCE_ENDS,
    SpanChange,
    edited,
    exchanged,
    first_valid,
    starts_sentence,
)
from compoclip.rewrites.exclusion import NOT_THINGS, is_living
from compoclip.rewrites.legality import numbers_differ, states_place
from compoclip.rewrites.reading import Reading, read

NO_RELATION = "no-relation"
#: What holds between Y and X where a preposition holds between X and Y.
CONVERSES = {
    words: other for words, (other,) in word_lists(__file__, "relations").table("converses").items()
}
_POINTING = frozenset(("another", "both", "each", "it", "other", "others", "same"))


@dataclass(frozen=True)
class Converse:
    """Tells a relation of place from its other side: "a cat above a dog", "a dog below a cat".

    Both things must be named by whole phrases that nothing else is said of, at the beginning and
    at the end of a sentence, with nothing between them but the preposition and perhaps "is". Of
    several sentences one is drawn. "A man in front of a screen" has the screen before him, so "in
    front of" is turned for things alone. Applied twice it gives a text of the same meaning.
    """

    name: str = "converse"
    version: str = "1"
    keeps_meaning: bool = True

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-relation", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        told = list(_turned(read(caption)))
        attempts = (
            edited(
                caption, changes, rewrite=self.name, keeps_meaning=True, rule="converse:relation"
            )
            for changes in rng.sample(told, len(told))
        )
        return first_valid(attempts, NO_RELATION)


def _turned(s: Reading) -> Iterator[list[SpanChange]]:
    """The changes of every sentence that can be told from its other side."""
    tokens = s.caption.tokens
    for x in range(len(s.mentions) - 1):
        a, b = s.mentions[x], s.mentions[x + 1]
        first, stop = a.stop, b.first
        while first < stop and tokens[first].pos == "AUX":
            first += 1
        said = " ".join(s.lows[first:stop])
        other = CONVERSES.get(said)
        if other is None or not (_begins(s, a.first) and _ends(s, b.stop)):
            continue
        if not (_is_plain(s, x) and _is_plain(s, x + 1) and states_place(s, first, stop)):
            continue
        agrees = first > a.stop or not starts_sentence(tokens, a.first)
        if agrees and numbers_differ(s, a.head, b.head):
            continue  # "a cat is above two dogs"
        living = is_living(s.head_lemma(x)) or is_living(s.head_lemma(x + 1))
        if said == "in front of" and living:
            continue
        changes = exchanged(s.caption, (a.first, a.stop), (b.first, b.stop))
        if other != said:
            changes.append(SpanChange(first, stop, other))
        yield changes


def _begins(s: Reading, first: int) -> bool:
    """Whether the token begins a sentence, or what there is in one ("there is a cat")."""
    tokens = s.caption.tokens
    if first >= 2 and s.lows[first - 2] == "there" and tokens[first - 1].pos in ("AUX", "VERB"):
        first -= 2
    return starts_sentence(tokens, first)


def _ends(s: Reading, stop: int) -> bool:
    return stop == len(s.lows) or s.lows[stop] in SENTENCE_ENDS


def _is_plain(s: Reading, place: int) -> bool:
    """Whether the mention names a thing that can stand in the place of another, pointing to
    nothing before it ("her", "another")."""
    mention, tokens = s.mentions[place], s.caption.tokens
    inside = range(mention.first, mention.stop)
    return (
        tokens[mention.head].pos in ("NOUN", "PROPN")
        and s.head_lemma(place) not in NOT_THINGS
        and all(s.asserted(i) for i in inside)
        and not any(s.lows[i] in _POINTING or tokens[i].pos == "PRON" for i in inside)
        and not any(tokens[i].tag == "PRP$" for i in inside)
    )
