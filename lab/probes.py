"""Where a fact is: in the frozen image vector, in the image's patches, in the text vector.

    python -m lab.probes --base bundled --out probes-out [--quick]
    python -m lab.probes --photos FOLDER --base MODEL --out probes-out     FOLDER of `lab.photos`

For each pair of contrary facts (`lab.facts`) a logistic regression tells pictures of one side from
pictures of the other, and another one tells texts. What a probe reads off the image vector, a text
tower could ask for. Zero-shot is the model itself: the cosines of a picture with a caption of each
side. The tables are printed, all numbers are written to OUT/probes.json (reports/probes.md).
Features are cached in OUT: after a stop the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from scipy.optimize import minimize
from scipy.special import expit

import compoclip
from compoclip.console import end_with, note, track
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import evaluating, require_finite
from compoclip.evaluation.statistics import BOOTSTRAP, Estimate, bounded_interval
from compoclip.files import load_arrays, read_text, save_arrays, write_atomically, write_json
from compoclip.models.checkpoint import LoadedModel, current_identity, load_model
from compoclip.printed import Table
from compoclip_world.dataset import bundled_world
from compoclip_world.pairs import WorldPair, pair
from compoclip_world.render import render
from lab.facts import (
    PHOTO_SKILLS,
    SKILLS,
    SOURCES,
    Fact,
    PhotoFact,
    Skill,
    shown,
    texts_of,
)
from lab.photos import TABLE

Floats = NDArray[np.float32]
SPLIT = "val"  # scenes that no base was trained on and no page reports
PARTS = ("fit", "choose", "test")
"""Pairs that weights are fitted on, that the ridge is chosen on, and of the test."""
STRENGTHS = (1.0, 0.1, 0.01, 0.001, 0.0001)
PLACES = ("image", "patches", "zero-shot", "text", "known text")
"""Where a fact is looked for: three places of pictures, two of texts, in the tables' order."""


# --- The probe. ---


@dataclass(frozen=True)
class Probe:
    """A fitted logistic regression of standardised features: positive scores mean the first side.

    mean, scale: (D,) of the features. weights: (D,). bias: of the score.
    """

    mean: Floats
    scale: Floats
    weights: Floats
    bias: float

    def scores(self, features: Floats) -> Floats:
        """Return the (N,) scores of (N, D) features."""
        scores = (features - self.mean) / self.scale @ self.weights + self.bias
        return np.asarray(scores, dtype=np.float32)


def fit_probe(
    features: Floats, first: NDArray[np.bool_], choosing: Floats, choosing_first: NDArray[np.bool_]
) -> Probe:
    """Fit a logistic regression with a ridge; the strength has the least loss on other rows.

    The loss is the mean of log(1 + exp(-y s)), with y 1 for the first side and -1 for the second,
    plus half the strength times the squared length of the weights.

    Args:
        features: (N, D) rows to fit.
        first: (N,) whether a row is of the first side.
        choosing: (M, D) rows that choose among `STRENGTHS`.
        choosing_first: (M,) their sides.
    """
    mean, spread = features.mean(0), features.std(0)
    constant = spread <= 1e-6 * spread.max()
    scale = np.where(constant, np.inf, spread).astype(np.float32)  # so it counts nothing
    # A ridge does not see rotations: in the space of the rows nothing is lost, and N may be < D.
    _, _, axes = np.linalg.svd((features - mean) / scale, full_matrices=False)
    rows, others = (((each - mean) / scale) @ axes.T for each in (features, choosing))
    signs, other_signs = (np.where(each, 1.0, -1.0) for each in (first, choosing_first))
    weights = best = np.zeros(rows.shape[1] + 1)
    least = np.inf
    for strength in STRENGTHS:
        weights = minimize(_loss, weights, (rows, signs, strength), jac=True, method="L-BFGS-B").x
        loss = float(np.logaddexp(0, -other_signs * (others @ weights[:-1] + weights[-1])).mean())
        if loss < least:
            best, least = weights, loss
    return Probe(mean, scale, (best[:-1] @ axes).astype(np.float32), float(best[-1]))


