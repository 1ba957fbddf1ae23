"""Rule-based hard negatives of TSVLC (Doveh et al., CVPR 2023): another word of the same list.

The published rule takes any other word of the list, so that an open door may become a dirty one,
which can hold as well. Here only words that exclude the original count, but in `tsvlc-rb-released`,
which keeps to that rule, and to the list of actions of the released code: words such as "in", "on",
"with", "holding" and "wearing", which make most of its edits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import Change, cased_like
from compoclip.rewrites.elements import Element, elements
from compoclip.rewrites.replace import replaced
from compoclip.rewrites.structure import Structure, structure_of
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS, edited

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
            change = Change(place, place + 1, cased_like(rng.choice(words), s.caption, place))
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
