"""How the losses with positives relate to one another, and where they have nothing to say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from compoclip.losses.composite import (
    composite_contrast_loss,
    single_negative_loss,
    unimodal_loss,
)
from compoclip.losses.contrastive import clip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.hard_positive import hard_positive_loss
from compoclip.losses.multi_text import multi_text_loss
from losses_oracle import (
    CASES,
    NEGATIVE,
    POSITIVES,
    assert_no_signal,
    features_for,
    layout_of,
    masking,
    perfect,
)


def test_no_hard_positive_is_exactly_zero() -> None:
    layout = layout_of(CASES["full"])
    f = features_for(layout)
    assert_no_signal(hard_positive_loss(f, layout), [f.image, f.text, f.logit_scale])
    assert_no_signal(unimodal_loss(f, layout, POSITIVES[0]), [f.text])


def test_multi_text_of_captions_alone_is_clip() -> None:
    layout = layout_of(CASES["no negative"])
    f = features_for(layout)
    torch.testing.assert_close(multi_text_loss(f, layout), clip_loss(f, layout))


def test_multi_text_when_all_texts_are_equal() -> None:
    """Then nothing is wrong for any image: only its own positives are left in its softmax."""
    layout = layout_of(CASES["positives"])
    layout = replace(layout, text_id=torch.zeros_like(layout.owner))
    f = perfect(layout, spread=False)
    counts = torch.bincount(layout.owner[layout.role != int(NEGATIVE)])
    expected = counts.log().mean() / 2
    assert masking(multi_text_loss)(f, layout).item() == pytest.approx(expected.item())


def test_owner_of_a_cached_negative_does_not_matter() -> None:
    layout = layout_of(CASES["positives"])
    cached = layout.role == int(NEGATIVE)
    moved = replace(layout, owner=layout.owner.masked_fill(cached, 1))
    f = features_for(layout)
    for masked in (False, True):
        value = masking(multi_text_loss, masked)(f, layout)
        torch.testing.assert_close(masking(multi_text_loss, masked)(f, moved), value)


def test_composite_without_descriptions_is_clip() -> None:
    layout = layout_of(CASES["ragged"])
    f = features_for(layout)
    value = composite_contrast_loss(f, layout, POSITIVES)
    torch.testing.assert_close(value, clip_loss(f, layout))


def test_single_negative_is_the_hard_negative_loss_of_two_columns() -> None:
    layout = layout_of([t for t in CASES["full"] if t[2] <= 0])
    f = features_for(layout)
    torch.testing.assert_close(single_negative_loss(f, layout, ()), global_hn_loss(f, layout))
    none = layout_of(CASES["no negative"])
    f = features_for(none)
    assert_no_signal(single_negative_loss(f, none, ()), [f.image, f.text, f.logit_scale])
