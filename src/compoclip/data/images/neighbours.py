"""Similar images for each image, from the data or mined with the model: as further samples
(NegCLIP), or as distractors, which the caption does not describe (CoN-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from compoclip.console import track
from compoclip.data.decode import Picture, decode
from compoclip.data.images import (
    BatchBuilder,
    Companions,
    Encode,
    ImagePlan,
    NegativeImages,
    UnreadableError,
    photo_key,
    shown_key,
)
from compoclip.data.sources import NEIGHBOURS, Sample, Source
from compoclip.data.vectors import Matrix, Rows, nearest
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.models.preprocess import Preprocess


@dataclass(frozen=True)
class Neighbours(ImagePlan):
    """Similar images in addition to each image, with their captions and negatives (NegCLIP).

    Args:
        count: Number of similar images.
        mined: Find them with the model's image features before training; otherwise they come with
            the data (column neg_image).
        among: Number of nearest images to sample from.
    """

    count: int = 1
    mined: bool = False
    among: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.among:
            raise UsageError(
                f"{self.count} hard images of the {self.among} nearest: must be 0 to {self.among}"
            )

    @property
    def images_per_sample(self) -> int:
        """Return the number of similar images plus one."""
        return 1 + self.count

    def require(self, source: Source) -> None:
        """Raise UsageError unless the data name similar images or they are mined."""
        if self.count and not self.mined:
            source.require(
                NEIGHBOURS,
                "similar images; it needs a column neg_image with lists of row numbers, or take "
                "--neighbours mined",
            )

    def prepare(
        self, source: Source, encode: Encode, preprocess: Preprocess, folder: Path, resume: bool
    ) -> Companions:
        """Return (N, among) the nearest photos of each, nearest first, padded with -1."""
        if not (self.mined and self.count):
            return Companions()
        shape = (len(source), self.among)
        make = partial(mine, source, encode, preprocess, self.among)
        return Companions.load_or_make(folder / "neighbours.safetensors", shape, resume, make)

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add the sample, then the sampled neighbours, each with its texts."""
        batch.add(sample)
        if not self.count:
            return
        row = batch.companions.values[index] if self.mined else sample.neighbours
        near = [int(other) for other in row if other >= 0][: self.among]
        rng = batch.rng(sample.drawn_by, "neighbours")
        for other in rng.sample(near, min(self.count, len(near))):
            neighbour = batch.source[other]
            # Draws of its own, so that it does not repeat itself if it is in the batch already.
            key = f"{sample.drawn_by}\x1f{neighbour.drawn_by}"
            try:
                pixels = batch.training_pixels(neighbour.id, neighbour.image, key)
            except UnreadableError as error:
                batch.bad.append((error.args[0], error.args[1]))
                continue
            texts, counts = batch.plan.draw(neighbour, batch.epoch, key)
            batch.put(pixels, texts, counts, shown_key(neighbour))


@dataclass(frozen=True)
class Distractors(NegativeImages):
    """A distractor for each image, captioned with the negated caption of the image (CoN-CLIP).

    Args:
        mined: Sample it from the nearest images by the model's features; otherwise it comes with
            the data (column neg_image).
        among: Number of nearest images to sample from.
    """

    mined: bool = False
    among: int = 3

    name = "distractors"

    def shows(self, sample: Sample) -> tuple[Picture, ...]:
        """Return the image and its distractor; mined distractors are images of samples."""
        return (sample.image,) if self.mined else super().shows(sample)

    def for_data(self, brings: frozenset[str]) -> tuple[ImagePlan, str]:
        """Return a plan of the images alone if the data have no distractors and none are mined."""
        return (self, "") if self.mined else super().for_data(brings)

    def prepare(
        self, source: Source, encode: Encode, preprocess: Preprocess, folder: Path, resume: bool
    ) -> Companions:
        """Return the nearest photos of each photo if distractors are mined."""
        near = Neighbours(mined=self.mined, among=self.among)
        return near.prepare(source, encode, preprocess, folder, resume)

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add the sample and, if it has a negated caption, its distractor with that caption."""
        texts = batch.add(sample)
        negated = next((text.text for text in texts if text.role is Role.NEGATIVE), None)
        id, image = sample.id, sample.negative_image
        if self.mined:
            near = [int(other) for other in batch.companions.values[index] if other >= 0]
            if not near:
                return
            other = batch.source[batch.rng(sample.drawn_by, "distractor").choice(near)]
            id, image = other.id, other.image
        if negated is not None and image is not None:
            batch.put_pair(id, image, negated, f"{sample.drawn_by}\x1fdistractor", "distractor")


# --- Finding them: the nearest photos by the model's image features. ---

_BATCH = 64


def mine(source: Source, encode: Encode, preprocess: Preprocess, count: int) -> Rows:
    """Return (N, count) indices of the nearest other photos by the model's image features.

    Unreadable images have no neighbours and are no neighbours.
    """
    photos: dict[str, int] = {}
    numbers: list[int] = []
    parts: list[torch.Tensor] = []
    for start in track(range(0, len(source), _BATCH), "encoding images for neighbours"):
        samples = [source[i] for i in range(start, min(start + _BATCH, len(source)))]
        readable = []
        for sample in samples:
            photo = photos.setdefault(photo_key(sample.image), len(photos))
            try:
                image = decode(sample.image, name=sample.id, upright=source.upright)
            except CompoclipError:
                numbers.append(-1)
            else:
                numbers.append(photo)
                readable.append(preprocess.evaluation(image))
        if readable:
            with torch.no_grad():
                features = encode(torch.stack(readable)).float().cpu()
            parts.append(torch.nn.functional.normalize(features, dim=-1))
    number = np.array(numbers, np.int64)
    whole = np.zeros((len(numbers), parts[0].shape[1] if parts else 0), np.float32)
    if parts:
        whole[number >= 0] = torch.cat(parts).numpy()
    return nearest_others(whole, number, count)


# --- The nearest vectors. ---

_QUERIES = 1024


def nearest_others(features: Matrix, photos: Rows, count: int) -> Rows:
    """Return (N, count): the rows with the highest dot products with each row, highest first.

    features: (N, D). photos: (N,); rows of the same number are one photo and not neighbours of each
    other; -1 excludes a row. The result is padded with -1.
    """
    neighbours = np.full((len(features), count), -1, np.int64)
    for start in range(0, len(features), _QUERIES):
        part = slice(start, start + _QUERIES)
        both = photos, photos[part]
        rows, scores = nearest(features, features[part], count, photos=both)
        neighbours[part, : rows.shape[1]] = np.where(np.isneginf(scores), -1, rows)
    neighbours[photos == -1] = -1
    return neighbours
