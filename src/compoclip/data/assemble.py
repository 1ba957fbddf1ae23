"""From the samples of a batch to its pixels and texts, by an image plan; runs in the workers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from open_clip.constants import IMAGENET_MEAN, IMAGENET_STD
from PIL import Image, ImageOps

from compoclip.data.companions import Companions, photo_key
from compoclip.data.decode import decode
from compoclip.data.plan import Drawn, PlanCounts, TextPlan
from compoclip.data.plans import (
    CLIC_TEXTS,
    CROSS_SWAP,
    GIVEN,
    Composed,
    ImagePlan,
    NegativeImages,
    Neighbours,
)
from compoclip.data.sample import Batch, Sample, Source
from compoclip.data.schedule import BatchTask
from compoclip.data.textblock import TextBlock
from compoclip.data.transform import ImageTransform, pixels_of
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Refused, fits_context, get_pair_rewrite, rng_for, token_key
from compoclip.rewrites.written import form_objection

# --- Two images as one, and the texts that describe both (CLIC). ---

EQUALS_POSITIVE = "equals-a-positive"
TOO_LONG = "too-long"


def join_images(
    first: Image.Image,
    second: Image.Image,
    size: tuple[int, int],
    *,
    landscape: bool,
    layout: Literal["squash", "letterbox"] = "squash",
    resampling: Image.Resampling = Image.Resampling.BICUBIC,
    fill: int = 0,
) -> Image.Image:
    """RGB image of `size` (height, width), half from each: landscape ones are stacked, first on
    top, others stand side by side, first on the left.

    layout: "squash" resizes to the half whatever the shape; "letterbox" keeps the shape, in the
    middle of the half, over the grey level `fill`. Raises CompoclipError for a side of odd length
    that would have to be cut in half.
    """
    height, width = size
    if (height if landscape else width) % 2:
        raise CompoclipError(f"{height} x {width} pixels cannot be cut in half; use an even size")
    half = half_of(size, landscape)
    joined = Image.new("RGB", (width, height))
    for image, corner in (first, (0, 0)), (second, _corner(half, landscape)):
        if layout == "squash":
            part = image.resize(half, resampling)
        else:
            part = ImageOps.pad(image, half, method=resampling, color=(fill, fill, fill))
        joined.paste(part, corner)
    return joined


def half_of(size: tuple[int, int], landscape: bool) -> tuple[int, int]:
    """(width, height) of what each image gets of `size` (height, width)."""
    height, width = size
    return (width, height // 2) if landscape else (width // 2, height)


def _corner(half: tuple[int, int], landscape: bool) -> tuple[int, int]:
    return (0, half[1]) if landscape else (half[0], 0)


@dataclass(frozen=True)
class PairTexts:
    """Draws the texts of a composite image: four positives and at most one negative.

    With c1, c2 the main (first) captions, each ending in a full stop: the CAPTION "c1 c2";
    "clic-2", "c2 c1"; "clic-3" and "clic-4", the k-th of the extra captions drawn of each image,
    in random order; and the NEGATIVE "cross-swap", in which c1 and c2 exchange a word, in random
    order. Extras are the sample's other captions and the positives written for its main one. They
    are drawn without replacement and repeated when there is one only; without any, on either side,
    there is neither "clic-3" nor "clic-4".
    """

    plan: TextPlan

    def draw(self, first: Sample, second: Sample, epoch: int) -> tuple[list[Drawn], PlanCounts]:
        """The texts of `first` composed with `second`, seeded by the id of `first`."""
        counts = PlanCounts(samples=1)
        rng = self.plan.rng(first.id, epoch, "clic")
        mains = [sample.captions[0] for sample in (first, second)]
        one, two = map(stopped, mains)
        texts = [f"{one} {two}", f"{two} {one}"]
        extras = [_two(self._extras(sample), rng) for sample in (first, second)]
        if all(extras):
            texts += [_shuffled(pair, rng) for pair in zip(*extras)]
        drawn = [Drawn(texts[0], Role.CAPTION)]
        for name, text in zip(CLIC_TEXTS, texts[1:]):
            drawn.append(Drawn(text, Role.POSITIVE, name))
            _count(counts, name)
        negative = self._negative(mains, self.plan.rng(first.id, epoch, CROSS_SWAP), texts)
        if isinstance(negative, Refused):
            counts.refused[CROSS_SWAP, negative.reason] += 1
        else:
            drawn.append(Drawn(negative, Role.NEGATIVE, CROSS_SWAP))
            _count(counts, CROSS_SWAP)
        return drawn, counts

    def _extras(self, sample: Sample) -> list[str]:
        """The captions beside the main one, those written for it included."""
        main, *others = sample.captions
        if self.plan.written is None:
            return others
        written = self.plan.written.find(main, positive=True)
        return others + [text for text in written if form_objection(main, text) is None]

    def _negative(
        self, mains: Sequence[str], rng: random.Random, positives: Sequence[str]
    ) -> str | Refused:
        first, second = map(self.plan.parse, mains)
        swapped = get_pair_rewrite(CROSS_SWAP)(first, second, rng)
        if isinstance(swapped, Refused):
            return swapped
        text = _shuffled([side.text for side in swapped], rng)
        if token_key(text) in set(map(token_key, positives)):
            return Refused(EQUALS_POSITIVE)
        return text if fits_context(text) else Refused(TOO_LONG)


def stopped(sentence: str) -> str:
    """The sentence with a mark at its end."""
    sentence = sentence.rstrip()
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _two(extras: Sequence[str], rng: random.Random) -> list[str]:
    """Two of the extras, twice the same where there is but one, none where there is none."""
    if len(extras) < 2:
        return [*extras, *extras]
    return rng.sample(list(extras), 2)


def _shuffled(pair: Sequence[str], rng: random.Random) -> str:
    return " ".join(stopped(text) for text in rng.sample(list(pair), len(pair)))


def _count(counts: PlanCounts, name: str) -> None:
    counts.made[name] += 1
    counts.covered[name] += 1


# --- From the samples of a batch to its pixels and texts, by an image plan; runs in the
# workers. ---


@dataclass
class Made:
    """A finished batch with what there is to count about it, or the error that prevented it."""

    batch: Batch | None = None
    counts: PlanCounts = field(default_factory=PlanCounts)
    bad: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class _Part:
    """One image of a batch with its texts."""

    pixels: torch.Tensor
    texts: list[Drawn]
    photo: str
    pair: int = -1


class _UnreadableError(Exception):
    """An image that cannot be read: the id of its sample, and why."""


@dataclass
class _Building:
    """What a batch has so far: images of the samples drawn, and the others."""

    parts: list[_Part] = field(default_factory=list)
    more: list[_Part] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    counts: PlanCounts = field(default_factory=PlanCounts)


class Assembler:
    """Task -> batch. A map-style dataset whose items are whole batches."""

    def __init__(
        self,
        source: Source,
        plan: TextPlan,
        transform: ImageTransform,
        seed: int,
        images: ImagePlan,
        companions: Companions,
    ) -> None:
        self._source, self._plan, self._transform, self._seed = source, plan, transform, seed
        self._images, self._companions = images, companions
        self._pair_texts = PairTexts(plan)

    def __getitem__(self, task: BatchTask) -> Made:
        try:
            return self._make(task)
        except CompoclipError as error:  # a raised one would arrive as a many-line traceback
            return Made(error=str(error))

    def _make(self, task: BatchTask) -> Made:
        building = _Building()
        for index in task.indices:
            sample = self._source[index]
            try:
                if task.kind == "composed":
                    self._add_composed(building, index, sample, task.epoch)
                else:
                    self._add(building, index, sample, task.epoch)
            except _UnreadableError as error:
                building.bad.append((error.args[0], error.args[1]))
                building.skipped.append(sample.id)
        parts = [*building.parts, *building.more]
        height, width = self._transform.preprocess.size
        mean, std = self._normalisation(task.kind)
        batch = Batch(
            pixels=torch.stack([part.pixels for part in parts])
            if parts
            else torch.zeros(0, 3, height, width, dtype=torch.uint8),
            block=_block(parts),
            ids=tuple(building.ids),
            skipped=tuple(building.skipped),
            kind=task.kind,
            mean=mean,
            std=std,
        )
        return Made(batch, building.counts, tuple(building.bad))

    def _normalisation(self, kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation by which the pixels of a batch are normalised."""
        plan, preprocess = self._images, self._transform.preprocess
        as_released = isinstance(plan, Composed) and plan.normalisation == "imagenet"
        if as_released and kind == "composed":
            return IMAGENET_MEAN, IMAGENET_STD
        return preprocess.mean, preprocess.std

    def _add(self, building: _Building, index: int, sample: Sample, epoch: int) -> None:
        """A sample by itself, and the images that its plan adds."""
        plan = self._images
        if isinstance(plan, NegativeImages):  # the image is that of the first negative
            sample = replace(sample, negatives=sample.negatives[:1])
        pixels = self._pixels(sample.id, sample.image, sample.id, epoch)
        texts, counts = self._plan.draw(sample, epoch)
        building.parts.append(_Part(pixels, texts, photo_key(sample.image)))
        building.ids.append(sample.id)
        building.counts.add(counts)
        if isinstance(plan, Neighbours) and plan.count:
            self._add_neighbours(building, plan, index, sample, epoch)
        elif isinstance(plan, NegativeImages) and sample.negative_image is not None:
            self._add_negative(building, sample, sample.negative_image, texts, epoch)

    def _add_neighbours(
        self, building: _Building, plan: Neighbours, index: int, sample: Sample, epoch: int
    ) -> None:
        known = self._companions.neighbours[index] if plan.mined else sample.neighbours
        near = [int(other) for other in known if other >= 0][: plan.among]
        rng = rng_for(self._seed, sample.id, epoch, "neighbours")
        for other in rng.sample(near, min(plan.count, len(near))):
            neighbour = self._source[other]
            # Draws of its own, so that it does not repeat itself if it is in the batch already.
            key = f"{sample.id}\x1f{neighbour.id}"
            try:
                pixels = self._pixels(neighbour.id, neighbour.image, key, epoch)
            except _UnreadableError as error:
                building.bad.append((error.args[0], error.args[1]))
                continue
            texts, counts = self._plan.draw(neighbour, epoch, key)
            building.more.append(_Part(pixels, texts, photo_key(neighbour.image)))
            building.counts.add(counts)

    def _add_negative(
        self,
        building: _Building,
        sample: Sample,
        image: Path | bytes,
        texts: list[Drawn],
        epoch: int,
    ) -> None:
        """The negative image of the sample added last, with the negative text for a caption."""
        negative = next((text.text for text in texts if text.rewrite == GIVEN), None)
        if negative is None:
            return
        try:
            pixels = self._pixels(sample.id, image, f"{sample.id}\x1fnegative", epoch)
        except _UnreadableError as error:
            building.bad.append((f"{error.args[0]} (negative image)", error.args[1]))
            return
        caption = [Drawn(negative, Role.CAPTION)]
        building.more.append(_Part(pixels, caption, photo_key(image), len(building.parts) - 1))

    def _add_composed(self, building: _Building, index: int, sample: Sample, epoch: int) -> None:
        """A sample joined with another of the same orientation, drawn at random."""
        plan = self._images
        assert isinstance(plan, Composed)
        rng = rng_for(self._seed, sample.id, epoch, "partner")
        partner = self._companions.partner(index, rng)
        if partner is None:
            self._decoded(sample.id, sample.image)  # says why, if it cannot be read
            building.skipped.append(sample.id)
            return
        other = self._source[partner]
        preprocess = self._transform.preprocess
        landscape = self._companions.landscape(index)
        half = half_of(preprocess.size, landscape)
        pair = [self._decoded(each.id, each.image, half) for each in (sample, other)]
        first, second = rng.sample(pair, 2)
        joined = join_images(
            first,
            second,
            preprocess.size,
            landscape=landscape,
            layout=plan.layout,
            resampling=self._transform.resampling,
            fill=preprocess.fill_color,
        )
        texts, counts = self._pair_texts.draw(sample, other, epoch)
        photo = f"{photo_key(sample.image)}\x1f{photo_key(other.image)}"
        building.parts.append(_Part(pixels_of(joined), texts, photo))
        building.ids.append(sample.id)
        building.counts.add(counts)

    def _pixels(self, id: str, image: Path | bytes, key: str, epoch: int) -> torch.Tensor:
        rng = rng_for(self._seed, key, epoch, "crop")
        with _unreadable(id):
            return self._transform.read(image, rng, _name(id, image))

    def _decoded(
        self, id: str, image: Path | bytes, least: tuple[int, int] | None = None
    ) -> Image.Image:
        """A whole image, at least `least` large if it is stored so."""
        with _unreadable(id):
            least = least if self._transform.draft else None
            return decode(image, name=_name(id, image), least=least)


@contextmanager
def _unreadable(id: str) -> Iterator[None]:
    try:
        yield
    except CompoclipError as error:
        raise _UnreadableError(id, str(error)) from None


def _name(id: str, image: Path | bytes) -> str:
    return id if isinstance(image, bytes) else ""


def _block(parts: list[_Part]) -> TextBlock:
    flat = [(owner, text) for owner, part in enumerate(parts) for text in part.texts]
    return TextBlock(
        texts=tuple(text.text for _, text in flat),
        owner=tuple(owner for owner, _ in flat),
        role=tuple(text.role for _, text in flat),
        rewrite=tuple(text.rewrite for _, text in flat),
        images=len(parts),
        photos=tuple(part.photo for part in parts),
        pair=tuple(part.pair for part in parts) if any(part.pair >= 0 for part in parts) else (),
    )
