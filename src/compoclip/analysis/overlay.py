"""Patch maps laid over their image."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from PIL import Image

from compoclip.analysis.patch_maps import Box, Floats
from compoclip.errors import CompoclipError

COLOURS = "viridis"  # even in lightness, so that colour-blind people and grey prints keep the order


def overlay(image: Image.Image, attention: Floats, region: Box, alpha: float = 0.6) -> Image.Image:
    """The RGB `image` with a map on it, in the image's own size.

    attention: (rows, columns) over `region` (left, upper, right, lower, in pixels of the image);
    its lowest value is dark blue, its highest yellow, and a flat map dark blue throughout. alpha:
    share of the colour. Outside of the region the image is darkened: the model does not see it.

    Raises CompoclipError when `alpha` is not in [0, 1] or the map is empty.
    """
    if not 0 <= alpha <= 1:
        raise CompoclipError(f"the opacity of a map is between 0 and 1, not {alpha}")
    if attention.ndim != 2 or not attention.size:
        raise CompoclipError(f"a map of shape {attention.shape} cannot be laid over an image")
    photo = np.asarray(image.convert("RGB"), dtype=np.float32)
    heat, seen = _spread(attention, region, image.size)
    colour = np.asarray(colormaps[COLOURS](heat), dtype=np.float32)[..., :3] * 255
    # the photo in grey below the colours, so that its own are not taken for those of the map
    grey = photo @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    inside = (1 - alpha) * grey[..., None] + alpha * colour
    mixed = np.where(seen[..., None], inside, 0.35 * photo)
    return Image.fromarray(np.clip(mixed + 0.5, 0, 255).astype(np.uint8))


def small_overlay(image: Image.Image, attention: Floats, region: Box, side: int) -> Image.Image:
    """`overlay` on a copy of the image whose longer side is at most `side` pixels."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    across, down = small.width / image.width, small.height / image.height
    left, upper, right, lower = region
    return overlay(small, attention, (left * across, upper * down, right * across, lower * down))


def _spread(
    attention: Floats, region: Box, size: tuple[int, int]
) -> tuple[
    np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
]:
    """The map in [0, 1] at every pixel, bilinear between centres of patches, and what is in it."""
    low, high = float(attention.min()), float(attention.max())
    values = (attention - low) / (high - low) if high > low else np.zeros_like(attention)
    left, upper, right, lower = region
    rows, columns = values.shape
    width, height = size
    x = (np.arange(width) + 0.5 - left) / (right - left) * columns
    y = (np.arange(height) + 0.5 - upper) / (lower - upper) * rows
    seen = ((y > 0) & (y < rows))[:, None] & ((x > 0) & (x < columns))[None, :]
    heat = _weights(y, rows) @ values @ _weights(x, columns).T
    return heat.astype(np.float32), seen


def _weights(places: Floats, count: int) -> Floats:
    """(pixels, count): the share of each patch at each place, given in patches from the edge."""
    at = np.clip(places - 0.5, 0, count - 1)
    return np.asarray(np.clip(1 - np.abs(at[:, None] - np.arange(count)[None, :]), 0, 1))
