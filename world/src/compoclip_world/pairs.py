"""Minimal pairs of scenes: two pictures, two captions, each true of its own picture only."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from compoclip.console import track
from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.workers import mapper
from compoclip_world.captions import extend, facts_of, mention
from compoclip_world.edits import OPPOSITE
from compoclip_world.geometry import CONVERSE, PLACINGS, POSITIONS, located, related
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
from compoclip_world.oracle import is_false, is_true
from compoclip_world.sampling import (
    SPLITS,
    apart,
    belongs,
    draw_scene,
    generator,
    held_out_in,
    spot,
)
from compoclip_world.scene import Scene, Thing, WorldConfig
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    KINDS,
    SIZES,
    can_show,
    clashes,
    require_known,
)
from compoclip_world.wording import Wording

# --- The skills of minimal pairs: how one scene becomes another, and what tells them apart. ---

Draft = tuple[Scene, Form, Form]
"""The second scene, and what the two captions say."""


def _with(scene: Scene, changes: dict[int, Thing]) -> Scene:
    things = tuple(changes.get(i, t) for i, t in enumerate(scene.things))
    return replace(scene, things=things)


class _UnfitError(Exception):
    """The scene offers no edit of the skill."""


def _need(holds: object) -> None:
    if not holds:
        raise _UnfitError


def _two(scene: Scene, rng: random.Random) -> tuple[int, int]:
    """Two things of different kinds."""
    things = scene.things
    pairs = [(i, j) for i, a in enumerate(things) for j, b in enumerate(things) if a.kind != b.kind]
    _need(pairs)
    return rng.choice(pairs)


def _fact(scene: Scene, rng: random.Random, *names: str) -> tuple[str, int, int]:
    """A (relation, subject, object) fact of the scene with one of these relations."""
    facts = [fact for fact in facts_of(scene).relations if fact[0] in names]
    _need(facts)
    return rng.choice(facts)


def _say(thing: Thing, *families: str) -> NounPhrase:
    attributes = tuple(Attribute(family, getattr(thing, family)) for family in families)
    return NounPhrase.of(thing.kind, attributes)


def _bound(family: str) -> Callable[[Scene, random.Random], Draft]:
    """Binding: two things exchange their colour, size or pattern."""

    def draft(scene: Scene, rng: random.Random) -> Draft:
        i, j = _two(scene, rng)
        other = _swapped(scene, i, j, family)
        _need(getattr(scene.things[i], family) != getattr(scene.things[j], family))
        _need(_drawable(other))
        forms = [
            (Exists(_say(s.things[i], family)), Exists(_say(s.things[j], family)))
            for s in (scene, other)
        ]
        return other, forms[0], forms[1]

    return draft


def _swapped(scene: Scene, i: int, j: int, family: str) -> Scene:
    """The scene with a property of two things exchanged."""

    def take(thing: Thing, model: Thing) -> Thing:
        radius = SIZES[model.size].radius if family == "size" else thing.radius
        return replace(thing, radius=radius, **{family: getattr(model, family)})

    a, b = scene.things[i], scene.things[j]
    return _with(scene, {i: take(a, b), j: take(b, a)})


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


def _compared(scene: Scene, rng: random.Random) -> Draft:
    """Two things exchange their sizes: which one is bigger."""
    i, j = _two(scene, rng)
    other = _swapped(scene, i, j, "size")
    _need(related("bigger", scene.things[i], scene.things[j]) and _drawable(other))
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


def _related(scene: Scene, rng: random.Random) -> Draft:
    """Mirrored pictures: left of or right of, above or below."""
    name, i, j = _fact(scene, rng, *PLACINGS)
    other = _mirrored(scene, name in ("left", "right"))
    return _tell(scene, other, i, j, (name, CONVERSE[name]), rng)


def _argued(scene: Scene, rng: random.Random) -> Draft:
    """Mirrored pictures told with the same relation: who is left of whom."""
    other, first, _ = _related(scene, rng)
    match first:
        case (Exists(NounPhrase(kinds, modifiers=(*rest, Relation() as link)) as outer),):
            _need(link.object.kinds != kinds)
            turned = replace(link, object=replace(outer, modifiers=tuple(rest)))
            return other, first, (Exists(extend(link.object, turned)),)
    raise _UnfitError


def _layered(scene: Scene, rng: random.Random) -> Draft:
    """The two things of an occlusion change places in depth."""
    name, i, j = _fact(scene, rng, "front", "behind")
    a, b = scene.things[i], scene.things[j]
    other = _with(scene, {i: replace(a, depth=b.depth), j: replace(b, depth=a.depth)})
    return _tell(scene, other, i, j, (name, CONVERSE[name]), rng)


def _contained(scene: Scene, rng: random.Random) -> Draft:
    """A thing inside a hollow one leaves it for a place beside it."""
    _, i, j = _fact(scene, rng, "inside")
    inner = scene.things[i]
    x, y = spot(rng, inner.radius, anchored=False)
    moved = replace(inner, x=x, y=y)
    other = _with(scene, {i: moved})
    placed = [n for n in PLACINGS if related(n, moved, scene.things[j])]
    free = all(apart(moved, t) for k, t in enumerate(scene.things) if k != i)
    _need(placed and free)
    return _tell(scene, other, i, j, ("inside", rng.choice(placed)), rng)


def _placed(scene: Scene, rng: random.Random) -> Draft:
    """Mirrored pictures: a thing at one place of the picture or at the opposite one."""
    i = rng.randrange(len(scene.things))
    thing = scene.things[i]
    names = [p for p in POSITIONS if p != "middle" and located(p, thing)]
    _need(names)
    name = max(names, key=lambda p: (" " in p) + 1.5 * rng.random())
    other = scene
    for across, words in ((True, ("left", "right")), (False, ("top", "bottom"))):
        if any(word in name for word in words):
            other = _mirrored(other, across)
    opposite = " ".join(OPPOSITE[word] for word in name.split())
    phrase = mention(thing, rng, rng.choice((0, 1, 1)))
    first, second = ((Exists(extend(phrase, Position(place))),) for place in (name, opposite))
    return other, first, second


def _both_placed(scene: Scene, rng: random.Random) -> Draft:
    """Mirrored pictures told by the places of two things: which one is at which side."""
    i, j = _two(scene, rng)
    across = rng.random() < 0.5
    one, other = ("left", "right") if across else ("top", "bottom")
    a, b = scene.things[i], scene.things[j]
    if located(other, a):
        one, other = other, one
    _need(located(one, a) and located(other, b))
    count = rng.choice((0, 1, 1))
    phrases = mention(a, rng, count), mention(b, rng, count)
    first, second = (
        tuple(Exists(extend(phrase, Position(place))) for phrase, place in zip(phrases, places))
        for places in ((one, other), (other, one))
    )
    return _mirrored(scene, across), first, second


def _counted(scene: Scene, rng: random.Random) -> Draft:
    """One of several alike things is taken away."""
    alike = [
        t
        for t in scene.things
        if sum((o.kind, o.colour) == (t.kind, t.colour) for o in scene.things) > 1
    ]
    _need(alike)
    gone = rng.choice(alike)
    other = replace(scene, things=tuple(t for t in scene.things if t is not gone))
    families = rng.choice(((), ("colour",), ("colour",)))
    forms = []
    for shown in (scene, other):
        number = sum(
            t.kind == gone.kind and (not families or t.colour == gone.colour) for t in shown.things
        )
        phrase = replace(_say(gone, *families), quantifier=Quantifier.EXACTLY, number=number)
        forms.append((Exists(phrase),))
    return other, forms[0], forms[1]


def _exchanged(scene: Scene, rng: random.Random) -> Draft:
    """One thing becomes a thing of another kind."""
    i = rng.randrange(len(scene.things))
    thing = scene.things[i]
    present = {t.kind for t in scene.things}
    fitting = [k for k, spec in KINDS.items() if spec.solid == KINDS[thing.kind].solid]
    kinds = [k for k in fitting if k not in present and not KINDS[k].hollow]
    other = _with(scene, {i: replace(thing, kind=rng.choice(kinds))})
    _need(not KINDS[thing.kind].hollow and _drawable(other))
    families = rng.choice(((), ("colour",)))
    first, second = ((Exists(_say(s.things[i], *families)),) for s in (scene, other))
    return other, first, second


def _backed(scene: Scene, rng: random.Random) -> Draft:
    """Return the scene on another background."""
    colours = [c for c in BACKDROP_COLOURS if c != scene.backdrop.colour]
    other = replace(scene, backdrop=replace(scene.backdrop, colour=rng.choice(colours)))
    _need(_drawable(other))
    phrase = mention(rng.choice(scene.things), rng, 1)
    first, second = (
        (Exists(extend(phrase, Background(s.backdrop.colour))),) for s in (scene, other)
    )
    return other, first, second


PAIR_SKILLS: dict[str, Callable[[Scene, random.Random], Draft]] = {
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


@dataclass(frozen=True, slots=True)
class WorldPair:
    """Two scenes and two captions, each true of its own scene only. skill: what tells them apart,
    a key of `TAUGHT_SKILLS`."""

    scene_a: Scene
    scene_b: Scene
    caption_a: str
    caption_b: str
    skill: str


def pair(config: WorldConfig, seed: int, index: int, skill: str, split: str = "test") -> WorldPair:
    """A minimal pair, a function of the arguments; the oracle has judged all four cases.

    In ordinary splits neither scene shows a held-out compound; in the others one of them may be
    all that does. Raises UsageError for an unknown skill or split, CompoclipError when the config
    leaves no such pair.
    """
    require_known("pair skill", (skill,), TAUGHT_SKILLS)
    require_known("split", (split,), SPLITS)
    rng = generator("pair", seed, split, skill, index)
    shaped = replace(config, **SHAPES.get(skill, {}))
    for _ in range(_ATTEMPTS):
        scene = draw_scene(shaped, rng, split)
        if scene is None or not scene.things:
            continue
        edited_pair = edited(scene, config, skill, rng, split)
        if edited_pair is not None:
            return edited_pair
    raise CompoclipError(
        f"world: no pair of skill {skill!r} fits split {split!r} of this configuration; "
        "allow more kinds, colours and objects"
    )


def drafted(scene: Scene, skill: str, rng: random.Random) -> Draft | None:
    """One edit of a scene, not judged yet; None when the scene offers none of the skill."""
    try:
        return TAUGHT_SKILLS[skill](scene, rng)
    except _UnfitError:
        return None


def edited(
    scene: Scene, config: WorldConfig, skill: str, rng: random.Random, split: str = "train"
) -> WorldPair | None:
    """The pair of a scene and one edit of it, judged by the oracle; None when none was found.

    One attempt with `rng`; the edited scene belongs to the split as `pair` says.
    """
    draft = drafted(scene, skill, rng)
    if draft is None:
        return None
    other, *forms = draft
    style, colour_first = rng.randrange(2**32), rng.random() < 0.4
    first, second = (
        Wording(random.Random(style), 0.0, 0.5, colour_first, config.rare).caption(form)
        for form in forms
    )
    if not _known(other, config) or not belongs(split, config, scene, other):
        return None
    if not _separated([(first, scene), (second, other)]):
        return None
    return WorldPair(scene, other, first, second, skill)


def neighbours(
    config: WorldConfig, seed: int, index: int, split: str
) -> list[tuple[str, Scene]] | None:
    """Draw four scenes that are easily confused, each with a caption that is true of it alone.

    The first caption says how two things, each with its colour, are placed. The second scene
    exchanges their colours, the third is mirrored. In the fourth one of the things is of another
    kind or, at odd numbers, absent, which its caption says. A function of the arguments; index:
    number of the group. Returns captions and scenes; None when this draw gives no such scenes.
    """
    rng = generator("neighbours", seed, split, index)
    shaped = replace(config, **SHAPES["swap-colour"], inside=0.0, occlusion=0.0)
    scene = draw_scene(shaped, rng, split)
    try:
        if scene is None:
            return None
        name, i, j = _fact(scene, rng, *PLACINGS)
        present = {thing.kind for thing in scene.things}
        kinds = [k for k in config.known_kinds if k not in present and not KINDS[k].hollow]
        _need(kinds)
    except _UnfitError:
        return None
    b = scene.things[j]
    other = replace(b, kind=rng.choice(kinds))
    drafts = [
        (scene, name),
        (_swapped(scene, i, j, "colour"), name),
        (_mirrored(scene, name in ("left", "right")), CONVERSE[name]),
        *([] if index % 2 else [(_with(scene, {j: other}), name)]),
    ]
    phrases = [
        (shown, extend(_say(one, "colour"), Relation(relation, _say(two, "colour"))))
        for shown, relation in drafts
        for one, two in [(shown.things[i], shown.things[j])]
    ]
    if index % 2:
        without = replace(scene, things=tuple(t for t in scene.things if t is not b))
        denied = Lacking(replace(_say(b), quantifier=Quantifier.NONE))
        phrases.append((without, extend(_say(scene.things[i], "colour"), denied)))
    style = rng.randrange(2**32)
    group = [
        (Wording(random.Random(style)).caption((Exists(phrase),)), shown)
        for shown, phrase in phrases
    ]
    fits = all(
        _drawable(s) and _known(s, config) and not any(held_out_in(s, config)) for _, s in group
    )
    return group if fits and _separated(group) else None


def _known(scene: Scene, config: WorldConfig) -> bool:
    """True if the config has all kinds and colours of a scene."""
    kinds, colours = config.known_kinds, config.known_colours
    return all(t.kind in kinds and t.colour in colours for t in scene.things)


def _separated(group: Sequence[tuple[str, Scene]]) -> bool:
    """True if every caption is true of its own scene and false of all others."""
    return all(
        (is_true if scene is shown else is_false)(text, shown)
        for text, scene in group
        for _, shown in group
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
    from compoclip_world.dataset import png_bytes

    skill, start, end = job
    rows = []
    for index in range(start, end):
        drawn_pair = pair(spec.config, spec.seed, index, skill, spec.split)
        scenes, captions = (
            (drawn_pair.scene_a, drawn_pair.scene_b),
            (drawn_pair.caption_a, drawn_pair.caption_b),
        )
        names = [f"images/{skill}-{index:06d}-{which}.png" for which in "ab"]
        for number, twin in ((0, 1), (1, 0)):
            image = png_bytes(scenes[number], spec.config.size)
            (folder / names[number]).write_bytes(image)
            rows.append(
                {
                    "image": names[number],
                    "caption": captions[number],
                    "neg_caption": captions[twin],
                    "neg_image": names[twin],
                    "group": f"{skill}-{index}",
                }
            )
    return rows
