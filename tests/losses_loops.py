"""The losses of hard positives, graphs, composites and bags as plain loops (see losses_oracle)."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from losses_oracle import POSITIVE, caption_of, cross_entropy

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
