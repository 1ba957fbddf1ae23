"""Contrary facts of scenes, skill by skill, and texts that state each in many wordings.

A fact has two sides, such as "a house left of a mug" and "a house right of a mug". The oracle says
which side a scene shows. Texts of a side use synonyms, other phrases, adjectives, and unrelated
words around them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

from compoclip.errors import CompoclipError
from compoclip_world.captions import dress
from compoclip_world.export.pairs import UNSEEN_WORDINGS
from compoclip_world.export.texts import phrases_of
from compoclip_world.logic import (
    Attribute,
    Claim,
    Exists,
    Form,
    Node,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    nodes_of,
)
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import WorldPair
from compoclip_world.parser import parse
from compoclip_world.sampling import generator
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    KINDS,
    PATTERNS,
    POSITION_PHRASES,
    RELATION_PHRASES,
    SIZES,
    SYNONYMS,
    pluralise,
    with_article,
)
from compoclip_world.wording import Wording


@dataclass(frozen=True)
class Wordings:
    """Sentences around a noun ({} without, {a} with its article) that state it in other words.

    first, second: sentences of the sides for fitting. first_test, second_test: for the test.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    first_test: tuple[str, ...]
    second_test: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """Two contrary claims.

    first, second: captions of the world. Captions of one side mean the same, or each of them alone
    makes the side true. The first one is what the model is asked without a probe.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class Skill:
    """Facts of one kind.

    source: skill of `compoclip_world.pairs` that draws the pairs of scenes. fixed: properties that
    no further adjective may name. wordings: sentences that replace those of the world.
    """

    source: str
    facts: tuple[Fact, ...]
    fixed: tuple[str, ...] = ()
    wordings: Wordings | None = None


@dataclass(frozen=True)
class Source:
    """How the world is restricted for a skill of `compoclip_world.pairs`, and how many pairs."""

    world: Mapping[str, Any]
    pairs: int


# --- What is asked. ---

_THINGS = ("house", "mug", "bell")
_COLOURS = ("red", "blue", "yellow", "purple")
_PLAIN = {"kinds": _THINGS, "colours": _COLOURS, "unlike": True}

SOURCES: dict[str, Source] = {
    "object": Source(_PLAIN, 600),
    "position": Source(_PLAIN, 600),
    "relation": Source(_PLAIN, 1000),
    "inside": Source({**_PLAIN, "kinds": ("house", "mug", "box", "ring")}, 800),
    "depth": Source(_PLAIN, 1200),
    "comparison": Source(_PLAIN, 900),
    "count": Source({"kinds": _THINGS, "colours": _COLOURS}, 1000),
    "swap-colour": Source({**_PLAIN, "colours": ("red", "blue"), "unlike": False}, 900),
    "swap-size": Source({**_PLAIN, "kinds": ("house", "mug")}, 900),
    "swap-pattern": Source({**_PLAIN, "kinds": ("house", "mug")}, 1200),
}


def _facts(
    first: tuple[str, ...], second: tuple[str, ...], *fillings: tuple[str, ...]
) -> tuple[Fact, ...]:
    """Fill the templates of both sides with each tuple of words."""
    return tuple(
        Fact(*(tuple(text.format(*words) for text in side) for side in (first, second)))
        for words in fillings
    )


_ALONE = tuple((kind,) for kind in _THINGS)
_TWO = tuple(combinations(_THINGS, 2))


def _converse(one: str, other: str) -> tuple[Fact, ...]:
    """Facts of a relation and its converse, told from either thing.

    Both words stand as often on either side, so that a bag of words tells nothing.
    """
    first = (f"a {{0}} {one} a {{1}}", f"a {{1}} {other} a {{0}}")
    second = (f"a {{0}} {other} a {{1}}", f"a {{1}} {one} a {{0}}")
    return _facts(first, second, *_TWO)


def _bound(
    *values: tuple[str, str], things: tuple[tuple[str, str], ...] = _TWO
) -> tuple[Fact, ...]:
    """Facts of two things and two values of a property, in either order."""
    first = ("a {2} {0} and a {3} {1}", "a {3} {1} and a {2} {0}")
    second = ("a {3} {0} and a {2} {1}", "a {2} {1} and a {3} {0}")
    return _facts(first, second, *((*pair, *words) for pair, words in product(things, values)))


_NEGATED = (  # what rewrites or captions of the world write
    *("there is no {}", "no {}", "a picture without any {}", "the picture has no {}"),
    *("the {} is gone", "there is not any {}", "a picture without {a}"),
)
_NEGATED_TEST = ("the {} is absent", "no {} is in the picture", "the {} is not there")
_AFFIRMED = (
    *("there is {a}", "{a}", "a picture with {a}", "the picture has {a}"),
    *("the {} is here", "there is one {}", "a picture of {a}"),
)
_AFFIRMED_TEST = ("the {} is present", "{a} is in the picture", "the {} is there")
_NEGATED_OTHERWISE = tuple(text.format("{}", "{a}") for text in UNSEEN_WORDINGS)
_AFFIRMED_OTHERWISE = (
    *("the {} is visible", "a picture that holds {a}", "just {a}"),
    *("the picture does have {a}", "the {} can be seen", "there is something that is {a}"),
)
_PRESENT = _facts(("there is a {0}",), ("there is no {0}",), *_ALONE)
_MISSING = _facts(("there is a {0}",), ("the {0} is missing",), *_ALONE)
_PROPERTIES = ("colour", "size", "pattern")  # "no red house" is another fact than "no house"
_OUTSIDE = ("left of", "right of", "above", "below")
_INNER = tuple(product(("house", "mug"), ("box", "ring")))
_HOUSE_AND_MUG = (("house", "mug"),)

SKILLS: dict[str, Skill] = {
    "object": Skill("object", _facts(("a {0}",), ("a {1}",), *_TWO)),
    "negation": Skill(
        "object",
        _PRESENT,
        _PROPERTIES,
        Wordings(_AFFIRMED, _NEGATED, _AFFIRMED_TEST, _NEGATED_TEST),
    ),
    "negation_missing": Skill(
        "object",
        _MISSING,
        _PROPERTIES,
        Wordings(
            _AFFIRMED + _AFFIRMED_TEST,
            _NEGATED + _NEGATED_TEST,
            _AFFIRMED_OTHERWISE,
            _NEGATED_OTHERWISE,
        ),
    ),
    "position": Skill(
        "position",
        (
            *_facts(("a {0} on the left",), ("a {0} on the right",), *_ALONE),
            *_facts(("a {0} at the top",), ("a {0} at the bottom",), *_ALONE),
        ),
    ),
    "left_right": Skill("relation", _converse("left of", "right of")),
    "above_below": Skill("relation", _converse("above", "below")),
    "role": Skill(
        "relation",
        (
            *_facts(("a {0} left of a {1}",), ("a {1} left of a {0}",), *_TWO),
            *_facts(("a {0} above a {1}",), ("a {1} above a {0}",), *_TWO),
        ),
    ),
    "inside": Skill(
        "inside",
        _facts(
            ("a {0} inside a {1}",),
            tuple(f"a {{0}} {place} a {{1}}" for place in _OUTSIDE),
            *_INNER,
        ),
    ),
    "front_behind": Skill("depth", _converse("in front of", "behind")),
    "bigger_smaller": Skill("comparison", _converse("bigger than", "smaller than"), ("size",)),
    "count": Skill(
        "count",
        _facts(
            ("{0}",),
            ("{1}",),
            *((f"two {kind}s", f"one {kind}") for kind in _THINGS),
            *((f"three {kind}s", f"two {kind}s") for kind in _THINGS),
        ),
        _PROPERTIES,
    ),
    "bind_colour": Skill("swap-colour", _bound(("red", "blue")), ("colour",)),
    "bind_size": Skill(
        "swap-size",
        _bound(*combinations(SIZES, 2), things=_HOUSE_AND_MUG),
        ("size",),
    ),
    "bind_pattern": Skill(
        "swap-pattern",
        _bound(*combinations(PATTERNS, 2), things=_HOUSE_AND_MUG),
        ("pattern",),
    ),
}
"""Task of `compoclip_world.export.pairs.TASKS` -> its facts."""


# --- Which side a scene shows. ---


def shown(fact: Fact, pair: WorldPair) -> tuple[int, str, str] | None:
    """Return which scene of the pair shows the first side, and the captions of both sides.

    The captions are true of the scene that shows their side. None when the pair does not show both
    sides, each in one scene, or when the oracle cannot decide it.
    """
    scenes = (pair.scene_a, pair.scene_b)
    for which in (0, 1):
        one, other = scenes[which], scenes[1 - which]
        first = _true_only_of(fact.first, one, other)
        second = _true_only_of(fact.second, other, one)
        if first is not None and second is not None:
            return which, first, second
    return None


def _true_only_of(captions: tuple[str, ...], scene: Scene, other: Scene) -> str | None:
    """Return a caption that is true of the scene and false of the other, of which none is true."""
    forms = [form_of(text) for text in captions]
    if any(is_true(form, other) for form in forms):
        return None
    for text, form in zip(captions, forms):
        if is_true(form, scene) and is_false(form, other):
            return text
    return None


@cache
def form_of(caption: str) -> Form:
    """Return the parsed caption."""
    return parse(caption)


# --- Texts of a fact. ---

_FAMILIES = {
    "colour": (_COLOURS, 0.5),
    "size": (tuple(SIZES), 0.2),
    "pattern": (tuple(PATTERNS), 0.2),
}
_PATIENCE = 400


@dataclass(frozen=True)
class TextPair:
    """A text of each side with the same unrelated words; test: of a held-out wording."""

    first: str
    second: str
    test: bool


def texts_of(skill: Skill, fact: Fact, fitting: int, testing: int) -> list[TextPair]:
    """Return so many different pairs of texts of known and of held-out wordings.

    A function of the arguments. Raises CompoclipError when too few different texts come up.
    """
    pairs: dict[tuple[str, str], TextPair] = {}
    missing = {False: fitting, True: testing}
    for index in range(_PATIENCE * (fitting + testing)):
        pair = _text_pair(skill, fact, generator("texts", *fact.first, *fact.second, index))
        if missing[pair.test] and (pair.first, pair.second) not in pairs:
            pairs[pair.first, pair.second] = pair
            missing[pair.test] -= 1
        if not any(missing.values()):
            return list(pairs.values())
    raise CompoclipError(
        f"too few texts say {fact.first[0]!r} in held-out or other words; ask for fewer texts"
    )


def _text_pair(skill: Skill, fact: Fact, rng: random.Random) -> TextPair:
    """Word both sides alike, and surround them with the same words."""
    sides = _by_sentences if skill.wordings else _by_forms
    first, second, test = sides(skill, fact, rng)
    before, after = _unrelated(fact, rng)
    style = rng.randrange(2**32)
    return TextPair(
        dress(before + first + after, random.Random(style)),
        dress(before + second + after, random.Random(style)),
        test,
    )


def _by_forms(skill: Skill, fact: Fact, rng: random.Random) -> tuple[str, str, bool]:
    """Word a caption of each side as the world words its captions."""
    adjectives = {kind: _adjectives(skill, kind, rng) for kind in sorted(_kinds_of(fact))}
    place, claimed, style = rng.randrange(12), rng.random() < 0.4, rng.randrange(2**32)
    colour_first = rng.random() < 0.4
    texts = []
    for captions in (fact.first, fact.second):
        form = _described(form_of(captions[place % len(captions)]), adjectives)
        form = _as_claim(form) if claimed else form
        wording = Wording(random.Random(style), 0.3, 0.8, colour_first)
        texts.append(wording.caption(form))
    return texts[0], texts[1], any(phrases_of(held_out(fact), text) for text in texts)


def _by_sentences(skill: Skill, fact: Fact, rng: random.Random) -> tuple[str, str, bool]:
    """Put the fact's noun into a sentence of each side."""
    assert skill.wordings is not None
    (kind,) = _kinds_of(fact)
    described = NounPhrase(frozenset((kind,)), kind, _adjectives(skill, kind, rng))
    noun = Wording(rng, 0.3).noun_phrase(described).split(" ", 1)[1]
    test = rng.random() < 0.3
    wordings = skill.wordings
    first = rng.choice(wordings.first_test if test else wordings.first)
    second = rng.choice(wordings.second_test if test else wordings.second)
    texts = [text.format(noun, a=with_article(noun)) for text in (first, second)]
    return texts[0], texts[1], test


