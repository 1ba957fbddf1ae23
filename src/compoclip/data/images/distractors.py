"""A distractor for each image: an image that its caption does not describe (CoN-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compoclip.data.decode import Picture
from compoclip.data.images import BatchBuilder, Companions, Encode, ImagePlan, NegativeImages
from compoclip.data.images.neighbours import Neighbours
from compoclip.data.sources import Sample, Source
from compoclip.losses.contract import Role
from compoclip.models.preprocess import Preprocess


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
            other = batch.source[batch.rng(sample.id, "distractor").choice(near)]
            id, image = other.id, other.image
        if negated is not None and image is not None:
            batch.put_pair(id, image, negated, f"{sample.id}\x1fdistractor", "distractor")
