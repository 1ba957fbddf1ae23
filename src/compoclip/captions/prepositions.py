"""Prepositions of captions: how usual each is, which mean nearly the same, which are symmetric.

`PREPOSITIONS` weights are rounded counts per 25,000 everyday picture descriptions. Prepositions
that state no relation two things can be seen in ("of", "for", "until") are left out: they are
never a sensible replacement. Phrasal prepositions are one entry, words separated by blanks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compoclip.captions.words import word_set

# fmt: off
PREPOSITIONS: Mapping[str, int] = {
    "on": 8000, "in": 6500, "with": 6000, "at": 1800, "next to": 1600, "down": 900, "to": 900,
    "near": 800, "by": 700, "in front of": 700, "on top of": 680, "over": 450, "from": 400,
    "through": 380, "around": 360, "up": 350, "behind": 290, "under": 280, "inside": 260,
    "into": 240, "outside": 200, "on the side of": 180, "along": 170, "above": 160,
    "in the middle of": 150, "off": 150, "beside": 150, "across": 140, "inside of": 140,
    "full of": 140, "out of": 130, "against": 110, "between": 90, "surrounded by": 80, "past": 70,
    "outside of": 70, "towards": 60, "onto": 60, "on the back of": 55, "underneath": 55,
    "below": 40, "close to": 40, "among": 30, "toward": 30, "atop": 30, "on the edge of": 30,
    "facing": 25, "along with": 20, "in between": 20, "without": 20, "opposite": 15,
    "beneath": 15, "alongside": 15, "at the top of": 15, "away from": 15, "at the end of": 15,
    "amongst": 12, "at the back of": 12, "at the bottom of": 12, "at the edge of": 12,
    "within": 12, "upon": 12, "together with": 10, "on the front of": 10, "across from": 9,
    "to the left of": 8, "to the right of": 8, "in the center of": 6, "at the side of": 5,
    "on the other side of": 3, "far from": 3, "beyond": 3, "at the front of": 3, "left of": 2,
    "right of": 2, "adjacent to": 2, "amid": 2, "aboard": 2, "in back of": 1, "ahead of": 1,
}

#: Groups whose members may describe the same scene; a word may stand in several.
_NEAR_SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("under", "below", "beneath", "underneath"),
    ("over", "above"),
    ("over", "across"),
    ("on", "on top of", "atop", "upon", "onto", "over", "at the top of"),
    ("on", "aboard"),
    ("at", "in", "on"),
    ("in", "inside", "inside of", "within", "into", "in the middle of", "aboard"),
    ("in the middle of", "in the center of"),
    ("next to", "beside", "near", "by", "close to", "alongside", "adjacent to", "at",
     "at the side of", "on the side of", "against"),
    ("among", "amongst", "amid", "between", "in between", "surrounded by", "in the middle of",
     "in", "with"),
    ("with", "along with", "together with", "alongside", "next to", "beside", "by", "near"),
    ("with", "full of"),
    ("to", "toward", "towards", "into", "onto", "facing"),
    ("around", "along", "across", "through"),
    ("along", "down", "up", "on", "alongside"),
    ("down", "through", "across"),
    ("past", "by", "near", "beyond"),
    ("behind", "in back of", "at the back of", "on the back of", "beyond", "on the other side of"),
    ("in front of", "ahead of", "facing", "at the front of", "on the front of"),
    ("across from", "opposite", "facing", "on the other side of", "across"),
    ("out of", "outside", "outside of", "from", "off", "away from"),
    ("far from", "away from", "beyond"),
    ("left of", "to the left of"),
    ("right of", "to the right of"),
    ("on the edge of", "at the edge of", "on the side of", "at the side of", "at the end of", "on"),
    ("below", "at the bottom of"),
    ("above", "at the top of"),
)

#: Vague words and the precise ones whose scenes they describe too; the precise ones of a row
#: do not mean the same as each other.
_VAGUE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("next to", "beside", "near", "by", "close to", "alongside", "adjacent to", "at the side of",
      "on the side of"),
     ("to the left of", "to the right of", "left of", "right of")),
    (("near", "by", "close to", "at"),
     ("in front of", "behind", "along", "around", "opposite", "across from", "facing",
      "at the edge of", "at the end of", "outside", "outside of")),
    (("through",), ("in", "into", "past", "out of")),
    (("down",), ("off",)),
    (("on",), ("on the side of", "on the back of", "on the front of")),
)

#: Relations that stay true when their two sides are exchanged (METHODS 17.1, rule 4).
SYMMETRIC_RELATIONS = frozenset({
    "and", "or", "with", "near", "nearby", "next to", "beside", "by", "close to", "alongside",
    "around", "along", "along with", "together with", "touching", "facing", "opposite", "against",
    "between", "in between", "among", "amongst", "adjacent to", "across from", "hugging", "kissing",
    "embracing", "meeting", "talking to", "talking with", "speaking to", "speaking with",
    "chatting with", "playing with", "dancing with", "fighting with",
})
_SYMMETRIC_VERBS = ("touch", "face", "hug", "kiss", "embrace", "meet")
# A participle before these says who acts on whom ("pulled by", "topped with") unless it says
# where something is ("parked by").
_PASSIVE_PREPOSITIONS = frozenset({"by", "with", "around", "along", "against"})
_PLACED = word_set(
    "parked seated sat located placed situated positioned perched stood lined stacked docked "
    "grouped gathered huddled posed stopped displayed set moored tied"
)
_PARTICIPLES = frozenset({"made", "built", "led", "held", "cut"})
_FILLERS = word_set(
    "is are was were be been being am right directly very just immediately standing sitting "
    "closely all both together up"
)
# fmt: on


def preposition_synonyms(preposition: str) -> frozenset[str]:
    """Prepositions that may describe the same scene as this one; never contains the word itself."""
    low = " ".join(preposition.lower().split())
    found: set[str] = set()
    for group in _NEAR_SYNONYMS:
        if low in group:
            found.update(group)
    for vague, precise in _VAGUE:
        if low in vague:
            found.update(precise)
        if low in precise:
            found.update(vague)
    return frozenset(found - {low})


def is_symmetric(words: Sequence[str]) -> bool:
    """Whether a relation, given word by word, stays true when its sides are exchanged.

    Knows `SYMMETRIC_RELATIONS`, their verbs in every form ("hugs", "is hugging"), and a verb before
    a symmetric preposition ("standing next to", "parked near", "sits right beside"), but no passive
    ("pulled by", "topped with", "surrounded by"). Letter case and auxiliaries are ignored.
    """
    low = [part for word in words for part in word.lower().split()]
    while low and low[0] in _FILLERS:
        low = low[1:]
    if not low:
        return False
    if " ".join(low) in SYMMETRIC_RELATIONS or (len(low) == 1 and low[0] in _SYMMETRIC_VERB_FORMS):
        return True
    if " ".join([_ing(low[0]), *low[1:]]) in SYMMETRIC_RELATIONS:
        return True
    for size in (3, 2, 1):
        tail = " ".join(low[-size:])
        before = [word for word in low[:-size] if word not in _FILLERS and not word.endswith("ly")]
        if tail in SYMMETRIC_RELATIONS and len(before) <= 1:
            return not before or _leaves_symmetric(before[0], tail)
    return False


def _leaves_symmetric(verb: str, preposition: str) -> bool:
    if verb in _PLACED or preposition not in _PASSIVE_PREPOSITIONS:
        return True
    return not (verb.endswith(("ed", "en", "wn")) or verb in _PARTICIPLES)


def _ing(verb: str) -> str:
    """A plain guess at the -ing form: talk, talks, talked -> talking."""
    for ending in ("ing", "ed", "s"):
        if verb.endswith(ending):
            verb = verb[: -len(ending)]
            break
    return verb.removesuffix("e") + "ing"


def _forms(verb: str) -> tuple[str, ...]:
    if verb == "meet":
        return ("meet", "meets", "met", "meeting")
    if verb.endswith("e"):
        return (verb, verb + "s", verb + "d", verb[:-1] + "ing")
    stem = verb + "g" if verb == "hug" else verb
    return (verb, verb + ("es" if verb.endswith(("ss", "ch")) else "s"), stem + "ed", stem + "ing")


_SYMMETRIC_VERB_FORMS = frozenset(form for verb in _SYMMETRIC_VERBS for form in _forms(verb))
