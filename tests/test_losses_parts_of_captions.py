"""Losses on units and noun phrases: values by hand, what is left out, whose gradient is none."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from compoclip.losses.contract import Features
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.phrases import patch_phrase_loss, phrase_loss
from compoclip.losses.units import unit_loss
from losses_oracle import (
    CAPTION,
    NEGATIVE,
    POSITIVE,
    assert_no_signal,
    features_for,
    layout_of,
    masking,
)

UNITS, FOILS = ("d", "e"), ("a", "b")
T = torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)
ZERO = torch.tensor(0.0, dtype=torch.float64)
TEN = torch.tensor(10.0, dtype=torch.float64)


def alike(images: int, texts: int, scale: float = 7.0) -> Features:
    one = torch.ones(max(images, texts), 1, dtype=torch.float64)
    return Features(one[:images], one[:texts], torch.tensor(scale, dtype=torch.float64))


@pytest.mark.parametrize("images", [1, 2, 5])
def test_equal_scores_of_units(images: int) -> None:
    texts = [(i, CAPTION, -1) for i in range(images)]
    texts += [(i, role, k) for i in range(images) for role, k in ((POSITIVE, 3), (NEGATIVE, 0))]
    layout = layout_of(texts)
    f = alike(images, len(texts))
    expected = (math.log(images + 1) + math.log(images)) / 2
    assert unit_loss(f, layout, UNITS, FOILS).item() == pytest.approx(expected, abs=1e-9)
    halved = unit_loss(f, layout, UNITS, FOILS, slots="all").item()  # slot 2 is empty
    assert halved == pytest.approx(expected / 2, abs=1e-9)
    biased = replace(f, logit_scale=ZERO, logit_bias=ZERO)
    assert unit_loss(biased, layout, UNITS, FOILS).item() == pytest.approx(
        (images + 1) * math.log(2)
    )


def test_two_units_by_hand() -> None:
    """u = e1, e2, units t, u_i . w_i = .6, s = 10."""
    texts = [(i, CAPTION, -1) for i in (0, 1)]
    layout = layout_of(
        [*texts, (0, POSITIVE, 3), (1, POSITIVE, 3), (0, NEGATIVE, 0), (1, NEGATIVE, 0)]
    )
    f = Features(EYE, torch.cat([EYE, T, T.flip(0)]), TEN)
    value = unit_loss(f, layout, UNITS, FOILS).item()
    expected = (math.log(1 + 2 * math.exp(-2)) + math.log(1 + math.exp(-2))) / 2
    assert value == pytest.approx(expected, abs=1e-9)
    assert value == pytest.approx(0.18324, abs=1e-5)


def test_one_unit_meets_its_foil_alone() -> None:
    layout = layout_of([(0, CAPTION, -1), (1, CAPTION, -1), (1, POSITIVE, 4), (1, NEGATIVE, 1)])
    value = unit_loss(alike(2, 4), layout, UNITS, FOILS)
    assert value.item() == pytest.approx(math.log(2) / 2)


def test_foils_of_others_and_of_other_slots_are_not_met() -> None:
    texts = [(i, CAPTION, -1) for i in (0, 1)]
    layout = layout_of(
        [*texts, (0, POSITIVE, 3), (1, POSITIVE, 3), (0, NEGATIVE, 0), (1, NEGATIVE, 1)]
    )
    f = features_for(layout)
    unit_loss(f, layout, UNITS, FOILS).backward()
    assert f.text.grad is not None
    assert f.text.grad.any(1).tolist() == [False, False, True, True, True, False]
    u, v, s = f.image.detach(), f.text.detach(), f.logit_scale.detach()
    z = (s * u @ v.T).tolist()
    rows = [[z[0][2], z[0][3], z[0][4]], [z[1][3], z[1][2]], [z[0][2], z[1][2]], [z[1][3], z[0][3]]]
    expected = sum(math.log(sum(map(math.exp, row))) - row[0] for row in rows) / 4
    assert unit_loss(f, layout, UNITS, FOILS).item() == pytest.approx(expected)


def test_no_unit_is_exactly_zero() -> None:
    layout = layout_of([(0, CAPTION, -1), (1, CAPTION, -1), (0, NEGATIVE, 0)])
    for loss in (unit_loss, partial(unit_loss, slots="all"), masking(unit_loss)):
        f = features_for(layout)
        assert_no_signal(loss(f, layout, UNITS, FOILS), [f.image, f.text])


def test_a_unit_that_is_true_of_both_is_a_negative_of_none() -> None:
    texts = [(i, CAPTION, -1) for i in (0, 1)]
    layout = layout_of([*texts, (0, POSITIVE, 3), (1, POSITIVE, 3)])
    layout = replace(layout, text_id=torch.tensor([0, 1, 2, 2]))
    f = features_for(layout)
    assert unit_loss(f, layout, UNITS, FOILS).item() > 0
    assert masking(unit_loss)(f, layout, UNITS, FOILS).item() == 0


# --- Noun phrases. ---

PHRASES = [(0, CAPTION, -1), (1, CAPTION, -1), (0, POSITIVE, 3), (1, POSITIVE, 3)]


def test_phrases_whose_logits_are_zero() -> None:
    texts = [(i, CAPTION, -1) for i in range(3)]
    layout = layout_of([*texts, (0, POSITIVE, 3), (0, POSITIVE, 3), (2, POSITIVE, 3)])
    f = features_for(layout)
    f = replace(f, logit_scale=ZERO, logit_bias=ZERO)
    for loss in (phrase_loss, patch_phrase_loss):
        assert loss(f, layout, "d").item() == pytest.approx(3 * math.log(2), abs=1e-9)


def test_two_phrases_by_hand() -> None:
    layout = layout_of(PHRASES)
    f = Features(EYE, torch.cat([EYE, T]), TEN, EYE[:, None], logit_bias=ZERO)
    expected = math.log(1 + math.exp(-8)) + math.log(1 + math.exp(6))
    assert expected == pytest.approx(6.00281, abs=1e-5)
    for loss in (phrase_loss, patch_phrase_loss):  # one patch, which is the image
        assert loss(f, layout, "d").item() == pytest.approx(expected, abs=1e-9)


def test_of_one_patch_it_is_the_loss_on_that_patch() -> None:
    layout = layout_of(PHRASES)
    f = features_for(layout, patches=1)
    assert f.patches is not None
    unit = torch.nn.functional.normalize(f.patches[:, 0], dim=-1)
    for each in (f, replace(f, logit_bias=torch.tensor(-2.0))):
        value = patch_phrase_loss(each, layout, "d")
        torch.testing.assert_close(value, phrase_loss(replace(each, image=unit), layout, "d"))


def test_with_a_phrase_an_image_it_is_the_contrast_of_clip() -> None:
    layout = layout_of(PHRASES)
    f = features_for(layout)
    as_captions = replace(f, text=f.text[[2, 3, 0, 1]])
    for bias in (None, torch.tensor(-1.0)):
        value = phrase_loss(replace(f, logit_bias=bias), layout, "d")
        torch.testing.assert_close(value, clip_loss(replace(as_captions, logit_bias=bias), layout))


def test_a_phrase_of_two_images_is_wrong_for_neither() -> None:
    layout = replace(layout_of(PHRASES), text_id=torch.tensor([0, 1, 2, 2]), image_id=None)
    for loss in (phrase_loss, patch_phrase_loss):
        f = features_for(layout)
        assert masking(loss)(f, layout, "d").item() == 0  # nothing to tell apart
        biased = replace(f, logit_bias=torch.tensor(-1.0))
        seen = f.image if loss is phrase_loss else f.patches
        assert seen is not None
        for image in (0, 1):  # each image learns of its own phrase alone
            own = [text for text in range(4) if text in (image, 2 + image)]
            alone = layout_of([(0, CAPTION, -1), (0, POSITIVE, 3)])
            part = Features(
                f.image[image : image + 1],
                f.text[own],
                f.logit_scale,
                None if f.patches is None else f.patches[image : image + 1],
                logit_bias=biased.logit_bias,
            )
            whole = torch.autograd.grad(masking(loss)(biased, layout, "d"), seen)[0]
            single = torch.autograd.grad(loss(part, alone, "d"), seen)[0]
            torch.testing.assert_close(whole[image], single[image] / 2)


def test_without_phrases_there_is_nothing_to_learn() -> None:
    layout = layout_of(PHRASES[:2])
    for bias in (None, torch.tensor(-1.0)):
        f = features_for(layout)
        biased = replace(f, logit_bias=bias)
        assert f.patches is not None
        assert_no_signal(phrase_loss(biased, layout, "d"), [f.image, f.text])
        assert_no_signal(patch_phrase_loss(biased, layout, "d"), [f.patches, f.text])


def test_patches_are_asked_for() -> None:
    layout = layout_of(PHRASES)
    with pytest.raises(ValueError, match="needs_patches=True"):
        patch_phrase_loss(replace(features_for(layout), patches=None), layout, "d")


# --- The sigmoid form of contrasts. ---


def test_contrasts_of_a_bias_by_hand() -> None:
    layout = layout_of([*PHRASES[:2], (0, NEGATIVE, 0)])
    f = Features(EYE, torch.cat([T, T[:1]]), TEN, logit_bias=torch.tensor(-7.0).double())
    own, other = math.log(1 + math.exp(-1)), math.log(1 + math.exp(-1))  # logits 1 and -1
    assert clip_loss(f, layout).item() == pytest.approx(own + other)
    foil = math.log(1 + math.exp(1)) + math.log(1 + math.exp(-1))  # with both images
    assert negclip_loss(f, layout).item() == pytest.approx(own + other + foil / 2)
