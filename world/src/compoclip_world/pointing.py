"""Do words look at what they name?

Token-patch maps are compared with the boxes of the named things, on scenes of two unlike things
whose captions name both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image

from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Bootstrap, Estimate
from compoclip_world.logic import Attribute, NounPhrase
from compoclip_world.render import render
from compoclip_world.sampling import generator, scene_for
from compoclip_world.scene import Thing, WorldConfig
from compoclip_world.wording import Wording

if TYPE_CHECKING:
    from compoclip.analysis.maps import Box, Floats
    from compoclip.models.checkpoint import LoadedModel

MASS, HIT, OWN = "mass", "peak", "own"
MEASURES = {
    MASS: "share of a word's attention inside the box of the thing it names",
    HIT: "how often the patch it attends to most has its centre there",
    OWN: "how often that box has more attention a pixel than any other thing's",
}


@dataclass(frozen=True)
class PointedWord:
    """A word that names a thing. place: of the word in the caption. kind: sort of word ("noun").
    box: of the thing, in pixels; others: boxes of the other things."""

    place: int
    kind: str
    box: Box
    others: tuple[Box, ...]


@dataclass(frozen=True)
class Pointed:
    """An RGB image, a caption, and which of its words name what."""

    image: Image.Image
    caption: str
    targets: tuple[PointedWord, ...]


Pointing: TypeAlias = "dict[str, dict[str, Floats]]"
"""kind -> measure -> (images, 2): the mean over the image's words of the kind, and that of an even
map (OWN: of a coin)."""


@dataclass(frozen=True)
class MeanShare(Estimate):
    """A mean over n images with its 95 % interval (bootstrap over images; None for one), and
    chance."""

    chance: float = 0.0
    n: int = 0


def measure_pointing(model: LoadedModel, scenes: Sequence[Pointed]) -> Pointing:
    """Compare the maps of every target of every scene with the boxes of the things they name.

    Raises CompoclipError as `patch_maps` does, and when the tokenizer sees other words than white
    space separates.
    """
    from compoclip.analysis.maps import patch_maps

    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for scene in scenes:
        maps = patch_maps(model, scene.image, scene.caption)
        if [*(word.word for word in maps.words), *maps.left_out] != scene.caption.lower().split():
            raise CompoclipError(
                f"{model.name}: its tokenizer or context does not keep the words of "
                f"'{scene.caption}' apart; pointing cannot be measured"
            )
        rows: dict[str, list[tuple[tuple[float, float], ...]]] = {}
        for target in scene.targets:
            attention = maps.words[target.place].attention
            rows.setdefault(target.kind, []).append(pointed(attention, maps.region, target))
        for kind, each in rows.items():
            means = np.mean(each, axis=0)
            for measure, (value, chance) in zip(MEASURES, means.tolist(), strict=True):
                found.setdefault(kind, {}).setdefault(measure, []).append((value, chance))
    return {kind: {m: np.array(v) for m, v in each.items()} for kind, each in found.items()}


def pointed(
    attention: Floats, region: Box, target: PointedWord
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """MASS, HIT and OWN of one map, each with its value by chance.

    attention: (rows, columns), sum 1, over `region` of the image. A patch that lies in a box in
    part counts in part. HIT: the centre of the peak patch lies in the box; of several peaks the
    mean. Equal density in two boxes counts half.
    """
    own = cover(attention.shape, region, target.box)
    mass, area = float((attention * own).sum()), float(own.mean())
    peaks = attention == attention.max()
    centres = _centres(attention.shape, region, target.box)
    hit = float(centres[peaks].mean())

    def density(box: Box) -> float:
        inside = cover(attention.shape, region, box)
        return float((attention * inside).sum() / max(inside.sum(), 1e-12))

    rivals = [density(box) for box in target.others]
    best, mine = max(rivals, default=float("-inf")), density(target.box)
    won = 0.5 if mine == best else float(mine > best)
    return (mass, area), (hit, float(centres.mean())), (won, 1 / (1 + len(rivals)))


def cover(grid: tuple[int, ...], region: Box, box: Box) -> Floats:
    """(rows, columns): the share of each patch that lies in the box."""
    rows, columns = grid
    left, upper, right, lower = region
    across = _overlap(np.linspace(left, right, columns + 1), box[0], box[2])
    down = _overlap(np.linspace(upper, lower, rows + 1), box[1], box[3])
    return np.outer(down, across)


def _overlap(edges: Floats, low: float, high: float) -> Floats:
    inside = np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)
    return np.asarray(np.clip(inside, 0, None) / np.diff(edges))


def _centres(grid: tuple[int, ...], region: Box, box: Box) -> Floats:
    """(rows, columns): 1 where the centre of a patch lies in the box."""
    axes = []
    for count, low, high, near, far in zip(grid[::-1], region[:2], region[2:], box[:2], box[2:]):
        centres = low + (np.arange(count) + 0.5) * (high - low) / count
        axes.append((centres > near) & (centres < far))
    return np.outer(axes[1], axes[0]).astype(float)


def shares(
    measured: Pointing, bootstrap: Bootstrap, base: Pointing | None = None
) -> dict[str, dict[str, MeanShare]]:
    """Average a model's measures over images: kind -> measure -> mean, interval and chance.

    base: of another model on the same scenes; then the differences to it, paired, with a chance
    of 0.
    """
    means: dict[str, dict[str, MeanShare]] = {}
    for kind, measures in measured.items():
        for measure, values in measures.items():
            if base is None:
                chance = float(values[:, 1].mean())
                (mean,) = MeanShare.of_means(values[:, :1], bootstrap, lowest=0.0, highest=1.0)
            else:
                chance = 0.0
                gains = values[:, :1] - base[kind][measure][:, :1]
                (mean,) = MeanShare.of_means(gains, bootstrap, lowest=-1.0, highest=1.0)
            share = replace(mean, chance=chance, n=len(values))
            means.setdefault(kind, {})[measure] = share
    return means


def pointing_scenes(world: WorldConfig, count: int, size: int, seed: int = 0) -> list[Pointed]:
    """`count` test scenes, `size` pixels wide: "a red star and a blue mug", nothing hidden.

    The words "red" (kind "colour") and "star" (kind "noun") name the star's box, and so on.
    """
    config = replace(
        world, objects=(0.0, 1.0), unlike=True, repeat=0.0, same_colour=0.0, inside=0.0,
        occlusion=0.0,
    )  # fmt: skip
    wording = Wording(generator("pointing", seed), synonyms=0.0, variants=0.0)
    scenes = []
    for index in range(count):
        scene = scene_for(config, seed, "test", index)
        phrases = [
            wording.noun_phrase(NounPhrase.of(t.kind, (Attribute("colour", t.colour),))).split()
            for t in scene.things
        ]
        boxes = [box_of(thing, size) for thing in scene.things]
        targets = []
        start = 0
        for k, words in enumerate(phrases):
            others = tuple(box for j, box in enumerate(boxes) if j != k)
            last = start + len(words) - 1
            targets.append(PointedWord(start + 1, "colour", boxes[k], others))
            targets.append(PointedWord(last, "noun", boxes[k], others))
            start = last + 2  # "and" stands between
        caption = " and ".join(" ".join(words) for words in phrases)
        image = Image.fromarray(render(scene, size))
        scenes.append(Pointed(image, caption, tuple(targets)))
    return scenes


def box_of(thing: Thing, size: int) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a thing in a picture `size` pixels wide, in pixels."""
    centre, radius = (thing.x, thing.y), thing.radius
    edges = (*(c - radius for c in centre), *(c + radius for c in centre))
    left, upper, right, lower = (min(1.0, max(0.0, edge)) * size for edge in edges)
    return left, upper, right, lower
