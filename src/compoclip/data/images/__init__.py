"""Image plans: the images of a batch, in addition to each sample's image or instead of it.

A plan is plain data, recorded with a run. It states its needs of the data, prepares an index over
all samples before training, orders the samples, and adds the images and texts of a sample to a
batch. Short plans are here; composites (CLIC), similar images (NegCLIP, CoN-CLIP) and groups of
variations (GNM-CLIP) have one file each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from compoclip.data.batch import Batch
from compoclip.data.cached import CachedFeatures
from compoclip.data.decode import Mirrored, Picture, decode, name_of, opened, unmirrored
from compoclip.data.drawing import Drawn, PlanCounts
from compoclip.data.masks import Mask
from compoclip.data.plan import TextPlan
from compoclip.data.sources import NEGATIVE_IMAGE, Sample, Source
from compoclip.data.sources.mixture import WeightedMix, permutation
from compoclip.data.text_names import GIVEN
from compoclip.data.texts import TARGET
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError
from compoclip.files import bytes_hash, load_arrays, save_arrays, write_atomically
from compoclip.losses.contract import Role
from compoclip.models.preprocess import Preprocess
from compoclip.rewrites.base import rng_for

# --- An index over all samples. ---


@dataclass(frozen=True)
class Companions:
    """An index over all samples, built before training, to find the partners of a sample.

    values: (N, ...) int64, one row per sample, defined by the plan; empty if it has no index.
    """

    values: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def places(self) -> dict[int, NDArray[np.int64]]:
        """Return number -> the samples with it, in order."""
        numbers = np.unique(self.values).tolist()
        return {number: np.flatnonzero(self.values == number) for number in numbers}

    @staticmethod
    def load_or_make(
        path: Path, shape: tuple[int, ...], resume: bool, make: Callable[[], NDArray[np.int64]]
    ) -> Companions:
        """Return the index that an earlier run wrote to `path`, or make and store it."""
        stored = load_arrays(path, shape) if resume else None
        values = make() if stored is None else stored["known"]
        if stored is None:
            write_atomically(path, lambda place: save_arrays(place, {"known": values}, shape))
        return Companions(values)


# --- A batch while it is made. ---


_Part = tuple[torch.Tensor, list[Drawn], str, int]
"""An image of a batch: its pixels, its texts, its photo, and its pair (see `Batch`)."""


class UnreadableError(Exception):
    """An image cannot be read; arguments: the id of its sample, and the reason."""


@dataclass
class BatchBuilder:
    """Collects the images of a batch and their texts; runs in the workers.

    cached: features used instead of photos. images: images of the sampled items. added:
    further images of the plan, which come after them in the batch. skipped: ids of sampled items
    that are left out. bad: id and reason of images that cannot be read.
    """

    source: Source
    plan: TextPlan
    transform: ImageTransform
    seed: int
    companions: Companions
    epoch: int = 0
    kind: str = "single"
    cached: CachedFeatures | None = None
    images: list[_Part] = field(default_factory=list, init=False)
    added: list[_Part] = field(default_factory=list, init=False)
    ids: list[str] = field(default_factory=list, init=False)
    skipped: list[str] = field(default_factory=list, init=False)
    bad: list[tuple[str, str]] = field(default_factory=list, init=False)
    counts: PlanCounts = field(default_factory=PlanCounts, init=False)

    def rng(self, key: str, name: str) -> random.Random:
        """Return the random generator of one draw."""
        return rng_for(self.seed, key, self.epoch, name)

    def add(self, sample: Sample) -> list[Drawn]:
        """Add a sample with its training image; return its texts."""
        pixels = self.training_pixels(sample.id, sample.image, sample.drawn_by)
        texts, counts = self.plan.draw(sample, self.epoch)
        mask = texts[0].mask
        if mask is not None and not mask.relative:  # its boxes are those of the stored photo
            name, upright = name_of(sample.id, sample.image), self.transform.upright
            with _unreadable(sample.id), opened(sample.image, name, upright=upright) as file:
                stored = file.size
            box = self.transform.box(stored, self._crop(sample.image, sample.drawn_by)[1])
            texts[0] = replace(texts[0], mask=mask.as_shown(stored, box, self.transform))
        self.put(pixels, texts, counts, shown_key(sample), id=sample.id)
        return texts

    def put(
        self,
        pixels: torch.Tensor,
        texts: list[Drawn],
        counts: PlanCounts,
        photo: str,
        *,
        id: str | None = None,
        pair: int = -1,
    ) -> None:
        """Add an image with its texts: of the sampled item of this id, or a further image."""
        if id is not None:
            self.ids.append(id)
        (self.added if id is None else self.images).append((pixels, texts, photo, pair))
        self.counts.add(counts)

    def put_pair(self, id: str, image: Picture, caption: str, key: str, label: str) -> None:
        """Add an image with its caption as the pair of the sample added last.

        key: seeds the crop. label: name of the image for the note if it cannot be read.
        """
        try:
            pixels = self.training_pixels(id, image, key)
        except UnreadableError as error:
            self.bad.append((f"{error.args[0]} ({label})", error.args[1]))
            return
        texts, pair = [Drawn(caption, Role.CAPTION)], len(self.images) - 1
        self.put(pixels, texts, PlanCounts(), photo_key(image), pair=pair)

    def training_pixels(self, id: str, image: Picture, key: str) -> torch.Tensor:
        """Return the training pixels of an image, or its cached features; `key` seeds the crop.

        Raises UnreadableError.
        """
        number, rng = self._crop(image, key)
        with _unreadable(id):
            if self.cached is not None:
                return self.cached.of(photo_key(image), number)
            return self.transform.read(image, rng, name_of(id, image))

    def _crop(self, image: Picture, key: str) -> tuple[int, random.Random]:
        """Number of the fixed crop, and the generator of the crop."""
        crop = self.transform.crop
        if crop is None or not crop.fixed:
            return 0, self.rng(key, "crop")
        number = self.epoch % crop.fixed
        return number, fixed_rng(image, number)

    def whole(
        self, id: str, image: Path | bytes, min_size: tuple[int, int] | None = None
    ) -> Image.Image:
        """Return a whole image, at least `min_size` large if stored so. Raises UnreadableError."""
        with _unreadable(id):
            min_size = min_size if self.transform.draft else None
            upright = self.transform.upright
            return decode(image, name=name_of(id, image), min_size=min_size, upright=upright)

    def batch(self, normalisation: tuple[tuple[float, ...], tuple[float, ...]]) -> Batch:
        """Return the finished batch."""
        parts = [*self.images, *self.added]
        tensors, _, photos, pair = zip(*parts) if parts else ((),) * 4
        every = [(owner, text) for owner, (_, texts, *_) in enumerate(parts) for text in texts]
        flat = [(owner, text) for owner, text in every if text.rewrite != TARGET]
        targets = {owner: text.text for owner, text in every if text.rewrite == TARGET}
        masks = {owner: text.mask for owner, text in every if text.mask is not None}
        images, hides = range(len(parts)), bool(self.plan.plan.hides)
        cached_at = (
            self.cached.at if self.cached and tensors and tensors[0].is_floating_point() else ""
        )
        return Batch(
            pixels=torch.stack(tensors) if cached_at else self.transform.together(tensors),
            texts=tuple(text.text for _, text in flat),
            owner=tuple(owner for owner, _ in flat),
            role=tuple(text.role for _, text in flat),
            rewrite=tuple(text.rewrite for _, text in flat),
            ids=tuple(self.ids),
            photos=photos,
            pair=pair if any(other >= 0 for other in pair) else (),
            targets=tuple(targets.get(owner, "") for owner in images) if targets else (),
            masks=tuple(masks.get(owner, Mask()) for owner in images) if hides else (),
            skipped=tuple(self.skipped),
            kind=self.kind,
            mean=normalisation[0],
            std=normalisation[1],
            cached_at=cached_at,
            counts=self.counts,
            bad=tuple(self.bad),
        )


@contextmanager
def _unreadable(id: str) -> Iterator[None]:
    try:
        yield
    except CompoclipError as error:
        raise UnreadableError(id, str(error)) from None


def fixed_rng(image: Picture, number: int) -> random.Random:
    """Return the generator of a fixed crop of a photo; it depends on neither seed nor folder."""
    photo = unmirrored(image)
    name = photo.name if isinstance(photo, Path) else photo_key(photo)
    return rng_for(0, name, number, "crop")


def photo_key(image: Picture) -> str:
    """Return a name of a photo: equal for equal paths or bytes, another one if mirrored."""
    if isinstance(image, Mirrored):
        return f"{photo_key(image.image)}\x1fmirrored"
    if isinstance(image, Path):
        return str(image)
    return bytes_hash(image)


def shown_key(sample: Sample) -> str:
    """Return the name of what a sample shows, of which its captions are true: its photo, or its
    class where they were made of that. Contrasts leave out pairs with equal names."""
    return f"class {sample.label}" if sample.label else photo_key(sample.image)


# --- The plans. ---

Schedule = tuple[int, Callable[[int], NDArray[np.int64]]]
"""Full batches in an epoch, and epoch -> the samples of these batches (or more) in order."""

Encode = Callable[[torch.Tensor], torch.Tensor]
"""(B, 3, H, W) pixels -> (B, D) image features."""


def shuffled(samples: int, mix: WeightedMix | None, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a fresh permutation of all samples, or the samples that a mixture shows."""
    return permutation(seed, "", epoch, samples) if mix is None else mix.order(seed, epoch)


