"""Drawing scenes: scene i of a split and seed is the same whatever else was drawn."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from compoclip.errors import CompoclipError
from compoclip_world.geometry import CENTRE, CONVERSE, EDGE, POSITIONS, related
from compoclip_world.logic import Attribute, Claim, Exists, Form, Modifier, NounPhrase, Relation
from compoclip_world.scene import Backdrop, Scene, Thing, WorldConfig
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    COLOURS,
    KINDS,
    PATTERNS,
    SIZE_ORDER,
    SIZES,
    can_show,
    clashes,
    require_known,
)

# --- Which compounds are kept out of ordinary splits, so that unseen compounds can be tested. ---
#
# Ordinary splits (train, val, test) hold no scene with a held-out (colour, kind) pair or a held-out
# (kind, relation, kind) triple. Every scene of "novel-attribute" holds such a pair, every scene
# of "novel-relation" such a triple. Each kind, colour and relation alone occurs in training.

ORDINARY: tuple[str, ...] = ("train", "val", "test")
NOVEL_ATTRIBUTE = "novel-attribute"
NOVEL_RELATION = "novel-relation"
SPLITS: tuple[str, ...] = (*ORDINARY, NOVEL_ATTRIBUTE, NOVEL_RELATION)

HELD_RELATIONS: tuple[str, ...] = ("left", "above", "inside", "front")
"""Relations whose compounds are held out; each covers its converse (right, below, behind)."""

Pair = tuple[str, str]
Triple = tuple[str, str, str]
_T = TypeVar("_T", bound=tuple[str, ...])


def generator(*key: object) -> random.Random:
    """The random generator that belongs to a key alone: blake2b over its parts."""
    text = "\x1f".join(map(str, key)).encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


def _lowest(items: Iterable[_T], share: float, seed: int) -> frozenset[_T]:
    def rank(item: _T) -> bytes:
        return hashlib.blake2b("\x1f".join((str(seed), *item)).encode(), digest_size=8).digest()

    ordered: Sequence[_T] = sorted(items, key=rank)
    return frozenset(ordered[: round(share * len(ordered))])


def held_out_attributes(config: WorldConfig) -> frozenset[Pair]:
    """The (colour, kind) pairs that ordinary splits never show."""
    return _attributes(config.holdout_attribute, config.holdout_seed)


def held_out_relations(config: WorldConfig) -> frozenset[Triple]:
    """The (kind, relation, kind) triples that ordinary splits never show."""
    return _relations(config.holdout_relation, config.holdout_seed)


# A suite has a configuration for every class of its zero-shot sets; all hold out the same.
@lru_cache(maxsize=64)
def _attributes(share: float, seed: int) -> frozenset[Pair]:
    return _lowest(((c, k) for c in COLOURS for k in KINDS), share, seed)


@lru_cache(maxsize=64)
def _relations(share: float, seed: int) -> frozenset[Triple]:
    def possible(relation: str, a: str, b: str) -> bool:
        if relation == "inside":
            return KINDS[b].hollow and not KINDS[a].hollow
        return relation != "front" or (KINDS[a].solid and KINDS[b].solid)

    triples = [(a, r, b) for r in HELD_RELATIONS for a in KINDS for b in KINDS if possible(r, a, b)]
    return _lowest(triples, share, seed)


def held_out_in(scene: Scene, config: WorldConfig) -> tuple[frozenset[Pair], frozenset[Triple]]:
    """The held-out pairs and triples that the scene shows."""
    pairs = {(t.colour, t.kind) for t in scene.things} & held_out_attributes(config)
    held = held_out_relations(config)
    triples = {
        key
        for a in scene.things
        for b in scene.things
        if a is not b
        for relation in HELD_RELATIONS
        if (key := (a.kind, relation, b.kind)) in held and related(relation, a, b)
    }
    return frozenset(pairs), frozenset(triples)


# --- Drawing scenes: scene i of a split and seed is the same whatever else was drawn. ---

GAP = 1.12
"""Separate things keep their centres at least this share of their radius sum apart."""
_ATTEMPTS = 2000
_PLACE_TRIES = 16
_SIZE_WEIGHTS = ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.2, 1.0, 0.5), (1.5, 1.0, 0.25))
_TEXTURED = tuple(t for t in BACKDROP_TEXTURES if t != "plain")
_PATTERNED = tuple(p for p in PATTERNS if p != "plain")
_JITTER = (0.95, 1.0, 1.05)


@dataclass(frozen=True)
class _Tables:
    """The choices that a config allows, computed once."""

    kinds: tuple[str, ...]
    hollow: tuple[str, ...]
    solid: tuple[str, ...]
    backdrops: tuple[str, ...]
    colours: dict[tuple[str, str], tuple[str, ...]]  # (backdrop, kind) -> colours
    novel: dict[str, tuple[tuple[str, str], ...]]  # backdrop -> held-out (colour, kind)
    triples: tuple[Triple, ...]


def require_words(config: WorldConfig) -> None:
    """Raise UsageError for kinds, colours and backgrounds that the world does not have."""
    require_known("kind", config.kinds, KINDS)
    require_known("colour", config.colours, COLOURS)
    require_known("backdrop", config.backdrops, BACKDROP_COLOURS)


@lru_cache(maxsize=32)
def _tables(config: WorldConfig) -> _Tables:
    require_words(config)
    kinds, colours = config.known_kinds, config.known_colours
    backdrops = config.backdrops or tuple(BACKDROP_COLOURS)
    held = held_out_attributes(config)
    fits = {b: [c for c in colours if not clashes(c, b)] for b in BACKDROP_COLOURS}
    if not any(fits[b] for b in backdrops):
        raise CompoclipError(
            f"world: no background ({', '.join(backdrops)}) shows a thing in {', '.join(colours)}; "
            "allow more backgrounds or colours"
        )
    table = {
        (b, k): tuple(c for c in fits[b] if (c, k) not in held)
        for b in BACKDROP_COLOURS
        for k in kinds
    }
    return _Tables(
        kinds=kinds,
        hollow=tuple(k for k in kinds if KINDS[k].hollow),
        solid=tuple(k for k in kinds if KINDS[k].solid),
        backdrops=tuple(b for b in BACKDROP_COLOURS if b in backdrops and fits[b]),
        colours=table,
        novel={
            b: tuple(sorted(p for p in held if p[0] in fits[b] and p[1] in kinds))
            for b in BACKDROP_COLOURS
        },
        triples=tuple(
            sorted(t for t in held_out_relations(config) if t[0] in kinds and t[2] in kinds)
        ),
    )


def scene_for(config: WorldConfig, seed: int, split: str, index: int) -> Scene:
    """A scene, a pure function of the arguments.

    Raises UsageError for an unknown split, CompoclipError when the config (a tiny subset of kinds
    or colours, say) leaves no scene for the split.
    """
    require_known("split", (split,), SPLITS)
    rng = generator("scene", seed, split, index)
    for _ in range(_ATTEMPTS):
        scene = draw_scene(config, rng, split)
        if scene is not None and belongs(split, config, scene):
            return scene
    raise CompoclipError(
        f"world: no scene of split {split!r} fits this configuration; "
        "allow more kinds and colours, or a larger held-out share"
    )


def belongs(split: str, config: WorldConfig, *scenes: Scene) -> bool:
    """True if scenes may be of a split: none shows a held-out compound, or one of them does."""
    compounds = [held_out_in(scene, config) for scene in scenes]
    if split in ORDINARY:
        return not any(pairs or triples for pairs, triples in compounds)
    return any(held[split != NOVEL_ATTRIBUTE] for held in compounds)


def draw_scene(config: WorldConfig, rng: random.Random, split: str = "train") -> Scene | None:
    """One attempt at a scene; None when the things did not fit or no colour was left for a kind."""
    tables = _tables(config)
    count = rng.choices(range(1, len(config.objects) + 1), config.objects)[0]
    triple = None
    if split == NOVEL_RELATION and tables.triples:
        triple, count = rng.choice(tables.triples), max(count, 2)
    link = _link(config, tables, rng, count, triple)
    backdrop = rng.choice(tables.backdrops)
    textured = rng.random() < config.textured
    texture = rng.choice(_TEXTURED) if textured else "plain"
    novel = tables.novel[backdrop] if split == NOVEL_ATTRIBUTE else ()
    things: list[Thing] = []
    for i in range(count):
        pool = _kind_pool(tables, link, i)
        fitting = [p for p in novel if p[1] in pool] if i == 0 else []
        pair = rng.choice(fitting) if fitting else None
        looks = _looks(config, tables, rng, backdrop, things, count, pool)
        if triple is not None and i < 2:
            looks = (triple[0] if i == 0 else triple[2], *looks[1:])
        if pair is not None:
            looks = (pair[1], pair[0], *looks[2:])
        thing = _place(config, rng, looks, things, i, link, triple)
        if thing is None:
            return None
        things.append(thing)
    kinds, colours = ({getattr(t, name) for t in things} for name in ("kind", "colour"))
    if config.unlike and not len(things) == len(kinds) == len(colours):
        return None
    return Scene(tuple(things), Backdrop(backdrop, texture, rng.randrange(8)))


def _link(
    config: WorldConfig, tables: _Tables, rng: random.Random, count: int, triple: Triple | None
) -> str | None:
    """True if the first two things are an "inside" or a "front" pair."""
    if triple is not None:
        return triple[1] if triple[1] in ("inside", "front") else None
    draw = rng.random()
    if count < 2 or not tables.solid:
        return None
    if draw < config.inside:
        return "inside" if tables.hollow else None
    return "front" if draw < config.inside + config.occlusion else None


def _kind_pool(tables: _Tables, link: str | None, i: int) -> tuple[str, ...]:
    if link == "inside" and i < 2:
        return tables.hollow if i == 1 else tables.solid
    return tables.solid if link == "front" and i < 2 else tables.kinds


def _looks(
    config: WorldConfig,
    tables: _Tables,
    rng: random.Random,
    backdrop: str,
    earlier: list[Thing],
    count: int,
    pool: tuple[str, ...],
) -> tuple[str, str, str, str]:
    """(kind, colour, size, pattern) of the next thing; copies an earlier one now and then."""
    size = rng.choices(SIZE_ORDER, _SIZE_WEIGHTS[count - 1])[0]
    pattern = rng.choice(_PATTERNED) if rng.random() < config.patterned else "plain"
    draw = rng.random()
    if earlier and draw < config.repeat:
        model = rng.choice(earlier)
        if model.kind in pool:
            if rng.random() < 0.6:
                pattern = model.pattern
            return model.kind, model.colour, size, pattern
    kind = rng.choice(pool)
    allowed = tables.colours[backdrop, kind]
    if earlier and draw > 1 - config.same_colour:
        same = rng.choice(earlier).colour
        if same in allowed:
            return kind, same, size, pattern
    return kind, rng.choice(allowed) if allowed else "", size, pattern


def _place(
    config: WorldConfig,
    rng: random.Random,
    looks: tuple[str, str, str, str],
    earlier: list[Thing],
    i: int,
    link: str | None,
    triple: Triple | None,
) -> Thing | None:
    """The thing at a spot where it overlaps nothing, or makes the wanted pair with the first."""
    kind, colour, size, pattern = looks
    if not colour:
        return None
    if link == "inside" and i < 2:
        size = "large" if i == 1 else "small"
    if link == "front" and i == 0 and size == "large":
        size = "medium"
    if link == "front" and i == 1 and SIZES[size].radius < earlier[0].radius / 1.1:
        size = earlier[0].size
    pattern = pattern if can_show(kind, size) else "plain"
    radius = SIZES[size].radius * rng.choice(_JITTER)
    shade = rng.randrange(-10, 11)
    for _ in range(_PLACE_TRIES):
        if link == "inside" and i == 1:
            x, y = (v + rng.uniform(-0.02, 0.02) for v in (earlier[0].x, earlier[0].y))
        elif link == "front" and i == 1:
            x, y = _beside(rng, earlier[0], radius)
        else:
            x, y = spot(rng, radius, rng.random() < config.anchored)
        if not (radius <= x <= 1 - radius and radius <= y <= 1 - radius):
            continue
        thing = Thing(kind, colour, size, pattern, x, y, radius, i, shade)
        free = earlier[2:] if link and i == 1 else earlier
        wanted = triple is None or i != 1 or related(triple[1], earlier[0], thing)
        if wanted and all(apart(thing, other) for other in free):
            return thing
    return None


def _beside(rng: random.Random, front: Thing, radius: float) -> tuple[float, float]:
    """A centre for a thing that `front` partly hides, in any of seven directions."""
    dx, dy = rng.choice(((1, 0), (-1, 0), (0, 1), (0, -1), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7)))
    reach = rng.uniform(0.48, 0.58) * (front.radius + radius)
    return front.x + dx * reach, front.y + dy * reach


def spot(rng: random.Random, radius: float, anchored: bool) -> tuple[float, float]:
    """A centre whose thing stays in the picture: in one of the nine regions, or anywhere."""
    low, high = radius, 1 - radius
    if not anchored:
        return rng.uniform(low, high), rng.uniform(low, high)
    region = rng.choice(POSITIONS)
    if region == "middle":
        return 0.5 + rng.uniform(-CENTRE, CENTRE), 0.5 + rng.uniform(-CENTRE, CENTRE)

    def along(first: str, last: str) -> float:
        ranges = {first: (low, EDGE), last: (1 - EDGE, high)}
        return rng.uniform(*next((v for k, v in ranges.items() if k in region), (0.4, 0.6)))

    return along("left", "right"), along("top", "bottom")


def apart(a: Thing, b: Thing) -> bool:
    """True if two things keep the distance that separate things keep."""
    reach = GAP * (a.radius + b.radius)
    return (a.x - b.x) ** 2 + (a.y - b.y) ** 2 >= reach * reach


# --- Which held-out compounds a caption names, so that tests can ask for exactly those. ---


def compounds_in(form: Form) -> tuple[frozenset[Pair], frozenset[Triple]]:
    """The (colour, kind) pairs and (kind, relation, kind) triples that a caption names.

    A relation is given by the member of `HELD_RELATIONS` that says the same ("right of"
    as "left" from the other side); other relations and denied properties name no compound.
    """
    pairs: set[Pair] = set()
    triples: set[Triple] = set()

    def look(phrase: NounPhrase, *said: Modifier) -> None:
        for modifier in (*phrase.modifiers, *said):
            match modifier:
                case Attribute("colour", value, False):
                    pairs.add((value, phrase.word))
                case Relation(name, other, negated):
                    if not negated and name in HELD_RELATIONS:
                        triples.add((phrase.word, name, other.word))
                    elif not negated and CONVERSE.get(name or "") in HELD_RELATIONS:
                        triples.add((other.word, CONVERSE[name or ""], phrase.word))
                    look(other)

    for statement in form:
        match statement:
            case Exists(phrase):
                look(phrase)
            case Claim(subject, modifiers):  # as if it were said before the noun
                look(subject, *modifiers)
    return frozenset(pairs), frozenset(triples)


def names_held_out(form: Form, config: WorldConfig) -> bool:
    """True if a caption names a compound that ordinary splits never show."""
    pairs, triples = compounds_in(form)
    return bool(pairs & held_out_attributes(config) or triples & held_out_relations(config))
