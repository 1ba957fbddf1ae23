"""Photos found by some captions, before training and after it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from compoclip.archives import Members
from compoclip.benchmarks.case import ImageRef, Retrieval
from compoclip.evaluation.encode import EncodeOptions
from compoclip.files import write_text
from compoclip.models.checkpoint import LoadedModel
from compoclip.search.nearest import encoded
from compoclip.search.page import FoundPhoto, results_page, small_copy_of
from compoclip.search.query import Found, Hit

_CAPTIONS = 3
_PHOTOS = 4  # per caption and model on the page


@dataclass(frozen=True)
class Lookup:
    """A caption, and by model the rank of its photo among all photos; 1 is the first."""

    caption: str
    ranks: Mapping[str, int]


def look_up(
    models: Mapping[str, LoadedModel],
    photos: Retrieval,
    options: EncodeOptions,
    device: torch.device,
    seed: int,
    page: Path,
) -> tuple[Lookup, ...]:
    """Search photos by three captions with each model, and write a page of what they find.

    The captions are sampled by the seed alone, whatever the models do. Equal scores count against
    the photo of the caption.

    Args:
        models: Name -> model.
        photos: The photos with their captions.
        options: Of the encoding.
        device: Where the models encode.
        seed: Of the sample.
        page: The file to write.
    """
    places = range(len(photos.texts))
    sampled = random.Random(seed).sample(places, min(_CAPTIONS, len(places)))
    right = [[image for image, text in photos.pairs if text == place] for place in sampled]
    by_caption: list[list[Found]] = [[] for _ in sampled]
    ranks: list[dict[str, int]] = [{} for _ in sampled]
    for name, images, texts in encoded(models, photos, options, device):
        for number, scores in enumerate(texts[sampled] @ images.T):
            caption = photos.texts[sampled[number]]
            rank = int((scores >= scores[right[number]].max()).sum())
            rows = np.argsort(-scores, kind="stable")[:_PHOTOS].tolist()
            hits = tuple(Hit(row, photos.images[row].photo, float(scores[row])) for row in rows)
            heading = f"“{caption}” by {name}: its photo is number {rank}"
            by_caption[number].append(Found(heading, hits, hits[0].score, True, caption))
            ranks[number][name] = rank
    answers = [answer for answers in by_caption for answer in answers]
    about = (
        f"Photos found by their captions, among {len(photos.images):,} that training did not see"
    )
    write_text(page, results_page(answers, _pictures(photos, answers), about))
    return tuple(Lookup(photos.texts[place], rank) for place, rank in zip(sampled, ranks))


def _pictures(photos: Retrieval, answers: list[Found]) -> dict[int, FoundPhoto]:
    members = Members()

    def picture(row: int, ref: ImageRef) -> FoundPhoto:
        caption = next((photos.texts[text] for image, text in photos.pairs if image == row), "")
        link = "" if ref.member else ref.path.absolute().as_uri()
        return FoundPhoto(small_copy_of(ref, members), ref.photo, caption, link)

    rows = {hit.row for answer in answers for hit in answer.hits}
    return {row: picture(row, photos.images[row]) for row in rows}
