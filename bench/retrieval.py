"""`python -m bench retrieval`: ranks at COCO's size, and zero-shot class weights."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from open_clip import build_zero_shot_classifier

from bench.rows import PROGRAM, Inputs, Row, machine
from compoclip.cli.options import parse
from compoclip.console import emit_json
from compoclip.errors import UsageError
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.forms.classification import class_embeddings
from compoclip.evaluation.forms.retrieval import rank
from compoclip.evaluation.items import Scores
from compoclip.models.checkpoint import LoadedModel
from compoclip.ranks import device_named


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


if TYPE_CHECKING:
    from bench.retrieval import ClassWeights, RetrievalCost


@dataclass(frozen=True)
class Options:
    """Ranks of random features in both directions, by the code of evaluate, which works through
    blocks, against all scores at once and sorted; and the class weights of ImageNet classes
    against open_clip's build_zero_shot_classifier with the same model.

    Args:
        images: Images (COCO's test set: 5000).
        texts: Captions (COCO's test set: 25010).
        width: Numbers a feature has.
        model: Whose text encoder makes class weights: anything `compoclip evaluate` takes.
        classes: ImageNet classes to make weights of, from the first.
        templates: Of CLIP's 80 prompt templates, from the first.
        json: Print JSON.
    """

    images: int = 5000
    texts: int = 25010
    width: int = 512
    model: str = "bundled"
    classes: int = 100
    templates: int = 80
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "retrieval", arguments, PROGRAM)
    if min(options.images, options.texts, options.width, options.classes, options.templates) < 1:
        raise UsageError("numbers must be at least 1")
    if options.texts < options.images:
        raise UsageError("--texts must be at least --images, so that every image has a caption")
    ranks, weights = measure(options)
    if options.json:
        emit_json({"machine": machine(), "ranks": asdict(ranks), "weights": asdict(weights)})
        return 0
    print(f"{machine()}\n\nranks of {ranks.images} images x {ranks.texts} texts, both ways:")
    for name, cost in (("in blocks", ranks.ours), ("all at once", ranks.dense)):
        print(f"  {name}: {cost.seconds:.1f} CPU s, {cost.peak_bytes / 1e6:.0f} MB at most")
    print(f"  ranks {'equal' if ranks.equal else 'DIFFER'}")
    print(
        f"\nclass weights of {weights.classes} classes, {weights.prompts} prompts, "
        f"{weights.distinct} distinct: {weights.ours:.1f} CPU s; open_clip's builder "
        f"{weights.open_clip:.1f} CPU s; largest difference {weights.difference:.1e}"
    )
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """COCO's size, a quarter of it in each direction when it has to be quick."""
    options = Options(images=1250, texts=6250, classes=20) if inputs.quick else Options()
    ranks, weights = measure(options)
    size = f"{ranks.images} x {ranks.texts}"
    ours, dense = ranks.ours, ranks.dense
    return [
        Row(
            bench="retrieval",
            what=f"ranks {size}, CPU seconds",
            ours=ours.seconds,
            baseline=dense.seconds,
            against="all scores, sorted",
            ratio=dense.seconds / ours.seconds,
        ),
        Row(
            bench="retrieval",
            what=f"ranks {size}, MB at most",
            ours=ours.peak_bytes / 1e6,
            baseline=dense.peak_bytes / 1e6,
            against="all scores, sorted",
            ratio=dense.peak_bytes / ours.peak_bytes,
        ),
        Row(
            bench="retrieval",
            what=f"class weights, {weights.prompts} prompts, CPU seconds",
            ours=weights.ours,
            baseline=weights.open_clip,
            against="open_clip's builder",
            ratio=weights.open_clip / weights.ours,
        ),
    ]


def measure(options: Options) -> tuple[RetrievalCost, ClassWeights]:
    """Both measurements."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

    from bench.retrieval import class_weights, retrieval_cost
    from compoclip.models.checkpoint import load_model

    ranks = retrieval_cost(options.images, options.texts, options.width)
    model = load_model(options.model, device=device_named("cpu"))
    model.encoder.eval()
    names = IMAGENET_CLASSNAMES[: options.classes]
    return ranks, class_weights(model, names, OPENAI_IMAGENET_TEMPLATES[: options.templates])
