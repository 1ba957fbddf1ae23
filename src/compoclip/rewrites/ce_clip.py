"""The four hard negatives of CE-CLIP (Zhang et al., CVPR 2024; METHODS section 10).

One exchanges two nouns; three replace an adjective, a noun or a verb by what a masked language
model puts in its place. Without such a model the lexicon replaces them ([D-ce-3]).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from compoclip.captions.lemmas import lemma_of
from compoclip.captions.lexicon import lexicon
from compoclip.captions.prepositions import PREPOSITIONS, preposition_synonyms
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.elements import Element, elements
from compoclip.rewrites.exchange import related
from compoclip.rewrites.inflect import inflect
from compoclip.rewrites.maskfill import MaskFiller
from compoclip.rewrites.negclip import NegclipSwap
from compoclip.rewrites.replace import NO_CANDIDATE, Replace, replaced
from compoclip.rewrites.structure import Structure, structure_of
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS


@dataclass(frozen=True)
class MaskedReplace:
    """Replaces one word of the given parts of speech by a likely other one.

    parts: of NOUN, ADJ, VERB, ADP; the word is uniform among those of the caption that assert
    something and stand alone. filler: proposes what fits the gap; the first proposal that is a word
    of the same part of speech and form, and neither related to the word nor in the caption, is
    taken. Without a filler the lexicon proposes, by `Replace`.
    """

    name: str
    parts: tuple[str, ...]
    filler: MaskFiller | None = None
    version: str = "2"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-candidate", "empty-caption" or a rule."""
        if self.filler is None:
            return Replace(name=self.name, parts=self.parts)(caption, rng)
        if not caption.tokens:
            return Refused(EMPTY)
        structure = structure_of(caption)
        gaps = [e for e in elements(structure) if e.pos in self.parts and e.stop - e.first == 1]
        reason = NO_CANDIDATE
        for gap in rng.sample(gaps, min(len(gaps), MAX_DRAWS)):
            token = caption.tokens[gap.first]
            before, after = caption.text[: token.start], caption.text[token.end :]
            for word in self.filler.fill(before, after):
                lemma = _fitting(structure, gap, word)
                if lemma is None:
                    continue
                rule = f"masked:{gap.pos}"
                result = replaced(structure, gap, lemma, self.name, rule)
                if isinstance(result, Rewritten):
                    return result
                reason = result.reason
        return Refused(reason)


def _fitting(s: Structure, gap: Element, word: str) -> str | None:
    """The lemma of a proposed word, or None when it is no other word of the gap's kind and form."""
    low = word.strip().lower()
    token = s.caption.tokens[gap.first]
    old = token.lemma.lower()
    if gap.pos == "ADP":
        fits = low in PREPOSITIONS and low not in preposition_synonyms(token.text.lower())
        return low if fits and low != token.text.lower() else None
    lemma = lemma_of(low, gap.pos, gap.tag)
    known = low.isalpha() and lexicon().known(lemma, gap.pos)
    if not known or inflect(lemma, gap.tag) != low or related(old, lemma, gap.pos):
        return None
    return lemma


CE_SWAP = NegclipSwap(name="ce-swap", groups=("noun", "plural-noun"))
CE_ADJ = MaskedReplace("ce-adj", ("ADJ",))
CE_NOUN = MaskedReplace("ce-noun", ("NOUN",))
CE_VERB = MaskedReplace("ce-verb", ("VERB",))
