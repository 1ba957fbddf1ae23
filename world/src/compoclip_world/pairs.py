"""Minimal pairs of scenes: two pictures, two captions, each true of its own picture only."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from compoclip.console import track
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import new_folder
from compoclip_world.captions import extend, facts_of, mention
from compoclip_world.dataset import mapper, png_bytes
from compoclip_world.geometry import CONVERSE, POSITIONS, located, related
from compoclip_world.logic import (
    Attribute,
    Background,
    Exists,
    Form,
    Lacking,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
)
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import (
    ORDINARY,
    SPLITS,
    apart,
    draw_scene,
    generator,
    held_out_in,
    spot,
)
from compoclip_world.scene import Scene, Thing, WorldConfig
from compoclip_world.vocabulary import BACKDROP_COLOURS, KINDS, SIZES, can_show, clashes
from compoclip_world.wording import Wording

# --- The skills of minimal pairs: how one scene becomes another, and what tells them apart. ---

Draft = tuple[Scene, Form, Form]
"""The second scene, and what the two captions say."""


def _with(scene: Scene, changes: dict[int, Thing]) -> Scene:
    things = tuple(changes.get(i, t) for i, t in enumerate(scene.things))
    return replace(scene, things=things)


def _two(scene: Scene, rng: random.Random) -> tuple[int, int] | None:
    """Two things of different kinds."""
    things = scene.things
    found = [(i, j) for i, a in enumerate(things) for j, b in enumerate(things) if a.kind != b.kind]
    return rng.choice(found) if found else None


def _say(thing: Thing, *families: str) -> NounPhrase:
    said = tuple(Attribute(family, getattr(thing, family)) for family in families)
    return NounPhrase(frozenset((thing.kind,)), thing.kind, said)


def _bound(family: str) -> Callable[[Scene, random.Random], Draft | None]:
    """Binding: two things exchange their colour, size or pattern."""

    def draft(scene: Scene, rng: random.Random) -> Draft | None:
        chosen = _two(scene, rng)
        if chosen is None:
            return None
        i, j = chosen
        a, b = scene.things[i], scene.things[j]
        if getattr(a, family) == getattr(b, family):
            return None
        changes = {i: _take(a, b, family), j: _take(b, a, family)}
        other = _with(scene, changes)
        if not _drawable(other):
            return None
        forms = [
            (Exists(_say(s.things[i], family)), Exists(_say(s.things[j], family)))
            for s in (scene, other)
        ]
        return other, forms[0], forms[1]

    return draft


def _take(thing: Thing, model: Thing, family: str) -> Thing:
    if family == "colour":
        return replace(thing, colour=model.colour)
    if family == "pattern":
        return replace(thing, pattern=model.pattern)
    return replace(thing, size=model.size, radius=SIZES[model.size].radius)


def _drawable(scene: Scene) -> bool:
    """True if an altered scene still obeys what drawn scenes obey."""
    for i, a in enumerate(scene.things):
        if not (a.radius <= min(a.x, a.y) and max(a.x, a.y) <= 1 - a.radius):
            return False
        if a.pattern != "plain" and not can_show(a.kind, a.size):
            return False
        if clashes(a.colour, scene.backdrop.colour):
            return False
        for b in scene.things[i + 1 :]:
            linked = any(related(r, a, b) for r in ("inside", "around", "front", "behind"))
            if not linked and not apart(a, b):
                return False
    return True


def _compared(scene: Scene, rng: random.Random) -> Draft | None:
    """Two things exchange their sizes: which one is bigger."""
    chosen = _two(scene, rng)
    if chosen is None:
        return None
    i, j = chosen
    a, b = scene.things[i], scene.things[j]
    other = _with(scene, {i: _take(a, b, "size"), j: _take(b, a, "size")})
    if not related("bigger", a, b) or not _drawable(other):
        return None
    return _tell(scene, other, i, j, ("bigger", "smaller"), rng)


def _tell(
    scene: Scene, other: Scene, i: int, j: int, names: tuple[str, str], rng: random.Random
) -> Draft:
    """Captions of one wording and shape that relate thing i to thing j in the two scenes."""
    count = rng.choice((0, 1, 1))
    a = mention(scene.things[i], rng, count)
    b = mention(scene.things[j], rng, count)
    forms = [(Exists(extend(a, Relation(name, b))),) for name in names]
    return other, forms[0], forms[1]


def _mirrored(scene: Scene, across: bool) -> Scene:
    """The scene mirrored left to right (`across`) or top to bottom."""
    return replace(
        scene,
        things=tuple(
            replace(t, x=1 - t.x) if across else replace(t, y=1 - t.y) for t in scene.things
        ),
    )


def _related(scene: Scene, rng: random.Random) -> Draft | None:
    """Mirrored pictures: left of or right of, above or below."""
    facts = [f for f in facts_of(scene).relations if f[0] in ("left", "right", "above", "below")]
    if not facts:
        return None
    name, i, j = rng.choice(facts)
    other = _mirrored(scene, name in ("left", "right"))
    return _tell(scene, other, i, j, (name, CONVERSE[name]), rng)


def _argued(scene: Scene, rng: random.Random) -> Draft | None:
    """Mirrored pictures told with the same relation: who is left of whom."""
    drafted = _related(scene, rng)
    if drafted is None:
        return None
    other, first, _ = drafted
    outer = first[0]
    if not isinstance(outer, Exists):
        return None
    link = outer.phrase.modifiers[-1]
    if not isinstance(link, Relation) or link.object.kinds == outer.phrase.kinds:
        return None
    inner = replace(outer.phrase, modifiers=outer.phrase.modifiers[:-1])
    turned = replace(link, object=inner)
    second = extend(link.object, turned)
    return other, first, (Exists(second),)


def _layered(scene: Scene, rng: random.Random) -> Draft | None:
    """The two things of an occlusion change places in depth."""
    facts = [f for f in facts_of(scene).relations if f[0] in ("front", "behind")]
    if not facts:
        return None
    name, i, j = rng.choice(facts)
    a, b = scene.things[i], scene.things[j]
    other = _with(scene, {i: replace(a, depth=b.depth), j: replace(b, depth=a.depth)})
    return _tell(scene, other, i, j, (name, CONVERSE[name]), rng)


def _contained(scene: Scene, rng: random.Random) -> Draft | None:
    """A thing inside a hollow one leaves it for a place beside it."""
    facts = [f for f in facts_of(scene).relations if f[0] == "inside"]
    if not facts:
        return None
    _, i, j = rng.choice(facts)
    inner = scene.things[i]
    x, y = spot(rng, inner.radius, anchored=False)
    moved = replace(inner, x=x, y=y)
    other = _with(scene, {i: moved})
    placed = [n for n in ("left", "right", "above", "below") if related(n, moved, scene.things[j])]
    free = all(apart(moved, t) for k, t in enumerate(scene.things) if k != i)
    if not placed or not free:
        return None
    return _tell(scene, other, i, j, ("inside", rng.choice(placed)), rng)


def _placed(scene: Scene, rng: random.Random) -> Draft | None:
    """Mirrored pictures: a thing at one place of the picture or at the opposite one."""
    i = rng.randrange(len(scene.things))
    thing = scene.things[i]
    names = [p for p in POSITIONS if p != "middle" and located(p, thing)]
    if not names:
        return None
    name = max(names, key=lambda p: (" " in p) + 1.5 * rng.random())
    other = scene
    for across, words in ((True, ("left", "right")), (False, ("top", "bottom"))):
        if any(word in name for word in words):
            other = _mirrored(other, across)
    swap = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
    opposite = " ".join(swap[word] for word in name.split())
    said = mention(thing, rng, rng.choice((0, 1, 1)))
    first, second = ((Exists(extend(said, Position(place))),) for place in (name, opposite))
    return other, first, second


def _both_placed(scene: Scene, rng: random.Random) -> Draft | None:
    """Mirrored pictures told by the places of two things: which one is at which side."""
    found = _two(scene, rng)
    if found is None:
        return None
    across = rng.random() < 0.5
    one, other = ("left", "right") if across else ("top", "bottom")
    a, b = (scene.things[i] for i in found)
    if located(other, a):
        one, other = other, one
    if not (located(one, a) and located(other, b)):
        return None
    count = rng.choice((0, 1, 1))
    said = mention(a, rng, count), mention(b, rng, count)
    first, second = (
        tuple(Exists(extend(phrase, Position(place))) for phrase, place in zip(said, places))
        for places in ((one, other), (other, one))
    )
    return _mirrored(scene, across), first, second


def _counted(scene: Scene, rng: random.Random) -> Draft | None:
    """One of several alike things is taken away."""
    alike = [
        t
        for t in scene.things
        if sum((o.kind, o.colour) == (t.kind, t.colour) for o in scene.things) > 1
    ]
    if not alike:
        return None
    gone = rng.choice(alike)
    other = replace(scene, things=tuple(t for t in scene.things if t is not gone))
    families = rng.choice(((), ("colour",), ("colour",)))
    forms = []
    for shown in (scene, other):
        number = sum(
            t.kind == gone.kind and (not families or t.colour == gone.colour) for t in shown.things
        )
        said = replace(_say(gone, *families), quantifier=Quantifier.EXACTLY, number=number)
        forms.append((Exists(said),))
    return other, forms[0], forms[1]


def _exchanged(scene: Scene, rng: random.Random) -> Draft | None:
    """One thing becomes a thing of another kind."""
    i = rng.randrange(len(scene.things))
    thing = scene.things[i]
    present = {t.kind for t in scene.things}
    fitting = [k for k, spec in KINDS.items() if spec.solid == KINDS[thing.kind].solid]
    kinds = [k for k in fitting if k not in present and not KINDS[k].hollow]
    other = _with(scene, {i: replace(thing, kind=rng.choice(kinds))})
    if KINDS[thing.kind].hollow or not _drawable(other):
        return None
    families = rng.choice(((), ("colour",)))
    first, second = ((Exists(_say(s.things[i], *families)),) for s in (scene, other))
    return other, first, second


def _backed(scene: Scene, rng: random.Random) -> Draft | None:
    """Return the scene on another background."""
    colours = [c for c in BACKDROP_COLOURS if c != scene.backdrop.colour]
    other = replace(scene, backdrop=replace(scene.backdrop, colour=rng.choice(colours)))
    if not _drawable(other):
        return None
    said = mention(rng.choice(scene.things), rng, 1)
    first, second = ((Exists(extend(said, Background(s.backdrop.colour))),) for s in (scene, other))
    return other, first, second


PAIR_SKILLS: dict[str, Callable[[Scene, random.Random], Draft | None]] = {
    "swap-colour": _bound("colour"),
    "swap-size": _bound("size"),
    "swap-pattern": _bound("pattern"),
    "swap-object": _argued,
    "relation": _related,
    "depth": _layered,
    "inside": _contained,
    "comparison": _compared,
    "position": _placed,
    "count": _counted,
    "object": _exchanged,
    "background": _backed,
}
"""Skill -> how the second scene and the two captions are made from a drawn scene."""

TAUGHT_SKILLS = {**PAIR_SKILLS, "swap-place": _both_placed}
"""`PAIR_SKILLS`, and skills in no benchmark of the world: steps on the way to relations."""

_SEVERAL = (0.0, 0.7, 0.3)
SHAPES: dict[str, dict[str, Any]] = {
    "swap-colour": {"objects": _SEVERAL, "repeat": 0.0, "same_colour": 0.0},
    "swap-size": {"objects": _SEVERAL, "repeat": 0.0},
    "swap-pattern": {"objects": _SEVERAL, "repeat": 0.0, "patterned": 0.8},
    "swap-object": {"objects": _SEVERAL, "repeat": 0.0},
    "swap-place": {"objects": _SEVERAL, "repeat": 0.0},
    "relation": {"objects": _SEVERAL},
    "depth": {"objects": _SEVERAL, "occlusion": 1.0, "inside": 0.0, "repeat": 0.0},
    "inside": {"objects": _SEVERAL, "occlusion": 0.0, "inside": 1.0},
    "comparison": {"objects": _SEVERAL, "repeat": 0.0},
    "count": {"objects": (0.0, 0.4, 0.4, 0.2), "repeat": 0.9, "inside": 0.0, "occlusion": 0.0},
}
"""How the scenes of a skill differ from those of the config, so that it applies more often."""


# --- Minimal pairs of scenes: two pictures, two captions, each true of its own picture only. ---

_ATTEMPTS = 3000
_ORACLE = Oracle()


@dataclass(frozen=True, slots=True)
class WorldPair:
    """Two scenes and two captions, each true of its own scene only.

    Args:
        scene_a: First scene.
        scene_b: Second scene.
        caption_a: True of scene_a and false of scene_b.
        caption_b: True of scene_b and false of scene_a.
        skill: What tells them apart.
    """

    scene_a: Scene
    scene_b: Scene
    caption_a: str
    caption_b: str
    skill: str


def pair(config: WorldConfig, seed: int, index: int, skill: str, split: str = "test") -> WorldPair:
    """A minimal pair, a function of the arguments; the oracle has judged all four cases.

    In ordinary splits neither scene shows a held-out compound; in the others one of them may be
    all that does.

    Args:
        config: The world.
        seed: Of the world.
        index: Number of the pair.
        skill: What tells the two scenes apart, a key of `TAUGHT_SKILLS`.
        split: Split of the scenes.

    Raises:
        UsageError: For an unknown skill or split.
        CompoclipError: When the config leaves no such pair.
    """
    if skill not in TAUGHT_SKILLS:
        raise UsageError(f"world: unknown pair skill {skill!r}; known: {', '.join(TAUGHT_SKILLS)}")
    if split not in SPLITS:
        raise UsageError(f"world: unknown split {split!r}; known: {', '.join(SPLITS)}")
    rng = generator("pair", seed, split, skill, index)
    shaped = replace(config, **SHAPES.get(skill, {}))
    for _ in range(_ATTEMPTS):
        scene = draw_scene(shaped, rng, split)
        if scene is None or not scene.things:
            continue
        found = edited(scene, config, skill, rng, split)
        if found is not None:
            return found
    raise CompoclipError(
        f"world: no pair of skill {skill!r} fits split {split!r} of this configuration; "
        "allow more kinds, colours and objects"
    )


def edited(
    scene: Scene, config: WorldConfig, skill: str, rng: random.Random, split: str = "train"
) -> WorldPair | None:
    """The pair of a scene and one edit of it, judged by the oracle; None when none was found.

    One attempt with `rng`; the edited scene belongs to the split as `pair` says.
    """
    drafted = TAUGHT_SKILLS[skill](scene, rng)
    if drafted is None:
        return None
    other, *forms = drafted
    style, colour_first = rng.randrange(2**32), rng.random() < 0.4
    first, second = (
        Wording(random.Random(style), variants=0.5, colour_first=colour_first).caption(form)
        for form in forms
    )
    if not _known(other, config) or not _in_split(scene, other, config, split):
        return None
    if not _separates(scene, other, first, second):
        return None
    return WorldPair(scene, other, first, second, skill)


def neighbours(
    config: WorldConfig, seed: int, index: int, split: str
) -> list[tuple[str, Scene]] | None:
    """Draw four scenes that are easily confused, each with a caption that is true of it alone.

    The first caption says how two things, each with its colour, are placed. The second scene
    exchanges their colours, the third is mirrored. In the fourth one of the things is of another
    kind or, at odd numbers, absent, which its caption says.

    Args:
        config: The world.
        seed: Of the world.
        index: Number of the group; the result is a function of the arguments.
        split: Split of the scenes.

    Returns:
        The captions and scenes; None when this draw gives no such scenes.
    """
    rng = generator("neighbours", seed, split, index)
    shaped = replace(config, **SHAPES["swap-colour"], inside=0.0, occlusion=0.0)
    scene = draw_scene(shaped, rng, split)
    facts = facts_of(scene).relations if scene is not None else ()
    placed = [fact for fact in facts if fact[0] in ("left", "right", "above", "below")]
    if scene is None or not placed:
        return None
    name, i, j = rng.choice(placed)
    a, b = scene.things[i], scene.things[j]
    absent = [k for k in config.known_kinds if k not in {t.kind for t in scene.things}]
    kind = rng.choice([k for k in absent if not KINDS[k].hollow])
    exchanged = {i: _take(a, b, "colour"), j: _take(b, a, "colour")}
    mirrored = _mirrored(scene, name in ("left", "right"))
    drafts = [
        (scene, name, a, b),
        (_with(scene, exchanged), name, exchanged[i], exchanged[j]),
        (mirrored, CONVERSE[name], a, b),
    ]
    last = []
    if index % 2:
        without = replace(scene, things=tuple(t for t in scene.things if t is not b))
        denied = Lacking(replace(_say(b), quantifier=Quantifier.NONE))
        last = [(without, extend(_say(a, "colour"), denied))]
    else:
        other = replace(b, kind=kind)
        drafts.append((_with(scene, {j: other}), name, a, other))
    said: list[tuple[Scene, NounPhrase]] = [
        (shown, extend(_say(one, "colour"), Relation(relation, _say(two, "colour"))))
        for shown, relation, one, two in drafts
    ]
    said += last
    style = rng.randrange(2**32)
    found = [
        (Wording(random.Random(style)).caption((Exists(phrase),)), shown) for shown, phrase in said
    ]
    fits = all(
        _drawable(s) and _known(s, config) and not any(held_out_in(s, config)) for _, s in found
    )
    own = all(
        _ORACLE.verdict(text, shown).truth is (Truth.TRUE if at == place else Truth.FALSE)
        for at, (text, _) in enumerate(found)
        for place, (_, shown) in enumerate(found)
    )
    return found if fits and own else None


def _known(scene: Scene, config: WorldConfig) -> bool:
    """True if the config has all kinds and colours of a scene."""
    kinds, colours = config.known_kinds, config.known_colours
    return all(t.kind in kinds and t.colour in colours for t in scene.things)


def _in_split(a: Scene, b: Scene, config: WorldConfig, split: str) -> bool:
    found = [held_out_in(scene, config) for scene in (a, b)]
    if split in ORDINARY:
        return not any(pairs or triples for pairs, triples in found)
    return any(found[i][split != "novel-attribute"] for i in (0, 1))


def _separates(a: Scene, b: Scene, first: str, second: str) -> bool:
    return all(
        _ORACLE.verdict(text, scene).truth is truth
        for text, scene, truth in (
            (first, a, Truth.TRUE),
            (second, b, Truth.TRUE),
            (first, b, Truth.FALSE),
            (second, a, Truth.FALSE),
        )
    )


# --- Training sets of minimal pairs: every image has a twin that its caption is false of. ---

TABLE = "pairs.jsonl"
_AT_ONCE = 100


@dataclass(frozen=True)
class PairSet:
    """The pairs to write: 0 .. count-1 of every (skill, count)."""

    config: WorldConfig
    skills: tuple[tuple[str, int], ...]
    seed: int = 0
    split: str = "train"


def write_pair_set(out: Path, spec: PairSet, workers: int = 1) -> int:
    """Write `out`/pairs.jsonl, `out`/images and `out`/world.json (the parameters).

    A row is an image: image, caption, neg_caption and neg_image (those of its twin), group (equal
    for both). So the table serves methods that take given negatives, negative images or groups.
    The bytes depend on `spec` alone, not on `workers`. `out` appears when everything is written, or
    not at all. Returns the number of rows. Raises UsageError for an unknown skill, CompoclipError
    when `out` exists and is not empty, when it cannot be written, or when the config leaves too
    few such pairs.
    """
    jobs = [
        (skill, start, min(start + _AT_ONCE, count))
        for skill, count in spec.skills
        for start in range(0, count, _AT_ONCE)
    ]
    record = asdict(spec)
    with new_folder(out) as folder:
        (folder / "images").mkdir()
        (folder / "world.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        rows = 0
        with mapper(workers) as draw, (folder / TABLE).open("w", encoding="utf-8") as table:
            parts = draw(_write, jobs, repeat(folder), repeat(spec))
            for part in track(parts, "drawing pairs", len(jobs), "parts"):
                table.writelines(f"{json.dumps(row)}\n" for row in part)
                rows += len(part)
    return rows


def _write(job: tuple[str, int, int], folder: Path, spec: PairSet) -> list[dict[str, Any]]:
    """Write the images of some pairs of a skill; their rows."""
    skill, start, end = job
    rows = []
    for index in range(start, end):
        made = pair(spec.config, spec.seed, index, skill, spec.split)
        scenes, captions = (made.scene_a, made.scene_b), (made.caption_a, made.caption_b)
        names = [f"images/{skill}-{index:06d}-{which}.png" for which in "ab"]
        for own, twin in ((0, 1), (1, 0)):
            image = png_bytes(scenes[own], spec.config.size)
            (folder / names[own]).write_bytes(image)
            rows.append(
                {
                    "image": names[own],
                    "caption": captions[own],
                    "neg_caption": captions[twin],
                    "neg_image": names[twin],
                    "group": f"{skill}-{index}",
                }
            )
    return rows
