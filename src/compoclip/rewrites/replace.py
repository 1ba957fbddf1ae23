"""Hard negatives by replacing one word, in the manner of SugarCrepe (Hsieh et al., 2023).

An entity, modifier or relation of the caption gives way to a word that excludes it: members of the
same built-in family (`categories`), contradicting prepositions (`relations`), else WordNet's
antonyms and co-hyponyms (METHODS 17.3, [D-rw-replace]).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import Change, cased_like
from compoclip.rewrites.elements import Element, elements, enough_elements
from compoclip.rewrites.exchange import related
from compoclip.rewrites.structure import Structure, structure_of
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS, edited

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
    change = Change(element.first, element.stop, text)
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
