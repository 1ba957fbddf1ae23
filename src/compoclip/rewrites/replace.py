"""Hard negatives by replacing one word, in the manner of SugarCrepe (Hsieh et al., 2023).

An entity, modifier or relation of the caption gives way to a word that excludes it: members of the
same built-in family, contradicting prepositions (both in `exchange`), else WordNet's
antonyms and co-hyponyms (docs/decisions.md, rules 4 and 5).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import EMPTY, MAX_DRAWS, SpanChange, cased_like, edited
from compoclip.rewrites.elements import Element, elements, enough_elements
from compoclip.rewrites.exchange import related
from compoclip.rewrites.structure import Structure, structure_of

TOO_FEW = "too-few-elements"
NO_CANDIDATE = "no-candidate"
OCCURS = "occurs-in-caption"
RELATED = "related-words"
CANDIDATES_PER_ELEMENT = 2


@dataclass(frozen=True)
class Replace:
    """Replaces one element by a word of its kind that contradicts it, in the same word form.

    Per element up to two candidates are drawn by word frequency, then one uniformly among all.
    Needs two entities and a relation or modifier. Numerals and determiners are never replaced.
    parts: parts of speech of the elements that may be replaced: NOUN (entities), ADJ (modifiers),
    ADP and VERB (relations).
    """

    name: str = "replace"
    version: str = "2"
    keeps_meaning: bool = False
    parts: tuple[str, ...] = ("NOUN", "ADJ", "ADP", "VERB")

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused` with "too-few-elements", "no-candidate" or a rule."""
        if not caption.tokens:
            return Refused(EMPTY)
        structure = structure_of(caption)
        if not enough_elements(structure):
            return Refused(TOO_FEW)
        found = [element for element in elements(structure) if element.pos in self.parts]
        if not found:
            return Refused(NO_CANDIDATE)
        reason = NO_CANDIDATE
        shares = [min(CANDIDATES_PER_ELEMENT, len(element.candidates)) for element in found]
        for _ in range(MAX_DRAWS):
            element = rng.choices(found, shares)[0]
            word = drawn_candidate(element, rng)
            result = replaced(structure, element, word, self.name, f"replace:{element.kind}")
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


def drawn_candidate(element: Element, rng: random.Random) -> str:
    """Two candidates by weight (or the only one), then one of them uniformly."""
    left = dict(element.candidates)
    drawn = []
    for _ in range(min(CANDIDATES_PER_ELEMENT, len(left))):
        word = rng.choices(list(left), list(left.values()))[0]
        drawn.append(word)
        del left[word]
    return rng.choice(drawn)


def replaced(
    s: Structure, element: Element, word: str, rewrite: str, rule: str
) -> Rewritten | Refused:
    """The caption with the element replaced by the lemma `word` in its form, or the rule broken."""
    refusal = forbidden(s, element, word)
    if refusal is not None:
        return Refused(refusal)
    text = cased_like(element.form(word), s.caption, element.first)
    change = SpanChange(element.first, element.stop, text)
    return edited(s.caption, [change], rewrite=rewrite, keeps_meaning=False, rule=rule)


def forbidden(s: Structure, element: Element, word: str) -> str | None:
    """Why `word` may not replace the element in this caption (rule 5), or None.

    It may not occur in the caption, nor mean the same as a word of that kind in it.
    """
    low = word.lower()
    if low in s.lows or low in s.lemmas:
        return OCCURS
    if " " in low and f" {low} " in f" {s.caption.text.lower()} ":
        return OCCURS
    if element.kind == "relation":
        return None
    for index, token in enumerate(s.caption.tokens):
        if token.pos != element.pos or element.first <= index < element.stop:
            continue
        if element.pos == "ADJ" and s.owner[index] != s.owner[element.first]:
            continue
        if related(s.lemmas[index], low, element.pos):
            return RELATED
    return None


