"""Composites of two images, with texts of both (CLIC): pixels, texts, partners, long captions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from open_clip.constants import IMAGENET_MEAN, IMAGENET_STD
from PIL import Image, ImageOps

from compoclip.captions.chunks import sentences
from compoclip.captions.clip_text import fits_context, token_key
from compoclip.console import note, track
from compoclip.data.decode import Picture, opened
from compoclip.data.drawing import Drawn, PlanCounts
from compoclip.data.images import (
    BatchBuilder,
    Companions,
    Encode,
    ImagePlan,
    shown_key,
)
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample, Source
from compoclip.data.transform import pixels_of
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.models.preprocess import Preprocess
from compoclip.rewrites.base import Refused
from compoclip.rewrites.cross_swap import NAME as CROSS_SWAP
from compoclip.rewrites.cross_swap import cross_swap
from compoclip.rewrites.edit import TOO_LONG
from compoclip.rewrites.written import form_objection

FEW_SENTENCES = "sample of fewer than two sentences"
CLIC_TEXTS = ("clic-2", "clic-3", "clic-4")


@dataclass(frozen=True)
class Composed(ImagePlan):
    """Two images of one orientation joined into one, with texts of both (CLIC).

    Args:
        layout: "squash" resizes each image to its half, "letterbox" keeps its shape and pads.
        normalisation: "model" or "imagenet" (released, composed images only).
        alternate: Use single images with their captions in every other step.
        sentences: "auto" cuts long captions into sentences, "never" does not.
    """

    layout: Literal["squash", "letterbox"] = "squash"
    normalisation: Literal["model", "imagenet"] = "model"
    alternate: bool = True
    sentences: Literal["auto", "never"] = "auto"

    kinds: ClassVar[tuple[str, ...]] = (*CLIC_TEXTS, CROSS_SWAP)

    def source(self, source: Source) -> Source:
        """Return the data with long captions split into sentences, for several texts per sample.

        Captions are long if most samples have only one, of two usable sentences or more.
        """
        if self.sentences == "never":
            return source
        cut = {
            index: parts
            for index, captions in enumerate(source.column("captions"))
            if len(captions) == 1 and len(parts := sentences(captions[0])) > 1
        }
        if 2 * len(cut) <= len(source):
            return source
        note("long captions: each is cut into sentences, the first of them its main caption")
        few = {FEW_SENTENCES: len(source) - len(cut)}
        description = f"{source.describe()}, cut into sentences"
        return source.take(np.array([*cut], np.int64), description, few, [*cut.values()])

    def shows(self, sample: Sample) -> tuple[Picture, ...]:
        """Return the image if every other step uses single images; composites always differ."""
        return (sample.image,) if self.alternate else ()

    def prepare(
        self, source: Source, encode: Encode, preprocess: Preprocess, folder: Path, resume: bool
    ) -> Companions:
        """Return (N,) the orientation of every image: LANDSCAPE, PORTRAIT or UNREADABLE."""
        shape, make = (len(source),), partial(orientations, source)
        orientation = Companions.load_or_make(
            folder / "orientation.safetensors", shape, resume, make
        )
        for kind, name in ((LANDSCAPE, "landscape"), (PORTRAIT, "portrait")):
            if (orientation.values == kind).sum() == 1:
                note(f"the only {name} image has no partner and is left out of composed batches")
        return orientation

    def kind(self, step: int) -> str:
        """Return "composed", or "single" in every other step."""
        return "single" if self.alternate and step % 2 else "composed"

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        """Add the sample joined with a random one of the same orientation."""
        if batch.kind == "single":
            batch.add(sample)
            return
        rng = batch.rng(sample.drawn_by, "partner")
        chosen = partner(batch.companions, index, rng)
        if chosen is None:
            batch.whole(sample.id, sample.image)  # says why, if it cannot be read
            batch.skipped.append(sample.id)
            return
        other = batch.source[chosen]
        preprocess = batch.transform.preprocess
        landscape = bool(batch.companions.values[index] == LANDSCAPE)
        half = half_of(preprocess.size, landscape)
        pair = [batch.whole(side.id, side.image, half) for side in (sample, other)]
        first, second = rng.sample(pair, 2)
        joined = join_images(
            first,
            second,
            preprocess.size,
            landscape=landscape,
            layout=self.layout,
            resampling=batch.transform.resampling,
            fill=preprocess.fill_color,
        )
        texts, counts = pair_texts(batch.plan, sample, other, batch.epoch)
        photo = "\x1f".join(map(shown_key, (sample, other)))
        batch.put(pixels_of(joined), texts, counts, photo, id=sample.id)

    def mean_and_std(
        self, preprocess: Preprocess, kind: str
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the model's values, or for composites the released code's."""
        if self.normalisation == "imagenet" and kind == "composed":
            return IMAGENET_MEAN, IMAGENET_STD
        return super().mean_and_std(preprocess, kind)


