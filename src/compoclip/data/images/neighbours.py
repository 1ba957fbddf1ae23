"""Similar images for each image (NegCLIP), from the data or mined with the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compoclip.console import track
from compoclip.data.decode import decode
from compoclip.data.images import (
    BatchBuilder,
    Companions,
    Encode,
    ImagePlan,
    UnreadableError,
    photo_key,
)
from compoclip.data.sources import NEIGHBOURS, Sample, Source
from compoclip.errors import CompoclipError, UsageError
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
        wrong = f"{self.count} hard images of the {self.among} nearest: must be 0 to {self.among}"
        if not 0 <= self.count <= self.among:
            raise UsageError(wrong)

    @property
    def images_per_sample(self) -> int:
        """Return the number of similar images plus one."""
        return 1 + self.count

    def require(self, source: Source) -> None:
        """Raise UsageError unless the data name similar images or they are mined."""
        if self.count and not self.mined:
            needed = "similar images; it needs a column neg_image with lists of row numbers, or "
            source.require(NEIGHBOURS, f"{needed}take --neighbours mined")

    def prepare(
        self, source: Source, encode: Encode, preprocess: Preprocess, folder: Path, resume: bool
    ) -> Companions:
        """Return (N, among) the nearest photos of each, nearest first, padded with -1."""
        if not (self.mined and self.count):
            return Companions()
        shape = (len(source), self.among)
        make = partial(mine, source, encode, preprocess, self.among)
        return Companions.kept(folder / "neighbours.safetensors", shape, resume, make)

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add the sample, then the sampled neighbours, each with its texts."""
        batch.add(sample)
        if not self.count:
            return
        known = batch.companions.known[index] if self.mined else sample.neighbours
        near = [int(other) for other in known if other >= 0][: self.among]
        rng = batch.rng(sample.drawn_by, "neighbours")
        for other in rng.sample(near, min(self.count, len(near))):
            neighbour = batch.source[other]
            # Draws of its own, so that it does not repeat itself if it is in the batch already.
            key = f"{sample.drawn_by}\x1f{neighbour.drawn_by}"
            try:
                pixels = batch.shown(neighbour.id, neighbour.image, key)
            except UnreadableError as error:
                batch.bad.append((error.args[0], error.args[1]))
                continue
            texts, counts = batch.plan.draw(neighbour, batch.epoch, key)
            batch.put(pixels, texts, counts, photo_key(neighbour.image))


# --- Finding them: the nearest photos by the model's image features. ---

_BATCH = 64


def mine(source: Source, encode: Encode, preprocess: Preprocess, count: int) -> NDArray[np.int64]:
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
    number = torch.tensor(numbers)
    whole = torch.zeros(len(numbers), parts[0].shape[1] if parts else 0)
    if parts:
        whole[number >= 0] = torch.cat(parts)
    return nearest(whole, number, count).numpy()


# --- Exact nearest neighbours of every row among all rows, in bounded memory. ---

_QUERIES = 1024
_BLOCK = 32_768


def nearest(features: Tensor, photo: Tensor, count: int) -> Tensor:
    """Return (N, count) int64: the rows of highest inner product with each row, highest first.

    features: (N, D) float32. photo: (N,) int64; rows of the same number are one photo and not
    neighbours of each other; -1 excludes a row. The result is padded with -1.
    """
    total = len(features)
    found = torch.full((total, count), -1, dtype=torch.int64)
    for start in range(0, total, _QUERIES):
        rows = slice(start, min(start + _QUERIES, total))
        best = features.new_full((rows.stop - rows.start, count), -torch.inf)
        index = found[rows].clone()
        for first in range(0, total, _BLOCK):
            columns = slice(first, min(first + _BLOCK, total))
            scores = features[rows] @ features[columns].T
            other = photo[columns]
            scores.masked_fill_((other == photo[rows, None]) | (other == -1), -torch.inf)
            top = scores.topk(min(count, scores.shape[1]), dim=1)
            best, order = torch.cat([best, top.values], dim=1).topk(count, dim=1)
            index = torch.cat([index, top.indices + first], dim=1).gather(1, order)
        index[best == -torch.inf] = -1
        index[photo[rows] == -1] = -1
        found[rows] = index
    return found
