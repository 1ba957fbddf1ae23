"""The best photos of a search in another order: by their patches, or by the parts of the text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from compoclip.captions.parser import parse
from compoclip.captions.subgraphs import decompose, phrase, worded
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.losses.local import local_similarity
from compoclip.models.checkpoint import LoadedModel
from compoclip.search.index import PhotoIndex
from compoclip.search.query import Found, Hit

Rerank = Literal["local", "parts"]
_BATCH = 64


def rerank(
    index: PhotoIndex,
    loaded: LoadedModel,
    found: Found,
    kind: Rerank,
    images: Path | None = None,
    weight: float = 0.5,
) -> Found:
    """Order the photos that a text has found anew.

    Args:
        index: The photos.
        loaded: The model.
        found: The answer to a text, with all photos that are to be ordered.
        kind: "local": by FSC-CLIP's local similarity of tokens and patches; reads the photos, and
            leaves out those that cannot be read. "parts": by the score plus `weight` times the mean
            cosine of the statements in the text's scene graph (MosaiCLIP's sub-graphs).
        images: The folder that the photos have moved to.
        weight: Of the parts.

    Returns:
        The answer with its photos in the new order.

    Raises:
        CompoclipError: For "local" with a model without patch or token features.
    """
    encoder = ModelEncoder(loaded)
    with encoder.evaluating():
        if kind == "local":
            hits = _by_patches(index, loaded, found, images)
        else:
            parts = [phrase(each) for each in decompose(worded(parse(found.asked)))]
            if not parts:
                return found
            vectors = encoder.encode_texts(parts)
            cosines = index.features[[hit.row for hit in found.hits]] @ vectors.T
            pairs = zip(found.hits, cosines.mean(axis=1))
            hits = [replace(hit, score=hit.score + weight * float(mean)) for hit, mean in pairs]
    return replace(found, hits=tuple(sorted(hits, key=lambda hit: -hit.score)))


def _by_patches(
    index: PhotoIndex, loaded: LoadedModel, found: Found, images: Path | None
) -> list[Hit]:
    network = loaded.encoder
    network.require_local("--rerank local")
    read = network.encode_texts(loaded.tokenizer([found.asked]), tokens=True)
    assert read.tokens is not None
    assert read.token_mask is not None
    pixels, hits = [], []
    for hit in found.hits:
        try:
            photo = decode(index.photo(hit.row, images), upright=index.about["upright"])
        except CompoclipError:
            continue
        pixels.append(loaded.preprocess.evaluation(photo))
        hits.append(hit)
    scores = []
    for start in range(0, len(pixels), _BATCH):
        batch = torch.stack(pixels[start : start + _BATCH]).to(network.device)
        patches = network.encode_images(batch, patches=True).patches
        assert patches is not None
        tokens = read.tokens.expand(len(batch), -1, -1).float()
        mask, scale = read.token_mask.expand(len(batch), -1), network.logit_scale.float().exp()
        scores += local_similarity(tokens, mask, patches.float(), scale).tolist()
    return [replace(hit, score=score) for hit, score in zip(hits, scores)]
