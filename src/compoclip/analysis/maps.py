"""Which patches of an image each word of a caption aligns with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import evaluating, require_finite
from compoclip.losses.contract import at_least_float32, normalise
from compoclip.losses.local import patch_attention
from compoclip.models.checkpoint import LoadedModel
from compoclip.models.preprocess import Preprocess

Floats = NDArray[np.float64]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class WordMap:
    """The map of one word of the caption over the image.

    word: as the tokenizer cleans it, with adjacent punctuation. attention: (rows, columns), sum 1,
    the mean over its tokens of the min-max attention. cosine: mean over its tokens of the cosine
    with the patches each attends to.
    """

    word: str
    attention: Floats
    cosine: float


@dataclass(frozen=True)
class PatchMaps:
    """The maps of all words of a caption on one image.

    words: in caption order. left_out: words beyond the model's context. region: (left, upper,
    right, lower), the part of the image that the model sees, in pixels; it extends beyond the image
    where the model pads.
    """

    words: tuple[WordMap, ...]
    left_out: tuple[str, ...]
    region: Box

    @property
    def grid(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches."""
        rows, columns = self.words[0].attention.shape
        return int(rows), int(columns)


def image_patches(model: LoadedModel, image: Image.Image) -> Tensor:
    """Compute the features (1, P, D) of the patches of an RGB image, float32 on the CPU.

    Raises CompoclipError: the image tower has no patch features, or they are not finite.
    """
    model.encoder.require_local("patch maps")
    with evaluating(model.encoder), torch.inference_mode():
        pixels = model.preprocess.evaluation(image)[None].to(model.encoder.device)
        visual = model.encoder.encode_images(pixels, patches=True)
    assert visual.patches is not None
    patches = at_least_float32(visual.patches).cpu()
    require_finite(patches.numpy(), model.name)
    return patches


def patch_maps(
    model: LoadedModel, image: Image.Image, caption: str, patches: Tensor | None = None
) -> PatchMaps:
    r"""Compute the token-patch maps of a caption on an image.

    These are the weights in FSC-CLIP's local similarity: token w attends to patch p with

    .. math:: a_{wp} = \mathrm{minmax}_p(t_w \cdot v_p) / \sum_p \mathrm{minmax}_p(t_w \cdot v_p)

    (`losses.local.patch_attention`); a word of several BPE tokens gets the mean over its tokens.

    Args:
        model: the model, whose towers must give patch and token features.
        image: RGB.
        caption: at least one word.
        patches: as `image_patches` returns them for a model with the same image tower.

    Raises:
        CompoclipError: a tower has no patch or token features, the tokenizer does not group tokens
            into words, the caption has no word, or the patches form no grid.

    Reference: Oh et al. (EMNLP 2024), local hard-negative loss.
    """
    model.encoder.require_local("patch maps")
    spans, left_out = word_positions(model, caption)
    if patches is None:
        patches = image_patches(model, image)
    with evaluating(model.encoder), torch.inference_mode():
        read = model.encoder.encode_texts(model.tokenizer([caption]), tokens=True)
    assert read.tokens is not None
    tokens = at_least_float32(read.tokens).cpu()
    require_finite(tokens.numpy(), model.name)
    grid = patch_grid(patches.shape[1], model.preprocess.size)
    words = word_maps(tokens[0], patches[0], spans, grid)
    region = seen_region(model.preprocess, image.width, image.height)
    return PatchMaps(words, left_out, region)


def word_positions(
    model: LoadedModel, caption: str
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, ...]]:
    """Return each word with the positions of its tokens, and the words that the context cuts off.

    Position 0 is the start token; of a word that is cut, the tokens that are left count. Raises
    CompoclipError for a caption without words and tokenizers other than CLIP's BPE.
    """
    last = model.tokenizer.context_length - 1  # of a text that is cut: its end token
    words: list[tuple[str, tuple[int, ...]]] = []
    left_out: list[str] = []
    place = 1
    for word, ids in model.tokenizer.words(caption):
        positions = tuple(range(place, min(place + len(ids), last)))
        place += len(ids)
        if positions:
            words.append((word, positions))
        else:
            left_out.append(word)
    if not words:
        raise CompoclipError("patch maps need a caption of at least one word; this one has none")
    return tuple(words), tuple(left_out)


