"""The world's VALSE: a true caption and a foil for each of its eleven files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from compoclip_world import edits
from compoclip_world.captions import definite, facts_of
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.export.texts import seemly
from compoclip_world.geometry import CONVERSE
from compoclip_world.logic import Attribute, Claim, Form, NounPhrase, Quantifier, Relation
from compoclip_world.oracle import is_false, is_true
from compoclip_world.parser import parse
from compoclip_world.scene import Scene
from compoclip_world.wording import Wording
from official._forms import foils, form_of, world_part

WRITES = ("valse",)

Edit = Callable[[Form], Iterable[Form]]
_SEVERAL = {"objects": (0.0, 0.5, 0.3, 0.2), "repeat": 0.0}
_ALIKE = {"objects": (0.0, 0.3, 0.4, 0.3), "repeat": 0.9, "inside": 0.0, "occlusion": 0.0}


def _number(form: Form) -> int:
    """How many the first counted noun speaks of; 0 without one."""
    for node in edits.nodes_of(form):
        if isinstance(node, NounPhrase) and node.quantifier is Quantifier.EXACTLY:
            return node.number
    return 0


def _counts(fits: Callable[[int, int], bool]) -> Edit:
    """Edits that replace a number where `fits(said, other)`; only of forms with one noun."""

    def edit(form: Form) -> Iterable[Form]:
        if len(form) == 1:
            for other in edits.replacements_of_counts(form):
                if fits(_number(form), _number(other)):
                    yield other

    return edit


@dataclass(frozen=True)
class _File:
    """One file. dataset, folder, prefix: of its photos. types: caption types it starts from."""

    dataset: str
    folder: str
    prefix: str
    types: tuple[str, ...]
    edit: Edit
    shape: dict[str, Any]


_V7W = ("visual7w", "visual7w", "v7w_")
_COCO = ("coco2017", "coco/val2017", "")
_SWIG = ("SWiG", "swig", "showing_")
_FOIL = ("FOIL dataset", "coco/val2014", "COCO_val2014_")
_TWO = ("conjunction", "relation")
_FILES: dict[str, _File] = {
    "existence": _File(*_V7W, ("object", "negation"), edits.negations, {}),
    "plurals": _File(*_COCO, ("count",), _counts(lambda a, b: (a == 1) != (b == 1)), _ALIKE),
    "counting-hard": _File(*_V7W, ("count",), _counts(lambda a, b: abs(a - b) == 1), _ALIKE),
    "counting-small-quant": _File(*_V7W, ("count",), _counts(lambda a, b: max(a, b) <= 2), _ALIKE),
    "counting-adversarial": _File(*_V7W, ("count",), _counts(lambda a, b: a > b), _ALIKE),
    "relations": _File(*_COCO, ("relation",), edits.replacements_of_relations, _SEVERAL),
    "action-replacement": _File(*_SWIG, ("position",), edits.replacements_of_positions, {}),
    "actant-swap": _File(*_SWIG, ("relation",), edits.swaps_of_arguments, _SEVERAL),
    "foil-it": _File(*_FOIL, _TWO, edits.replacements_of_kinds, _SEVERAL),
}
_QUESTIONS = {
    "coreference-standard": ("coco/train2014", "COCO_train2014_"),
    "coreference-hard": ("visdial/val2018", "VisualDialog_val2018_"),
}
"""File -> folder of its photos, and how their names begin."""


def build(spec: SuiteSpec) -> list[Part]:
    """The eleven files in `valse/`. Each holds one row more, which its annotators found wrong."""
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    slots = iter(range(30, 50))
    for name, file in _FILES.items():
        pool = Photos(spec, file.folder, next(slots), file.shape)
        make = partial(_foil, spec=spec, file=file)
        found = collect(pool, spec.items, f"valse {name}", make)
        files[f"valse/{name}.json"] = _rows(pool, file.dataset, file.prefix, name, found, images)
    for name, (folder, prefix) in _QUESTIONS.items():
        pool = Photos(spec, folder, next(slots), _SEVERAL)
        make = partial(_dialogue, spec=spec, spatial=name.endswith("hard"))
        answers = collect(pool, spec.items, f"valse {name}", make)
        files[f"valse/{name}.json"] = _rows(pool, "VisDial_v1.0", prefix, name, answers, images)
    return [world_part("valse", files, images, dict.fromkeys((*_FILES, *_QUESTIONS), spec.items))]


def _rows(
    pool: Photos,
    dataset: str,
    prefix: str,
    name: str,
    found: list[tuple[int, tuple[str, str]]],
    images: dict[str, Scene],
) -> dict[str, Any]:
    """The rows of a file by id, with their photos added to `images`."""
    rows: dict[str, Any] = {}
    for index, (caption, foil) in found:
        photo = prefix + pool.name(index)
        images[f"{pool.folder}/{photo}"] = pool.scene(index)
        rows[f"{name}_test_{index}"] = {
            "dataset": dataset,
            "original_split": "test",
            "image_file": photo,
            "linguistic_phenomena": name,
            "caption": caption,
            "foil": foil,
            "mturk": {"foil": 0, "caption": 3, "other": 0},
        }
    wrong = next(iter(rows.values()))
    rows[f"{name}_test_wrong"] = {
        **wrong,
        "caption": wrong["foil"],
        "foil": wrong["caption"],
        "mturk": {"foil": 2, "caption": 1, "other": 0},
    }
    return rows


def _foil(scene: Scene, rng: Random, spec: SuiteSpec, file: _File) -> tuple[str, str] | None:
    form = form_of(scene, spec.config, file.types, rng)
    made = foils(scene, spec.config, form, file.edit, 1, rng) if form else None
    return (made[0], made[1][0]) if made else None


def _dialogue(scene: Scene, rng: Random, spec: SuiteSpec, spatial: bool) -> tuple[str, str] | None:
    """ "a star and a mug. is the star red? yes." and the same with "no.", or the other way round.

    The question is the claim "the star is red" turned round; the oracle judges the claim.
    """
    told = form_of(scene, spec.config, ("conjunction",), rng)
    asked = (_place if spatial else _property)(scene, rng)
    if told is None or asked is None:
        return None
    wording = Wording(Random(rng.randrange(2**32)), variants=0.0)
    described, claim = wording.caption(told), wording.caption((asked,))
    true, false = is_true(claim, scene), is_false(claim, scene)
    if true is false or not is_true(described, scene) or not seemly(parse(claim), spec.config):
        return None
    noun, _, rest = claim.partition(" is ")
    yes, no = (f"{described}. is {noun} {rest}? {answer}." for answer in ("yes", "no"))
    return (yes, no) if true else (no, yes)


def _property(scene: Scene, rng: Random) -> Claim | None:
    """ "the star is red", of a thing that is, or half the time in the colour of another."""
    thing = rng.choice(scene.things)
    subject = definite(facts_of(scene), thing, rng)
    if subject is None or subject.modifiers:
        return None
    others = [t.colour for t in scene.things if t.colour != thing.colour]
    colour = rng.choice(others) if others and rng.random() < 0.5 else thing.colour
    return Claim(subject, (Attribute("colour", colour),))


def _place(scene: Scene, rng: Random) -> Claim | None:
    """ "the star is left of the mug", as it is or, half the time, the wrong way round."""
    facts = facts_of(scene)
    if not facts.relations:
        return None
    name, i, j = rng.choice([f for f in facts.relations if f[0] != "same colour"] or [("", 0, 0)])
    subject, other = (definite(facts, scene.things[k], rng) for k in (i, j))
    if not name or subject is None or other is None:
        return None
    return Claim(subject, (Relation(rng.choice((name, CONVERSE[name])), other),))
