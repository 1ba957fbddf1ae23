"""What must hold for every loss whatever the numbers: order, padding, precision, edge cases."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.local import local_hn_loss
from compoclip.losses.masked import masked_contrast, masked_match
from compoclip.losses.phrases import patch_phrase_loss
from compoclip.losses.teacher import feature_distillation, teacher_text_contrast
from losses_oracle import (
    CAPTION,
    CASES,
    NEGATIVE,
    POSITIVE,
    assert_no_signal,
    features_for,
    gradients,
    layout_of,
    rearranged,
    with_dtype,
)
from losses_table import LOSSES, LossFn

HARD = {name: loss for name, loss in LOSSES.items() if name.startswith(("global", "local"))}
# The first negative, and the rows of a tiled batch, depend on the order of the texts.
IN_ORDER = ("intra-modal imc=head", "teacher tiled")
WITHOUT_CAPTIONS = ("similarity",)  # reads all texts alike
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def assert_finite(loss: LossFn, features: Features, layout: Layout) -> Tensor:
    value = loss(features, layout)
    assert torch.isfinite(value), layout
    for name, grad in gradients(value, features).items():
        assert torch.isfinite(grad).all(), (name, layout)
    return value


def _shuffled(layout: Layout, rng: torch.Generator) -> Tensor:
    """A random order of the texts; the captions of an image, and its positives, keep theirs.

    Losses that want one caption, or one positive, read the first.
    """
    texts = torch.randperm(layout.owner.numel(), generator=rng)
    for image in range(layout.images):
        for role in (CAPTION, POSITIVE):
            own = (layout.owner[texts] == image) & (layout.role[texts] == role)
            texts[own] = texts[own].sort().values
    return texts


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in IN_ORDER])
@pytest.mark.parametrize("case", ["full", "ragged", "every role, any order", "positives", "bags"])
def test_order_of_images_and_texts_is_irrelevant(name: str, case: str) -> None:
    loss = LOSSES[name]
    layout = layout_of(CASES[case])
    f = features_for(layout)
    rng = torch.Generator().manual_seed(1)
    images = torch.randperm(layout.images, generator=rng)
    texts = _shuffled(layout, rng)
    moved, other = rearranged(f, layout, images, texts)
    value, again = loss(f, layout), loss(moved, other)
    torch.testing.assert_close(value, again, atol=1e-12, rtol=1e-12)
    there = gradients(again, f)
    for leaf, grad in gradients(loss(f, layout), f).items():
        torch.testing.assert_close(there[leaf], grad, atol=1e-11, rtol=1e-11, msg=leaf)


@every_loss
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_padding_never_matters(loss: LossFn, garbage: float) -> None:
    layout = layout_of(CASES["ragged"])
    f = features_for(layout)
    value = loss(f, layout)
    before = gradients(value, f)
    assert f.tokens is not None
    assert f.token_mask is not None
    tokens = f.tokens.detach().masked_fill(~f.token_mask[..., None], garbage)
    tail = torch.full((tokens.shape[0], 71, tokens.shape[2]), garbage, dtype=tokens.dtype)
    padded = replace(
        f,
        tokens=torch.cat([tokens, tail], dim=1).requires_grad_(),
        token_mask=torch.nn.functional.pad(f.token_mask, (0, 71)),
    )
    assert padded.tokens is not None
    again = loss(padded, layout)
    torch.testing.assert_close(again, value, atol=1e-12, rtol=1e-12)
    after = gradients(again, padded)
    after["tokens"] = after["tokens"][:, : tokens.shape[1]]
    for name, grad in before.items():
        torch.testing.assert_close(after[name], grad, atol=1e-11, rtol=1e-11, msg=name)


@pytest.mark.parametrize("name", HARD)
def test_no_negative_is_exactly_zero(name: str) -> None:
    layout = layout_of(CASES["no negative"])
    f = features_for(layout)
    read = (f.patches, f.tokens) if name.startswith("local") else (f.image, f.text)
    leaves = [x for x in (*read, f.logit_scale) if x is not None]
    assert_no_signal(HARD[name](f, layout), leaves)


@pytest.mark.parametrize("name", [name for name in HARD if "reduction=batch" not in name])
def test_rows_without_negative_do_not_count(name: str) -> None:
    """An image without negatives changes nothing, even when its features are broken."""
    loss = HARD[name]
    layout = layout_of(CASES["full"])
    f = features_for(layout)
    wider = layout_of([*CASES["full"], (4, CAPTION, -1)])
    assert f.patches is not None
    assert f.tokens is not None
    assert f.token_mask is not None
    bad = torch.full_like(f.image[:1], math.nan)
    more = Features(
        image=torch.cat([f.image, bad]),
        text=torch.cat([f.text, bad]),
        logit_scale=f.logit_scale,
        patches=torch.cat([f.patches, torch.full_like(f.patches[:1], math.nan)]),
        tokens=torch.cat([f.tokens, torch.full_like(f.tokens[:1], math.nan)]),
        token_mask=torch.cat([f.token_mask, f.token_mask[:1]]),
    )
    before, after = loss(f, layout), loss(more, wider)
    torch.testing.assert_close(after, before, atol=1e-12, rtol=1e-12)
    was = gradients(before, f)
    for leaf, grad in gradients(after, f).items():
        torch.testing.assert_close(grad, was[leaf], atol=1e-12, rtol=1e-12, msg=leaf)


@every_loss
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_finite_in_single_precision(loss: LossFn, scale: float) -> None:
    for texts in CASES.values():
        layout = layout_of(texts)
        assert_finite(loss, features_for(layout, scale=scale, dtype=torch.float32), layout)


@every_loss
@pytest.mark.parametrize("broken", ["image", "text", "patches", "tokens", "equal patches", "one"])
def test_finite_for_broken_features(loss: LossFn, broken: str) -> None:
    """Zero vectors, constant token-patch similarities, and one token with one patch."""
    layout = layout_of(CASES["full"])
    sizes = {"tokens": 1, "patches": 1} if broken == "one" else {}
    f = features_for(layout, scale=100.0, dtype=torch.float32, **sizes)  # type: ignore[arg-type]
    if broken == "equal patches":
        assert f.patches is not None
        same = f.patches.detach()[:, :1].expand_as(f.patches).clone().requires_grad_()
        f = replace(f, patches=same)
    elif broken != "one":
        f = replace(f, **{broken: torch.zeros_like(getattr(f, broken)).requires_grad_()})
    assert_finite(loss, f, layout)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_autocast_or_not(
    loss: LossFn, dtype: torch.dtype
) -> None:
    for case in ("ragged", "positives", "bags"):
        layout = layout_of(CASES[case])
        half = features_for(layout, scale=100.0, dtype=dtype)
        value = assert_finite(loss, half, layout)
        assert value.dtype == torch.float32, case
        exact = loss(with_dtype(half, torch.float32), layout)
        torch.testing.assert_close(value, exact, atol=0, rtol=0, msg=case)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(loss(half, layout), exact, atol=0, rtol=0, msg=case)


@pytest.mark.parametrize("name", LOSSES)
def test_features_and_layouts_that_do_not_fit_are_refused(name: str) -> None:
    loss = LOSSES[name]
    layout = layout_of(CASES["full"])
    f = features_for(layout)
    with pytest.raises(ValueError, match="16 text features, but the layout has 1"):
        loss(f, replace(layout, owner=layout.owner[:1]))
    with pytest.raises(ValueError, match="4 image features, but the layout has 5"):
        loss(f, replace(layout, images=5))
    if name in WITHOUT_CAPTIONS:
        return
    bare = replace(layout, role=torch.where(layout.owner == 2, int(NEGATIVE), layout.role))
    with pytest.raises(ValueError, match="image 2 of the batch has no caption"):
        loss(f, bare)


def test_zero_needs_the_kinds_of_negative() -> None:
    layout = layout_of(CASES["full"])
    f = features_for(layout)
    for loss in (negclip_loss, global_hn_loss, local_hn_loss):
        with pytest.raises(ValueError, match="kinds of negative"):
            loss(f, layout, missing_hn="zero")


@pytest.mark.parametrize(
    ("loss", "lacking"),
    [
        *((local_hn_loss, name) for name in ("patches", "tokens", "token_mask")),
        (partial(patch_phrase_loss, phrase="d"), "patches"),
        (feature_distillation, "teacher_image"),
        (teacher_text_contrast, "teacher_text"),
        (masked_contrast, "masked_text"),
        (masked_match, "masked_text"),
    ],
)
def test_features_that_a_loss_reads_are_named(loss: LossFn, lacking: str) -> None:
    layout = layout_of(CASES["full"])
    features = replace(features_for(layout), **{lacking: None})
    words = rf"reads Features\.{lacking}, which was not computed.*needs_patches"
    with pytest.raises(ValueError, match=words):
        loss(features, layout)