# --- Rule-based hard negatives of TSVLC (Doveh et al., CVPR 2023): another word of the same
# list. ---
#
# The published rule takes any other word of the list, so that an open door may become a dirty one,
# which can hold as well. Here only words that exclude the original count, but in
# `tsvlc-rb-released`, which keeps to that rule, and to the list of actions of the released code:
# words such as "in", "on", "with", "holding" and "wearing", which make most of its edits.

NO_LIST = "no-list-applies"
CATEGORIES = ("colour", "material", "size", "state", "action")
RELEASED = ("colour", "material", "size", "state", "relation")
_FILE = Path(__file__).with_name("data") / "tsvlc.txt"
_PARTS = {"action": "VERB", "spatial": "ADP"}


@dataclass(frozen=True)
class TsvlcRuleBased:
    """Replaces one listed word: category uniform among those that apply, then word, then foil.

    categories: which of the lists of data/tsvlc.txt are used. any_word: a word as it stands in the
    caption gives way to any other of its list, true or not, in place of one that excludes it.
    """

    name: str = "tsvlc-rb"
    version: str = "2"
    keeps_meaning: bool = False
    categories: tuple[str, ...] = CATEGORIES
    any_word: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-list-applies", "empty-caption" or a rule."""
        if not caption.tokens:
            return Refused(EMPTY)
        structure = structure_of(caption)
        if self.any_word:
            return self._any_word(structure, rng)
        options = {c: found for c in self.categories if (found := listed(structure, c))}
        reason = NO_LIST
        for _ in range(MAX_DRAWS if options else 0):
            category = rng.choice(list(options))
            element, words = rng.choice(options[category])
            rule = f"list:{category}"
            result = replaced(structure, element, rng.choice(words), self.name, rule)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)

    def _any_word(self, s: Structure, rng: random.Random) -> Rewritten | Refused:
        options = {c: found for c in self.categories if (found := said(s, c))}
        reason = NO_LIST
        for _ in range(MAX_DRAWS if options else 0):
            category = rng.choice(list(options))
            place, words = rng.choice(options[category])
            change = SpanChange(place, place + 1, cased_like(rng.choice(words), s.caption, place))
            rule = f"list:{category}"
            result = edited(s.caption, [change], rewrite=self.name, keeps_meaning=False, rule=rule)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


def said(s: Structure, category: str) -> list[tuple[int, list[str]]]:
    """The tokens that are words of the list, with all words of it that the caption has not.

    Of phrases ("in front of") only the single words are looked for, as in the released code; they
    take the place of other words all the same.
    """
    words = word_lists()[category]
    others = sorted(words.difference(s.lows))
    return [(place, others) for place, low in enumerate(s.lows) if low in words]


def listed(s: Structure, category: str) -> list[tuple[Element, list[str]]]:
    """The elements whose word is in the list, with the words of it that exclude theirs."""
    words, found = word_lists()[category], []
    for element in elements(s):
        tokens = s.caption.tokens[element.first : element.stop]
        said = {" ".join(t.text.lower() for t in tokens), " ".join(t.lemma.lower() for t in tokens)}
        if element.pos != _PARTS.get(category, "ADJ") or said.isdisjoint(words):
            continue
        foils = [word for word, _ in element.candidates if word in words]
        if foils:
            found.append((element, foils))
    return found


@lru_cache(maxsize=1)
def word_lists() -> Mapping[str, frozenset[str]]:
    """The words of each category of data/tsvlc.txt."""
    lists = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            category, _, words = line.partition(": ")
            lists[category] = frozenset(word.strip() for word in words.split(","))
    return lists


TSVLC_RB_SPATIAL = TsvlcRuleBased(name="tsvlc-rb-spatial", categories=(*CATEGORIES, "spatial"))
TSVLC_RB_RELEASED = TsvlcRuleBased(name="tsvlc-rb-released", categories=RELEASED, any_word=True)
