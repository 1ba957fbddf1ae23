"""`compoclip world pointing MODEL ...`: do words look at what they name?

Token-patch maps are compared with the boxes of the named things, on scenes of two unlike things
whose captions name both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from compoclip import console
from compoclip.cli.options import Models, OnDevice, Outcome
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Bootstrap, Estimate
from compoclip.evaluation.tables import with_interval
from compoclip.files import require_writable, write_json
from compoclip.run import load_models
from compoclip.typed import Count
from compoclip_world.dataset import bundled_world
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
    found: Pointing, bootstrap: Bootstrap, base: Pointing | None = None
) -> dict[str, dict[str, MeanShare]]:
    """Average a model's measures over images: kind -> measure -> mean, interval and chance.

    base: of another model on the same scenes; then the differences to it, paired, with a chance
    of 0.
    """
    means: dict[str, dict[str, MeanShare]] = {}
    for kind, each in found.items():
        for measure, values in each.items():
            chance = float(values[:, 1].mean()) if base is None else 0.0
            column = values[:, :1] if base is None else (values - base[kind][measure])[:, :1]
            (mean,) = MeanShare.of_means(column, bootstrap)
            made = replace(mean, chance=chance, n=len(values))
            means.setdefault(kind, {})[measure] = made
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
    found = []
    for index in range(count):
        scene = scene_for(config, seed, "test", index)
        phrases = [
            wording.noun_phrase(
                NounPhrase(frozenset((t.kind,)), t.kind, (Attribute("colour", t.colour),))
            ).split()
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
        found.append(Pointed(image, caption, tuple(targets)))
    return found


def box_of(thing: Thing, size: int) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a thing in a picture `size` pixels wide, in pixels."""
    centre, radius = (thing.x, thing.y), thing.radius
    edges = (*(c - radius for c in centre), *(c + radius for c in centre))
    left, upper, right, lower = (min(1.0, max(0.0, edge)) * size for edge in edges)
    return left, upper, right, lower


@dataclass(frozen=True)
class PointingOptions(OnDevice):
    """Measure where the words of captions look, on scenes of two things ("a red star and a mug").

    Three measures, each against chance: the share of a word's attention in the box of the thing it
    names, how often its peak lies there, how often that box has more attention per pixel than the
    other one. Further models are compared with the first, scene by scene.

    Examples:
        compoclip world pointing base=bundled tuned=runs/fsc-clip/model

    Args:
        models: As for evaluate; NAME=MODEL gives a name.
        scenes: Number of scenes.
        seed: Seed of the scenes and of the bootstrap.
        resamples: Bootstrap resamples.
        out: Folder for maps.json with the numbers.
    """

    models: Models
    scenes: Count = 500
    seed: int = 0
    resamples: Count = 2000
    out: Path | None = None


Shares = Mapping[str, Mapping[str, MeanShare]]


def main(options: PointingOptions) -> Outcome:
    """Print the pointing accuracy of every model, and its difference to the first."""
    if options.out is not None:
        require_writable(options.out)
    models = load_models(options.models, options.device)
    size = max(max(each.preprocess.size) for each in models.values())
    scenes = pointing_scenes(bundled_world(), options.scenes, size, options.seed)
    bootstrap = Bootstrap(options.resamples, options.seed)
    found = {name: measure_pointing(model, scenes) for name, model in models.items()}
    first = next(iter(found))
    means = {name: shares(each, bootstrap) for name, each in found.items()}
    gaps = {name: shares(found[name], bootstrap, found[first]) for name in found if name != first}
    records = [
        {
            "model": name,
            "weights": models[name].identity.weights,
            "scenes": options.scenes,
            "seed": options.seed,
            "shares": _record(means[name]),
            **({"against_first": _record(gaps[name])} if name in gaps else {}),
        }
        for name in found
    ]
    if options.out is not None:
        write_json(options.out / "maps.json", records)
    return records, _text(options, means, gaps)


def _record(found: Shares) -> dict[str, Any]:
    return {kind: {m: asdict(s) for m, s in each.items()} for kind, each in found.items()}


def _text(options: PointingOptions, means: Mapping[str, Shares], gaps: Mapping[str, Shares]) -> str:
    """A row a model and sort of word; below, the differences to the first model."""

    def cell(share: MeanShare, sign: str = "") -> str:
        return with_interval(share.value, share.low, share.high, sign)

    kinds = list(next(iter(means.values())))
    rows = []
    for kind in kinds:
        rows += [[n, kind, *(cell(each[kind][m]) for m in MEASURES)] for n, each in means.items()]
        chance = next(iter(means.values()))[kind]
        rows.append(["chance", kind, *(f"{100 * chance[m].chance:.1f}" for m in MEASURES)])
    lines = [console.table(rows, ["model", "words", *MEASURES], left=2)]
    if gaps:
        first = next(iter(means))
        rows = [
            [name, kind, *(cell(each[kind][m], "+") for m in MEASURES)]
            for kind in kinds
            for name, each in gaps.items()
        ]
        lines.append(console.table(rows, [f"minus {first}", "words", *MEASURES], left=2))
    lines.append(
        "\n".join(f"{name}: {about}" for name, about in MEASURES.items())
        + f"\npercent with 95 % intervals, {options.scenes} scenes, seed {options.seed}; chance: a "
        "map that is even over the image"
    )
    return "\n\n".join(lines)
