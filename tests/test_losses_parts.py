"""The parts of losses: rows, selected texts, shorter features, calibrated softmax, attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compoclip.losses.contract import Role, normalise
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.dimensions import leading
from compoclip.losses.hard_negative import global_hn_loss, selective_calibrated_rows
from compoclip.losses.local import Attention, local_hn_loss, patch_attention
from compoclip.losses.rows import OnlyKinds, RowIndex, captions, hard_negatives, missing
from losses_oracle import (
    CAPTION,
    CASES,
    KINDS,
    NAMES,
    NEGATIVE,
    POSITIVE,
    caption_of,
    features_for,
    layout_of,
    missing_of,
    negatives_of,
)

TEXT = st.tuples(
    st.integers(0, 3),
    st.sampled_from([CAPTION, NEGATIVE, POSITIVE]),
    st.integers(0, len(KINDS) - 1),
)


@settings(max_examples=40)
@given(st.lists(TEXT, max_size=20), st.randoms(use_true_random=False))
def test_rows_equal_loop(texts: list[tuple[int, Role, int]], shuffle) -> None:  # type: ignore[no-untyped-def]
    texts = [*texts, *((i, CAPTION, -1) for i in range(4))]
    shuffle.shuffle(texts)
    layout = layout_of(texts)
    rows = RowIndex(*layout.indices(hard_negatives))
    index = rows.spread(rows.texts)
    for i in range(4):
        caption, negatives = caption_of(layout, i), negatives_of(layout, i)
        assert layout.indices(captions)[0][i] == caption
        assert layout.indices(missing, KINDS)[0][i] == missing_of(layout, i)
        expected = [caption, *negatives] if negatives else []
        assert index[i][rows.valid[i]].tolist() == expected
    width = max(len(negatives_of(layout, i)) for i in range(4))
    assert index.shape == rows.valid.shape == (4, 1 + width)
    scores = torch.arange(1.0, 1.0 + rows.texts.numel())
    assert rows.spread(scores)[rows.valid].tolist() == scores.tolist()
    assert not rows.spread(scores)[~rows.valid].any()


def test_a_loss_of_some_kinds_does_not_see_the_other_texts() -> None:
    case = CASES["bags"]
    layout = replace(layout_of(case), side=torch.zeros(3), pair=torch.arange(3))
    f = features_for(layout)
    hidden = (NEGATIVE, 1)
    without = layout_of([text for text in case if text[1:] != hidden])
    rest = torch.tensor([text[1:] != hidden for text in case])
    assert f.tokens is not None
    assert f.token_mask is not None
    seen = replace(f, text=f.text[rest], tokens=f.tokens[rest], token_mask=f.token_mask[rest])
    for loss in (negclip_loss, global_hn_loss, local_hn_loss):
        filtered = OnlyKinds(loss, NAMES[:1])
        torch.testing.assert_close(filtered(f, layout), loss(seen, without), atol=0, rtol=0)
        assert filtered(f, layout) != loss(f, layout)
        filtered.load_state_dict({})
        assert filtered.state_dict() == {}
    captions_alone = OnlyKinds(negclip_loss, ())(f, layout)
    torch.testing.assert_close(captions_alone, clip_loss(f, layout), atol=0, rtol=0)
    keep, part = layout.only(NAMES[:1])
    assert part.images == 3
    assert part.side is layout.side
    assert part.text_id is not None
    assert layout.text_id is not None
    assert part.text_id.tolist() == layout.text_id[keep].tolist()


def test_only_the_shared_space_is_cut() -> None:
    whole = features_for(layout_of(CASES["ragged"]))
    cut = leading(whole, 3)
    torch.testing.assert_close(cut.image.norm(dim=-1), torch.ones(4).double())
    torch.testing.assert_close(cut.text[0] / cut.text[0, 0], whole.text[0, :3] / whole.text[0, 0])
    assert cut.patches is not None
    assert whole.patches is not None
    assert torch.equal(cut.patches, whole.patches[..., :3])
    assert cut.teacher_image is whole.teacher_image


def selective_calibrated_loss(*arguments: Any, **options: Any) -> Tensor:
    total, count = selective_calibrated_rows(*arguments, **options)
    return total / count.clamp_min(1)


@pytest.mark.parametrize(
    "valid", [[False, True, True], [True, False, False], [False, False, False]]
)
def test_rows_that_do_not_count(valid: list[bool]) -> None:
    z = torch.full((1, 3), math.nan, requires_grad=True)
    loss = selective_calibrated_loss(z, torch.tensor([valid]), gamma=0.5, beta=0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad is not None
    assert not z.grad.any()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("gap", [0.0, 1e-4, 50.0, 200.0, -200.0, 1e6])
def test_extreme_logits(gamma: float, gap: float) -> None:
    z = torch.tensor([[gap, 0.0, -gap]], requires_grad=True)
    loss = selective_calibrated_loss(z, torch.ones(1, 3, dtype=torch.bool), gamma, 0.02)
    loss.backward()
    assert torch.isfinite(loss)
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize(("gamma", "beta"), [(-1.0, 0.0), (0.0, -0.1), (0.0, 1.1), (math.nan, 0)])
def test_an_impossible_calibration_is_refused(gamma: float, beta: float) -> None:
    with pytest.raises(ValueError, match="gamma must be"):
        selective_calibrated_loss(torch.ones(1, 2), torch.ones(1, 2).bool(), gamma, beta)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_an_impossible_share_is_refused(share: float) -> None:
    layout = layout_of(CASES["ragged"])
    with pytest.raises(ValueError, match="positive_share must be"):
        global_hn_loss(features_for(layout), layout, positive_share=share)


@pytest.mark.parametrize("attention", ["minmax", "minmax_sparse"])
def test_nearly_constant_row_is_uniform(attention: Attention) -> None:
    sim = torch.tensor([1.0, 1.0 + 5e-7, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(
        patch_attention(sim, attention), torch.full((4,), 0.25, dtype=torch.float64)
    )
    wide = torch.tensor([1.0, 1.0 + 2e-6, 1.0, 1.0], dtype=torch.float64)
    assert patch_attention(wide, attention)[1] == 1.0


def test_zero_vectors_stay_zero_and_have_no_gradient() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0]], requires_grad=True)
    y = normalise(x)
    torch.testing.assert_close(y, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]))
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], torch.tensor([4 / 125, -3 / 125]))
    assert not x.grad[1:].any()
