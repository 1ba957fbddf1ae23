"""Hard negatives of two captions that swap one word, after CLIC (Peleg et al., 2025).

The negative of a composite image is the pair of both texts: each claims of its half what only the
other half shows.
"""

from __future__ import annotations

import random
from itertools import product

from compoclip.captions.tagger import inflect
from compoclip.captions.types import Caption, Token
from compoclip.rewrites.attested import BROKEN, edit_level, kind_of, preposition_level
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.driver import CandidateEdit
from compoclip.rewrites.edit import EMPTY, RULES, SpanChange, cased_like
from compoclip.rewrites.exclusion import NOT_THINGS, RELATED, families
from compoclip.rewrites.legality import only_listed, words_exclude
from compoclip.rewrites.negclip import FITTING
from compoclip.rewrites.reading import read
from compoclip.rewrites.replace import acts

NAME = "cross-swap"
SAME_REST = "same-rest"
NO_CATEGORY = "no-common-category"
_MOST_PAIRS = 40
#: Parts of speech whose words are never exchanged.
FIXED = frozenset(
    ("ADV", "AUX", "DET", "INTJ", "PART", "PRON", "PUNCT", "SYM", "X", "SCONJ", "CCONJ")
)


def cross_swap(
    first: Caption, second: Caption, rng: random.Random
) -> tuple[Rewritten, Rewritten] | Refused:
    """Swap a word of each caption, of the same part of speech, at every occurrence.

    The part of speech is sampled uniformly among the common ones, then one word per caption. Words
    in both captions are left out, as are parts of phrases ("front" of "in front of"), words for the
    picture itself, listed things and words that the caption does not assert. Each word takes the
    form of the word it replaces. The first pair is taken whose words are both attested in their new
    places, nouns of one kind, else the best attested pair.

    Args:
        first: A parsed caption.
        second: The other one.
        rng: Source of all randomness.

    Returns:
        Both texts, or `Refused`: "no-common-category", "empty-caption" or a rule.
    """
    if not first.tokens or not second.tokens:
        return Refused(EMPTY)
    mine, theirs = _words(first, second), _words(second, first)
    common = sorted(mine.keys() & theirs.keys())
    reason, reached = NO_CATEGORY, 2 * BROKEN
    best: tuple[Rewritten, Rewritten] | None = None
    pairs = []
    for pos in rng.sample(common, len(common)):
        word_pairs = list(product(mine[pos].items(), theirs[pos].items()))
        pairs += [
            (pos, *word_pair)
            for word_pair in rng.sample(word_pairs, min(_MOST_PAIRS, len(word_pairs)))
        ]
    for pos, (a, here), (b, there) in pairs:
        if reached >= FITTING:
            break
        if not words_exclude(here, there):
            reason = RELATED
            continue
        if _rest(first, a) == _rest(second, b):
            reason = SAME_REST  # "a red car", "the bus is red": both say the same of the other
            continue
        noun = pos == "NOUN"
        alike = noun and kind_of(here.lemma.lower()) == kind_of(there.lemma.lower())
        level = min(_level(first, a, there, alike), _level(second, b, here, alike))
        if noun and not alike:
            level = min(level, 0)  # each pair was met, but not all of them together
        if level <= reached:
            continue
        rule = f"{NAME}:{pos}"
        left, right = _exchanged(first, a, there, rule), _exchanged(second, b, here, rule)
        if isinstance(left, Refused):
            reason = left.reason
        elif isinstance(right, Refused):
            reason = right.reason
        else:
            best, reached = (left, right), level
    return best or Refused(reason)


def _level(caption: Caption, word: str, by: Token, alike: bool) -> int:
    """How well the other word fits the places of this one."""
    reading = read(caption)
    places = [index for index, low in enumerate(reading.lows) if low == word]
    if by.pos == "ADP":
        return min(preposition_level(reading, place, by.text.lower()) for place in places)
    return edit_level(reading, dict.fromkeys(places, by.lemma.lower()), strict=not alike)


def _words(caption: Caption, other: Caption) -> dict[str, dict[str, Token]]:
    """Part of speech -> {word: its first token} of the words that may be exchanged."""
    reading = read(caption)
    taken = {form for t in other.tokens for form in (t.text.lower(), t.lemma.lower())}
    uses: dict[str, set[str]] = {}
    fixed: set[str] = set()
    for index, (token, low) in enumerate(zip(caption.tokens, reading.lows)):
        uses.setdefault(low, set()).add(token.pos)
        # "other", "close" of "close up"
        counts = token.pos == "ADJ" and low in RULES["fixed adjectives"]
        if counts or index in reading.phrasal or not reading.asserted(index):
            fixed.add(low)
    words_by_pos: dict[str, dict[str, Token]] = {}
    for index, (token, low) in enumerate(zip(caption.tokens, reading.lows)):
        owner, lemma = reading.owner[index], reading.lemmas[index]
        # "A dog" turned into "a cat" is true of an image that shows a cat in its other half.
        thing = owner >= 0 and not only_listed(reading, owner) and lemma not in NOT_THINGS
        if token.pos == "NOUN" and not thing:
            continue
        if "posture" in families(lemma, "VERB") and not acts(reading, index):
            continue
        if token.pos in FIXED or {low, lemma} & taken or low in fixed or len(uses[low]) > 1:
            continue
        if token.text[0].isalnum():
            words_by_pos.setdefault(token.pos, {}).setdefault(low, token)
    return words_by_pos


def _rest(caption: Caption, word: str) -> list[str]:
    """The words that carry meaning besides `word`, in alphabetical order."""
    low = (t.lemma.lower() for t in caption.tokens if t.pos not in FIXED and t.text.lower() != word)
    return sorted(low)


def _exchanged(caption: Caption, word: str, by: Token, rule: str) -> Rewritten | Refused:
    """The caption with every occurrence of `word` replaced by the lemma of `by` in its form."""
    changes = []
    for index, token in enumerate(caption.tokens):
        if token.text.lower() == word:
            new = by.text.lower() if by.tag == token.tag else inflect(by.lemma, token.tag)
            new = by.text if by.pos == "PROPN" else new
            changes.append(SpanChange(index, index + 1, cased_like(new, caption, index)))
    return CandidateEdit(rule, changes).apply(caption, NAME, False)
