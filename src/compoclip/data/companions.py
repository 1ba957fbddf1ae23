"""Which other samples go with a sample: partners of one orientation, similar images."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from compoclip.console import note, track
from compoclip.data.decode import FORMATS, decode
from compoclip.data.plans import GIVEN, CaptionPlan, Composed, Groups, ImagePlan, Neighbours
from compoclip.data.sample import Sample, Source
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_atomically
from compoclip.models.preprocess import Preprocess

# --- Exact nearest neighbours of every row among all rows, in bounded memory. ---

_QUERIES = 1024
_BLOCK = 32_768


def nearest(features: Tensor, photo: Tensor, count: int) -> Tensor:
    """(N, count) int64: for each row the rows of highest inner product, highest first.

    features: (N, D) float32. photo: (N,) int64; rows with the same number are the same photo and
    not neighbours of each other; -1 takes a row out altogether. -1 stands where there are no more.
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


# --- Which other samples go with a sample: partners of one orientation, similar images. ---

LANDSCAPE, PORTRAIT, UNREADABLE = 1, 0, -1
_BATCH = 64
_AT_ONCE = 512

Encode = Callable[[torch.Tensor], torch.Tensor]
"""(B, 3, H, W) pixels -> (B, D) image features."""


@dataclass(frozen=True)
class Companions:
    """What is known about all samples before training starts.

    orientation: (N,) LANDSCAPE, PORTRAIT or UNREADABLE. neighbours: (N, K) indices of the most
    similar images, nearest first, -1 where there are no more. Empty when not needed.
    """

    orientation: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    neighbours: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))

    def landscape(self, index: int) -> bool:
        """Whether the image is at least as wide as it is high."""
        return bool(self.orientation[index] == LANDSCAPE)

    def partner(self, index: int, rng: random.Random) -> int | None:
        """Another sample whose image has the same orientation, uniformly; None if there is none."""
        pool = self._pools[int(self.orientation[index])]
        if len(pool) < 2:
            return None
        chosen = rng.randrange(len(pool) - 1)
        own = int(np.searchsorted(pool, index))
        return int(pool[chosen + (chosen >= own)])

    @cached_property
    def _pools(self) -> dict[int, NDArray[np.int64]]:
        """The samples of each orientation; nothing goes with an unreadable image."""
        pools = {kind: np.flatnonzero(self.orientation == kind) for kind in (LANDSCAPE, PORTRAIT)}
        return {**pools, UNREADABLE: np.empty(0, np.int64)}


def brought(source: Source) -> frozenset[str]:
    """Which of "negatives", "neighbours", "negative_image", "group" any sample of a source has."""
    brings: Callable[[], frozenset[str]] = getattr(source, "brings", frozenset)
    return brings()


def require_columns(source: Source, texts: CaptionPlan, images: ImagePlan) -> None:
    """Raise UsageError when the data lacks what a method cannot do without."""
    has = brought(source)
    data = source.describe()
    if GIVEN in texts.rewrite_names and "negatives" not in has:
        raise UsageError(
            f"{data}: brings no negatives; it needs a column neg_caption, or take --negatives "
            "negclip where the method has it"
        )
    given = isinstance(images, Neighbours) and images.count and not images.mined
    if given and "neighbours" not in has:
        raise UsageError(
            f"{data}: names no similar images; it needs a column neg_image with lists of row "
            "numbers, or take --neighbours mined"
        )
    if isinstance(images, Groups) and "group" not in has:
        raise UsageError(
            f"{data}: brings no variations; it needs a column group that variations of one object "
            "share (empty for ordinary pairs) and may have a column score"
        )


def find_companions(
    source: Source,
    images: ImagePlan,
    encode: Encode,
    preprocess: Preprocess,
    folder: Path,
    resume: bool,
) -> Companions:
    """What the image plan needs to know of all samples; kept in `folder` for `resume`.

    encode: the model's image encoder as it is before training, for mined neighbours.
    """
    if isinstance(images, Composed):
        path = folder / "orientation.npy"
        known = _kept(path, (len(source),), LANDSCAPE, resume)
        orientation = orientations(source) if known is None else known
        _keep(path, orientation, known is None)
        _note_lonely(orientation)
        return Companions(orientation=orientation)
    if isinstance(images, Neighbours) and images.mined and images.count:
        path = folder / "neighbours.npy"
        known = _kept(path, (len(source), images.among), len(source) - 1, resume)
        found = mine(source, encode, preprocess, images.among) if known is None else known
        _keep(path, found, known is None)
        return Companions(neighbours=found)
    return Companions()


