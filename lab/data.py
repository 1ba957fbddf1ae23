"""The lab's training data: scenes with captions, and all that only some recipes read.

    <folder>/scenes.jsonl       image, caption (list), neg_caption, neg_image
    <folder>/variations.jsonl   the same scenes, some with an edited copy: image, caption, group
    <folder>/TABLE.jsonl        the same scenes with captions of other types: image, caption
    <folder>/bags.jsonl         id (image), sentences, negatives
    <folder>/paraphrases.jsonl  caption, positive (list): for captions of scenes.jsonl
    <folder>/scenes/, edited/   the images
    <folder>/data.json          what it was made from

Every scene has an edited copy that differs in one thing, made by the world's minimal pairs: two
things exchange their colours, one is moved, replaced, taken away. The first caption of a scene and
that of its copy differ by this edit alone, and the oracle has judged each true of its own image and
false of the other; so is every further caption. The same scenes, images and captions serve all
recipes: as plain pairs, with the copy's caption as given negative, with the copy as negative image
(TripletCLIP), as a pair of variations (GNM-CLIP).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from compoclip.console import track
from compoclip.errors import CompoclipError
from compoclip.files import new_folder, read_json
from compoclip_world.captions import CAPTION_TYPES, WorldCaption, captions_for
from compoclip_world.dataset import png_bytes
from compoclip_world.edits import NEGATIVES, POSITIVE_RULES, hard_negative, hard_positive
from compoclip_world.oracle import is_false
from compoclip_world.pairs import PAIR_SKILLS, WorldPair, edited
from compoclip_world.parser import parse
from compoclip_world.sampling import generator, scene_for
from compoclip_world.scene import Scene, WorldConfig

SCENES, VARIATIONS, BAGS = "scenes.jsonl", "variations.jsonl", "bags.jsonl"
PARAPHRASES = "paraphrases.jsonl"
FILES = (BAGS, PARAPHRASES)
"""Files that some recipes read beside their table; arms name them in their settings."""
SPLIT = "train"
GROUPED = 4
"""Every so many-th scene is a group with its copy in the table of variations."""
_ABOUT = "data.json"
_CAPTIONS = 4  # drawn for a scene, to find one that the edit makes false
_SENTENCES = (8, 6, 4, 2)  # of a bag: as many as the scene yields
_TOLD = (4, 2)  # captions of a scene in a further table: as many as it yields
_DENSE = {"object": 0.25, "position": 0.2, "relation": 0.3, "predicate": 0.15, "count": 0.1}
_PATIENCE = 20  # scenes to look at, per wanted scene, before giving up


@dataclass(frozen=True)
class DataSpec:
    """What decides every byte of the data. count: training scenes. tables: further tables, each a
    name and the weights of its caption types."""

    config: WorldConfig
    count: int
    seed: int = 0
    tables: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()


@dataclass(frozen=True)
class _Row:
    """A scene, its edited copy, their captions, and the bag: (sentence, negative or None).

    told: table -> captions of the scene there. paraphrases: of its captions, those that have some.
    """

    pair: WorldPair
    captions: tuple[str, ...]
    copy_captions: tuple[str, ...]
    bag: tuple[tuple[str, str | None], ...]
    told: Mapping[str, tuple[str, ...]]
    paraphrases: Mapping[str, tuple[str, ...]]


def write_data(folder: Path, spec: DataSpec) -> None:
    """Write the data, unless it is there already.

    `folder` appears when all is written, or not at all. Raises CompoclipError when it holds data of
    another spec, cannot be written, or when the world has too few such scenes.
    """
    made_from = json.loads(json.dumps(asdict(spec)))
    if (folder / _ABOUT).is_file():
        if read_json(folder / _ABOUT) != made_from:
            raise CompoclipError(f"{folder}: made with other settings; delete it or choose another")
        return
    with new_folder(folder) as place:
        for name in ("scenes", "edited"):
            (place / name).mkdir()
        further = (f"{name}.jsonl" for name, _ in spec.tables)
        tables: dict[str, list[dict[str, Any]]] = {
            name: [] for name in (SCENES, VARIATIONS, *further, *FILES)
        }
        rows = track(_rows(spec), "drawing training scenes", spec.count, "scenes")
        for number, row in enumerate(rows):
            name = f"{number:08d}.png"
            for part, scene in (("scenes", row.pair.scene_a), ("edited", row.pair.scene_b)):
                (place / part / name).write_bytes(png_bytes(scene, spec.config.size))
            _tell(tables, row, name, number)
        for table, lines in tables.items():
            (place / table).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (place / _ABOUT).write_text(json.dumps(made_from, indent=1))


def _tell(tables: dict[str, list[dict[str, Any]]], row: _Row, name: str, number: int) -> None:
    """Add the rows of one scene to all tables."""
    scene, copy = f"scenes/{name}", f"edited/{name}"
    plain = {"image": scene, "caption": list(row.captions)}
    wrong = {"neg_caption": [row.pair.caption_b], "neg_image": copy}
    tables[SCENES].append({**plain, **wrong})
    group = str(number) if number % GROUPED == 0 else ""
    tables[VARIATIONS].append({**plain, "group": group})
    if group:
        variation = {"image": copy, "caption": list(row.copy_captions), "group": group}
        tables[VARIATIONS].append(variation)
    for table, captions in row.told.items():
        tables[f"{table}.jsonl"].append({"image": scene, "caption": list(captions)})
    for caption, positives in row.paraphrases.items():
        tables[PARAPHRASES].append({"caption": caption, "positive": list(positives)})
    sentences, negatives = zip(*row.bag)
    tables[BAGS].append({"id": scene, "sentences": sentences, "negatives": negatives})


def _rows(spec: DataSpec) -> Iterator[_Row]:
    """The first `count` scenes that have an edit and captions."""
    found = 0
    for index in range(_PATIENCE * (spec.count + 1)):
        row = _row(spec, index)
        if row is not None:
            yield row
            found += 1
        if found == spec.count:
            return
    raise CompoclipError(
        f"world: only {found} of {spec.count} training scenes have an edited copy; "
        "ask for fewer or allow more kinds, colours and objects"
    )


def _row(spec: DataSpec, index: int) -> _Row | None:
    scene = scene_for(spec.config, spec.seed, SPLIT, index)
    rng = generator("lab", spec.seed, index)
    pair = _edit(spec.config, scene, rng)
    if pair is None:
        return None
    own = _captions(spec, pair.scene_a, index, (_CAPTIONS,))
    other = _captions(spec, pair.scene_b, index, (_CAPTIONS,))
    captions = (pair.caption_a, *_telling(own, pair.scene_b))
    told = {
        name: tuple(c.text for c in _told(spec, pair.scene_a, index, dict(weights), _TOLD))
        for name, weights in spec.tables
    }
    return _Row(
        pair,
        captions=captions,
        copy_captions=(pair.caption_b, *_telling(other, pair.scene_a)),
        bag=_bag(spec, pair, index, rng),
        told={name: texts or captions for name, texts in told.items()},
        paraphrases=_paraphrases(pair.scene_a, captions, generator("paraphrases", index)),
    )


def _edit(config: WorldConfig, scene: Scene, rng: Random) -> WorldPair | None:
    """An edit of the scene, of a skill drawn among those that apply; None when none does."""
    # Another background may be one that no scene of the config has.
    skills = [skill for skill in PAIR_SKILLS if skill != "background"]
    for skill in rng.sample(skills, len(skills)):
        pair = edited(scene, config, skill, rng, SPLIT)
        if pair is not None:
            return pair
    return None


def _captions(
    spec: DataSpec, scene: Scene, index: int, counts: Sequence[int]
) -> tuple[WorldCaption, ...]:
    """The first of `counts` captions that the scene yields; none when it yields too few."""
    for count in counts:
        try:
            return captions_for(scene, spec.config, spec.seed, index, count)
        except CompoclipError:
            continue
    return ()


def _told(
    spec: DataSpec, scene: Scene, index: int, weights: Mapping[str, float], counts: Sequence[int]
) -> tuple[WorldCaption, ...]:
    """Captions as `_captions` draws them, of the types with these weights alone."""
    weights = {**dict.fromkeys(CAPTION_TYPES, 0.0), **weights}
    config = replace(spec.config, caption_weights=tuple(sorted(weights.items())))
    return _captions(replace(spec, config=config), scene, index, counts)


def _paraphrases(scene: Scene, captions: Sequence[str], rng: Random) -> dict[str, tuple[str, ...]]:
    """The captions that can be put in other words or another order, each with all ways found."""
    found = {}
    for text in captions:
        form = parse(text)
        made = (hard_positive(scene, form, rule, rng) for rule in POSITIVE_RULES)
        others = tuple(dict.fromkeys(pair[1] for pair in made if pair and pair[1] != text))
        if others:
            found[text] = others
    return found


def _telling(captions: Sequence[WorldCaption], other: Scene) -> tuple[str, ...]:
    """The first caption that is false of the other scene, if any is."""
    for caption in captions:
        if is_false(caption.text, other):
            return (caption.text,)
    return ()


def _bag(
    spec: DataSpec, pair: WorldPair, index: int, rng: Random
) -> tuple[tuple[str, str | None], ...]:
    """Short true sentences about the scene, each with a negative that the oracle calls false."""
    drawn = _told(spec, pair.scene_a, index, _DENSE, _SENTENCES)
    bag: dict[str, str | None] = {}
    for caption in drawn:
        sentence, negative = _contrasted(pair.scene_a, caption, rng)
        bag.setdefault(sentence, negative)
    bag.setdefault(pair.caption_a, pair.caption_b)
    return tuple(bag.items())


def _contrasted(scene: Scene, caption: WorldCaption, rng: Random) -> tuple[str, str | None]:
    for skill in rng.sample(list(NEGATIVES), len(NEGATIVES)):
        if texts := hard_negative(scene, caption.form, skill, rng):
            return texts
    return caption.text, None
