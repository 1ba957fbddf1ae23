"""Foils in the manner of CREPE (Ma et al., CVPR 2023): atom, swap and negate.

An atom is an object, an attribute or a relation of the caption. The type is drawn first, uniformly
among those that give a foil, so that rare types are not crowded out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import combinations

from compoclip.captions.tagger import inflect
from compoclip.rewrites.base import Edit, Refused
from compoclip.rewrites.driver import NO_CANDIDATE, CandidateEdit, Proposal, SampledRewrite
from compoclip.rewrites.edit import SENTENCE_ENDS, SpanChange, apply_changes, with_end
from compoclip.rewrites.exclusion import NOT_THINGS, UNIVERSAL, families
from compoclip.rewrites.legality import (
    has_namesake,
    is_many,
    may_tie_alike,
    states_place,
    subject_of,
)
from compoclip.rewrites.negclip import NO_PAIR, SpanPair, candidates, swaps
from compoclip.rewrites.reading import STARTS, Reading
from compoclip.rewrites.relations import phrases
from compoclip.rewrites.replace import (
    TOO_FEW,
    Element,
    drawn_candidate,
    elements,
    enough_elements,
    in_rounds,
)

_TYPES = {"entity": "object", "modifier": "attribute", "relation": "relation"}
_SWAPS = {
    "noun": "object",
    "plural-noun": "object",
    "adjective": "attribute",
    "verb": "relation",
}


def _atoms(s: Reading, rng: random.Random) -> Iterator[Proposal]:
    """One object, attribute or relation gives way to another of its type that excludes it."""
    if not enough_elements(s):
        yield Refused(TOO_FEW)
        return
    options: dict[str, list[Element]] = {}
    for kind, name in _TYPES.items():
        if atoms := [atom for atom in elements(s) if atom.kind == kind]:
            options[f"atom:{name}"] = atoms
    yield from in_rounds(s, rng, options, partial(drawn_candidate, rng=rng))


def _swaps(s: Reading, rng: random.Random) -> Iterator[Proposal]:
    """Two objects, two attributes or two relations change places."""
    pairs = [
        SpanPair(_SWAPS[pair.group], pair.a, pair.b)
        for pair in candidates(s)
        if pair.group in _SWAPS
    ]
    # Of prepositions that exclude each other the exchange denies something.
    places = [e for e in elements(s) if e.pos == "ADP"]
    words = [" ".join(s.lows[e.first : e.stop]) for e in places]
    for (a, said), (b, other) in combinations(zip(places, words), 2):
        if other in dict(a.candidates) or said in dict(b.candidates):
            pairs.append(SpanPair("relation", (a.first, a.stop), (b.first, b.stop)))
    return swaps(s, rng, pairs)


# --- Negated foils in the manner of CREPE (Ma et al., CVPR 2023). ---
#
# Three ways, drawn uniformly among those that apply: "X not R Y" denies a relation
# in place, "{caption}. There is no X." denies an object behind the caption, "There is no X R Y."
# denies all. A model can tell such texts by their "not" and "no" alone: train on them only by
# choice.

NOTHING_TO_DENY = "nothing-to-deny"
_NEGATED = {"VBZ": "does not", "VBP": "do not", "VBD": "did not"}
Foil = tuple[str, tuple[Edit, ...]]

# Trained on one wording, a model learns that wording, not negation (reports/compo.md).
_DENIED = (
    *("No {thing}.", "There {be} no {thing}.", "There {be} not any {thing}."),
    *("A picture without any {thing}.", "The picture has no {thing}.", "The {thing} {be} gone."),
    *("The {thing} {be} absent.", "No {thing} {be} in the picture.", "The {thing} {be} not there."),
)


def _negations(s: Reading, rng: random.Random) -> Iterator[CandidateEdit]:
    """Denies one relation or one object of the caption."""
    ways = {rule: list(way(s)) for rule, way in _WAYS.items()}
    for rule in rng.sample(list(ways), len(ways)):
        for foil in rng.sample(ways[rule], len(ways[rule])):
            yield CandidateEdit(rule, whole=foil)


def _denials(s: Reading, rng: random.Random) -> Iterator[CandidateEdit]:
    """States that one thing of the caption is absent, and nothing else: "No cat."."""
    things = [place for place in range(len(s.mentions)) if _is_thing(s, place)]
    for place in rng.sample(things, len(things)):
        said = rng.choice(_DENIED).format(thing=_name(s, place), be=_be(s, place))
        yield CandidateEdit("denial:object", whole=with_end(s.caption, 0, said))


def _in_place(s: Reading) -> Iterator[Foil]:
    """ "A cat on a mat" -> "A cat not on a mat"; "a man rides" -> "a man does not ride"."""
    for first, _ in _relations(s):
        token = s.caption.tokens[first]
        text = "without" if token.text == "with" else f"not {token.text}"
        if token.pos == "VERB" and token.tag in _NEGATED:
            text = f"{_NEGATED[token.tag]} {s.lemmas[first]}"
        yield apply_changes(s.caption, [SpanChange(first, first + 1, text)])


def _behind(s: Reading) -> Iterator[Foil]:
    """ "A cat on a mat" -> "A cat on a mat. There is no cat."."""
    text = s.caption.text.rstrip()
    stop = "" if text[-1:] in SENTENCE_ENDS else "."
    for place in range(len(s.mentions)):
        if _is_thing(s, place):
            denied = f"{stop} There {_be(s, place)} no {_name(s, place)}."
            yield with_end(s.caption, len(text), denied)


def _instead(s: Reading) -> Iterator[Foil]:
    """ "A black cat on a mat" -> "There is no black cat on a mat."."""
    tokens = s.caption.tokens
    for first, stop in _relations(s):
        x, z = s.last_mention(first - 1), s.owner[stop]
        if s.mentions[x].root != x:
            continue  # "a girl in sunglasses standing on grass": who stands there?
        verb = tokens[first]
        said = s.caption.text[verb.start : tokens[s.mentions[z].stop - 1].end]
        if verb.pos == "VERB" and verb.tag in _NEGATED:
            said = inflect(s.lemmas[first], "VBG") + said[len(verb.text) :]
        denied = f"There {_be(s, x)} no {_name(s, x, described=True)} {said}."
        yield with_end(s.caption, 0, denied)


_WAYS = {"negate:relation": _in_place, "negate:object": _behind, "negate:statement": _instead}


def _relations(s: Reading) -> Iterator[tuple[int, int]]:
    """Spans of verbs and prepositions that relate two adjacent things, and can be denied."""
    tokens = s.caption.tokens
    whole = dict(phrases(s.lows))
    for place, mention in enumerate(s.mentions[1:], 1):
        first, stop = s.mentions[place - 1].stop, mention.first
        while first < stop and (tokens[first].pos == "AUX" or s.lows[first] == "that"):
            first += 1
        things = _is_thing(s, place - 1) and _is_thing(s, place)
        if mention.link in STARTS or not things or first == stop or not s.asserted(first):
            continue
        if {t.pos for t in tokens[first:stop]} & {"CCONJ", "SCONJ", "PUNCT", "PRON", "PART"}:
            continue
        if tokens[first].pos == "VERB":
            relates = subject_of(s, first) == place - 1
        else:
            relates = whole.get(first, first + 1) == stop and states_place(s, first, stop)
        if relates and not (may_tie_alike(s, first, stop) or has_namesake(s, place - 1, place)):
            yield first, stop


def _is_thing(s: Reading, place: int) -> bool:
    """Return whether the mention asserts a thing by a common noun ("is chestnut" does not)."""
    head, lemma = s.mentions[place].head, s.head_lemma(place)
    return (
        s.caption.tokens[head].pos == "NOUN"
        and s.mentions[place].words != ("be",)
        and s.asserted(head)
        and lemma not in NOT_THINGS
        and not families(lemma, "ADJ") & UNIVERSAL
    )


def _be(s: Reading, place: int) -> str:
    return "are" if s.caption.tokens[s.mentions[place].head].tag == "NNS" else "is"


def _name(s: Reading, place: int, *, described: bool = False) -> str:
    """The mention without determiner and number; only its noun unless `described`."""
    (start, _, head, *_), tokens = s.mentions[place], s.caption.tokens
    first = s.compound(head)
    while described and first > start and tokens[first - 1].pos == "ADJ":
        if is_many(tokens[first - 1]):
            break  # "no many trucks"
        first -= 1
    text = s.caption.text[tokens[first].start : tokens[head].end]
    return text if tokens[first].pos == "PROPN" else text.lower()


CREPE_ATOM, CREPE_SWAP, CREPE_NEGATE, DENIAL = (
    SampledRewrite(name, version, False, none, propose)
    for name, version, none, propose in (
        ("crepe-atom", "5", NO_CANDIDATE, _atoms),
        ("crepe-swap", "5", NO_PAIR, _swaps),
        ("crepe-negate", "6", NOTHING_TO_DENY, _negations),
        ("denial", "2", NOTHING_TO_DENY, _denials),
    )
)
