"""Losses over pairs, slots and phrases as plain loops, with and without a bias of the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from losses_loops import ZERO, bag_of, texts_of
from losses_oracle import (
    CAPTION,
    NEGATIVE,
    POSITIVE,
    caption_of,
    cross_entropy,
    global_score,
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


# --- Units and phrases; sigmoid losses where there is a bias, else softmaxes. ---


def unit(
    f: Features,
    layout: Layout,
    units: tuple[str, ...],
    foils: tuple[str, ...],
    slots: str = "filled",
    mask_duplicates: bool = False,
) -> Tensor:
    total, filled = ZERO, 0
    for kind, foil in zip(units, foils):
        of = {i: texts_of(layout, i, POSITIVE, kind)[:1] for i in range(layout.images)}
        of = {i: own for i, own in of.items() if own}
        filled += bool(of)
        for i, (own,) in of.items():

            def kept(image: int, text: int, of: dict[int, list[int]] = of) -> bool:
                target = of[image] == [text]
                return target or not (mask_duplicates and is_true(layout, image, text))

            others = [t for (t,) in of.values() if kept(i, t)]
            wrong_ones = texts_of(layout, i, NEGATIVE, foil)[:1]
            if f.logit_bias is not None:
                each = right(f, i, own) + sum((wrong(f, i, t) for t in wrong_ones), ZERO)
                each = each + sum((wrong(f, i, t) for t in others if t != own), ZERO)
                total = total + each / len(of)
                continue
            to_text = lse([global_score(f, i, t) for t in others + wrong_ones])
            to_image = lse([global_score(f, j, own) for j in of if kept(j, own)])
            total = total + (to_text + to_image - 2 * global_score(f, i, own)) / (2 * len(of))
    return total / (len(units) if slots == "all" else max(1, filled))


def attended(f: Features, image: int, text: int) -> Tensor:
    """s c . x of a phrase and what it attends to in an image."""
    assert f.patches is not None
    patches = [v / v.norm() for v in f.patches[image]]
    alike = [f.text[text] @ v for v in patches]
    pooled = sum((torch.exp(a - lse(alike)) * v for a, v in zip(alike, patches)), 0 * patches[0])
    return f.logit_scale * (f.text[text] @ pooled) / pooled.norm()


def phrase(
    f: Features,
    layout: Layout,
    phrase: str,
    mask_duplicates: bool = False,
    score: Callable[[Features, int, int], Tensor] = global_score,
) -> Tensor:
    images = range(layout.images)
    of = {i: texts_of(layout, i, POSITIVE, phrase) for i in images}
    owner = {t: i for i, own in of.items() for t in own}
    total = ZERO

    def kept(image: int, text: int) -> bool:
        return owner[text] == image or not (mask_duplicates and is_true(layout, image, text))

    if f.logit_bias is not None:
        for i in images:
            for t in owner:
                if kept(i, t):
                    z = score(f, i, t) + f.logit_bias
                    total = total + lse([ZERO, -z if owner[t] == i else z])
        return total / max(1, len(owner))
    having = sum(map(bool, of.values()))
    for t, i in owner.items():
        to_text = lse([score(f, i, other) for other in owner if kept(i, other)])
        to_image = lse([score(f, j, t) for j in images if kept(j, t)])
        own = score(f, i, t)
        total = total + (to_text - own) / len(of[i]) / having + (to_image - own) / len(owner)
    return total / 2