# --- Two images as one. ---


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
    """Return an RGB image of `size` (height, width), half of it from each image.

    Landscape images are stacked, first on top; others stand side by side, first on the left.
    layout: see `Composed`; `fill` is the grey level of padding. Raises CompoclipError if the side
    to cut in half has an odd length.
    """
    height, width = size
    if (height if landscape else width) % 2:
        raise CompoclipError(f"{height} x {width} pixels cannot be halved; use an even size")
    half = half_of(size, landscape)
    joined = Image.new("RGB", (width, height))
    for image, corner in (first, (0, 0)), (second, (width - half[0], height - half[1])):
        if layout == "squash":
            part = image.resize(half, resampling)
        else:
            part = ImageOps.pad(image, half, method=resampling, color=(fill, fill, fill))
        joined.paste(part, corner)
    return joined


def half_of(size: tuple[int, int], landscape: bool) -> tuple[int, int]:
    """Return the (width, height) of each image's half of `size` (height, width)."""
    height, width = size
    return (width, height // 2) if landscape else (width // 2, height)


# --- The texts that describe both. ---

EQUALS_POSITIVE = "equals-a-positive"


def pair_texts(
    plan: TextPlan, first: Sample, second: Sample, epoch: int
) -> tuple[list[Drawn], PlanCounts]:
    """Sample the texts of `first` composed with `second`: four positives, at most one negative.

    With c1, c2 the main (first) captions, each ending in a full stop: the CAPTION "c1 c2";
    "clic-2", "c2 c1"; "clic-3" and "clic-4", the k-th extra captions of both images in random
    order, if both have any; and the NEGATIVE "cross-swap", in which c1 and c2 exchange a word, in
    random order. Extras are two of the other captions and of the positives written for the main
    caption, sampled without replacement; a single one is repeated.
    """
    counts = PlanCounts(samples=1)
    rng = plan.rng(first.drawn_by, epoch, "clic")
    mains = [sample.captions[0] for sample in (first, second)]
    one, two = map(stopped, mains)
    texts, extras = [f"{one} {two}", f"{two} {one}"], []
    for sample in (first, second):
        main, *others = sample.captions
        written, _ = (plan.written and plan.written.find(main)) or ((), ())
        others += [text for text in written if form_objection(main, text) is None]
        extras.append(rng.sample(others, 2) if len(others) > 1 else others * 2)
    if all(extras):
        texts += [_shuffled(pair, rng) for pair in zip(*extras)]
    drawn_texts = [Drawn(texts[0], Role.CAPTION)]
    for name, text in zip(CLIC_TEXTS, texts[1:]):
        drawn_texts.append(Drawn(text, Role.POSITIVE, name))
        counts.count(name)
    rng = plan.rng(first.drawn_by, epoch, CROSS_SWAP)
    swapped = cross_swap(plan.parse(mains[0]), plan.parse(mains[1]), rng)
    if isinstance(swapped, Refused):
        refusal = swapped.reason
    else:
        negative = _shuffled([side.text for side in swapped], rng)
        repeated = token_key(negative) in set(map(token_key, texts))
        refusal = EQUALS_POSITIVE if repeated else "" if fits_context(negative) else TOO_LONG
    if refusal:
        counts.refused[CROSS_SWAP, refusal] += 1
    else:
        drawn_texts.append(Drawn(negative, Role.NEGATIVE, CROSS_SWAP))
        counts.count(CROSS_SWAP)
    return drawn_texts, counts


def stopped(sentence: str) -> str:
    """Return the sentence with a mark at its end."""
    sentence = sentence.rstrip()
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _shuffled(pair: Sequence[str], rng: random.Random) -> str:
    return " ".join(stopped(text) for text in rng.sample(list(pair), len(pair)))


# --- Partners: images of one orientation. ---

LANDSCAPE, PORTRAIT, UNREADABLE = 1, 0, -1
_AT_ONCE = 512


def partner(orientation: Companions, index: int, rng: random.Random) -> int | None:
    """Sample another image of the same orientation, uniformly; None if there is none."""
    kind = int(orientation.values[index])
    pool = orientation.places[kind]
    if kind == UNREADABLE or len(pool) < 2:
        return None
    chosen = rng.randrange(len(pool) - 1)
    position = int(np.searchsorted(pool, index))
    return int(pool[chosen + (chosen >= position)])


def orientations(source: Source, threads: int = 8) -> NDArray[np.int64]:
    """Return (N,) the orientation of every image, by its header; pixels are not decoded."""

    def orientation(index: int) -> int:
        try:
            with opened(source[index].image, upright=source.upright) as file:
                width, height = file.size
        except CompoclipError:  # decoding reports the reason
            return UNREADABLE
        return LANDSCAPE if width >= height else PORTRAIT

    indices = range(len(source))
    with ThreadPoolExecutor(threads) as pool:
        kinds: list[int] = []
        for start in track(range(0, len(source), _AT_ONCE), "reading image sizes", unit="blocks"):
            kinds += pool.map(orientation, indices[start : start + _AT_ONCE])
    return np.array(kinds, np.int64)