def _nodes(fact: Fact) -> Iterator[Node]:
    """Yield the nodes of all captions of a fact."""
    for text in (*fact.first, *fact.second):
        yield from nodes_of(form_of(text))


def _kinds_of(fact: Fact) -> set[str]:
    """Return the kinds that a fact speaks of."""
    phrases = (node for node in _nodes(fact) if isinstance(node, NounPhrase))
    return {kind for phrase in phrases for kind in phrase.kinds}


@cache
def held_out(fact: Fact) -> tuple[str, ...]:
    """Return the words and phrases for the fact's concepts that stand in texts of the test alone.

    They are the last synonym, or phrase, of each concept that has several.
    """
    words = [SYNONYMS[kind] for kind in sorted(_kinds_of(fact))]
    for node in _nodes(fact):
        match node:
            case Attribute(value=value):
                words.append(SYNONYMS[value])
            case Relation(name=str(name)):
                words.append(RELATION_PHRASES[name][1:])
            case Position(name=str(name)):
                words.append(POSITION_PHRASES[name][1:])
    last = dict.fromkeys(others[-1] for others in words if others)
    return (*last, *map(pluralise, last))


def _adjectives(skill: Skill, kind: str, rng: random.Random) -> tuple[Attribute, ...]:
    """Sample adjectives that have nothing to do with the fact."""
    return tuple(
        Attribute(family, rng.choice(values))
        for family, (values, chance) in _FAMILIES.items()
        if rng.random() < chance and family not in skill.fixed
    )


