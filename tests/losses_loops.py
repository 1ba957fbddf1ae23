"""The losses of hard positives, graphs, composites and bags as plain loops (see losses_oracle)."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from losses_oracle import CAPTION, NEGATIVE, POSITIVE, caption_of, cross_entropy, lse

ZERO = torch.tensor(0.0).double()


def texts_of(layout: Layout, image: int, role: int, rewrite: int | None = None) -> list[int]:
    found = []
    for t in range(layout.owner.numel()):
        fits = layout.owner[t] == image and layout.role[t] == role
        if fits and rewrite in (None, int(layout.rewrite[t])):
            found.append(t)
    return found


def hard_positive(f: Features, layout: Layout, symmetric_pos: bool = False) -> Tensor:
    images = range(layout.images)
    rows = [i for i in images if texts_of(layout, i, POSITIVE)]
    positive = {i: texts_of(layout, i, POSITIVE)[0] for i in rows}
    anchors = [f.image, torch.stack([f.text[caption_of(layout, i)] for i in images])]
    total = ZERO
    for anchor in anchors:
        for k, i in enumerate(rows):
            scores = [f.logit_scale * (anchor[i] @ f.text[positive[j]]) for j in rows]
            loss = cross_entropy(scores, k)
            if symmetric_pos:
                back = [f.logit_scale * (f.text[positive[i]] @ anchor[j]) for j in images]
                loss = (loss + cross_entropy(back, i)) / 2
            total = total + loss / (2 * len(rows))
    return total


def is_true(layout: Layout, image: int, text: int) -> bool:
    """Whether the text equals a caption or positive of an image that is the same photo."""
    assert layout.text_id is not None
    assert layout.image_id is not None
    for t in range(layout.owner.numel()):
        same_photo = layout.image_id[layout.owner[t]] == layout.image_id[image]
        same_text = layout.text_id[t] == layout.text_id[text]
        if layout.role[t] != NEGATIVE and same_photo and same_text:
            return True
    return False


def multi_text(
    f: Features, layout: Layout, reduction: str = "mean", mask_duplicates: bool = False
) -> Tensor:
    images, texts = range(layout.images), range(layout.owner.numel())
    positive = [[*texts_of(layout, i, CAPTION), *texts_of(layout, i, POSITIVE)] for i in images]
    count = sum(len(p) for p in positive)

    def z(i: int, t: int) -> Tensor:
        return f.logit_scale * (f.image[i] @ f.text[t])

    def kept(i: int, t: int) -> bool:
        return t in positive[i] or not (mask_duplicates and is_true(layout, i, t))

    to_text, to_image = ZERO, ZERO
    for i in images:
        norm = lse([z(i, t) for t in texts if kept(i, t)])
        for t in positive[i]:
            to_text = to_text + (norm - z(i, t)) / len(positive[i])
            to_image = to_image + lse([z(j, t) for j in images if kept(j, t)]) - z(i, t)
    if reduction == "mean":
        to_text, to_image = to_text / layout.images, to_image / count
    return (to_text + to_image) / 2
