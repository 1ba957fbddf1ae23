"""The captions that models put nearest to images: which ones, and how they differ from the true.

FSC-CLIP shows such a strip (Figure 5) for COCO-Counterfactuals, where a caption with one other noun
lies among the candidates.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from compoclip.archives import Members
from compoclip.benchmarks.case import ImageRef, Retrieval
from compoclip.data.vectors import Matrix, nearest
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.files import write_text
from compoclip.models.checkpoint import LoadedModel
from compoclip.search.page import rendered, small_copy_of

_CHANGED_WORDS = 2
"""A caption that differs in so many words from a true one is a near copy of it."""


@dataclass(frozen=True)
class RankedCaption:
    """A caption as a model ranks it.

    kind: "own" of the image, "near copy" of such a caption with one or two other words, or "other".
    score: cosine.
    """

    text: str
    kind: Literal["own", "near copy", "other"]
    score: float


@dataclass(frozen=True)
class NearestCaptions:
    """The captions nearest to an image, by model. own: its captions in the data."""

    image: ImageRef
    own: tuple[str, ...]
    by_model: Mapping[str, tuple[RankedCaption, ...]]


def nearest_captions(
    models: Mapping[str, LoadedModel],
    photos: Retrieval,
    options: EncodeOptions,
    device: torch.device,
    number: int,
    captions: int = 3,
    seed: int = 0,
) -> tuple[tuple[NearestCaptions, ...], int]:
    """Rank all captions for images whose first caption differs between the models.

    With one model, or where fewer images differ, others fill up. Equal scores rank in the order of
    the data.

    Args:
        models: Name -> model.
        photos: Images and captions; every caption is a candidate for every image.
        options: Of the encoding.
        device: Where the models encode.
        number: Images to sample.
        captions: Captions per image and model.
        seed: Of the sample.

    Returns:
        The sampled images in the order of the data, and how many images differ in all.
    """
    ranked: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, images, texts in encoded(models, photos, options, device):
        ranked[name] = nearest(texts, images, captions)
    firsts = np.stack([best[:, 0] for best, _ in ranked.values()])
    differing = np.flatnonzero((firsts != firsts[0]).any(axis=0)).tolist()
    rng = random.Random(seed)
    sampled = rng.sample(differing, min(number, len(differing)))
    others = sorted({*range(len(photos.images))} - {*differing})
    sampled += rng.sample(others, min(number - len(sampled), len(others)))
    nearest_by_image = []
    for image in sorted(sampled):
        true = tuple(photos.texts[text] for row, text in photos.pairs if row == image)
        by_model = {
            name: tuple(
                RankedCaption(photos.texts[text], _kind(photos.texts[text], true), float(score))
                for text, score in zip(best[image].tolist(), scores[image].tolist())
            )
            for name, (best, scores) in ranked.items()
        }
        nearest_by_image.append(NearestCaptions(photos.images[image], true, by_model))
    return tuple(nearest_by_image), len(differing)


def encoded(
    models: Mapping[str, LoadedModel],
    photos: Retrieval,
    options: EncodeOptions,
    device: torch.device,
) -> Iterator[tuple[str, Matrix, Matrix]]:
    """Yield the name of each model, and its features of the images and of the texts."""
    for name, loaded in models.items():
        loaded.encoder.to(device)
        features = encode_contents(ModelEncoder(loaded), [photos], options)
        loaded.encoder.to("cpu")
        images = features.images[features.image_index(photos.images)]
        yield name, images, features.texts[features.text_index(photos.texts)]


def _kind(text: str, true: tuple[str, ...]) -> Literal["own", "near copy", "other"]:
    if text in true:
        return "own"
    near = any(_changed_words(text, caption) <= _CHANGED_WORDS for caption in true)
    return "near copy" if near else "other"


def _changed_words(one: str, other: str) -> int:
    """Return how many words have to be replaced, put in or taken out."""
    matcher = SequenceMatcher(None, one.casefold().split(), other.casefold().split(), False)
    changes = (code for code in matcher.get_opcodes() if code[0] != "equal")
    return sum(max(end - begin, last - first) for _, begin, end, first, last in changes)


def nearest_page(images: tuple[NearestCaptions, ...], about: str, path: Path) -> None:
    """Write the images with the captions that each model puts nearest; HTML without scripts.

    about: the sentence below the heading.
    """
    members = Members()
    pictures = [small_copy_of(row.image, members) for row in images]
    write_text(path, rendered("nearest.html.j2", rows=list(zip(images, pictures)), about=about))
