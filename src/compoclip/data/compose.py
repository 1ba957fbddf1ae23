"""Two images as one, and the texts that describe both (CLIC, METHODS 7)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps

from compoclip.data.plan import Drawn, PlanCounts, TextPlan
from compoclip.data.plans import CLIC_TEXTS, CROSS_SWAP
from compoclip.data.sample import Sample
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Refused
from compoclip.rewrites.registry import get_pair_rewrite
from compoclip.rewrites.tokenkey import fits_context, token_key
from compoclip.rewrites.written import form_objection

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
