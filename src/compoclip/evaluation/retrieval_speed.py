"""What ranking a large gallery takes in time and memory, and what class weights take to encode."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from open_clip import build_zero_shot_classifier

from compoclip.evaluation.classification import class_embeddings
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.model_encoder import ModelEncoder
from compoclip.evaluation.outcomes import Scores
from compoclip.evaluation.ranking import rank
from compoclip.models.loaded import LoadedModel


@dataclass(frozen=True)
class Cost:
    """seconds: of processor time, without counting memory. peak_bytes: the most that was held at
    once beside the features."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class RetrievalCost:
    """Ranks both ways by `rank` and with all scores at once; equal: whether the ranks are."""

    images: int
    texts: int
    ours: Cost
    dense: Cost
    equal: bool


@dataclass(frozen=True)
class ClassWeights:
    """Class weights by `class_embeddings` and open_clip's builder; seconds are of processor time.
    difference: the largest of the weights."""

    classes: int
    prompts: int
    distinct: int
    ours: float
    open_clip: float
    difference: float


def retrieval_cost(images: int, texts: int, width: int = 512, seed: int = 0) -> RetrievalCost:
    """Random unit features; the i-th text belongs to image i * images // texts, as with COCO's five
    captions an image."""
    rng = np.random.default_rng(seed)
    left, right = (_unit(rng.standard_normal((n, width), np.float32)) for n in (images, texts))
    owner = np.arange(texts) * images // texts
    of_image = [np.flatnonzero(owner == i).tolist() for i in range(images)]
    of_text = [[int(i)] for i in owner]

    def ours() -> list[Any]:
        return [rank(left, right, of_image).rank, rank(right, left, of_text).rank]

    def dense() -> list[Any]:
        scores = left @ right.T
        return [_dense(scores, of_image), _dense(scores.T, of_text)]

    found = [_cost(each) for each in (ours, dense)]
    equal = all(np.array_equal(a, b) for a, b in zip(found[0][1], found[1][1]))
    return RetrievalCost(images, texts, found[0][0], found[1][0], equal)


def class_weights(
    loaded: LoadedModel, classes: Sequence[str], templates: Sequence[Callable[[str], str]]
) -> ClassWeights:
    """Zero-shot weights both ways with the same model; a prompt that several classes share, or
    templates repeat, is encoded once in ours."""
    from compoclip.benchmarks.case import Classification

    prompts = tuple(tuple(template(name) for template in templates) for name in classes)
    content = Classification((), (), tuple(classes), prompts)
    encoder = ModelEncoder(loaded)
    start = time.process_time()
    features = encode_contents(encoder, [content], EncodeOptions())
    weights = class_embeddings(prompts, features)
    between = time.process_time()
    with torch.inference_mode():
        theirs = build_zero_shot_classifier(
            loaded.encoder.model, loaded.tokenizer, classes, templates, device=loaded.encoder.device
        )
    end = time.process_time()
    return ClassWeights(
        classes=len(classes),
        prompts=sum(map(len, prompts)),
        distinct=len(features.texts),
        ours=between - start,
        open_clip=end - between,
        difference=float(np.abs(theirs.T.float().cpu().numpy() - weights).max()),
    )


def _dense(scores: Scores, right: Sequence[Sequence[int]]) -> Any:
    """1 + the place of the best right candidate, from all candidates in order."""
    order = np.argsort(-scores, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(scores.shape[1])[None, :], axis=1)
    return np.array([1 + place[row, list(each)].min() for row, each in enumerate(right)])


def _cost(work: Callable[[], list[Any]]) -> tuple[Cost, list[Any]]:
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    tracemalloc.start()
    try:
        work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Cost(seconds, peak), result


def _unit(features: Scores) -> Scores:
    unit: Scores = features / np.linalg.norm(features, axis=1, keepdims=True)
    return unit
