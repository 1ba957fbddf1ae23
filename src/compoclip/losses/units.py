"""Contrast of captions' units, each with one foil, with images (CS-CLIP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, loss_function
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import captions, first_of, having

Slots = Literal["filled", "all"]
"""Average over the slots with any unit in the batch, or over all slots."""


def _foils(host: HostLayout, unit: str, foil: str) -> tuple[Ints, ...]:
    """The images with a unit in a slot, the foils of these (0 without one), and whether one is."""
    (image,) = having(host, Role.POSITIVE, unit)
    index, valid = host.first(Role.NEGATIVE, foil)
    return image, index[image], valid[image]


@loss_function
def unit_loss(
    f: Features, layout: Layout, units: Sequence[str], foils: Sequence[str], slots: Slots = "filled"
) -> Tensor:
    r"""Contrast of images with units, slot by slot, with the foil of each image's unit.

    With V_k the images that have a unit v_ik in slot k, w_ik its foil, and i, j in V_k:

    .. math::
        l_k = \tfrac12 \Big[ \mathrm{mean}_i \mathrm{CE}([s\, u_i \cdot v_{jk} \text{ over } j,\
            s\, u_i \cdot w_{ik}],\ i) + \mathrm{mean}_i \mathrm{CE}_j(s\, v_{ik} \cdot u_j,\ i)
            \Big], \quad L = \mathrm{mean}_k\, l_k

    (ln(B + 1) + ln B) / 2 when all scores are equal and no text is missing. Added to
    `negclip_loss`, where an image is contrasted with all negatives. For a model with a bias each
    slot is the sigmoid loss of its pairs (`symmetric_contrast`).

    Args:
        units: The kind of the units of each slot, POSITIVE texts.
        foils: The kind of the foils of each slot, NEGATIVE texts, in the same order.
        slots: "filled" averages over the slots with any unit in the batch; "all" over all slots, an
            empty one counting 0, as the released code does.

    Reference: CS-CLIP, arXiv 2602.23906 (2026), unit-level supervision.
    """
    layout.indices(captions)  # units are of captions
    total, filled = [], 0
    for unit, foil in zip(units, foils, strict=True):
        image, foil_index, exists = layout.indices(_foils, unit, foil)
        texts, images = (first_of, Role.POSITIVE, unit), (having, Role.POSITIVE, unit)
        filled += bool(layout.sizes(*texts)[0].any())
        pictures, foiled = f.image.index_select(0, image), f.text.index_select(0, foil_index)
        extra = (f.logit_scale * (pictures * foiled).sum(-1)).masked_fill(~exists, -torch.inf)
        total.append(symmetric_contrast(f, layout, texts, images=images, extra=extra))
    return torch.stack(total).sum() / (len(total) if slots == "all" else max(1, filled))