@dataclass(frozen=True)
class ImagePlan:
    """The images of a batch; by default every image of the data once.

    The fields of a plan are its options. Subclasses override the methods where they differ.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of the texts that the plan makes from parsed captions."""

    @property
    def name(self) -> str:
        """Return the name in tables and records."""
        return type(self).__name__.lower()

    @property
    def images_per_sample(self) -> int:
        """Return the most images encoded per sampled item."""
        return 1

    def record(self) -> dict[str, Any]:
        """Return name and options, for logs, checkpoints and signatures."""
        return {"plan": self.name, **asdict(self)}

    def for_data(self, brings: frozenset[str]) -> tuple[ImagePlan, str]:
        """Return the plan for data with these columns (see `Source.brings`).

        If that is another plan, also return what the data lacks, for a note; else "".
        """
        return self, ""

    def source(self, source: Source) -> Source:
        """Return the data as the plan reads them: unchanged, or with other captions."""
        return source

    def require(self, source: Source) -> None:
        """Raise UsageError when the data lack a field that the plan needs."""

    def shows(self, sample: Sample) -> tuple[Picture, ...]:
        """Return the photos of a sample that appear unchanged in every epoch."""
        return (sample.image,)

    def prepare(
        self, source: Source, encode: Encode, preprocess: Preprocess, folder: Path, resume: bool
    ) -> Companions:
        """Build the plan's index over all samples with the untrained image encoder.

        With `resume`, load the index that an earlier run stored in the folder.
        """
        return Companions()

    def kind(self, step: int) -> str:
        """Return the kind of the batch of a step, counted over all epochs; see `Batch`."""
        return "single"

    def schedule(self, source: Source, batch_size: int, seed: int, world: int = 1) -> Schedule:
        """Return the number of full batches in an epoch, and the order of samples.

        Each of `world` processes makes an equal part of every batch. Raises UsageError when the
        samples cannot fill a batch.
        """
        return len(source) // batch_size, partial(shuffled, len(source), source.mix, seed)

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add sample number `index` of the source to a batch, with all its images and texts.

        Raises UnreadableError when its image cannot be read.
        """
        batch.add(sample)

    def mean_and_std(
        self, preprocess: Preprocess, kind: str
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation for normalising a batch of this kind."""
        return preprocess.mean, preprocess.std


@dataclass(frozen=True)
class Single(ImagePlan):
    """Every image of the data once."""


SINGLE = Single()


@dataclass(frozen=True)
class NegativeImages(ImagePlan):
    """Each image, and the image generated from its negative caption (TripletCLIP)."""

    name = "negative images"
    images_per_sample = 2

    def shows(self, sample: Sample) -> tuple[Picture, ...]:
        """Return the image, and the image of its negative."""
        return tuple(image for image in (sample.image, sample.negative_image) if image is not None)

    def for_data(self, brings: frozenset[str]) -> tuple[ImagePlan, str]:
        """Return a plan of the images alone if the data have no further images."""
        if NEGATIVE_IMAGE in brings:
            return self, ""
        return SINGLE, f"the data brings no {self.name} (column neg_image)"

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add the sample with its first negative, then the image of that negative."""
        texts = batch.add(replace(sample, negatives=sample.negatives[:1]))
        negative = next((text.text for text in texts if text.rewrite == GIVEN), None)
        if negative is not None and sample.negative_image is not None:
            key = f"{sample.drawn_by}\x1fnegative"
            batch.put_pair(sample.id, sample.negative_image, negative, key, "negative image")
