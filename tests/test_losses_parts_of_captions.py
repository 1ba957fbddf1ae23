"""Losses on units and noun phrases: values by hand, what is left out, whose gradient is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from compoclip.losses.contract import Features
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.phrases import patch_phrase_loss, phrase_loss
from compoclip.losses.units import unit_loss
from losses_oracle import CAPTION, NEGATIVE, POSITIVE, features_for, layout_of, masking

UNITS, FOILS = ("d", "e"), ("a", "b")
T = torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)
ZERO = torch.tensor(0.0, dtype=torch.float64)
TEN = torch.tensor(10.0, dtype=torch.float64)


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


def test_a_unit_that_is_true_of_both_is_a_negative_of_none() -> None:
    texts = [(i, CAPTION, -1) for i in (0, 1)]
    layout = layout_of([*texts, (0, POSITIVE, 3), (1, POSITIVE, 3)])
    layout = replace(layout, text_id=torch.tensor([0, 1, 2, 2]))
    f = features_for(layout)
    assert unit_loss(f, layout, UNITS, FOILS).item() > 0
    assert masking(unit_loss)(f, layout, UNITS, FOILS).item() == 0


# --- Noun phrases. ---

PHRASES = [(0, CAPTION, -1), (1, CAPTION, -1), (0, POSITIVE, 3), (1, POSITIVE, 3)]


def test_two_phrases_by_hand() -> None:
    layout = layout_of(PHRASES)
    f = Features(EYE, torch.cat([EYE, T]), TEN, EYE[:, None], logit_bias=ZERO)
    expected = math.log(1 + math.exp(-8)) + math.log(1 + math.exp(6))
    assert expected == pytest.approx(6.00281, abs=1e-5)
    for loss in (phrase_loss, patch_phrase_loss):  # one patch, which is the image
        assert loss(f, layout, "d").item() == pytest.approx(expected, abs=1e-9)


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
