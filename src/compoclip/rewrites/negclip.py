"""Hard negatives by exchanging two like parts of a caption, after NegCLIP (Yuksekgonul et al.).

The paper (ICLR 2023) exchanges noun chunks, verb phrases, nouns, adverbs or adjectives at random.
Here only legal pairs count (METHODS 17.2, [D-rw-negclip]): those whose exchange changes what the
caption says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from compoclip.captions.types import Caption, Token
from compoclip.captions.words import word_set
from compoclip.rewrites import exchange
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import exchanged
from compoclip.rewrites.elements import names_together
from compoclip.rewrites.remember import of_last
from compoclip.rewrites.structure import Structure, structure_of
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS, edited

NO_PAIR = "no-legal-pair"
GROUPS = ("noun-phrase", "verb", "noun", "plural-noun", "adverb", "adjective")
_FIXED_ADJECTIVES = word_set(
    "other same different several many few more most various such own another next close full "
    "multiple numerous certain able ready sure half whole only"
)
_MANNER_ADVERBS = word_set(
    "up down left right inside outside indoors outdoors upside forward forwards backward backwards "
    "upright sideways away together alone apart overhead fast slow high low"
)
_NO_MANNER = word_set(
    "really nearly only fully partially partly mostly mainly possibly probably apparently "
    "slightly completely currently recently early daily likely closely directly simply "
    "extremely very usually brightly highly newly freshly early"
)
_LIGHT_VERBS = word_set("be have do get make take go show include feature contain see")


class Pair(NamedTuple):
    """Two token spans (first, stop) of one group whose exchange is legal."""

    group: str
    a: tuple[int, int]
    b: tuple[int, int]


@dataclass(frozen=True)
class NegclipSwap:
    """Exchanges one legal pair: group uniform among those that have one, then pair uniform.

    Keeps the words of the caption, apart from repaired "a"/"an" and the sentence capital.
    groups: which of `GROUPS` may be exchanged.
    """

    name: str = "negclip"
    version: str = "2"
    keeps_meaning: bool = False
    groups: tuple[str, ...] = GROUPS

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-legal-pair", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        pairs = [pair for pair in candidates(caption) if pair.group in self.groups]
        reason = NO_PAIR
        for _ in range(MAX_DRAWS):
            if not pairs:
                break
            group = rng.choice([g for g in GROUPS if any(p.group == g for p in pairs)])
            pair = rng.choice([p for p in pairs if p.group == group])
            result = swapped(caption, pair, self.name)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
            pairs = [p for p in pairs if p != pair]
        return Refused(reason)


def swapped(caption: Caption, pair: Pair, rewrite: str = "negclip") -> Rewritten | Refused:
    """The caption with the pair exchanged, checked."""
    changes = exchanged(caption, pair.a, pair.b)
    return edited(caption, changes, rewrite=rewrite, keeps_meaning=False, rule=f"swap:{pair.group}")


@of_last
def candidates(caption: Caption) -> tuple[Pair, ...]:
    """All legal pairs, group by group, in order of place."""
    structure = structure_of(caption)
    return tuple(
        [
            pair
            for pair, refusal in considered(structure)
            if refusal is None and not exchange.same_parts(structure, pair.a, pair.b)
        ]
    )


def considered(s: Structure) -> Iterator[tuple[Pair, str | None]]:
    """Every pair of like parts with the rule that forbids its exchange (None: legal so far)."""
    yield from _noun_phrases(s)
    yield from _verbs(s)
    yield from _nouns(s, "NN", "noun")
    yield from _nouns(s, "NNS", "plural-noun")
    yield from _adverbs(s)
    yield from _adjectives(s)


def _noun_phrases(s: Structure) -> Iterator[tuple[Pair, str | None]]:
    long = [i for i, m in enumerate(s.mentions) if m.stop - m.first > 2 and _is_thing(s, m.head)]
    for x, z in combinations(long, 2):
        a, b = s.mentions[x], s.mentions[z]
        pair = Pair("noun-phrase", (a.first, a.stop), (b.first, b.stop))
        yield pair, exchange.phrases(s, x, z)


def _is_thing(s: Structure, index: int) -> bool:
    token = s.caption.tokens[index]
    return token.pos in ("NOUN", "PROPN") and s.lemmas[index] not in _ATTRIBUTES


#: Nouns whose exchange with a thing gives no sensible statement.
_ATTRIBUTES = word_set(
    "top bottom front back middle center centre side left right end color colour size shape way "
    "time kind type sort day night each all one other another corner edge background foreground "
    "picture photo photograph image drawing painting shot view scene distance line couple closeup "
    "close-up up ups"
)


def _nouns(s: Structure, tag: str, group: str) -> Iterator[tuple[Pair, str | None]]:
    places = [
        i
        for i, t in enumerate(s.caption.tokens)
        if t.tag == tag and t.pos == "NOUN" and s.owner[i] >= 0 and _is_thing(s, i)
    ]
    for i, j in combinations(places, 2):
        yield Pair(group, (i, i + 1), (j, j + 1)), _noun_refusal(s, i, j)


def _noun_refusal(s: Structure, i: int, j: int) -> str | None:
    tokens, x, z = s.caption.tokens, s.owner[i], s.owner[j]
    if x == z:
        return exchange.SAME_OWNER
    if exchange.related(s.lemmas[i], s.lemmas[j], "NOUN"):
        return exchange.RELATED
    if tokens[i].tag == "NN" and exchange.numbers_differ(s, i, j):
        return exchange.NUMBER
    if i != s.mentions[x].head and j != s.mentions[z].head:
        return exchange.modifiers(s, i, j, "NOUN")
    if s.asserted(i) != s.asserted(j) and _is_described(s, z if s.asserted(i) else x):
        return exchange.NOT_ASSERTED  # "no red fish" leaves room for a fish
    return exchange.arguments(s, x, z)


def _is_described(s: Structure, place: int) -> bool:
    mention = s.mentions[place]
    return any(t.pos == "ADJ" for t in s.caption.tokens[mention.first : mention.head])


def _adjectives(s: Structure) -> Iterator[tuple[Pair, str | None]]:
    places = [
        i
        for i, t in enumerate(s.caption.tokens)
        if t.pos == "ADJ"
        and i not in s.phrasal
        and s.lemmas[i] not in _FIXED_ADJECTIVES
        and not names_together(s.caption.tokens, i)
        and t.tag in ("JJ", "JJR", "JJS")
    ]
    for i, j in combinations(places, 2):
        pair = Pair("adjective", (i, i + 1), (j, j + 1))
        if s.caption.tokens[i].tag != s.caption.tokens[j].tag:
            yield pair, exchange.NUMBER
        else:
            yield pair, exchange.modifiers(s, i, j, "ADJ")


def _verbs(s: Structure) -> Iterator[tuple[Pair, str | None]]:
    """Main verbs: the part of a verb phrase that can differ once auxiliaries stay in place."""
    tokens = s.caption.tokens
    spans = [
        (i, i + 1)
        for i, t in enumerate(tokens)
        if t.pos == "VERB" and s.owner[i] < 0 and s.lemmas[i] not in _LIGHT_VERBS
    ]
    for a, b in combinations(spans, 2):
        yield Pair("verb", a, b), exchange.verbs(s, a, b)


def _adverbs(s: Structure) -> Iterator[tuple[Pair, str | None]]:
    places = [i for i, t in enumerate(s.caption.tokens) if t.pos == "ADV" and _says_how(s, i)]
    for i, j in combinations(places, 2):
        yield Pair("adverb", (i, i + 1), (j, j + 1)), _adverb_refusal(s, i, j)


def _says_how(s: Structure, index: int) -> bool:
    word = s.lows[index]
    if index in s.phrasal or word in _NO_MANNER:
        return False
    return word in _MANNER_ADVERBS or word.endswith("ly")


def _adverb_refusal(s: Structure, i: int, j: int) -> str | None:
    """Adverbs count when they belong to different verbs of different meaning."""
    tokens = s.caption.tokens
    if not (s.asserted(i) or s.asserted(j)):
        return exchange.NOT_ASSERTED
    if exchange.related(tokens[i].lemma.lower(), tokens[j].lemma.lower(), "ADV"):
        return exchange.RELATED
    first, second = _verb_before(tokens, i), _verb_before(tokens, j)
    if first is None or second is None or first is second:
        return exchange.SAME_OWNER
    if exchange.related(first.lemma.lower(), second.lemma.lower(), "VERB"):
        return exchange.SAME_OWNER
    return None


def _verb_before(tokens: tuple[Token, ...], index: int) -> Token | None:
    return next((t for t in reversed(tokens[:index]) if t.pos == "VERB"), None)
