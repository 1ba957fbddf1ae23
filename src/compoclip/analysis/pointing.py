"""Do words look at what they name? Token-patch maps against boxes of the named things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from compoclip.analysis.maps import Box, Floats, patch_maps
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Estimate
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


@dataclass(frozen=True)
class Pointing:
    """kind -> measure -> (images, 2): the mean over the image's words of the kind, and that of an
    even map (OWN: of a coin)."""

    values: dict[str, dict[str, Floats]]


@dataclass(frozen=True)
class MeanShare(Estimate):
    """A mean over n images with its 95 % interval (bootstrap over images; None for one), and
    chance."""

    chance: float = 0.0
    n: int = 0


def measure_pointing(model: LoadedModel, scenes: Sequence[Pointed]) -> Pointing:
    """Compare the maps of every target of every scene with the boxes of the things they name.

    Args:
        model: the model.
        scenes: images with captions and targets.

    Returns:
        The measures by kind of word.

    Raises:
        CompoclipError: as `patch_maps` does, and when the tokenizer sees other words than white
            space separates.
    """
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
    return Pointing(
        {kind: {m: np.array(v) for m, v in each.items()} for kind, each in found.items()}
    )


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
    rows, columns = grid
    left, upper, right, lower = region
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = upper + (np.arange(rows) + 0.5) * (lower - upper) / rows
    across, down = (x > box[0]) & (x < box[2]), (y > box[1]) & (y < box[3])
    return np.outer(down, across).astype(float)


def shares(found: Pointing, resamples: int, seed: int) -> dict[str, dict[str, MeanShare]]:
    """Average a model's measures over images.

    Args:
        found: the measures.
        resamples: bootstrap draws of images.
        seed: of the draws.

    Returns:
        kind -> measure -> mean, interval and chance.
    """
    return {
        kind: {
            measure: _mean(values[:, 0], resamples, seed, float(values[:, 1].mean()))
            for measure, values in each.items()
        }
        for kind, each in found.values.items()
    }


def gains(
    one: Pointing, other: Pointing, resamples: int, seed: int
) -> dict[str, dict[str, MeanShare]]:
    """Average the differences of two models on the same scenes.

    Args:
        one: the measures of the model compared with.
        other: those of the other model.
        resamples: bootstrap draws of images.
        seed: of the draws.

    Returns:
        kind -> measure -> other minus one, paired; chance is 0.
    """
    return {
        kind: {
            measure: _mean(other.values[kind][measure][:, 0] - values[:, 0], resamples, seed)
            for measure, values in each.items()
        }
        for kind, each in one.values.items()
    }


def _mean(values: Floats, resamples: int, seed: int, chance: float = 0.0) -> MeanShare:
    (found,) = MeanShare.of_means(values[:, None], resamples, seed)
    return replace(found, chance=chance, n=len(values))
