"""Hard negatives by swapping two like parts of a caption, after NegCLIP (Yuksekgonul et al.).

The paper (ICLR 2023) swaps noun chunks, verb phrases, nouns, adverbs or adjectives at random. Here
only legal pairs count (docs/decisions.md, rules 4 and 6): pairs whose swap changes the meaning.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain, combinations
from typing import NamedTuple

from compoclip.captions.lists import WORDS
from compoclip.captions.tagrules import SETS
from compoclip.captions.types import NOUNS, Caption
from compoclip.rewrites import legality
from compoclip.rewrites.attested import BROKEN, edit_level, kind_of
from compoclip.rewrites.base import Refused
from compoclip.rewrites.driver import UNATTESTED, CandidateEdit, Proposal, Round, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, RULES, SENTENCE_ENDS, exchanged
from compoclip.rewrites.exclusion import ANY_THING, NO_THINGS, exclusive, families, names_people
from compoclip.rewrites.legality import NOT_ASSERTED, names_together
from compoclip.rewrites.reading import Reading

NO_PAIR = "no-legal-pair"

#: The level of what captions show.
FITTING = 1
#: The lowest level of a swap. Two words of one caption seldom fit each other's places, so anything
#: goes when nothing better is found.
ANYTHING = 2 * BROKEN
GROUPS = ("noun-phrase", "verb", "noun", "plural-noun", "adverb", "adjective")
_Span = tuple[int, int]


class SpanPair(NamedTuple):
    """Two token spans (first, stop) of one group whose exchange is legal."""

    group: str
    a: _Span
    b: _Span


def _proposed(
    s: Reading, rng: random.Random, groups: tuple[str, ...], min_level: int
) -> Iterator[Proposal]:
    """Exchanges one legal pair: group uniform among those that have one, then pair uniform."""
    return swaps(s, rng, [pair for pair in candidates(s) if pair.group in groups], min_level)


def negclip_swap(
    name: str = "negclip",
    version: str = "5",
    groups: tuple[str, ...] = GROUPS,
    min_level: int = ANYTHING,
) -> SampledRewrite:
    """Return the rewrite that swaps a pair.

    Args:
        name: Its name.
        version: Its version.
        groups: Which of `GROUPS` may be swapped.
        min_level: Lowest accepted level of `attested.edit_level`; 1 accepts attested swaps only.
    """
    propose = partial(_proposed, groups=groups, min_level=min_level)
    return SampledRewrite(name, version, False, NO_PAIR, propose)


NEGCLIP = negclip_swap()
NEGCLIP_FLUENT = negclip_swap("negclip-fluent", "2", min_level=FITTING)


def swaps(
    s: Reading, rng: random.Random, pairs: list[SpanPair], min_level: int = ANYTHING
) -> Iterator[Proposal]:
    """Propose to exchange a pair: group uniform among those of the pairs, then pair uniform.

    The first is taken whose parts fit their new places, in whatever group. Where none does, and
    `min_level` allows it, a group gives the pair of which captions show most; a group with nothing
    but nonsense gives way to the others.
    """
    by_group: dict[str, list[SpanPair]] = {}
    for pair in pairs:
        by_group.setdefault(pair.group, []).append(pair)
    if not pairs:
        return
    sampled = [
        [_judged(s, pair) for pair in rng.sample(group, min(MAX_DRAWS, len(group)))]
        for group in rng.sample(list(by_group.values()), len(by_group))
    ]
    tried = [[edit for _, edit in group] for group in sampled]
    yield Refused(UNATTESTED)
    yield from (edit._replace(level=2) for fits, edit in chain.from_iterable(sampled) if fits)
    if min_level >= FITTING:
        return
    for group in tried:
        yield Round(FITTING - 1, len(group))
        yield from group
    yield Round(min_level, sum(map(len, tried)))
    yield from chain.from_iterable(tried)


def _judged(s: Reading, pair: SpanPair) -> tuple[bool, CandidateEdit]:
    """Return whether both spans, by their last words, fit their new places, and the swap."""
    (first, end), (start, stop) = pair.a, pair.b
    mine, theirs = s.lemmas[end - 1], s.lemmas[stop - 1]
    if pair.group in ("noun", "object", "plural-noun") and any(
        s.compound(last - 1) != start or not _is_last(s, last - 1)
        for start, last in (pair.a, pair.b)
    ):
        return False, swapping(s.caption, pair, BROKEN)  # a part of a compound
    moved = (range(first, end), range(start, stop)) if end - first > 1 else ()
    if pair.group in ("adjective", "attribute"):
        alike = bool(families(mine, "ADJ") & families(theirs, "ADJ") & ANY_THING)
        if s.owner[start] >= 0 and "of" in s.mentions[s.owner[start]].words:
            alike = False  # "a green field of lush grass" is a lush field of green grass
    else:
        alike = pair.group == "adverb" or _may_change_places(s, mine, theirs)
    # Else each pair of words may have been met, and yet not the scene that all of them make.
    level = edit_level(s, {end - 1: theirs, stop - 1: mine}, moved, strict=not alike)
    return alike and level >= FITTING, swapping(s.caption, pair, level)


def _may_change_places(s: Reading, a: str, b: str) -> bool:
    """Return whether one noun can stand wherever the other can: things of one kind."""
    kind = kind_of(a)
    if kind != kind_of(b) or kind not in RULES.rows("may change places"):
        return False
    if {a, b} & RULES["unlike people"]:
        return False
    if names_people(a) and b not in exclusive(a, "NOUN"):
        return False  # a surfer is one of the people
    return not names_people(a) or RULES["gendered"].isdisjoint(s.lows)


def swapping(caption: Caption, pair: SpanPair, level: int = 2) -> CandidateEdit:
    """Return the exchange of a pair."""
    changes = partial(exchanged, caption, pair.a, pair.b)
    return CandidateEdit(f"swap:{pair.group}", changes, level=level)


@lru_cache(maxsize=1)
def candidates(s: Reading) -> tuple[SpanPair, ...]:
    """Return all legal pairs, group by group, in order of place."""
    return tuple([pair for pair in _legal(s) if not legality.same_parts(s, pair.a, pair.b)])


def _legal(s: Reading) -> Iterator[SpanPair]:
    """Every pair of like parts whose exchange changes what is said."""
    tokens = s.caption.tokens
    loose = [i for i in range(len(tokens)) if i not in s.phrasal]
    long = [i for i, m in enumerate(s.mentions) if m.stop - m.first > 2 and _is_thing(s, m.head)]
    for x, z in combinations(long, 2):
        if legality.phrases(s, x, z):
            yield SpanPair("noun-phrase", s.mentions[x][:2], s.mentions[z][:2])
    # Main verbs: the part of a verb phrase that can differ once auxiliaries stay in place.
    verbs = [
        i
        for i, t in enumerate(tokens)
        if t.pos == "VERB" and s.owner[i] < 0 and s.lemmas[i] not in RULES["light verbs"]
    ]
    for i, j in combinations(verbs, 2):
        if legality.verbs(s, i, j):
            yield SpanPair("verb", (i, i + 1), (j, j + 1))
    for tag, group in (("NN", "noun"), ("NNS", "plural-noun")):
        named = [
            i
            for i, t in enumerate(tokens)
            if t.tag == tag and t.pos == "NOUN" and s.owner[i] >= 0 and _is_thing(s, i)
        ]
        for i, j in combinations(named, 2):
            if legality.nouns(s, i, j):
                yield SpanPair(group, (i, i + 1), (j, j + 1))
                first, second = s.compound(i), s.compound(j)
                if (first, second) != (i, j) and _is_last(s, i) and _is_last(s, j):
                    yield SpanPair(group, (first, i + 1), (second, j + 1))
    manner = [
        i
        for i in loose
        if tokens[i].pos == "ADV" and s.lows[i] not in RULES["no manner"]
        if s.lows[i] in RULES["manner adverbs"] or s.lows[i].endswith("ly")
    ]
    for i, j in combinations(manner, 2):
        if legality.adverbs(s, i, j):
            yield SpanPair("adverb", (i, i + 1), (j, j + 1))
    described = [
        i
        for i in loose
        if tokens[i].pos == "ADJ" and tokens[i].tag in ("JJ", "JJR", "JJS")
        if s.lemmas[i] not in RULES["fixed adjectives"] and not names_together(tokens, i)
    ]
    for i, j in combinations(described, 2):
        occurs = _said_already(s, i, j) or _said_already(s, j, i)
        if tokens[i].tag == tokens[j].tag and not occurs and legality.modifiers(s, i, j, "ADJ"):
            yield SpanPair("adjective", (i, i + 1), (j, j + 1))


def _is_thing(s: Reading, index: int) -> bool:
    return s.caption.tokens[index].pos in NOUNS and s.lemmas[index] not in NO_THINGS


def _is_last(s: Reading, index: int) -> bool:
    tokens = s.caption.tokens
    return index + 1 == len(tokens) or tokens[index + 1].pos not in NOUNS


def _said_already(s: Reading, index: int, other: int) -> bool:
    """Return whether a thing comes to be what it is: "a red and blue kite in a blue sky"."""
    owner = s.owner[index]
    if owner < 0 or owner == s.owner[other]:
        return False
    return s.lemmas[other] in s.lemmas[slice(*s.mentions[owner][:2])]


# --- What an "and" joins, when that is clear: adjectives, verb phrases of one subject, noun
# phrases: a pair of one of `KINDS`. ---
#
# The exchanged spans are the smallest like phrases on both sides. An exchange must be its own
# inverse, so what is refused in one order is refused in the other. Doubtful scope is refused.

CLAUSE = "clause"
LIST = "list-of-three"
SCOPE = "scope-unclear"
PRONOUN = "pronoun"
UNLIKE = "unlike-parts"
KINDS = ("noun-phrase", "verb-phrase", "adjective")

_LISTING = frozenset((",", "and", "or", "but", "&"))
_FINITE = SETS["finite"]


def _conjuncts(s: Reading, at: int) -> SpanPair | str:
    """The phrases that the "and" at token `at` joins, or the reason why they stay in place."""
    tokens = s.caption.tokens
    if at == 0 or at + 1 >= len(tokens):
        return UNLIKE
    if not (s.asserted(at - 1) and s.asserted(at + 1)):
        return NOT_ASSERTED
    # The sentence around it, without its final punctuation.
    marks = [i for i, t in enumerate(tokens) if t.text[0] in SENTENCE_ENDS or t.text == ";"]
    start = max((i + 1 for i in marks if i < at), default=0)
    end = min((i for i in marks if i > at), default=len(tokens))
    if tokens[at - 1].pos == "ADJ" and tokens[at + 1].pos in ("ADJ", "ADV"):
        return _adjectives(s, at)
    if tokens[at + 1].pos in ("VERB", "AUX") and s.owner[at + 1] < 0:
        return _verb_phrases(s, at, start, end)
    x = next((n for n, m in enumerate(s.mentions) if m.stop == at), -1)
    if x < 0 or x + 1 >= len(s.mentions) or s.mentions[x + 1].first != at + 1:
        return UNLIKE
    return _noun_phrases(s, x, start, end)


def _listed(s: Reading, a: _Span, b: _Span) -> bool:
    """Return whether a comma or coordinator precedes the first or follows the second span."""
    return not _LISTING.isdisjoint((*s.lows[max(a[0] - 1, 0) : a[0]], *s.lows[b[1] : b[1] + 1]))


def _adjectives(s: Reading, at: int) -> SpanPair | str:
    tokens = s.caption.tokens
    first, last = at - 1, at + 1
    if first > 0 and tokens[first - 1].pos == "ADV":
        first -= 1
    if tokens[last].pos == "ADV":
        last += 1
    if last >= len(tokens) or tokens[last].pos != "ADJ" or names_together(tokens, last):
        return UNLIKE
    if tokens[at - 1].tag != tokens[last].tag or s.owner[at - 1] != s.owner[last]:
        return UNLIKE
    a, b = (first, at), (at + 1, last + 1)
    if _listed(s, a, b):
        return LIST
    follows = last + 1 < len(tokens) and tokens[last + 1].pos != "PUNCT"
    if (b[1] - b[0] > 1) != (a[1] - a[0] > 1) or (s.owner[last] < 0 and follows):
        return SCOPE
    return SpanPair("adjective", a, b)


def _verb_phrases(s: Reading, at: int, start: int, end: int) -> SpanPair | str:
    """ "sitting on a bench" and "reading a book": up to the "and", and up to the end."""
    tokens = s.caption.tokens
    tag = tokens[at + 1].tag
    verbs = [i for i in range(start, at) if tokens[i].tag == tag and s.owner[i] < 0]
    if not verbs:
        return UNLIKE
    a, b = (verbs[-1], at), (at + 1, end)
    inside = [t for span in (a, b) for t in tokens[slice(*span)]]
    if any(t.text.lower() in _LISTING for t in inside) or _listed(s, a, b):
        return LIST
    if any(t.pos == "PRON" and t.tag != "PRP$" for t in inside):
        return PRONOUN
    if any(t.tag in _FINITE or t.pos == "SCONJ" for t in inside[1:] if t.tag != tag):
        return CLAUSE
    repeated = sum(t.tag == tag for t in inside) > 2 or len(verbs) > 1
    if repeated or (a[1] - a[0] > 1) != (b[1] - b[0] > 1) or any(t.pos == "PUNCT" for t in inside):
        return SCOPE
    return SpanPair("verb-phrase", a, b)


def _noun_phrases(s: Reading, x: int, start: int, end: int) -> SpanPair | str:
    tokens = s.caption.tokens
    left, right = s.mentions[x], s.mentions[x + 1]
    leads = {tokens[m.first].tag for m in (left, right)}
    pronouns = any(tokens[m.head].pos == "PRON" for m in (left, right))
    if pronouns or (len(leads) > 1 and "PRP$" in leads):
        return PRONOUN
    first, stop = left.first, right.stop
    third = x + 2 < len(s.mentions)  # "a and a of" names nothing behind "of"
    of_third = third and s.lows[stop:end][:1] == ("of",)
    if of_third and _determined(s, x + 2) != _determined(s, x):
        stop = s.mentions[x + 2].stop
    elif (
        x > 0
        and start < first - 1 == s.mentions[x - 1].stop
        and s.lows[first - 1] == "of"
        and s.head_lemma(x - 1) not in WORDS["depictions"]
        and _determined(s, x + 1) != _determined(s, x)
    ):
        first = s.mentions[x - 1].first
    if _listed(s, (first, left.stop), (right.first, stop)):
        return LIST
    governor = _governor(s, first, start)
    if governor and any(t.text == "," for t in tokens[start:first]):
        return LIST
    if governor == "of" and _determined(s, x if first == left.first else x - 1):
        return SCOPE  # "a cat in the corner of the picture and a dog"
    people = [names_people(s.head_lemma(place)) for place in (x, x + 1)]
    after = tokens[stop] if stop < end else None
    if after is None:
        # Else the second may be a subject beside the first: "(a man with a hat) and (a woman)".
        animals = [("animals" in _kinds(s, place)) for place in (x, x + 1)]
        alike = animals[0] == animals[1] and people[0] == people[1]
        if governor and not (governor in ("verb", "with", "of", "between") and alike):
            return SCOPE
    elif governor:
        return _whole(s, x, start, end)
    # What stands behind the second must be said of both.
    elif after.pos == "AUX" or after.tag in _FINITE:
        if first != start:
            return CLAUSE
    elif after.pos != "VERB" or (s.owner_at(stop + 1) >= 0 and not all(people)):
        return SCOPE  # no verb, or one with an object
    # The noun phrases, when it is clear which determiner and modifiers belong to which.
    a, b = (first, left.stop), (right.first, stop)
    mine = _determined(s, x if first == left.first else x - 1)
    if _determined(s, x + 1):
        return SpanPair("noun-phrase", a, b) if mine else SCOPE
    skipped = a[0] + (1 if mine else 0)
    plain = a[1] - skipped == 1 and b[1] - b[0] == 1 and tokens[a[0]].pos != "NUM"
    if not plain or (mine and tokens[skipped].tag != tokens[b[0]].tag):
        return SCOPE  # "a red car and bus", "a car and trucks"
    return SpanPair("noun-phrase", (skipped, a[1]), b)


def _determined(s: Reading, place: int) -> bool:
    """Return whether the mention starts with a determiner, a possessive or a number."""
    if not 0 <= place < len(s.mentions):
        return False
    token = s.caption.tokens[s.mentions[place].first]
    return token.pos in ("DET", "NUM") or token.tag == "PRP$"


def _governor(s: Reading, first: int, start: int) -> str:
    """Return the governor of the phrase at `first`: "" at the top, "verb", or the word before."""
    tokens = s.caption.tokens
    if first == start:
        return ""
    before, low = tokens[first - 1], s.lows[first - 1]
    if before.pos == "AUX":
        alone = all(t.pos in ("PRON", "DET", "AUX") for t in tokens[start:first])
        return "" if alone else low
    if low == "of" and first >= 2 and s.lemmas[first - 2] in WORDS["depictions"]:
        return ""
    return "verb" if before.pos == "VERB" else low


def _kinds(s: Reading, place: int) -> frozenset[str]:
    return families(s.head_lemma(place), "NOUN")


def _whole(s: Reading, x: int, start: int, end: int) -> SpanPair | str:
    """Both sides entire: "a man in a hat and a woman in a dress"."""
    tokens = s.caption.tokens
    tops = (  # what the sentence is about, not the frame around it
        n
        for n, m in enumerate(s.mentions)
        if m.first >= start and tokens[m.head].pos != "PRON"
        if s.head_lemma(n) not in WORDS["depictions"] and _governor(s, m.first, start) == ""
    )
    top = next(tops, -1)
    if top < 0:
        return SCOPE
    a, b = (s.mentions[top].first, s.mentions[x].stop), (s.mentions[x + 1].first, end)
    inside = [t for span in (a, b) for t in tokens[slice(*span)]]
    if any(t.text.lower() in _LISTING for t in inside):
        return LIST
    if any(t.pos == "PRON" for t in inside):
        return PRONOUN
    if any(t.tag in _FINITE or t.pos in ("AUX", "SCONJ") for t in inside):
        return CLAUSE
    alike, inner = _kinds(s, top) & _kinds(s, x + 1), _kinds(s, x) & _kinds(s, x + 1)
    if not alike or inner or not (_determined(s, top) and _determined(s, x + 1)):
        return SCOPE
    return SpanPair("noun-phrase", a, b)


# --- Hard positives by exchanging the two sides of an "and". ---

NO_AND = "no-and"


def _joined(s: Reading, _: random.Random) -> Iterator[Proposal]:
    """Exchanges the smallest like phrases around one "and"; applied twice it gives the caption."""
    conjuncts = [_conjuncts(s, at) for at, low in enumerate(s.lows) if low == "and"]
    pairs = [pair for pair in conjuncts if isinstance(pair, SpanPair)]
    for pair in sorted(pairs, key=lambda pair: KINDS.index(pair.group)):
        yield CandidateEdit(f"and:{pair.group}", exchanged(s.caption, pair.a, pair.b))
    yield from [Refused(reason) for reason in conjuncts if isinstance(reason, str)][:1]


AND_SWAP = SampledRewrite("and-swap", "3", True, NO_AND, _joined)