def _described(form: Form, adjectives: Mapping[str, tuple[Attribute, ...]]) -> Form:
    """Return a form of statements that things exist, with these adjectives on its nouns."""

    def phrase(node: NounPhrase) -> NounPhrase:
        (kind,) = node.kinds
        rest = (
            replace(each, object=phrase(each.object)) if isinstance(each, Relation) else each
            for each in node.modifiers
        )
        return replace(node, word=kind, modifiers=(*adjectives[kind], *rest))

    return tuple(Exists(phrase(each.phrase)) for each in form if isinstance(each, Exists))


def _as_claim(form: Form) -> Form:
    """Return "the house is left of the mug" for "a house left of a mug"; others as they are."""
    match form:
        case (Exists(NounPhrase(modifiers=(*rest, Relation() | Position() as last)) as phrase),):
            the = replace(phrase, modifiers=tuple(rest), quantifier=Quantifier.THE)
            if isinstance(last, Relation):
                last = replace(last, object=replace(last.object, quantifier=Quantifier.THE))
            return (Claim(the, (last,)),)
    return form


def _unrelated(fact: Fact, rng: random.Random) -> tuple[str, str]:
    """Sample words before and after a text: another thing, the background, or nothing."""
    kind = rng.choice(sorted(KINDS.keys() - _kinds_of(fact) - set(_THINGS)))
    thing = with_article(f"{rng.choice(_COLOURS)} {kind}")
    screen = f" on {with_article(rng.choice(tuple(BACKDROP_COLOURS)))} background"
    return rng.choice(
        (
            ("", ""),
            (f"{thing} and ", ""),
            ("", f" and {thing}"),
            ("", screen),
            (f"{thing}, ", screen),
        )
    )


