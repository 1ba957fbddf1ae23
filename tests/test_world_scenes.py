"""Scenes of the world: configuration, sampling, rendering."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.tables import write_text
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import create_model
from compoclip.models.config import read_config
from compoclip_world.captions import CAPTION_TYPES, captions_for
from compoclip_world.dataset import read_world_config
from compoclip_world.edits import (
    NEGATIVE_SKILLS,
    POSITIVE_RULES,
    hard_negative,
    hard_positive,
)
from compoclip_world.geometry import located, related
from compoclip_world.logic import count_atoms
from compoclip_world.pairs import TAUGHT_SKILLS, pair
from compoclip_world.render import ICONS, render
from compoclip_world.sampling import (
    SPLITS,
    held_out_attributes,
    held_out_in,
    held_out_relations,
    scene_for,
)
from compoclip_world.scene import Backdrop, Scene, WorldConfig
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    COLOURS,
    KINDS,
    PATTERNS,
    SIZES,
    can_show,
    pluralise,
    with_article,
)
from world_helpers import thing

# --- Configuration ---


def read(folder: Path, text: str) -> WorldConfig:
    return read_world_config(write_text(folder / "w.json", text))


def test_fields_in_the_file_replace_the_defaults(tmp_path: Path) -> None:
    fields = '{"objects": [1, 2], "synonyms": 0, "caption_weights": [["object", 1.0]]}'
    expected = WorldConfig(objects=(1, 2), synonyms=0, caption_weights=(("object", 1.0),))
    config = read(tmp_path, fields)
    assert config == expected
    hash(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ('{"colors": ["red"]}', "unknown field 'colors'"),
        ('{"patterned": "often"}', "'patterned' must be a number"),
        ('{"objects": ["a"]}', "'objects' must be a list of numbers"),
        ('{"kinds": "star"}', "'kinds' must be a list of texts"),
        ('{"caption_weights": ["long"]}', "needs pairs of a caption type and a weight"),
        ('{"patterned": 1.5}', "share between 0 and 1"),
        ('{"rare": 2}', "rare is 2; give a share between 0 and 1"),
        ('{"inside": -1}', "inside is -1; give a share"),
        ('{"size": 1000000000}', "image size 1000000000 is out of range"),
        ('{"objects": [1e308, 1e308]}', "objects needs weights of a finite sum"),
        ('{"attributes": [0, 0, 0, 0]}', "attributes needs weights .*one above zero"),
        ('{"caption_weights": [["object", -1]]}', "caption_weights needs weights .*none negative"),
        ('{"caption_weights": [["object", 1e308], ["count", 1e308]]}', "of a finite sum"),
        ('{"caption_weights": [["zzz", 1]]}', "unknown caption type 'zzz'"),
        ('{"kinds": ["zebra"]}', "unknown kind 'zebra'"),
        ('{"colours": ["zz"]}', "unknown colour 'zz'"),
        ('{"backdrops": ["zz"]}', "unknown backdrop 'zz'"),
    ],
)
def test_malformed_files_are_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompoclipError, match=message) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'w.json'}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change", [{"inside": 1.5}, {"size": 4}, {"objects": ()}, {"objects": (0.0, 0.0)}]
)
def test_bad_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        WorldConfig(**change)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"absent\.json: no such file"):
        read_world_config(tmp_path / "absent.json")


def test_the_recipes_of_the_base_model_are_readable() -> None:
    folder = Path(__file__).parents[1] / "recipes" / "base"
    models = {folder / "model.json", folder / "vit.json"}
    recipes = sorted(set(folder.glob("*.json")) - models)
    assert len(recipes) == 3
    for path in recipes:
        read_world_config(path)
    for path in models:
        create_model(read_config(path))


# --- Scenes ---


CONFIG = WorldConfig()
RECORDED = Path(__file__).parent / "golden" / "world" / "scenes.json"


def scene(*things, colour="grey", texture="plain"):
    return Scene(tuple(things), Backdrop(colour, texture))


def digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def test_scenes_captions_and_edits_are_those_recorded():
    """Equal on every machine and in any order, so that suites of other versions compare."""
    digests = {}
    for split in SPLITS:
        scenes = [scene_for(CONFIG, 3, split, i) for i in range(12)]
        assert scenes[::-1] == [scene_for(CONFIG, 3, split, i) for i in range(11, -1, -1)]
        captions = [captions_for(scene, CONFIG, 3, i) for i, scene in enumerate(scenes)]
        rng = random.Random(0)
        edits = [
            edit(scene, caption.form, skill, rng)
            for scene, captions_of in zip(scenes, captions)
            for caption in captions_of
            for edit, skills in ((hard_negative, NEGATIVE_SKILLS), (hard_positive, POSITIVE_RULES))
            for skill in skills
        ]
        texts = [[(c.text, c.kind) for c in captions_of] for captions_of in captions]
        digests[split] = {
            "scenes": digest(scenes),
            "captions": digest(texts),
            "edits": digest(edits),
        }
    pairs = {skill: pair(CONFIG, 3, 0, skill) for skill in TAUGHT_SKILLS}
    digests["pairs"] = {name: digest(*astuple(scenes)) for name, scenes in pairs.items()}
    assert digests == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("split", SPLITS)
def test_splits_keep_held_out_compounds_apart(split):
    for i in range(200):
        pairs, triples = held_out_in(scene_for(CONFIG, 0, split, i), CONFIG)
        if split == "novel-attribute":
            assert pairs
        elif split == "novel-relation":
            assert triples
        else:
            assert not pairs
            assert not triples


def test_every_word_alone_occurs_in_training():
    held = held_out_attributes(CONFIG)
    assert len(held) == round(0.1 * len(COLOURS) * len(KINDS))
    assert len(held_out_relations(CONFIG)) > 30
    for kind in KINDS:
        assert any((c, kind) not in held for c in COLOURS)
    seen = [t for i in range(1500) for t in scene_for(CONFIG, 0, "train", i).things]
    assert {t.kind for t in seen} == set(KINDS)
    assert {t.colour for t in seen} == set(COLOURS)
    assert {t.size for t in seen} == set(SIZES)
    assert {t.pattern for t in seen} == set(PATTERNS)


def test_things_stay_in_the_picture_and_apart():
    linked = 0
    for i in range(400):
        drawn = scene_for(CONFIG, 1, "train", i)
        for t in drawn.things:
            assert t.radius <= t.x <= 1 - t.radius
            assert t.radius <= t.y <= 1 - t.radius
            assert t.pattern == "plain" or can_show(t.kind, t.size)
        for a, b in itertools.combinations(drawn.things, 2):
            joined = any(related(r, a, b) for r in ("inside", "around", "front", "behind"))
            linked += joined
            gap = np.hypot(a.x - b.x, a.y - b.y) / (a.radius + b.radius)
            assert joined or gap >= 1.1
    assert linked > 20


def test_size_classes_do_not_overlap():
    assert SIZES["small"].radius * 1.05 < SIZES["medium"].radius * 0.95
    assert SIZES["medium"].radius * 1.05 < SIZES["large"].radius * 0.95


def test_an_occlusion_hides_a_visible_part_but_not_most_of_the_farther_thing():
    config = WorldConfig(objects=(0, 1), occlusion=1.0, inside=0.0, patterned=0.0, textured=0.0)
    for i in range(60):
        drawn = scene_for(config, 0, "train", i)
        front = next(t for t in drawn.things if t.depth == 0)
        back = next(t for t in drawn.things if t.depth == 1)
        assert related("front", front, back)
        empty = render(scene(colour=drawn.backdrop.colour), 96).astype(int)
        alone = [render(Scene((t,), drawn.backdrop), 96).astype(int) for t in (front, back)]
        masks = [np.abs(picture - empty).sum(axis=2) > 0 for picture in alone]
        share = (masks[0] & masks[1]).sum() / masks[1].sum()
        assert 0.015 < share < 0.6, (front, back, share)


def test_relations_on_hand_made_things():
    left, right = thing(x=0.2), thing("mug", x=0.7, size="large")
    assert related("left", left, right) is True
    assert related("right", left, right) is False
    assert related("above", left, right) is False
    assert related("smaller", left, right) is True
    assert related("same colour", left, right) is True
    assert related("left", left, thing(x=0.3)) is None
    steep = thing(x=0.42, y=0.9), thing(x=0.2, y=0.1)
    assert related("right", *steep) is None
    assert related("below", *steep) is True
    ring, inner = thing("ring", size="large", depth=1), thing("key", size="small")
    assert related("inside", inner, ring) is True
    assert related("around", ring, inner) is True
    assert related("inside", ring, inner) is False
    assert related("front", inner, ring) is None
    near, far = thing("ball", x=0.4), thing("heart", x=0.56, depth=1)
    assert related("front", near, far) is True
    assert related("behind", near, far) is False
    assert related("behind", far, near) is True
    with pytest.raises(KeyError):
        related("sideways", left, right)


def test_positions_on_hand_made_things():
    corner = thing(x=0.2, y=0.3)
    assert located("top left", corner) is True
    assert located("top", corner) is True
    assert located("bottom left", corner) is False
    assert located("middle", corner) is False
    assert located("left", thing(x=0.45)) is None
    assert located("top left", thing(x=0.45, y=0.1)) is None
    assert located("middle", thing(x=0.55, y=0.42)) is True


def test_every_icon_is_drawn_and_distinct_at_its_smallest():
    assert set(ICONS) == set(KINDS)
    pictures = {k: render(scene(thing(k, size="small")), 64).astype(int) for k in KINDS}
    for a, b in itertools.combinations(KINDS, 2):
        different = (np.abs(pictures[a] - pictures[b]).sum(axis=2) > 60).sum()
        assert different >= 20, (a, b, different)


def test_patterns_colours_and_textures_change_the_picture():
    base = render(scene(thing("mug", size="small")), 64).astype(int)
    for pattern in list(PATTERNS)[1:]:
        marked = render(scene(thing("mug", size="small", pattern=pattern)), 64)
        assert (np.abs(marked - base).sum(axis=2) > 60).sum() > 15
    seen = {render(scene(thing(colour=c)), 64).tobytes() for c in COLOURS}
    assert len(seen) == len(COLOURS)
    grounds = {
        render(scene(thing(), colour=c, texture=t), 64).tobytes()
        for c in BACKDROP_COLOURS
        for t in BACKDROP_TEXTURES
    }
    assert len(grounds) == len(BACKDROP_COLOURS) * len(BACKDROP_TEXTURES)


@pytest.mark.parametrize("size", [16, 64, 100, 224])
def test_pictures_have_the_asked_size_and_the_things_colour(size):
    picture = render(scene(thing("ball", "blue", "large", x=0.3, y=0.6)), size)
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8
    pixel = picture[round(0.6 * size), round(0.3 * size)]
    assert np.abs(pixel.astype(int) - COLOURS["blue"].rgb).max() <= 2


def test_nearer_things_cover_farther_ones():
    near, far = thing("ball", "red", x=0.4), thing("ball", "blue", x=0.56, depth=1)
    between = (32, round(0.49 * 64))
    for order in ((near, far), (far, near)):
        picture = render(scene(*order), 64)
        assert picture[between][0] > picture[between][2]


def test_captions_vary_in_type_and_length():
    captions = [
        caption
        for i in range(300)
        for caption in captions_for(scene_for(CONFIG, 0, "train", i), CONFIG, 0, i)
    ]
    assert len(captions) == 1500
    expected = {name for name, (weight, _) in CAPTION_TYPES.items() if weight}
    assert {caption.kind for caption in captions} == expected
    atoms = [count_atoms(caption.form) for caption in captions]
    assert min(atoms) == 1
    assert 9 <= max(atoms) <= 12
    assert sum(len(caption.text.split()) <= 10 for caption in captions) > 0.7 * len(captions)


def test_every_caption_type_can_be_asked_for_alone():
    for wanted in CAPTION_TYPES:
        weights = tuple((name, float(name == wanted)) for name in CAPTION_TYPES)
        config = WorldConfig(objects=(0.0, 0.0, 0.0, 1.0), caption_weights=weights)
        (caption,) = captions_for(scene_for(config, 0, "train", 1), config, 0, 1, count=1)
        assert caption.kind == wanted


def test_captions_of_one_image_differ_and_follow_the_weights():
    weights = tuple((name, 0.0) for name in CAPTION_TYPES if name != "position")
    config = WorldConfig(objects=(1.0,), anchored=1.0, caption_weights=weights)
    captions = captions_for(scene_for(config, 0, "train", 0), config, 0, 0, count=8)
    assert len({caption.text for caption in captions}) == 8
    assert {caption.kind for caption in captions} == {"position"}


def test_words():
    assert pluralise("box") == "boxes"
    assert pluralise("fish") == "fish"
    assert pluralise("bunny") == "bunnies"
    assert pluralise("key") == "keys"
    assert with_article("orange hat") == "an orange hat"
    words = [w for k, spec in KINDS.items() for w in (k, *spec.synonyms)]
    words += [w for k, spec in COLOURS.items() for w in (k, *spec.synonyms)]
    words += [w for k, spec in SIZES.items() for w in (k, *spec.synonyms)]
    words += [w for k, others in PATTERNS.items() for w in (k, *others)]
    assert len(words) == len(set(words))


def test_bad_requests_are_refused():
    with pytest.raises(UsageError, match="split"):
        scene_for(CONFIG, 0, "training", 0)
    with pytest.raises(UsageError, match="unknown kind 'dog'"):
        scene_for(WorldConfig(kinds=("dog",)), 0, "train", 0)
    with pytest.raises(UsageError, match="caption type"):
        captions_for(
            scene_for(CONFIG, 0, "train", 0), WorldConfig(caption_weights=(("poem", 1.0),)), 0, 0
        )
    with pytest.raises(UsageError, match="at least 16"):
        render(scene(thing()), 8)
    with pytest.raises(CompoclipError, match="no scene of split"):
        scene_for(WorldConfig(holdout_attribute=1.0), 0, "train", 0)
