"""Bags of sentences, and losses that shall see a part of the texts only."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compoclip.losses.bags import bag_loss
from compoclip.losses.contract import Features
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.local import local_hn_loss
from compoclip.losses.rows import OnlyKinds, select_texts
from losses_oracle import CAPTION, CASES, NAMES, NEGATIVE, POSITIVE, features_for, layout_of

BAG, BAG_NEGATIVE = NAMES[3], NAMES[1]


def test_one_good_sentence_is_enough() -> None:
    """A bag is not punished for sentences that fit no image, as long as one fits its own."""
    texts = [(i, CAPTION, -1) for i in (0, 1)]
    layout = layout_of([*texts, (0, POSITIVE, 3), (0, POSITIVE, 3), (1, POSITIVE, 3)])
    axis = torch.eye(3, dtype=torch.float64)
    scale = torch.tensor(100.0, dtype=torch.float64)
    loss = bag_loss(Features(axis[:2], axis[[0, 1, 0, 2, 1]], scale), layout, BAG)
    # Nothing but the own pair, which the denominator holds twice.
    torch.testing.assert_close(loss.item(), math.log(2))


def test_only_kinds_hides_the_negatives_of_bags() -> None:
    layout = layout_of(CASES["bags"])
    f = features_for(layout)
    without = layout_of([t for t in CASES["bags"] if t[1:] != (NEGATIVE, 1)])
    keep = (layout.role != int(NEGATIVE)) | ~layout.kind(BAG_NEGATIVE)
    assert f.tokens is not None
    assert f.token_mask is not None
    seen = replace(f, text=f.text[keep], tokens=f.tokens[keep], token_mask=f.token_mask[keep])
    for loss in (negclip_loss, global_hn_loss, local_hn_loss):
        value = OnlyKinds(loss, NAMES[:1])(f, layout)
        torch.testing.assert_close(value, loss(seen, without), atol=0, rtol=0)
        assert value != loss(f, layout)
    captions = OnlyKinds(negclip_loss, ())(f, layout)
    torch.testing.assert_close(captions, clip_loss(f, layout), atol=0, rtol=0)


def test_select_keeps_what_is_not_about_texts() -> None:
    layout = replace(layout_of(CASES["full"]), side=torch.zeros(4), pair=torch.arange(4))
    f = replace(features_for(layout), tokens=None, token_mask=None)
    keep, part = layout.only((NAMES[0], NAMES[1]))
    assert keep.tolist() == (layout.rewrite != 2).nonzero().flatten().tolist()
    seen = select_texts(f, keep)
    assert seen.tokens is None
    assert seen.image is f.image
    assert part.images == 4
    assert part.side is layout.side
    assert part.text_id is not None
    assert layout.text_id is not None
    assert part.text_id.tolist() == layout.text_id[keep].tolist()
    assert part.owner.numel() == len(seen.text) == 12