def orientations(source: Source, threads: int = 8) -> NDArray[np.int64]:
    """(N,) orientation of every image, from the size in its header; pixels are not decoded."""
    indices = range(len(source))
    with ThreadPoolExecutor(threads) as pool:
        found: list[int] = []
        for start in track(range(0, len(source), _AT_ONCE), "reading image sizes", unit="blocks"):
            part = indices[start : start + _AT_ONCE]
            found += pool.map(partial(_orientation, source), part)
    return np.array(found, np.int64)


def _orientation(source: Source, index: int) -> int:
    image = source[index].image
    try:
        opened: Any = BytesIO(image) if isinstance(image, bytes) else image
        with Image.open(opened, formats=FORMATS) as header:
            return LANDSCAPE if header.width >= header.height else PORTRAIT
    except Exception:  # damaged headers fail in many ways; decoding will say what is wrong
        return UNREADABLE


def mine(source: Source, encode: Encode, preprocess: Preprocess, count: int) -> NDArray[np.int64]:
    """(N, count) indices of the nearest other photos by the model's image features.

    Images that cannot be read have no neighbours and are nobody's.
    """
    photos: dict[str, int] = {}
    numbers: list[int] = []
    parts: list[torch.Tensor] = []
    for start in track(range(0, len(source), _BATCH), "encoding images for neighbours"):
        samples = [source[i] for i in range(start, min(start + _BATCH, len(source)))]
        pixels = [_evaluated(sample, preprocess) for sample in samples]
        readable = [each for each in pixels if each is not None]
        encoded = iter(_encoded(encode, readable))
        for sample, each in zip(samples, pixels):
            photo = photos.setdefault(photo_key(sample.image), len(photos))
            numbers.append(photo if each is not None else -1)
            parts.append(next(encoded) if each is not None else torch.zeros(0))
    width = max((len(part) for part in parts), default=0)
    features = torch.stack([part if len(part) else torch.zeros(width) for part in parts])
    return nearest(features, torch.tensor(numbers), count).numpy()


def _evaluated(sample: Sample, preprocess: Preprocess) -> torch.Tensor | None:
    try:
        return preprocess.evaluation(decode(sample.image, name=sample.id))
    except CompoclipError:
        return None


def _encoded(encode: Encode, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
    if not pixels:
        return torch.zeros(0, 0)
    with torch.no_grad():
        features = encode(torch.stack(list(pixels))).float().cpu()
    return torch.nn.functional.normalize(features, dim=-1)


def photo_key(image: Path | bytes) -> str:
    """A name of the photo: equal for one file, and for the same encoded bytes."""
    if isinstance(image, Path):
        return str(image)
    return blake2b(image, digest_size=16).hexdigest()


def _note_lonely(orientation: NDArray[np.int64]) -> None:
    for kind, name in ((LANDSCAPE, "landscape"), (PORTRAIT, "portrait")):
        if (orientation == kind).sum() == 1:
            note(f"the only {name} image has no partner and is left out of composed batches")


def _kept(path: Path, shape: tuple[int, ...], most: int, resume: bool) -> NDArray[np.int64] | None:
    """What an earlier run wrote: numbers from -1 to `most`."""
    if not (resume and path.is_file()):
        return None
    try:
        found = np.load(path, allow_pickle=False)
        if found.dtype != np.int64:
            raise ValueError(f"holds {found.dtype}")
    except Exception as error:  # damaged headers fail in many ways
        reason = " ".join(str(error).split())[:100]
        raise CompoclipError(f"{path}: damaged ({reason}); delete it, it is made again") from None
    if found.shape != shape:
        raise CompoclipError(f"{path}: belongs to other data; use the same data or another --out")
    if found.size and not -1 <= found.min() <= found.max() <= most:
        raise CompoclipError(f"{path}: damaged ({found.max()}); delete it, it is made again")
    return np.asarray(found)


def _keep(path: Path, array: NDArray[np.int64], new: bool) -> None:
    if new:
        write_atomically(path, partial(_write, array))


def _write(array: NDArray[np.int64], path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, array)
