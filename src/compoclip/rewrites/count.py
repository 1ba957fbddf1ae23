"""Hard negatives by another number: "three dogs on a couch" -> "four dogs on a couch".

Paiss et al., Teaching CLIP to Count to Ten (ICCV 2023, arXiv 2302.12066), train against the caption
with its number exchanged by another one from two to ten. Here the new number is at most three away,
so that the text stays plausible, and numbers that do not count things stay: measures, scores,
idioms and what follows from another word of the caption (`legality.count_refusal`).
"""

from __future__ import annotations

import random
from functools import partial

from compoclip.captions.lists import NUMBERS
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import SpanChange, cased_like
from compoclip.rewrites.legality import count_refusal
from compoclip.rewrites.reading import Reading

NO_COUNT = "no-count"
COUNTS = {value: word for word, value in NUMBERS.items() if 2 <= value <= 10}
"""The numbers from two to ten: value -> word."""
_VALUES = {form: value for value, word in COUNTS.items() for form in (word, str(value))}
_FAR = 3  # from the old number to the new one, at most
_BEFORE = ("ADJ", "DET", "PRON")  # in a noun phrase before its number: "all his three dogs"


def counted_noun(s: Reading, number: int) -> int:
    """Return the plural noun that the number at a token counts, -1 for none."""
    owner = s.owner_at(number)
    if owner < 0:
        return -1
    first, _, head, *_ = s.mentions[owner]
    tokens = s.caption.tokens
    plural = head > number and tokens[head].tag == "NNS"
    return head if plural and all(t.pos in _BEFORE for t in tokens[first:number]) else -1


def _miscounted(s: Reading, rng: random.Random) -> list[CandidateEdit]:
    """Exchanges a number from two to ten, in words or digits, by one that is not far."""
    edits = []
    heads = {i: counted_noun(s, i) for i, low in enumerate(s.lows) if low in _VALUES}
    bare = max((index for index, head in heads.items() if head < 0), default=-1)
    for index, head in heads.items():
        if head < 0 or index < bare:  # "four men, two in hats"
            continue
        low, refusal = s.lows[index], partial(count_refusal, s, index, head)
        for value, word in COUNTS.items():
            if 0 < abs(value - _VALUES[low]) <= _FAR:
                text = str(value) if low.isdigit() else cased_like(word, s.caption, index)
                change = SpanChange(index, index + 1, text)
                edits.append(CandidateEdit("count:number", [change], refusal=refusal))
    return rng.sample(edits, len(edits))


COUNT = SampledRewrite("count", "1", False, NO_COUNT, _miscounted)
