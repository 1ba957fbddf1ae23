"""Scores of an image with a caption and all its rewrites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from compoclip.captions.types import Caption
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import LoadedModel
from compoclip.rewrites.base import Edit, Refused, get_rewrite, rewrite_names, rng_for

Kind = Literal["caption", "positive", "negative"]


@dataclass(frozen=True)
class Candidate:
    """A caption or a rewrite of it. made_by: names of the rewrites that made it, none for the
    caption. edits: the places that changed, as the first of them tells."""

    text: str
    kind: Kind
    made_by: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Scored:
    """A candidate and its cosine with the image.

    flip: whether it is misranked: a negative not below the caption, a positive not above every
    negative, or a caption with a negative not below it.
    """

    candidate: Candidate
    cosine: float
    flip: bool


def candidates_of(caption: Caption) -> tuple[list[Candidate], dict[str, str]]:
    """Return a caption and its rewrites, and why rewrites refused: one text of each that can change
    the caption, equal texts of the same kind as one candidate.

    Args:
        caption: a parsed caption.
    """
    by_text: dict[tuple[str, Kind], Candidate] = {}
    refused: dict[str, str] = {}
    for name in rewrite_names():
        edit = get_rewrite(name)(caption, rng_for(0, "0", 0, name))
        if isinstance(edit, Refused):
            refused[name] = edit.reason
            continue
        key: tuple[str, Kind] = (edit.text, "positive" if edit.keeps_meaning else "negative")
        before = by_text.get(key)
        names = (*before.made_by, name) if before else (name,)
        by_text[key] = Candidate(*key, names, before.edits if before else edit.edits)
    return [Candidate(caption.text, "caption"), *by_text.values()], refused


def score_candidates(
    model: LoadedModel, image: Image.Image, candidates: Sequence[Candidate]
) -> tuple[Scored, ...]:
    """Score an image with every candidate; return them by falling cosine, negatives first among
    equals, since a tie is wrong. Raises CompoclipError for features that are not finite.

    Args:
        model: the model.
        image: RGB.
        candidates: the caption first.
    """
    encoder = ModelEncoder(model)
    texts = encoder.texts([candidate.text for candidate in candidates])
    return ranked(candidates, (texts @ encoder.images([image])[0]).tolist())


_LAST: Mapping[Kind, int] = {"negative": 0, "positive": 1, "caption": 2}


def ranked(candidates: Sequence[Candidate], cosines: Sequence[float]) -> tuple[Scored, ...]:
    """Return candidates by falling cosine with their flips; see `score_candidates`."""
    best: dict[Kind, float] = {}
    for candidate, cosine in zip(candidates, cosines, strict=True):
        best[candidate.kind] = max(cosine, best.get(candidate.kind, cosine))
    scored = []
    for candidate, cosine in zip(candidates, cosines):
        if candidate.kind == "negative":
            flip = cosine >= best.get("caption", math.inf)
        else:
            flip = cosine <= best.get("negative", -math.inf)
        scored.append(Scored(candidate, cosine, flip))
    return tuple(sorted(scored, key=lambda entry: (-entry.cosine, _LAST[entry.candidate.kind])))
