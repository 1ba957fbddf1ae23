"""Captions of a scene: true statements of varied type and length, with their logical form."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from compoclip.errors import CompoclipError
from compoclip_world.geometry import POSITIONS, located, related
from compoclip_world.logic import (
    Attribute,
    Background,
    Claim,
    Exists,
    Form,
    Lacking,
    Modifier,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    Statement,
    count_atoms,
)
from compoclip_world.sampling import generator, held_out_attributes
from compoclip_world.scene import Scene, Thing, WorldConfig, require_weights
from compoclip_world.vocabulary import require_known
from compoclip_world.wording import Wording

_PREFIXES = ("a picture of ", "an image of ", "a drawing of ")
_FAMILY_WEIGHTS: dict[str, float] = {
    "left": 2.0,
    "right": 2.0,
    "above": 1.5,
    "below": 1.5,
    "inside": 12.0,
    "around": 3.0,
    "front": 6.0,
    "behind": 6.0,
    "bigger": 0.5,
    "smaller": 0.5,
    "same colour": 2.0,
}


@dataclass(frozen=True, slots=True)
class WorldCaption:
    """A true caption. kind: its type, a key of `CAPTION_TYPES`. form: what it claims."""

    text: str
    kind: str
    form: Form


@dataclass(frozen=True)
class Facts:
    """Facts about a scene, computed once for all its captions."""

    scene: Scene
    things: tuple[Thing, ...]
    positions: tuple[tuple[str, ...], ...]
    relations: tuple[tuple[str, int, int], ...]


def facts_of(scene: Scene) -> Facts:
    """All certain positions, and the certain (relation, subject, object) facts, of the scene.

    That two things of one kind have the same colour is left out: it reads like a count.
    """
    things = scene.things
    relations = tuple(
        (name, i, j)
        for i, a in enumerate(things)
        for j, b in enumerate(things)
        if i != j
        for name in _FAMILY_WEIGHTS
        if related(name, a, b) and not (name == "same colour" and a.kind == b.kind)
    )
    positions = tuple(tuple(p for p in POSITIONS if located(p, t)) for t in things)
    return Facts(scene, things, positions, relations)


def fits(thing: Thing, kind: str | None, attributes: tuple[Attribute, ...]) -> bool:
    """True if the thing is of the kind (any, if None) and has all the attributes."""
    if kind is not None and thing.kind != kind:
        return False
    return all(getattr(thing, a.family) == a.value for a in attributes)


def looks(thing: Thing, rng: random.Random, count: int) -> tuple[Attribute, ...]:
    """At most `count` attributes of the thing: mostly its colour, sometimes pattern and size."""
    pool = [Attribute("colour", thing.colour)]
    if thing.pattern != "plain":
        pool.append(Attribute("pattern", thing.pattern))
    if thing.size != "medium" or rng.random() < 0.1:
        pool.append(Attribute("size", thing.size))
    if thing.pattern == "plain" and rng.random() < 0.1:
        pool.append(Attribute("pattern", "plain"))
    if count < len(pool) and rng.random() < 0.35:
        rng.shuffle(pool)
    return tuple(pool[:count])


def _told(thing: Thing, config: WorldConfig, rng: random.Random) -> NounPhrase:
    """ "a red star", with as many attributes as the config has them."""
    return mention(thing, rng, rng.choices((0, 1, 2, 3), config.attributes)[0])


def mention(thing: Thing, rng: random.Random, count: int) -> NounPhrase:
    """ "a red star": a noun phrase that the thing fits, with at most `count` attributes."""
    return NounPhrase.of(thing.kind, looks(thing, rng, count))


def definite(facts: Facts, thing: Thing, rng: random.Random) -> NounPhrase | None:
    """ "the red star": the shortest of a few descriptions that fit this thing alone, or None."""
    for count in (0, 1, 2, 3) if rng.random() < 0.6 else (1, 2, 3):
        seen = looks(thing, rng, count)
        if sum(fits(other, thing.kind, seen) for other in facts.things) == 1:
            return NounPhrase.of(thing.kind, seen, Quantifier.THE)
    return None


def extend(phrase: NounPhrase, *modifiers: Modifier) -> NounPhrase:
    """The phrase with further modifiers after its own."""
    return replace(phrase, modifiers=(*phrase.modifiers, *modifiers))


def _background(facts: Facts, rng: random.Random) -> Background:
    drop = facts.scene.backdrop
    draw = rng.random()
    if drop.texture == "plain":
        return Background(drop.colour, "plain" if draw < 0.2 else "")
    if draw < 0.5:
        return Background(drop.colour, drop.texture)
    return Background("", drop.texture) if draw < 0.65 else Background(drop.colour)


Maker = Callable[[Facts, WorldConfig, random.Random], Form | None]


def _object(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    return (Exists(_told(rng.choice(facts.things), config, rng)),)


def _kind(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    """The bare kind, half the time with its place: shape and place alone tell scenes apart."""
    i = rng.randrange(len(facts.things))
    phrase = mention(facts.things[i], rng, 0)
    if facts.positions[i] and rng.random() < 0.5:
        phrase = extend(phrase, Position(rng.choice(facts.positions[i])))
    return (Exists(phrase),)


def _predicate(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    statements: list[Statement] = []
    for thing in rng.sample(facts.things, min(len(facts.things), rng.choice((1, 1, 2)))):
        claimed = looks(thing, rng, rng.choice((1, 1, 2)))
        named = {a.family for a in claimed}
        extra = [a for a in looks(thing, rng, 3) if a.family not in named]
        for described in ((), *((a,) for a in extra)):
            if sum(fits(other, thing.kind, described) for other in facts.things) == 1:
                subject = NounPhrase.of(thing.kind, described, Quantifier.THE)
                statements.append(Claim(subject, claimed))
                break
    return tuple(statements) or None


def _position(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    placed = [i for i, names in enumerate(facts.positions) if names]
    if not placed:
        return None
    i = rng.choice(placed)
    # A corner says more than an edge, so it is preferred where it holds.
    name = max(facts.positions[i], key=lambda p: (" " in p) + 1.3 * rng.random())
    thing = facts.things[i]
    if rng.random() < 0.3 and (subject := definite(facts, thing, rng)):
        return (Claim(subject, (Position(name),)),)
    return (Exists(extend(_told(thing, config, rng), Position(name))),)


def _conjunction(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    if len(facts.things) < 2:
        return None
    count = min(len(facts.things), rng.choice((2, 2, 2, 3, 4)))
    return tuple(Exists(_told(t, config, rng)) for t in rng.sample(facts.things, count))


def _fact(facts: Facts, rng: random.Random) -> tuple[str, int, int] | None:
    if not facts.relations:
        return None
    return rng.choices(facts.relations, [_FAMILY_WEIGHTS[r[0]] for r in facts.relations])[0]


def _relation(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    fact = _fact(facts, rng)
    if fact is None:
        return None
    name, i, j = fact
    a, b = facts.things[i], facts.things[j]
    if rng.random() < 0.35:
        subject, other = definite(facts, a, rng), definite(facts, b, rng)
        if subject and other:
            return (Claim(subject, (Relation(name, other),)),)
    return (Exists(extend(_told(a, config, rng), Relation(name, _told(b, config, rng)))),)


def counted(facts: Facts, thing: Thing, rng: random.Random) -> NounPhrase:
    """ "two red stars": how many things fit some description of this thing, exactly."""
    seen = looks(thing, rng, rng.choice((0, 1, 1, 2)))
    number = sum(fits(other, thing.kind, seen) for other in facts.things)
    return NounPhrase.of(thing.kind, seen, Quantifier.EXACTLY, number)


def _count(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    groups = [t for t in facts.things if sum(o.kind == t.kind for o in facts.things) > 1]
    if not groups and rng.random() < 0.85:
        return None
    first = counted(facts, rng.choice(groups or facts.things), rng)
    others = [t for t in facts.things if t.kind != first.word]
    if others and rng.random() < 0.4:
        second = rng.choice(others)
        phrase = counted(facts, second, rng)
        return Exists(first), Exists(phrase if phrase.number > 1 else _told(second, config, rng))
    return (Exists(first),)


def absent(facts: Facts, config: WorldConfig, rng: random.Random) -> NounPhrase:
    """A description that nothing fits, close to the scene where possible: "no blue star".

    Held-out pairs are never named, so that no ordinary caption speaks of an unseen compound.
    """
    held = held_out_attributes(config)
    kinds, colours = config.known_kinds, config.known_colours
    for _ in range(50):
        near = rng.random() < 0.6
        kind = rng.choice(facts.things).kind if near else rng.choice(kinds)
        colour = rng.choice(facts.things).colour if rng.random() < 0.5 else rng.choice(colours)
        attributes = (Attribute("colour", colour),) if near or rng.random() < 0.5 else ()
        if attributes and (colour, kind) in held:
            continue
        if not any(fits(t, kind, attributes) for t in facts.things):
            return NounPhrase.of(kind, attributes, Quantifier.NONE)
    raise CompoclipError("world: nothing is absent from the scene; allow more kinds and colours")


def _negation(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    phrase, draw = absent(facts, config, rng), rng.random()
    if draw < 0.4:
        return (Exists(phrase),)
    thing = rng.choice(facts.things)
    if draw < 0.75:
        return (Exists(extend(_told(thing, config, rng), Lacking(phrase))),)
    subject = definite(facts, thing, rng)
    if subject is None or any(
        isinstance(m, Attribute) and m.family == "colour" for m in subject.modifiers
    ):
        return None
    other = rng.choice([c for c in config.known_colours if c != thing.colour])
    if (other, thing.kind) in held_out_attributes(config):
        return None
    return (Claim(subject, (Attribute("colour", other, negated=True),)),)


def _scenery(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    if rng.random() < 0.2:
        drop = facts.scene.backdrop
        texture = drop.texture if rng.random() < 0.4 else ""
        return (Background("" if texture else drop.colour, texture),)
    thing = rng.choice(facts.things)
    return (Exists(extend(_told(thing, config, rng), _background(facts, rng))),)


def _long(facts: Facts, config: WorldConfig, rng: random.Random) -> Form | None:
    """Several statements up to the whole scene: 5 to 12 atoms."""
    statements: list[Statement] = []
    fact = _fact(facts, rng) if rng.random() < 0.7 else None
    mentioned: set[int] = set()
    if fact is not None:
        name, i, j = fact
        mentioned = {i, j}
        first, second = mention(facts.things[i], rng, 2), mention(facts.things[j], rng, 2)
        statements.append(Exists(extend(first, Relation(name, second))))
    rest = [i for i in range(len(facts.things)) if i not in mentioned]
    for i in rng.sample(rest, len(rest)):
        phrase = mention(facts.things[i], rng, rng.choice((1, 2, 3)))
        if facts.positions[i] and rng.random() < 0.8:
            name = max(facts.positions[i], key=lambda p: (" " in p) + rng.random())
            phrase = extend(phrase, Position(name))
        statements.append(Exists(phrase))
    last = statements[-1]
    if isinstance(last, Exists) and rng.random() < 0.7:
        # The background closes the caption. After "a below b" it follows the inner phrase, which
        # does not change what is claimed.
        statements[-1] = Exists(extend(last.phrase, _background(facts, rng)))
    form = tuple(statements)
    return form if 5 <= count_atoms(form) <= 12 else None


CAPTION_TYPES: dict[str, tuple[float, Maker]] = {
    "object": (0.12, _object),
    "kind": (0.0, _kind),
    "predicate": (0.08, _predicate),
    "position": (0.2, _position),
    "conjunction": (0.12, _conjunction),
    "relation": (0.24, _relation),
    "count": (0.1, _count),
    "negation": (0.06, _negation),
    "background": (0.06, _scenery),
    "long": (0.1, _long),
}
"""Caption types with their default weight and the function that makes their logical form."""


def weights_of(config: WorldConfig) -> dict[str, float]:
    """Return the weight of every caption type. Raises UsageError for an unknown one, and for
    weights that nothing can be drawn by."""
    require_known("caption type", (name for name, _ in config.caption_weights), CAPTION_TYPES)
    usual = {name: weight for name, (weight, _) in CAPTION_TYPES.items()}
    weights = {**usual, **dict(config.caption_weights)}
    require_weights("caption_weights", weights.values())
    return weights


def captions_for(
    scene: Scene, config: WorldConfig, seed: int, index: int, count: int = 5
) -> tuple[WorldCaption, ...]:
    """`count` different true captions of scene `index` of a split; a function of the arguments.

    Raises UsageError as `weights_of`, CompoclipError when the scene has
    not enough different captions of the types that the config allows.
    """
    weights = weights_of(config)
    first = scene.things[0]
    rng = generator("captions", seed, index, first.x, first.y)
    facts, names, chances = facts_of(scene), tuple(weights), tuple(weights.values())
    captions: dict[str, WorldCaption] = {}
    for _ in range(400 * count):  # a rare type may be the only one that fits
        kind = rng.choices(names, chances)[0]
        form = CAPTION_TYPES[kind][1](facts, config, rng)
        if form is None:
            continue
        wording = Wording(rng, config.synonyms, 0.5, rng.random() < 0.4, config.rare)
        text = dress(wording.caption(form), rng)
        if text not in captions:
            captions[text] = WorldCaption(text, kind, form)
        if len(captions) == count:
            return tuple(captions.values())
    raise CompoclipError(
        f"world: only {len(captions)} of {count} different captions exist for a scene; "
        "ask for fewer captions or allow more caption types"
    )


def dress(text: str, rng: random.Random) -> str:
    """Sometimes a prefix ("a picture of"), sometimes a capital and a full stop."""
    draw = rng.random()
    if draw < 0.08 and text.startswith(("a ", "an ")):
        text = rng.choice(_PREFIXES) + text
    return text[0].upper() + text[1:] + "." if rng.random() < 0.3 else text
