"""Contrast of captions' units, each with one foil, with images (CS-CLIP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, full_precision
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import caption_index, check, first_of, true_pairs

Slots = Literal["filled", "all"]
"""Average over the slots with any unit in the batch, or over all slots."""


def _images(host: HostLayout, unit: str) -> tuple[Ints, ...]:
    return first_of(host, Role.POSITIVE, unit)[1:]


def _slot(host: HostLayout, unit: str, foil: str) -> tuple[Ints, ...]:
    """The units of a slot, their images, the foils of these (0 without one), and whether
    there is one."""
    text, image = first_of(host, Role.POSITIVE, unit)
    index, valid = host.first(Role.NEGATIVE, foil)
    return text, image, index[image], valid[image]


def unit_loss(
    features: Features,
    layout: Layout,
    units: Sequence[str],
    foils: Sequence[str],
    slots: Slots = "filled",
) -> Tensor:
    r"""Contrast of images with units, slot by slot, with the foil of each image's unit.

    With V_k the images that have a unit v_ik in slot k, w_ik its foil, and i, j in V_k:

    .. math::
        l_k = \tfrac12 \Big[ \mathrm{mean}_i \mathrm{CE}([s\, u_i \cdot v_{jk} \text{ over } j,\
            s\, u_i \cdot w_{ik}],\ i) + \mathrm{mean}_i \mathrm{CE}_j(s\, v_{ik} \cdot u_j,\ i)
            \Big], \quad L = \mathrm{mean}_k\, l_k

    Args:
        features: `image` u, `text`, `logit_scale` s.
        layout: Units are POSITIVE texts, foils NEGATIVE ones; others are not read.
        units: The kind of the units of each slot.
        foils: The kind of the foils of each slot, in the same order.
        slots: "filled" averages over the slots with any unit in the batch; "all" over all slots, an
            empty one counting 0, as the released code does.

    Returns:
        A scalar; exactly zero, with zero gradient, without any unit. (ln(B + 1) + ln B) / 2 when
        all scores are equal and no text is missing.

    Raises:
        ValueError: When there are not as many kinds of foils as of units.

    Relation: added to `negclip_loss`, where an image is contrasted with all negatives. For a model
    with a bias each slot is the sigmoid loss of its pairs (`symmetric_contrast`).
    Reference: CS-CLIP, arXiv 2602.23906 (2026), unit-level supervision.
    """
    check(features, layout)
    caption_index(layout)  # units are of captions
    total, filled = [], 0
    with full_precision(features) as f:
        for unit, foil in zip(units, foils, strict=True):
            text, image, wrong, exists = layout.indices(_slot, unit, foil)
            rows = layout.sizes(_slot, unit, foil)[0]
            filled += bool(rows.any())
            of_slot = (first_of, Role.POSITIVE, unit)
            masked = true_pairs(layout, of_slot, of_slot, (_images, unit))
            seen = f.image.index_select(0, image)
            own = f.logit_scale * (seen * f.text.index_select(0, wrong)).sum(-1)
            total.append(
                symmetric_contrast(
                    layout,
                    f.logit_scale,
                    seen,
                    f.text.index_select(0, text),
                    rows,
                    rows,
                    masked,
                    logit_bias=f.logit_bias,
                    own=own.masked_fill(~exists, -torch.inf),
                )
            )
        return torch.stack(total).sum() / (len(total) if slots == "all" else max(1, filled))