# --- Facts of photos, which captions tell. ---


@dataclass(frozen=True)
class PhotoFact:
    """Two contrary claims about a photo.

    first, second: captions, which the model is asked without a probe. first_words, second_words:
    regular expressions of words that say so in captions of photos.
    """

    first: str
    second: str
    first_words: str
    second_words: str

    def side_of(self, captions: Sequence[str]) -> int | None:
        """Return 0 or 1 when `AGREED` captions say that side and none says the other, else None."""
        said = [
            sum(re.search(words, text, re.IGNORECASE) is not None for text in captions)
            for words in (self.first_words, self.second_words)
        ]
        sides = [side for side in (0, 1) if said[side] >= AGREED and not said[1 - side]]
        return sides[0] if sides else None


AGREED = 3
_PERSON = r"(man|person|boy|girl|woman|child)"
_PEOPLE = r"(men|people|boys|girls|women|children|kids)"
_THE = r"(the |a |some |green |deep |shallow |sandy )*"

PHOTO_SKILLS: dict[str, tuple[PhotoFact, ...]] = {
    "replace_object": (
        PhotoFact("a man", "a woman", r"\b(man|men|guys?)\b", r"\b(wom[ae]n|lady|ladies)\b"),
        PhotoFact("a boy", "a girl", r"\bboys?\b", r"\bgirls?\b"),
        PhotoFact("a dog", "a child", r"\bdogs?\b", r"\b(child|children|boys?|girls?|kids?)\b"),
        PhotoFact("a bike", "a ball", r"\b(bikes?|bicycles?|biker|bicyclist)\b", r"\b\w*balls?\b"),
    ),
    "replace_attribute": (
        PhotoFact(
            "a black dog",
            "a white dog",
            r"\bblack (\w+ )?dogs?\b",
            r"\b(white|brown|tan|yellow|golden) (\w+ )?dogs?\b",
        ),
    ),
    "replace_relation": (
        PhotoFact(
            "a person is sitting",
            "a person is standing",
            r"\b(sits?|sitting|seated)\b",
            r"\b(stands?|standing)\b",
        ),
        PhotoFact("running", "jumping", r"\b(runs?|running)\b", r"\b(jump|leap)(s|ing)?\b"),
        PhotoFact(
            "in the water",
            "on the grass",
            rf"\b(in|into|through) {_THE}(water|pool|ocean|lake|river)\b",
            rf"\b(on|in|through|across) {_THE}(grass|field|lawn)\b",
        ),
        PhotoFact(
            "in the snow",
            "on the beach",
            rf"\b(in|on|through|down) {_THE}snowy?\b",
            rf"\b(on|at|along) {_THE}(beach|sand|shore)\b",
        ),
    ),
    "count": (
        PhotoFact(
            "two dogs",
            "a dog",
            r"\btwo (\w+ )?(dogs|puppies)\b",
            r"\b(a|one) (\w+ ){0,2}(dog|puppy)\b",
        ),
        PhotoFact(
            "two people",
            "a person",
            rf"\btwo (\w+ )?{_PEOPLE}\b",
            rf"\b(a|one) (\w+ )?{_PERSON}\b",
        ),
        PhotoFact(
            "two people",
            "three people",
            rf"\btwo (\w+ )?{_PEOPLE}\b",
            rf"\b(three|four|several) (\w+ )?{_PEOPLE}\b",
        ),
    ),
}
"""Sub-task of the items of `rewrites:` -> facts of photos.

Exchanged attributes and things are left out: no two of them are exchanged in enough photos. So are
left and right: captions say it of ever other things.
"""
