"""The best photos of a search in another order: by a score of pairs, or by sub-graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from compoclip.captions.parser import parse
from compoclip.captions.subgraphs import decompose, phrase, worded
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import LoadedModel
from compoclip.search.index import PhotoIndex
from compoclip.search.query import Found, Hit

Rerank = Literal["local", "maxsim", "itm", "subgraphs"]
_BATCH = 64


def rerank(
    index: PhotoIndex,
    loaded: LoadedModel,
    answer: Found,
    kind: Rerank,
    images: Path | None = None,
    weight: float = 0.5,
) -> Found:
    """Reorder the photos that a search has found, by another score.

    Args:
        index: The photos.
        loaded: The model.
        answer: The answer to a text, with all photos to reorder.
        kind: The score. "local", "maxsim" and "itm" are scores of pairs (`ModelEncoder.match`);
            they read the photos and leave out unreadable ones. "subgraphs" is the cosine plus
            `weight` times the mean cosine of the sub-graphs of the text (as MosaiCLIP makes them).
        images: The folder that the photos have moved to.
        weight: Of the sub-graphs.

    Raises:
        UsageError: For "itm" with a model without a matching head.
        CompoclipError: For "local" and "maxsim" with a model without patch or token features.
    """
    encoder = ModelEncoder(loaded)
    with encoder.evaluating():
        if kind != "subgraphs":
            hits = _by_pairs(index, encoder, answer, kind, images)
        else:
            parts = [phrase(part) for part in decompose(worded(parse(answer.asked)))]
            if not parts:
                return answer
            vectors = encoder.encode_texts(parts)
            cosines = index.features[[hit.row for hit in answer.hits]] @ vectors.T
            pairs = zip(answer.hits, cosines.mean(axis=1))
            hits = [replace(hit, score=hit.score + weight * float(mean)) for hit, mean in pairs]
    return replace(answer, hits=tuple(sorted(hits, key=lambda hit: -hit.score)))


def _by_pairs(
    index: PhotoIndex, encoder: ModelEncoder, answer: Found, score: str, images: Path | None
) -> list[Hit]:
    pixels, hits = [], []
    for hit in answer.hits:
        try:
            photo = decode(index.photo(hit.row, images), upright=index.about["upright"])
        except CompoclipError:
            continue
        pixels.append(encoder.read_image.pixels(photo))
        hits.append(hit)
    scores: list[float] = []
    for start in range(0, len(pixels), _BATCH):
        batch = pixels[start : start + _BATCH]
        scores += encoder.match(batch, [answer.asked for _ in batch], score).tolist()
    return [replace(hit, score=score) for hit, score in zip(hits, scores)]
