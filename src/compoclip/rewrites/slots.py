"""The slots of a caption: pairs of words that belong together, read off its tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compoclip.captions.types import NOUNS, PLURALS, Token
from compoclip.rewrites.edit import RULES, SENTENCE_ENDS
from compoclip.rewrites.relations import RELATIONS, phrases

KINDS = RULES.keys_of("kinds of things")
#: Words that stand for groups of people, and for some of anything.
GROUPS = frozenset(word for word, kind in KINDS.items() if kind == "people")
_COUNTED = GROUPS | {
    *("bunch", "flock", "herd", "line", "number", "pack", "pair", "row", "variety")
}
#: Prepositions that are counted as one, by their words.
_ONE = RELATIONS.keys_of("one preposition")


class Pairing(NamedTuple):
    """Two words that belong together: tokens `left` and `right`, -1 for none.

    kind: "mod" and "comp" (adjective or noun, noun), "subj" and "done" (noun, verb; what is done to
    it), "obj" (verb, noun), "np" and "vp" (noun or verb, preposition), "pn" (preposition, noun),
    "pred" (noun, adjective), "end" (verb that nothing follows), "tie" (governor, noun behind the
    preposition `at`), "act" (noun, noun, the verb `at` and the preposition `by` between them);
    "a", "the", "bare", "many" (noun with such an article).
    """

    kind: str
    left: int
    right: int
    at: int = -1
    by: int = -1


_FOLLOWS_VERB = ("ADP", "ADV", "ADJ", "PART", "DET", "PRON", "NUM", "NOUN", "PROPN", "SCONJ")


def preposition(words: str) -> str:
    """Return the preposition that stands for its near synonyms: "on" for "on top of"."""
    return _ONE.get(words, words).replace(" ", "_")


def words_of(tokens: tuple[Token, ...]) -> tuple[list[str], dict[int, int]]:
    """Return the lemma of each token (prepositions normalised), and a map from the first token of
    each multi-word preposition to the token after its last."""
    words = [token.lemma.lower() for token in tokens]
    lows = tuple([token.text.lower() for token in tokens])
    ends = dict(phrases(lows))
    for i, token in enumerate(tokens):
        if i in ends:
            words[i] = preposition(" ".join(lows[i : ends[i]]))
        elif token.pos == "ADP":
            words[i] = preposition(lows[i])
    return words, ends


def slots(tokens: tuple[Token, ...], ends: Mapping[int, int]) -> tuple[Pairing, ...]:
    """Return the slots of a caption, left to right; ends: see `words_of`."""
    pairings: list[Pairing] = []
    described: list[int] = []
    article = "bare"
    anchor, before = -1, -1  # what the next word belongs to; what that belongs to
    lead = -1  # the noun that the next verb is said of
    size, stop = len(tokens), 0

    def is_noun(index: int) -> bool:
        return index >= 0 and tokens[index].pos in NOUNS and index not in ends

    for i, token in enumerate(tokens):
        if i < stop:
            continue
        pos = "ADP" if i in ends else token.pos
        stop = ends.get(i, i)
        if pos in NOUNS:
            if i + 1 < size and tokens[i + 1].pos in NOUNS:
                described.append(i)
                continue
            pairings += [
                Pairing("mod" if tokens[m].pos == "ADJ" else "comp", m, i) for m in described
            ]
            pairings.append(Pairing("many" if token.tag in PLURALS else article, -1, i))
            groups = lead >= 0 and tokens[lead].lemma.lower() in _COUNTED
            if groups and before == lead and tokens[anchor].lemma == "of":
                lead = i  # "a group of people"
            if anchor >= 0 and (tokens[anchor].pos == "ADP" or anchor in ends):
                pairings.append(Pairing("pn", anchor, i))
                if before >= 0:
                    pairings.append(Pairing("tie", before, i, anchor))
                    if lead >= 0 and tokens[before].pos == "VERB":
                        pairings.append(Pairing("act", lead, i, before, anchor))
            elif anchor >= 0 and tokens[anchor].pos == "VERB":
                pairings.append(Pairing("obj", anchor, i))
                if lead >= 0:
                    pairings.append(Pairing("act", lead, i, anchor))
            if lead == -1:
                lead = i
            anchor, before, article = i, -1, "bare"
            described = []
        elif pos == "ADJ":
            described.append(i)
        elif pos in ("DET", "NUM") or token.tag == "PRP$":
            low = token.text.lower()
            article = "a" if low in ("a", "an", "one", "another", "each", "every") else "the"
            described = []
        elif pos == "VERB":
            if is_noun(anchor) and lead >= 0:
                if token.tag != "VBN":
                    pairings.append(Pairing("subj", lead, i))
                elif anchor == lead:
                    pairings.append(Pairing("done", lead, i))
            if i + 1 == size or tokens[i + 1].pos not in _FOLLOWS_VERB:
                pairings.append(Pairing("end", -1, i))
            anchor, before, article, described = i, -1, "bare", []
        elif pos == "ADP":
            if described:
                anchor, described = described[-1], []
            if anchor >= 0:
                pairings.append(Pairing("np" if is_noun(anchor) else "vp", anchor, i))
            anchor, before, article = i, anchor, "bare"
        elif (
            described
            and pos in ("CCONJ", "PUNCT")
            and any(token.pos == "ADJ" for token in tokens[i + 1 : i + 3])
        ):
            pass  # "a black and white cat"
        elif pos not in ("ADV", "AUX", "PART") and token.tag != "EX":
            if is_noun(anchor):
                pairings += [Pairing("pred", anchor, m) for m in described]
            described, article = [], "bare"
            if pos != "PRON" or token.tag not in ("WDT", "WP"):
                anchor = before = -1
                # Whose verb comes behind "a shirt and a tie" is not clear before the next clause.
                if pos == "SCONJ" or token.text in SENTENCE_ENDS:
                    lead = -1
                elif lead >= 0:
                    lead = -2
    if is_noun(anchor):
        pairings += [Pairing("pred", anchor, m) for m in described]
    return tuple(pairings)
