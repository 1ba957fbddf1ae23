"""`python -m bench retrieval`: ranks at COCO's size, and zero-shot class weights."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip import build_zero_shot_classifier
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

from bench.harness import Row, timed
from compoclip.benchmarks.case import Classification
from compoclip.errors import UsageError
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.forms.classification import class_embeddings
from compoclip.evaluation.forms.retrieval import rank
from compoclip.evaluation.items import Scores
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.ranks import device_named

QUICK = ("--images=1250", "--texts=6250", "--classes=20")


def ranks(images: int, texts: int, width: int = 512, seed: int = 0) -> list[Row]:
    """Rank random unit features both ways, by `rank` and with all scores at once and sorted.

    The i-th text belongs to image i * images // texts, as with COCO's five captions per image. The
    rows are of processor seconds, of the most memory held at once beside the features, and of the
    share of equal ranks.
    """
    rng = np.random.default_rng(seed)
    left, right = (rng.standard_normal((n, width), np.float32) for n in (images, texts))
    left, right = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (left, right))
    owner = np.arange(texts) * images // texts
    of_image = [np.flatnonzero(owner == i).tolist() for i in range(images)]
    of_text = [[int(i)] for i in owner]

    def ours() -> list[Any]:
        return [rank(left, right, of_image).rank, rank(right, left, of_text).rank]

    def dense() -> list[Any]:
        scores = left @ right.T
        return [_dense(scores, of_image), _dense(scores.T, of_text)]

    def cost(way: Callable[[], list[Any]]) -> tuple[float, float, Any]:
        _, spent, result = timed(way)
        tracemalloc.start()
        way()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        return spent, peak, np.concatenate(result)

    (spent, peak, found), (longer, higher, wanted) = cost(ours), cost(dense)
    size, against = f"ranks {images} x {texts}", "all scores, sorted"
    return [
        Row(f"{size}, CPU seconds", spent, longer, against, less=True),
        Row(f"{size}, MB at most", peak, higher, against, less=True),
        Row(f"{size}, share of equal ranks", float((found == wanted).mean())),
    ]


def _dense(scores: Scores, right: Sequence[Sequence[int]]) -> Any:
    """Return 1 + the place of the best right candidate, from all candidates in order."""
    order = np.argsort(-scores, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(scores.shape[1])[None, :], axis=1)
    return np.array([1 + place[row, list(each)].min() for row, each in enumerate(right)])


def class_weights(
    loaded: LoadedModel, classes: Sequence[str], templates: Sequence[Callable[[str], str]]
) -> list[Row]:
    """Make zero-shot weights by `class_embeddings` and by open_clip's builder.

    A prompt that several classes share, or templates repeat, is encoded once in ours.
    """
    prompts = tuple(tuple(template(name) for template in templates) for name in classes)
    content = Classification((), (), tuple(classes), prompts)
    encoder, distinct = ModelEncoder(loaded), len({text for each in prompts for text in each})

    def theirs() -> Any:
        with torch.inference_mode():
            return build_zero_shot_classifier(
                *(loaded.encoder.model, loaded.tokenizer, classes, templates),
                device=loaded.encoder.device,
            )

    _, ours, weights = timed(
        lambda: class_embeddings(prompts, encode_contents(encoder, [content], EncodeOptions()))
    )
    _, seconds, wanted = timed(theirs)
    what = f"class weights, {sum(map(len, prompts))} prompts, {distinct} distinct"
    difference = float(np.abs(wanted.T.float().cpu().numpy() - weights).max())
    return [
        Row(f"{what}, CPU seconds", ours, seconds, "open_clip's builder", less=True),
        Row(f"{what}, largest difference", difference),
    ]


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
    """

    images: int = 5000
    texts: int = 25010
    width: int = 512
    model: str = "bundled"
    classes: int = 100
    templates: int = 80


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure ranks, then class weights."""
    if options.texts < options.images:
        raise UsageError("--texts must be at least --images, so that every image has a caption")
    found = ranks(options.images, options.texts, options.width)
    model = load_model(options.model, device=device_named("cpu"))
    model.encoder.eval()
    names = IMAGENET_CLASSNAMES[: options.classes]
    return [*found, *class_weights(model, names, OPENAI_IMAGENET_TEMPLATES[: options.templates])]