def word_maps(
    tokens: Tensor,
    patches: Tensor,
    spans: Sequence[tuple[str, tuple[int, ...]]],
    grid: tuple[int, int],
) -> tuple[WordMap, ...]:
    """Return maps of (L, D) token and (P, D) patch features, not normalised; P = rows x columns.

    spans: word -> positions among the L tokens.
    """
    attention = patch_attention(tokens @ patches.T)
    cosine = (normalise(attention @ patches) * normalise(tokens)).sum(-1)
    return tuple(
        WordMap(
            word,
            attention[list(positions)].mean(0).reshape(grid).double().numpy(),
            float(cosine[list(positions)].mean()),
        )
        for word, positions in spans
    )


def patch_grid(patches: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of that many patches, row by row, on a (height, width) input.

    Raises CompoclipError when no grid has the shape of the input.
    """
    rows = max(1, round(math.sqrt(patches * size[0] / size[1])))
    columns = max(1, round(rows * size[1] / size[0]))
    if rows * columns != patches:
        raise CompoclipError(
            f"{patches} patches form no grid on an input of {size[0]} x {size[1]} pixels: patch "
            "maps need a tower whose patches cover the image row by row; choose another model"
        )
    return rows, columns


def seen_region(preprocess: Preprocess, width: int, height: int) -> Box:
    """Return the part of a `width` x `height` image that the evaluation transform keeps.

    "squash" keeps all, "shortest" the centre, and "longest" pads: the box is larger than the image.
    """
    if preprocess.resize_mode == "squash":
        return 0.0, 0.0, float(width), float(height)
    across, down = preprocess.size[1] / width, preprocess.size[0] / height
    scale = min(across, down) if preprocess.resize_mode == "longest" else max(across, down)
    half_width, half_height = preprocess.size[1] / scale / 2, preprocess.size[0] / scale / 2
    x, y = width / 2, height / 2
    return x - half_width, y - half_height, x + half_width, y + half_height


# --- Patch maps laid over their image. ---

COLOURS = "viridis"  # even in lightness, so that colour-blind people and grey prints keep the order


def overlay(image: Image.Image, attention: Floats, region: Box, alpha: float = 0.6) -> Image.Image:
    """Draw a map over its image.

    The lowest value is dark blue, the highest yellow; a flat map is dark blue. Outside the region,
    which the model does not see, the image is darkened.

    Args:
        image: RGB.
        attention: (rows, columns), the map.
        region: (left, upper, right, lower), the part of the image that the map covers, in pixels.
        alpha: opacity of the map, from 0 to 1.
    """
    photo = np.asarray(image.convert("RGB"), dtype=np.float32)
    low, high = float(attention.min()), float(attention.max())
    values = (attention - low) / (high - low) if high > low else np.zeros_like(attention)
    left, upper, right, lower = region
    rows, columns = values.shape
    x = (np.arange(image.width) + 0.5 - left) / (right - left) * columns
    y = (np.arange(image.height) + 0.5 - upper) / (lower - upper) * rows
    visible = ((y > 0) & (y < rows))[:, None] & ((x > 0) & (x < columns))[None, :]
    heat = (_weights(y, rows) @ values @ _weights(x, columns).T).astype(np.float32)  # bilinear
    colour = np.asarray(colormaps[COLOURS](heat), dtype=np.float32)[..., :3] * 255
    # the photo in grey below the colours, so that its own are not taken for those of the map
    grey = photo @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    inside = (1 - alpha) * grey[..., None] + alpha * colour
    mixed = np.where(visible[..., None], inside, 0.35 * photo)
    return Image.fromarray(np.clip(mixed + 0.5, 0, 255).astype(np.uint8))


def small_overlay(image: Image.Image, attention: Floats, region: Box, side: int) -> Image.Image:
    """`overlay` on a copy of the image whose longer side is at most `side` pixels."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    across, down = small.width / image.width, small.height / image.height
    left, upper, right, lower = region
    return overlay(small, attention, (left * across, upper * down, right * across, lower * down))


def _weights(places: Floats, count: int) -> Floats:
    """Return (pixels, count), the share of each patch at each place, in patches from the edge."""
    at = np.clip(places - 0.5, 0, count - 1)
    return np.asarray(np.clip(1 - np.abs(at[:, None] - np.arange(count)[None, :]), 0, 1))
