"""Hard negatives by shuffling pairs of words (the word order that FSC-CLIP trains on)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import takewhile

from compoclip.rewrites.base import Edit, Refused
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, SENTENCE_ENDS, moved_text
from compoclip.rewrites.legality import items, parts, parts_of
from compoclip.rewrites.reading import Reading

TOO_SHORT = "too-short"
_JOINING = ("'", "’", "-", "/")  # contractions, hyphens
_FINAL = SENTENCE_ENDS | {"...", "…"}


def _shuffled(s: Reading, rng: random.Random) -> Iterator[CandidateEdit | Refused]:
    """Shuffles consecutive pairs of words; contractions and hyphenated words stay one word."""
    caption, tokens = s.caption, s.caption.tokens
    units: list[tuple[int, int]] = []  # spans of tokens that stay together
    for i, token in enumerate(tokens):
        before = tokens[i - 1]
        joined = token.text.startswith(_JOINING) or before.text.endswith(_JOINING)
        joined = joined or (before.text[-1].isalnum() and token.text[0].isalnum())
        if i > 0 and before.end == token.start and joined:
            units[-1] = (units[-1][0], i + 1)
        else:
            units.append((i, i + 1))
    unit_texts = {(a, b): caption.text[tokens[a].start : tokens[b - 1].end] for a, b in units}
    final = units.pop() if tokens[units[-1][0]].text in _FINAL else None
    pairs = [units[i : i + 2] for i in range(0, len(units), 2)]
    if len(pairs) < 2:
        yield Refused(TOO_SHORT)
        return
    words = {
        unit: unit_texts[unit].lower() for unit in units if any(map(str.isalnum, unit_texts[unit]))
    }
    order_before = [words[unit] for unit in units if unit in words]
    said, parts_before = items(s), parts_of(s)
    for _ in range(MAX_DRAWS):
        order = rng.sample(pairs, len(pairs))
        shuffled = [unit for pair in order for unit in pair]
        if [words[unit] for unit in shuffled if unit in words] == order_before:
            continue
        if parts([w for a, b in shuffled for w in said[a:b]]) == parts_before:
            continue  # "a dog next to a cat" for "a cat next to a dog"
        if final is not None:
            at = sum(len(p) for p in order[: rng.randint(1, len(order))])
            shuffled.insert(at, final)
        # Joined by blanks, none between word and punctuation; the sentence capital moves.
        text, after_word = "", False
        for place, unit in enumerate(shuffled):
            part = unit_texts[unit]
            # A word behind the first of the caption keeps its case wherever it goes but to the
            # front.
            if place == 0 or unit[0] == 0:
                part = moved_text(caption, unit, int(place > 0))
            elif not part[:1].isascii():
                part = moved_text(caption, unit, unit[0])
            text += f" {part}" if text and (unit in words or not after_word) else part
            after_word = unit in words
        yield CandidateEdit("shuffle:bigrams", whole=(text, (_changed_span(caption.text, text),)))


def _changed_span(old: str, new: str) -> Edit:
    """The one stretch outside which both texts agree, widened to whole words."""
    shortest = min(len(old), len(new))
    start = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    while start > 0 and not old[start - 1].isspace():
        start -= 1
    same = takewhile(lambda i: old[-1 - i] == new[-1 - i], range(shortest - start))
    tail = sum(1 for _ in same)
    while tail > 0 and not old[len(old) - tail].isspace():
        tail -= 1
    return Edit(start, len(old) - tail, start, len(new) - tail)


BIGRAM_SHUFFLE = SampledRewrite("bigram-shuffle", "2", False, "no-new-order", _shuffled)