def _loss(
    weights: NDArray[np.float64], rows: Floats, signs: NDArray[np.float64], strength: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the loss of weights (D + 1,), the last of which is the bias, and its gradient."""
    margins = signs * (rows @ weights[:-1] + weights[-1])
    slopes = -signs * expit(-margins) / len(rows)
    loss = np.logaddexp(0, -margins).mean() + strength / 2 * weights[:-1] @ weights[:-1]
    gradient = np.append(slopes @ rows + strength * weights[:-1], slopes.sum())
    return float(loss), gradient


@dataclass(frozen=True)
class Answers:
    """Answers about pairs of a fact in the test. right: (N, 2), of the first and the second side.
    clusters: (N,) numbers of the pairs that they are about, for the interval."""

    right: NDArray[np.bool_]
    clusters: NDArray[np.int64]


def fit_pairs(pairs: Floats, part: NDArray[np.str_]) -> Probe:
    """Fit a probe on pairs.

    Args:
        pairs: (N, 2, D) features of the first and the second side.
        part: (N,) which of `PARTS` each belongs to.

    Raises:
        CompoclipError: A part has no pair.
    """
    if missing := set(PARTS) - set(part.tolist()):
        raise CompoclipError(f"too few pairs for the part '{min(missing)}'; ask for more pairs")

    def rows(name: str) -> tuple[Floats, NDArray[np.bool_]]:
        chosen = pairs[part == name]
        return chosen.reshape(-1, pairs.shape[-1]), np.tile([True, False], len(chosen))

    return fit_probe(*rows("fit"), *rows("choose"))


def ask(probe: Probe, pairs: Floats, clusters: NDArray[np.int64]) -> Answers:
    """Return the answers of a probe about pairs (N, 2, D)."""
    scores = probe.scores(pairs.reshape(-1, pairs.shape[-1])).reshape(-1, 2)
    return Answers(scores * [1, -1] > 0, clusters)


def part_of(number: int) -> str:
    """Return the part of a pair by its number, so that pairs of all facts are divided alike."""
    place = number * 7 % 20 / 20
    return "fit" if place < 0.6 else "choose" if place < 0.75 else "test"


# --- Numbers of a skill: means over facts, with intervals over pairs. ---


@dataclass(frozen=True)
class Score:
    """The scores of a probe in a skill. accuracy: share of single pictures or texts that are right,
    chance 50 %. both: share of pairs of which both are right, chance 25 %. pairs: number of test
    pairs, over all facts."""

    accuracy: Estimate
    both: Estimate
    pairs: int


def score(answers: Sequence[Answers]) -> Score:
    """Return the means over facts, of the means over each fact's pairs.

    The intervals are of a bootstrap over pairs; a pair that serves several facts is one cluster.
    """
    numbers, places = np.unique(
        np.concatenate([each.clusters for each in answers]), return_inverse=True
    )
    parts = np.split(places, np.cumsum([len(each.clusters) for each in answers])[:-1])
    values = [
        np.stack([each.right.mean(1), each.right.all(1)], axis=1).astype(float) for each in answers
    ]
    draws = []
    for weights in BOOTSTRAP.weights(len(numbers)):
        with np.errstate(invalid="ignore"):  # a draw may hold no pair of a fact
            of_facts = [
                weights[:, part] @ value / weights[:, part].sum(1, keepdims=True)
                for part, value in zip(parts, values)
            ]
        draws.append(np.nanmean(of_facts, axis=0))
    means = np.mean([value.mean(0) for value in values], axis=0)
    drawn = np.concatenate(draws)
    accuracy, both = (
        Estimate(float(mean), *bounded_interval(column, len(numbers), lowest=0.0))
        for mean, column in zip(means, drawn.T)
    )
    return Score(accuracy, both, sum(len(each.clusters) for each in answers))


# --- Features. ---

_BATCH = 50  # photos that are encoded at once


def encode(model: LoadedModel, images: Sequence[Image.Image]) -> tuple[Floats, Floats]:
    """Return the features of RGB images (N, D), of unit length, and of their patches (N, P * D).

    Raises CompoclipError for a tower without patches, and for features that are not finite.
    """
    pixels = torch.stack([model.preprocess.evaluation(image) for image in images])
    with evaluating(model.encoder), torch.inference_mode():
        features = model.encoder.encode_images(pixels.to(model.encoder.device), patches=True)
    assert features.patches is not None
    vectors = F.normalize(features.pooled.float(), dim=-1).cpu().numpy()
    patches = features.patches.float().flatten(1).cpu().numpy()
    for each in (vectors, patches):
        require_finite(each, model.name)
    return vectors, patches


def encode_all(
    model: LoadedModel, batches: Iterable[Sequence[Image.Image]], path: Path, made_from: object
) -> tuple[Floats, Floats]:
    """Return `encode` of all batches, cached in a file of `made_from`."""
    made_from = [made_from, current_identity(model).weights]
    arrays = load_arrays(path, made_from)
    if arrays is None:
        vectors, patches = zip(*(encode(model, images) for images in batches))
        arrays = {"image": np.concatenate(vectors), "patches": np.concatenate(patches)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, partial(save_arrays, arrays=arrays, made_from=made_from))
    return arrays["image"], arrays["patches"]


# --- Scenes. ---


@dataclass(frozen=True)
class Effort:
    """How much is probed. pairs: share of the pairs of `SOURCES`. texts: text pairs per fact of
    known and of held-out wordings."""

    pairs: float = 1.0
    texts: tuple[int, int] = (600, 100)


QUICK = Effort(1 / 4, (100, 20))


def probe_scenes(model: LoadedModel, effort: Effort, out: Path) -> dict[str, dict[str, Score]]:
    """Return skill -> place of `PLACES` -> score, of drawn scenes."""
    scores = {}
    for name, source in SOURCES.items():
        world = replace(bundled_world(), **source.world)
        count = max(20, round(source.pairs * effort.pairs))
        numbers = track(range(count), f"drawing scenes of {name}", unit="pairs")
        pairs = [pair(world, 0, number, name, SPLIT) for number in numbers]
        size = model.preprocess.size[0]
        batches = (
            [Image.fromarray(render(scene, size)) for scene in (each.scene_a, each.scene_b)]
            for each in track(pairs, f"encoding scenes of {name}", unit="pairs")
        )
        made_from = [asdict(world), name, count, SPLIT, size]
        features = encode_all(model, batches, out / "features" / f"{name}.safetensors", made_from)
        for task, skill in SKILLS.items():
            if skill.source == name:
                scores[task] = _scores_of(model, skill, pairs, features, effort)
                note(f"{task}: {_cell(scores[task]['image'].accuracy)} in the image vector")
    return {task: scores[task] for task in SKILLS}


def _scores_of(
    model: LoadedModel,
    skill: Skill,
    pairs: Sequence[WorldPair],
    features: tuple[Floats, Floats],
    effort: Effort,
) -> dict[str, Score]:
    """Return place -> score of a skill. features: of both scenes of each pair, in their order."""
    answers = []
    for place, fact in enumerate(skill.facts):
        sides = [(number, side) for number, each in enumerate(pairs) if (side := shown(fact, each))]
        numbers = np.array([number for number, _ in sides], dtype=np.int64)
        rows = np.array([(2 * n + side[0], 2 * n + 1 - side[0]) for n, side in sides])
        part = np.array([part_of(number) for number in numbers], dtype=str)
        texts = encode_texts(model, [text for _, side in sides for text in side[1:]])
        of_pictures = _of_pictures(features, rows.reshape(-1, 2), texts, part, numbers)
        answers.append(of_pictures | _of_texts(model, skill, fact, effort, place))
    return _by_place(answers)


def _of_pictures(
    features: tuple[Floats, Floats],
    rows: NDArray[np.int64],
    texts: Floats,
    part: NDArray[np.str_],
    clusters: NDArray[np.int64],
) -> dict[str, Answers]:
    """Return place -> answers about pictures of a fact.

    Args:
        features: of all pictures, as `encode` returns them.
        rows: (N, 2) of the pictures of the first and the second side.
        texts: (N * 2, D) a caption of either side for each pair.
        part: (N,) which of `PARTS` each pair belongs to.
        clusters: (N,) numbers of the pairs.
    """
    test = part == "test"
    answers = {
        name: ask(fit_pairs(values[rows], part), values[rows][test], clusters[test])
        for name, values in zip(("image", "patches"), features)
    }
    vectors = features[0][rows]
    answers["zero-shot"] = _asked(vectors[test], texts.reshape(vectors.shape)[test], clusters[test])
    return answers


def _by_place(answers: Sequence[Mapping[str, Answers]]) -> dict[str, Score]:
    """Return place -> score of the answers of several facts."""
    return {place: score([each[place] for each in answers]) for place in answers[0]}


def encode_texts(model: LoadedModel, texts: Sequence[str]) -> Floats:
    """Return the features of texts (N, D), of unit length; equal texts are encoded once."""
    distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = compoclip.Model(model).encode_texts(list(distinct))
    return vectors[[distinct[text] for text in texts]]


def _asked(vectors: Floats, texts: Floats, clusters: NDArray[np.int64]) -> Answers:
    """Measure the model without a probe: a picture must be nearer to the caption of its side.

    vectors, texts: (N, 2, D) of both sides. A tie is wrong.
    """
    cosines = np.einsum("nid,njd->nij", vectors, texts)
    right = [cosines[:, side, side] > cosines[:, side, 1 - side] for side in (0, 1)]
    return Answers(np.stack(right, axis=1), clusters)


def _of_texts(
    model: LoadedModel, skill: Skill, fact: Fact, effort: Effort, place: int
) -> dict[str, Answers]:
    """Fit a probe on texts of known wordings; ask it about others of them, and held-out wordings.

    place: of the fact in its skill. Other facts have other texts, so no two share a cluster.
    """
    pairs = texts_of(skill, fact, *effort.texts)
    vectors = encode_texts(model, [text for each in pairs for text in (each.first, each.second)])
    vectors = vectors.reshape(len(pairs), 2, -1)
    part = np.array([part_of(number) for number in range(len(pairs))], dtype=str)
    unseen = np.array([each.test for each in pairs])
    clusters = np.arange(len(pairs)) + place * len(pairs)
    probe = fit_pairs(vectors[~unseen], part[~unseen])
    known = ~unseen & (part == "test")
    return {
        "text": ask(probe, vectors[unseen], clusters[unseen]),
        "known text": ask(probe, vectors[known], clusters[known]),
    }


# --- Photos. ---

_PART_OF_TABLE = {TABLE: "fit", "dev": "choose", "test": "test"}
_REMEDY = "write the folder with python -m lab.photos"
MOST_PHOTOS = 200  # per side of a fact and table, the first ones


@dataclass(frozen=True)
class Photo:
    """A photo with its captions. part: which of `PARTS` it belongs to."""

    path: Path
    captions: tuple[str, ...]
    part: str


def read_photos(folder: Path) -> list[Photo]:
    """Read the photos of a folder that `lab.photos` has written.

    Raises CompoclipError for a missing table.
    """
    return [
        Photo(folder / row["image"], tuple(row["caption"]), part)
        for name, part in _PART_OF_TABLE.items()
        for row in map(json.loads, read_text(folder / f"{name}.jsonl", absent=_REMEDY).splitlines())
    ]


def probe_photos(model: LoadedModel, folder: Path, out: Path) -> dict[str, dict[str, Score]]:
    """Return skill -> place -> score, of photos whose captions say which side they show."""
    photos = read_photos(folder)
    rows_of = {
        fact: _pairs_of_photos(fact, photos) for facts in PHOTO_SKILLS.values() for fact in facts
    }
    used = sorted({row for pairs in rows_of.values() for pair in pairs for row in pair})
    place_of = {row: place for place, row in enumerate(used)}
    batches = (
        [decode(photos[row].path) for row in used[start : start + _BATCH]]
        for start in track(range(0, len(used), _BATCH), "encoding photos", unit="batches")
    )
    made_from = [str(photos[row].path.name) for row in used]
    features = encode_all(model, batches, out / "features" / "photos.safetensors", made_from)
    scores = {}
    for skill, facts in PHOTO_SKILLS.items():
        answers = []
        for fact in facts:
            pairs = rows_of[fact]
            rows = np.array([[place_of[row] for row in pair] for pair in pairs])
            part = np.array([photos[first].part for first, _ in pairs], dtype=str)
            asked = encode_texts(model, [fact.first, fact.second] * len(pairs))
            of_pictures = _of_pictures(features, rows.reshape(-1, 2), asked, part, rows[:, 0])
            said = [
                next(filter(re.compile(words, re.IGNORECASE).search, photos[row].captions))
                for pair in pairs
                for row, words in zip(pair, (fact.first_words, fact.second_words))
            ]
            texts = encode_texts(model, said).reshape(len(pairs), 2, -1)
            test = part == "test"
            known = ask(fit_pairs(texts, part), texts[test], rows[test, 0])
            answers.append({**of_pictures, "known text": known})
        scores[skill] = _by_place(answers)
    return scores


def _pairs_of_photos(fact: PhotoFact, photos: Sequence[Photo]) -> list[tuple[int, int]]:
    """Pair photos of the first side with photos of the second, within each part."""
    pairs = []
    for part in PARTS:
        sides: tuple[list[int], list[int]] = ([], [])
        for row, photo in enumerate(photos):
            side = fact.side_of(photo.captions) if photo.part == part else None
            if side is not None:
                sides[side].append(row)
        pairs += list(zip(*sides))[:MOST_PHOTOS]
    return pairs


# --- The tables. ---


def tables(scores: Mapping[str, Mapping[str, Score]]) -> str:
    """Return the tables: single pictures and texts, both pictures of a pair, both texts of one."""
    alone = [
        [skill, *(f"{100 * of[each].accuracy.value:.1f}" if each in of else "" for each in PLACES)]
        for skill, of in scores.items()
    ]
    parts = [f"Accuracy, chance 50\n\n{Table(alone, ['skill', *PLACES])}"]
    for things, places in (("pictures", PLACES[:3]), ("texts", PLACES[3:])):
        rows = [
            [skill, *(_cell(of[each].both) if each in of else "" for each in places)]
            for skill, of in scores.items()
        ]
        parts.append(
            f"Both {things} of a pair right, chance 25\n\n{Table(rows, ['skill', *places])}"
        )
    return "\n\n".join(parts)


def _cell(estimate: Estimate) -> str:
    """Return "98.2 [97, 99]", in percent."""
    value = f"{100 * estimate.value:.1f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe a model, print the tables, write probes.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="bundled", help="the model [bundled]")
    parser.add_argument("--photos", type=Path, help="a folder that lab.photos has written")
    parser.add_argument("--out", type=Path, required=True, help="folder of features and numbers")
    parser.add_argument("--quick", action="store_true", help="a quarter of the scenes, fewer texts")
    options = parser.parse_args(arguments)
    model = load_model(options.base)
    if options.photos is None:
        scores = probe_scenes(model, QUICK if options.quick else Effort(), options.out)
    else:
        scores = probe_photos(model, options.photos, options.out)
    record = {
        "base": options.base,
        "weights": current_identity(model).weights,
        "skills": {
            skill: {place: asdict(each) for place, each in of.items()}
            for skill, of in scores.items()
        },
    }
    write_json(options.out / "probes.json", record)
    print(tables(scores))
    return 0


if __name__ == "__main__":
    end_with(main, "lab.probes")
