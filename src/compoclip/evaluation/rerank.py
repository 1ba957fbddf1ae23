"""Re-ranking of what global vectors found, by the local token-patch score.

A vector index compares one vector an image with one a text, and that is where word order gets
lost. The score of FSC-CLIP's local loss compares every token of the text with the patches that it
attends to. It is too dear for a whole collection and cheap for the K images that the index found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from compoclip.data.decode import decode
from compoclip.errors import UsageError
from compoclip.evaluation.encoder import evaluating, full_float32
from compoclip.losses.local import Attention, local_similarity
from compoclip.models.checkpoint import LoadedModel

Floats = NDArray[np.float32]
_IMAGES_AT_ONCE = 64
_NUMBERS_AT_ONCE = 1 << 25  # of the largest intermediate, (K, L, max(P, D)): 128 MiB


@dataclass(frozen=True)
class Reranker:
    r"""Scores a few images for a text by their global vectors and by tokens and patches.

    .. math::
        \mathrm{score} = \cos(t, v) + w \, (\log S - \log L) / s

    with log S the local score of text and image (`losses.local.local_similarity`), L the tokens of
    the text (start token left out, end token counted) and s the model's logit scale. The second
    term is a soft maximum of the tokens' cosines, so that both are cosines; L is the same for all
    images of one text, and lets texts of different lengths be compared.

    A model needs token and patch features, as recipes with local losses train them (`fsc-clip` and
    others). The local score alone ranks worse than the global one: keep the weight small.

    Args:
        model: The model that made the global vectors.
        weight: w of the local score. 0 keeps the order of the global vectors.
        attention: How token-patch similarities become weights, see
            `losses.local.patch_attention`; the one that the model was trained with.

    Raises:
        CompoclipError: A tower of the model has no patch or token features.
        UsageError: The weight is negative or no number.

    Source: score of Oh et al., Preserving Multi-Modal Capabilities of Pre-trained VLMs for
    Improving Vision-Linguistic Compositionality (EMNLP 2024), local hard-negative loss; the paper
    trains with it, re-ranking and the division by L are this project's.
    """

    model: LoadedModel
    weight: float = 0.25
    attention: Attention = "minmax"

    def __post_init__(self) -> None:
        self.model.encoder.require_local("re-ranking")
        if not 0 <= self.weight < float("inf"):
            raise UsageError(f"the weight of the local score is {self.weight}: give 0 or more")

    def patches(self, images: Sequence[Image.Image | str | Path]) -> NDArray[np.float16]:
        """Encode the patches of images, to be kept beside their global vectors.

        Args:
            images: N files or RGB images.

        Returns:
            (N, P, D) float16 projected patches, not normalised.

        Raises:
            CompoclipError: A file is missing or damaged.
        """
        encoder, parts = self.model.encoder, []
        with evaluating(encoder), torch.inference_mode(), full_float32():
            for start in range(0, len(images), _IMAGES_AT_ONCE):
                part = images[start : start + _IMAGES_AT_ONCE]
                pixels = torch.stack(
                    [self.model.preprocess.evaluation(_rgb(each)) for each in part]
                )
                found = encoder.encode_images(pixels.to(encoder.device), patches=True).patches
                assert found is not None
                parts.append(found.float().cpu().numpy().astype(np.float16))
        return np.concatenate(parts) if parts else np.zeros((0, 0, 0), dtype=np.float16)

    def local_scores(self, text: str, patches: NDArray[np.floating]) -> Floats:
        """Score images for a text by tokens and patches alone.

        Args:
            text: The text, cut to the model's context.
            patches: (K, P, D) of `patches`.

        Returns:
            (K,) (log S - log L) / s, in units of a cosine.
        """
        if not len(patches):
            return np.zeros(0, dtype=np.float32)
        encoder = self.model.encoder
        with evaluating(encoder), torch.inference_mode(), full_float32():
            ids = self.model.tokenizer([text]).to(encoder.device)
            read = encoder.encode_texts(ids, tokens=True)
            assert read.tokens is not None
            assert read.token_mask is not None
            kept = read.token_mask[0]
            tokens, scale = read.tokens[0][kept].float(), encoder.logit_scale.float().exp()
            width = max(len(tokens) * max(patches.shape[1:]), patches[0].size)
            rows = max(1, _NUMBERS_AT_ONCE // width)
            parts = [
                self._scores(tokens, patches[start : start + rows], scale.reshape(()))
                for start in range(0, len(patches), rows)
            ]
        found: Floats = torch.cat(parts).cpu().numpy()
        return found

    def _scores(self, tokens: Tensor, patches: NDArray[np.floating], scale: Tensor) -> Tensor:
        seen = torch.from_numpy(np.ascontiguousarray(patches)).to(tokens.device).float()
        of_each = tokens.expand(len(seen), -1, -1)
        mask = torch.ones(of_each.shape[:2], dtype=torch.bool, device=tokens.device)
        log_score = local_similarity(of_each, mask, seen, scale, self.attention)
        return (log_score - math.log(len(tokens))).div(scale)

    def scores(
        self, text: str, similarity: NDArray[np.floating], patches: NDArray[np.floating]
    ) -> Floats:
        """Score the images that an index found for a text.

        Args:
            text: The query.
            similarity: (K,) cosines of the global vectors, as the index gives them.
            patches: (K, P, D) of `patches`, of the same images.

        Returns:
            (K,) scores, the higher the better.

        Raises:
            UsageError: There are not as many patches as similarities.
        """
        if len(similarity) != len(patches):
            raise UsageError(
                f"{len(similarity)} similarities and patches of {len(patches)} images: give those "
                "of the images that the index found"
            )
        both = np.asarray(similarity, dtype=np.float32)
        if self.weight:
            both = both + np.float32(self.weight) * self.local_scores(text, patches)
        return both

    def order(
        self, text: str, similarity: NDArray[np.floating], patches: NDArray[np.floating]
    ) -> NDArray[np.int64]:
        """Order the images that an index found for a text.

        Args:
            text: The query.
            similarity: (K,) cosines of the global vectors.
            patches: (K, P, D) of `patches`, of the same images.

        Returns:
            (K,) positions, best first; those of equal score keep their order.

        Raises:
            UsageError: There are not as many patches as similarities.
        """
        return np.argsort(-self.scores(text, similarity, patches), kind="stable")


def _rgb(image: Image.Image | str | Path) -> Image.Image:
    return decode(image if isinstance(image, Image.Image) else Path(image), upright=True)
