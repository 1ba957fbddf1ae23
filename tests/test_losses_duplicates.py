"""Batches that hold a photo, or a caption, more than once; the original NegCLIP batch."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from compoclip.losses.alignment import caption_alignment
from compoclip.losses.bags import bag_loss
from compoclip.losses.composite import composite_contrast_loss
from compoclip.losses.contract import Features
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.hard_positive import hard_positive_loss
from compoclip.losses.masked import masked_contrast, masked_match
from compoclip.losses.multi_text import multi_text_loss
from compoclip.losses.negation import conclip_loss
from compoclip.losses.phrases import phrase_loss
from compoclip.losses.rows import true_pairs
from compoclip.losses.triplet import grouping_loss, triplet_clip_loss
from compoclip.losses.units import unit_loss
from losses_oracle import (
    CAPTION,
    CASES,
    NEGATIVE,
    POSITIVE,
    features_for,
    is_true,
    layout_of,
    masking,
    negclip,
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("unknown", ["", "text_id", "image_id"])
def test_true_pairs_equal_loop(case: str, unknown: str) -> None:
    layout = known = layout_of(CASES[case])
    images, texts = range(layout.images), range(layout.owner.numel())
    if unknown:  # then all are taken to differ
        known = replace(layout, **{unknown: None})
        count = layout.images if unknown == "image_id" else len(texts)
        layout = replace(layout, **{unknown: torch.arange(count)})
    expected = torch.tensor([[is_true(layout, i, t) for t in texts] for i in images])
    pairs = true_pairs(known.shared_by(known.peers, mask_duplicates=True))
    if pairs is None:  # nothing is true but what every image has of its own
        own = layout.owner == torch.arange(layout.images)[:, None]
        pairs = own & (layout.role != int(NEGATIVE)), (own & (layout.role != int(NEGATIVE))).T
    assert torch.equal(pairs[0], expected)
    assert torch.equal(pairs[1], expected.T)


CAPTIONS = [(i, CAPTION, -1) for i in range(3)]
SAID = [*CAPTIONS, *((i, POSITIVE, 3) for i in range(3))]
# With nothing wrong left: a row sees what is its own alone.
CONTRASTS: dict[str, tuple[Any, list[Any], float]] = {
    "clip": (clip_loss, CAPTIONS, 0),
    "negclip": (negclip_loss, CAPTIONS, 0),
    "multi-text": (multi_text_loss, CAPTIONS, 0),
    "grouping": (grouping_loss, CAPTIONS, 0),
    "triplet": (triplet_clip_loss, CAPTIONS, 0),
    "conclip": (conclip_loss, CAPTIONS, 0),
    "composite": (partial(composite_contrast_loss, positives=("d",)), SAID, 0),
    "hard positive": (partial(hard_positive_loss, symmetric_pos=True), SAID, 0),
    "alignment": (partial(caption_alignment, positives=("d",)), SAID, 0),
    "phrase": (partial(phrase_loss, phrase="d"), SAID, 0),
    "unit": (partial(unit_loss, units=("d",), foils=("a",)), SAID, 0),
    "bag": (partial(bag_loss, bag="d"), SAID, math.log(2)),  # both directions, one softmax
    "masked contrast": (masked_contrast, CAPTIONS, math.log(2)),  # with the masked partner
    "masked match": (masked_match, CAPTIONS, 0),
}


@pytest.mark.parametrize("name", CONTRASTS)
@pytest.mark.parametrize("same", ["captions", "photos"])
def test_every_contrast_leaves_out_what_is_true(name: str, same: str) -> None:
    """Three pairs of one caption, or of one photo: nothing in the batch is wrong for any."""
    loss, texts, expected = CONTRASTS[name]
    layout = layout_of(texts)
    count = len(texts)
    layout = replace(
        layout,
        text_id=torch.arange(count) if same == "photos" else torch.zeros(count, dtype=torch.int64),
        image_id=torch.arange(3) if same == "captions" else torch.zeros(3, dtype=torch.int64),
    )
    f = Features(
        torch.ones(3, 1),
        torch.ones(count, 1),
        torch.tensor(5.0),
        masked_image=torch.ones(3, 1),
        masked_text=torch.ones(3, 1),
    )
    assert masking(loss)(f, layout).item() == pytest.approx(expected, abs=1e-6)
    assert loss(f, layout).item() > expected + 0.1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("near", [-0.3, 0.0, 0.2, 3.0])
@pytest.mark.parametrize("duplicates", [False, True])
def test_near_captions_and_images_are_left_out(case: str, near: float, duplicates: bool) -> None:
    layout = layout_of(CASES[case])
    f = features_for(layout)
    found = masking(negclip_loss, duplicates, near)(f, layout)
    expected = negclip(f, layout, mask_duplicates=duplicates, near=near)
    torch.testing.assert_close(found, expected)
    if near == 3.0:  # cosines differ by 2 at most
        torch.testing.assert_close(found, masking(negclip_loss, duplicates)(f, layout))


def test_masking_needs_identities() -> None:
    layout = replace(layout_of(CASES["full"]), text_id=None, image_id=None)
    with pytest.raises(ValueError, match="needs text_id or image_id"):
        masking(negclip_loss)(features_for(layout), layout)
