"""Hard positives that tell a relation of place from its other side."""

from __future__ import annotations

import random

from compoclip.captions.types import NOUNS
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import SENTENCE_ENDS, SpanChange, exchanged, starts_sentence
from compoclip.rewrites.exclusion import NOT_THINGS, is_living
from compoclip.rewrites.legality import numbers_differ, states_place
from compoclip.rewrites.reading import Reading
from compoclip.rewrites.relations import RELATIONS

NO_RELATION = "no-relation"
#: What holds between Y and X where a preposition holds between X and Y.
CONVERSES = {words: other for words, (other,) in RELATIONS.table("converses").items()}
_VERBS = ("AUX", "VERB")
_POINTING = frozenset(("another", "both", "each", "it", "other", "others", "same"))


def _turned(s: Reading, rng: random.Random) -> list[CandidateEdit]:
    """Tells a relation of place from its other side."""
    tokens, edits = s.caption.tokens, []
    for x in range(len(s.mentions) - 1):
        a, b = s.mentions[x], s.mentions[x + 1]
        first, stop = a.stop, b.first
        while first < stop and tokens[first].pos == "AUX":
            first += 1
        said = " ".join(s.lows[first:stop])
        other = CONVERSES.get(said)
        begins = a.first
        if begins >= 2 and s.lows[begins - 2] == "there" and tokens[begins - 1].pos in _VERBS:
            begins -= 2  # "there is a cat"
        ends = b.stop == len(s.lows) or s.lows[b.stop] in SENTENCE_ENDS
        if other is None or not (starts_sentence(tokens, begins) and ends):
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
        edits.append(CandidateEdit("converse:relation", changes))
    return rng.sample(edits, len(edits))


def _is_plain(s: Reading, place: int) -> bool:
    """Return whether the mention can replace another: it refers to nothing before it."""
    mention, tokens = s.mentions[place], s.caption.tokens
    return (
        tokens[mention.head].pos in NOUNS
        and s.head_lemma(place) not in NOT_THINGS
        and not any(
            s.lows[i] in _POINTING  # "another"
            or tokens[i].pos == "PRON"
            or tokens[i].tag == "PRP$"
            or not s.asserted(i)
            for i in range(mention.first, mention.stop)
        )
    )


CONVERSE = SampledRewrite("converse", "1", True, NO_RELATION, _turned)
