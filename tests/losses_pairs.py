"""Losses of models whose logits have a bias (SigLIP), as plain loops over pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import Tensor

from compoclip.losses.contract import Features, Layout
from losses_loops import ZERO, bag_of, texts_of
from losses_oracle import (
    CAPTION,
    POSITIVE,
    caption_of,
    cross_entropy,
    is_true,
    lse,
    missing_of,
    negatives_of,
)

LossFn = Callable[..., Tensor]


def biased(loss: LossFn) -> LossFn:
    """The loss of a model with a bias, which is a leaf's, so that its gradient is seen."""

    def of(f: Features, layout: Layout) -> Tensor:
        return loss(replace(f, logit_bias=0.5 - 0.4 * f.logit_scale), layout)

    return of


def wrong(f: Features, image: int, text: int) -> Tensor:
    assert f.logit_bias is not None
    return lse([ZERO, f.logit_scale * (f.image[image] @ f.text[text]) + f.logit_bias])


def right(f: Features, image: int, text: int) -> Tensor:
    assert f.logit_bias is not None
    return lse([ZERO, -(f.logit_scale * (f.image[image] @ f.text[text]) + f.logit_bias)])


def pairs(
    f: Features, layout: Layout, targets: dict[int, list[int]], texts: Iterable[int], masked: bool
) -> Tensor:
    """The sum over all pairs; targets: the texts of each image that are right."""
    total = ZERO
    for i, own in targets.items():
        for t in texts:
            if t in own:
                total = total + right(f, i, t)
            elif not (masked and is_true(layout, i, t)):
                total = total + wrong(f, i, t)
    return total


def clip(f: Features, layout: Layout) -> Tensor:
    return negclip(f, layout, with_negatives=False)


def negclip(
    f: Features,
    layout: Layout,
    missing_hn: str = "mask",
    mask_duplicates: bool = False,
    with_negatives: bool = True,
) -> Tensor:
    images = range(layout.images)
    targets = {i: [caption_of(layout, i)] for i in images}
    texts = [caption_of(layout, i) for i in images]
    if with_negatives:
        texts += [t for i in images for t in negatives_of(layout, i)]
    total = pairs(f, layout, targets, texts, mask_duplicates)
    if missing_hn == "zero":
        assert f.logit_bias is not None
        missing = sum(missing_of(layout, i) for i in images)
        total = total + layout.images * missing * lse([ZERO, f.logit_bias])
    return total / layout.images


def multi_text(
    f: Features, layout: Layout, reduction: str = "mean", mask_duplicates: bool = False
) -> Tensor:
    targets = {
        i: [*texts_of(layout, i, CAPTION), *texts_of(layout, i, POSITIVE)]
        for i in range(layout.images)
    }
    total = pairs(f, layout, targets, range(layout.owner.numel()), mask_duplicates)
    return total / (sum(map(len, targets.values())) if reduction == "mean" else 1)


def hard_positive(f: Features, layout: Layout, symmetric_pos: bool = False) -> Tensor:
    images = range(layout.images)
    having = [i for i in images if texts_of(layout, i, POSITIVE)]
    positive = [texts_of(layout, i, POSITIVE)[0] for i in having]
    targets = {i: texts_of(layout, i, POSITIVE)[:1] for i in images}
    seen = {i: own for i, own in targets.items() if symmetric_pos or i in having}
    with_images = pairs(f, layout, seen, positive, False) / max(1, len(having))
    with_texts = ZERO
    caption = [f.text[caption_of(layout, i)] for i in images]
    for k, i in enumerate(having):
        scores = [f.logit_scale * (caption[i] @ f.text[t]) for t in positive]
        loss = cross_entropy(scores, k)
        if symmetric_pos:
            back = [f.logit_scale * (f.text[positive[k]] @ caption[j]) for j in images]
            loss = (loss + cross_entropy(back, i)) / 2
        with_texts = with_texts + loss / len(having)
    return (with_images + with_texts) / 2


def bag(f: Features, layout: Layout, bag: int) -> Tensor:
    images, total = range(layout.images), ZERO
    assert f.logit_bias is not None
    for i in images:
        own = bag_of(layout, i, bag)
        for j in images:
            if j != i:
                total = total + sum((wrong(f, i, t) for t in bag_of(layout, j, bag)), ZERO)
        fits = lse([f.logit_scale * (f.image[i] @ f.text[t]) + f.logit_bias for t in own])
        total = total + lse([ZERO, -fits])
    return total / layout.images
