"""The world's CREPE: hard negatives by complexity, and compounds seen or not seen in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast

from compoclip_world import edits
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.logic import Form, NounPhrase, count_atoms
from compoclip_world.oracle import is_false, is_true
from compoclip_world.sampling import NOVEL_ATTRIBUTE, held_out_attributes
from compoclip_world.scene import Scene, Thing
from compoclip_world.vocabulary import with_article
from official._forms import foils, form_of, world_part

WRITES = ("crepe_prod", "crepe_syst")
_FOLDER = "vg/VG_100K"
_SET = "world"
_TRIES = 12
_NEGATIVES = 5
_SEVERAL = {"objects": (0.0, 0.2, 0.5, 0.3), "patterned": 0.6}


def _atoms(form: Form) -> Iterator[Form]:
    """One atom replaced by another of its family."""
    yield from edits.replacements_of_kinds(form)
    for family in edits.VALUES:
        yield from edits.replacements_of_values(form, family)
    yield from edits.replacements_of_relations(form)


def _swaps(form: Form) -> Iterator[Form]:
    """Two atoms of a family exchanged."""
    for family in edits.VALUES:
        yield from edits.swaps_of_values(form, family)
    yield from edits.swaps_of_arguments(form)
    nouns = [(k, n) for k, n in enumerate(edits.nodes_of(form)) if isinstance(n, NounPhrase)]
    for first, a in nouns:
        for second, b in nouns:
            if first < second and a.word != b.word:
                yield _exchanged(form, first, second)


def _exchanged(form: Form, first: int, second: int) -> Form:
    """The nouns at two places exchanged, the outer one last, since it holds the inner one."""
    changed = form
    a, b = (cast(NounPhrase, edits.nodes_of(form)[place]) for place in (first, second))
    for place, model in ((second, a), (first, b)):
        node = cast(NounPhrase, edits.nodes_of(changed)[place])
        named = replace(node, kinds=model.kinds, word=model.word)
        changed = edits.substitute(changed, {place: named})
    return changed


_TYPES: dict[str, tuple[tuple[int, ...], tuple[str, ...], Callable[[Form], Iterator[Form]]]] = {
    "atom": ((4, 5, 6, 7), ("conjunction", "relation", "long"), _atoms),
    "swap": ((6, 7, 8), ("conjunction", "long"), _swaps),
    "negate": ((5, 6, 7), ("conjunction",), edits.negations),
}
"""Type -> its complexities, the caption types it starts from, and its edit."""


def build(spec: SuiteSpec) -> list[Part]:
    """The productivity files, one a type and complexity, and the two files of systematicity."""
    pool = Photos(spec, _FOLDER, slot=20, shape=_SEVERAL)
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for name, (levels, types, edit) in _TYPES.items():
        for k, level in enumerate(levels):
            share = (spec.items + k) // len(levels)
            make = partial(_row, spec=spec, types=types, edit=edit, level=level)
            found = collect(pool, share, f"crepe {name} {level}", make) if share else []
            images |= pool.chosen(index for index, _ in found)
            if found:
                folder = f"crepe/prod_hard_negatives/{name}"
                files[f"{folder}/prod_vg_hard_negs_{name}_complexity_{level}.csv"] = [
                    {
                        "image_id": _key(pool, index),
                        "caption": caption,
                        "n": level,
                        # the official files hold lists in most cells and sets in some
                        "hard_negs": str(list(texts) if index % 5 else _as_set(texts)),
                        **_box(spec),
                    }
                    for index, (caption, texts) in found
                ]
    return [world_part("crepe_prod", files, images, dict.fromkeys(_TYPES, spec.items)), _syst(spec)]


def _as_set(texts: tuple[str, ...]) -> str:
    """A set literal in a fixed order."""
    return "{" + ", ".join(map(repr, texts)) + "}"


def _key(pool: Photos, index: int) -> str:
    return pool.name(index).removesuffix(".png")


def _box(spec: SuiteSpec) -> dict[str, float]:
    side = float(spec.config.size)
    return {"x": 0.0, "y": 0.0, "width": side, "height": side}


def _row(
    scene: Scene,
    rng: Random,
    spec: SuiteSpec,
    types: tuple[str, ...],
    edit: Callable[[Form], Iterator[Form]],
    level: int,
) -> tuple[str, tuple[str, ...]] | None:
    for _ in range(_TRIES):
        form = form_of(scene, spec.config, types, rng)
        if form is not None and count_atoms(form) == level:
            return foils(scene, spec.config, form, edit, _NEGATIVES, rng)
    return None


def _syst(spec: SuiteSpec) -> Part:
    """Compounds of colour and kind that training captions name (seen) or never do (unseen)."""
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for k, seen in enumerate(("seen", "unseen")):
        split = "" if seen == "seen" else NOVEL_ATTRIBUTE
        pool = Photos(spec, _FOLDER, slot=21 + k, split=split)
        make = partial(_compound, spec=spec, seen=seen == "seen")
        found = collect(pool, spec.items, f"crepe {seen} compounds", make)
        images |= pool.chosen(index for index, _ in found)
        files[f"crepe/syst_hard_negatives/syst_vg_hard_negs_{seen}_compounds_in_{_SET}.csv"] = [
            {
                "image_id": _key(pool, index),
                "caption": caption,
                **_box(spec),
                "valid_hard_negs_atom": str(list(atoms)),
                "valid_hard_negs_comp": str(list(comps)),
            }
            for index, (caption, atoms, comps) in found
        ]
    names = ("comp_seen", "comp_unseen", "atom_seen", "atom_unseen")
    return world_part(
        "crepe_syst", files, images, dict.fromkeys(names, spec.items), pretrained=_SET
    )


def _compound(
    scene: Scene, rng: Random, spec: SuiteSpec, seen: bool
) -> tuple[str, list[str], list[str]] | None:
    """Caption, four atom negatives and six comp negatives, as of a "red star":

    a "red mug" or "blue star"; a "red mug and a blue star".
    """
    held = held_out_attributes(spec.config)
    fitting = [t for t in scene.things if ((t.colour, t.kind) not in held) is seen]
    if not fitting:
        return None
    thing: Thing = rng.choice(fitting)
    colours = [c for c in spec.config.known_colours if c != thing.colour]
    kinds = [k for k in spec.config.known_kinds if k != thing.kind]
    caption = _named(thing.colour, thing.kind)
    atoms: list[str] = []
    comps: list[str] = []
    for _ in range(60):
        colour, kind = rng.choice(colours), rng.choice(kinds)
        if {(colour, thing.kind), (thing.colour, kind)} & held:
            continue
        first, second = _named(colour, thing.kind), _named(thing.colour, kind)
        for text, group, most in (
            (rng.choice((first, second)), atoms, 4),
            (f"{first} and {second}", comps, 6),
        ):
            if len(group) < most and text not in group and is_false(text, scene):
                group.append(text)
    complete = len(atoms) == 4 and len(comps) == 6 and is_true(caption, scene)
    return (caption, atoms, comps) if complete else None


def _named(colour: str, kind: str) -> str:
    return with_article(f"{colour} {kind}")
