"""Kinds that captions speak of and WordNet's hierarchy does not hold together.

Each group lists words that exclude one another in a caption though they are no co-hyponyms in
WordNet: materials as modifiers, postures, what hands do, how people eat and drink. Used by
`Lexicon.cohyponyms` beside WordNet's own neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

from compoclip.captions.words import word_set

KINDS: Mapping[str, tuple[frozenset[str], ...]] = {
    "ADJ": (
        word_set(
            "wooden metal metallic plastic stone brick leather concrete marble ceramic steel bamboo"
            " wicker rubber woolen woollen silken"
        ),
    ),
    "VERB": (
        word_set("sit stand lie kneel crouch squat lean"),
        word_set("hold carry throw catch kick push pull lift drop swing pet touch wash cut"),
        word_set("wear hold carry wash fold"),
        word_set("eat drink cook cut smell throw"),
        word_set("look point smile wave shout"),
    ),
}


def same_kind(lemma: str, pos: str) -> frozenset[str]:
    """The other words of every group that holds the lemma."""
    groups = [group for group in KINDS.get(pos, ()) if lemma in group]
    return frozenset().union(*groups) - {lemma}
