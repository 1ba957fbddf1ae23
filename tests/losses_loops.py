"""The losses of hard positives, graphs, composites and bags as plain loops (see losses_oracle)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from losses_oracle import (
    CAPTION,
    KINDS,
    NEGATIVE,
    POSITIVE,
    POSITIVES,
    caption_of,
    cross_entropy,
    is_true,
    kind_of,
    lse,
    number,
)

ZERO = torch.tensor(0.0).double()


def texts_of(layout: Layout, image: int, role: int, kind: str | None = None) -> list[int]:
    found = []
    for t in range(layout.owner.numel()):
        fits = layout.owner[t] == image and layout.role[t] == role
        if fits and kind in (None, kind_of(layout, t)):
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


def descriptions(layout: Layout, image: int) -> list[int]:
    second, third, fourth = (texts_of(layout, image, POSITIVE, k) for k in POSITIVES)
    p1 = caption_of(layout, image)
    p2 = second[0] if second else p1
    return [p1, p2, third[0] if third else p1, fourth[0] if fourth else p2]


def composite_contrast(f: Features, layout: Layout) -> Tensor:
    images = range(layout.images)
    total = ZERO
    for place in range(4):
        text = [f.text[descriptions(layout, i)[place]] for i in images]
        for i in images:
            to_text = [f.logit_scale * (f.image[i] @ text[j]) for j in images]
            to_image = [f.logit_scale * (text[i] @ f.image[j]) for j in images]
            total = total + cross_entropy(to_text, i) + cross_entropy(to_image, i)
    return total / (4 * 2 * layout.images)


def single_negative(f: Features, layout: Layout) -> Tensor:
    total, count = ZERO, 0
    for i in range(layout.images):
        for n in texts_of(layout, i, NEGATIVE):
            for p in descriptions(layout, i):
                wrong = f.logit_scale * (f.image[i] @ f.text[n] - f.image[i] @ f.text[p])
                total, count = total + lse([ZERO, wrong]), count + 1
    return total / max(1, count)


def unimodal(f: Features, layout: Layout) -> Tensor:
    rows = [i for i in range(layout.images) if texts_of(layout, i, POSITIVE, POSITIVES[0])]
    total = ZERO
    for i in rows:
        other = f.text[texts_of(layout, i, POSITIVE, POSITIVES[0])[0]]
        for a, b in zip(f.text[caption_of(layout, i)], other):
            total = total + (a - b) ** 2
    return total / max(1, len(rows))


def intra_modal(f: Features, layout: Layout, imc: str = "paper") -> Tensor:
    images = range(layout.images)
    negatives = [t for i in images for t in texts_of(layout, i, NEGATIVE)]
    total = ZERO
    for i in images:
        caption = f.text[caption_of(layout, i)]
        scores = [f.logit_scale * (caption @ f.text[t]) for t in negatives]
        if imc == "paper":
            scores = [f.logit_scale * (f.image[i] @ caption), *scores]
        if scores:
            total = total + cross_entropy(scores, 0) / layout.images
    return total


def ranking(f: Features, layout: Layout, margins: Sequence[float]) -> Tensor:
    total, count = ZERO, 0
    for i in range(layout.images):
        for t in texts_of(layout, i, NEGATIVE):
            gap = f.image[i] @ f.text[t] - f.image[i] @ f.text[caption_of(layout, i)]
            value = margins[KINDS.index(kind_of(layout, t))] + f.logit_scale * gap
            count += 1
            if number(value) > 0:
                total = total + value
    return total / max(1, count)


def next_margins(f: Features, layout: Layout, margins: Sequence[float]) -> list[float]:
    images, out = range(layout.images), []
    right = [number(f.logit_scale * (f.image[i] @ f.text[caption_of(layout, i)])) for i in images]
    for kind, margin in zip(KINDS, margins, strict=True):
        texts = [(i, t) for i in images for t in texts_of(layout, i, NEGATIVE, kind)]
        wrong = [number(f.logit_scale * (f.image[i] @ f.text[t])) for i, t in texts]
        if wrong:
            margin = sum(right) / len(right) - sum(wrong) / len(wrong)
        out.append(min(max(margin, 0.0), 10.0))
    return out


def bag_of(layout: Layout, image: int, bag: int) -> list[int]:
    return texts_of(layout, image, POSITIVE, bag) or [caption_of(layout, image)]


def bag(f: Features, layout: Layout, bag: int) -> Tensor:
    images, total = range(layout.images), ZERO
    for i in images:
        own = bag_of(layout, i, bag)
        wrong = [f.image[i] @ f.text[t] for j in images for t in bag_of(layout, j, bag)]
        wrong += [f.image[j] @ f.text[t] for t in own for j in images]
        right = [f.image[i] @ f.text[t] for t in own]
        total = total + lse([f.logit_scale * x for x in wrong])
        total = total - lse([f.logit_scale * x for x in right])
    return total / layout.images


def bag_negative(f: Features, layout: Layout, bag: int, bag_negative: int) -> Tensor:
    total, rows = ZERO, 0
    for i in range(layout.images):
        negatives = texts_of(layout, i, NEGATIVE, bag_negative)
        if negatives:
            rows += 1
            right = [f.logit_scale * (f.image[i] @ f.text[t]) for t in bag_of(layout, i, bag)]
            wrong = [f.logit_scale * (f.image[i] @ f.text[t]) for t in negatives]
            total = total + lse(right + wrong) - lse(right)
    return total / max(1, rows)


def neg(f: Features, image: list[int], caption: list[int], negative: list[int]) -> Tensor:
    """Of images with the captions at the same places, and negatives."""
    total = ZERO
    for k, i in enumerate(image):
        to_text = [f.logit_scale * (f.image[i] @ f.text[t]) for t in caption + negative]
        to_image = [f.logit_scale * (f.text[caption[k]] @ f.image[j]) for j in image]
        total = total + cross_entropy(to_text, k) + cross_entropy(to_image, k)
    return total / max(1, 2 * len(image))


def sides(layout: Layout) -> tuple[list[int], list[int], list[int]]:
    """Images of the data, generated ones, and the negatives of rows without a generated one."""
    images = range(layout.images)
    side = [0] * layout.images if layout.side is None else layout.side.tolist()
    data = [i for i in images if side[i] == 0]
    generated = [i for i in images if side[i] == 1]
    paired = [] if layout.pair is None else [int(layout.pair[i]) for i in generated]
    alone = [t for i in data if i not in paired for t in texts_of(layout, i, NEGATIVE)]
    return data, generated, alone


def triplet(f: Features, layout: Layout) -> Tensor:
    data, generated, negatives = sides(layout)
    captions, wrong = ([caption_of(layout, i) for i in side] for side in (data, generated))
    return neg(f, data, captions, wrong + negatives) + neg(f, generated, wrong, captions)


def distillation(f: Features, layout: Layout, vectors: int | None = None) -> Tensor:
    pairs = [(f.image[i], f.teacher_image[i]) for i in range(layout.images)]
    pairs += [(f.text[t], f.teacher_text[t]) for t in range(layout.owner.numel())]
    total = ZERO
    for own, teacher in pairs:
        for a, b in zip(own, teacher):
            total = total + (a - b) ** 2
    return total / (vectors or len(pairs))


def on_dimensions(
    loop: Callable[..., Tensor], widths: Sequence[int], f: Features, layout: Layout
) -> Tensor:
    """The mean of a loop over whole features and over their beginnings, cut number by number."""

    def cut(rows: Tensor, width: int) -> Tensor:
        found = []
        for row in rows:
            length = sum((row[k] ** 2 for k in range(width)), ZERO) ** 0.5
            found.append(torch.stack([row[k] / length for k in range(width)]))
        return torch.stack(found)

    total = loop(f, layout)
    for width in widths:
        names = ("image", "text", "teacher_image", "teacher_text")
        total = total + loop(replace(f, **{n: cut(getattr(f, n), width) for n in names}), layout)
    return total / (1 + len(widths))


def similarity(f: Features, layout: Layout) -> Tensor:
    """Cross entropies of a teacher's softmaxes with the model's, number by number."""
    images, texts = range(layout.images), range(layout.owner.numel())

    def one(i: int, t: int, name: str) -> Tensor:
        image, text = getattr(f, f"{name}image"), getattr(f, f"{name}text")
        scale = f.logit_scale if not name else f.teacher_scale
        scale = f.logit_scale.detach() if scale is None else scale
        return scale * sum((a * b for a, b in zip(image[i], text[t])), ZERO)

    def entropy(pairs: list[tuple[int, int]]) -> Tensor:
        right = [one(i, t, "teacher_") for i, t in pairs]
        ours = [one(i, t, "") for i, t in pairs]
        logs = [(torch.exp(r - lse(right)), o - lse(ours)) for r, o in zip(right, ours)]
        return -sum((p * log for p, log in logs), ZERO)

    of_images = sum((entropy([(i, t) for t in texts]) for i in images), ZERO) / len(images)
    of_texts = sum((entropy([(i, t) for i in images]) for t in texts), ZERO) / len(texts)
    return (of_images + of_texts) / 2


def teacher_contrast(
    f: Features, layout: Layout, scale: float = 10.0, tiled: bool = False
) -> Tensor:
    images = range(layout.images)
    every = [t for i in images for t in texts_of(layout, i, NEGATIVE)]
    total, rows = ZERO, 0
    for i in images:
        wrong = texts_of(layout, i, NEGATIVE)
        if tiled:
            wrong = [t for m, t in enumerate(every) if m % layout.images == i]
        if not wrong:
            continue
        rows += 1
        own = caption_of(layout, i)
        scores = [scale * (f.text[own] @ f.teacher_text[own])]
        scores += [scale * (f.text[own] @ f.text[t]) for t in wrong]
        total = total + cross_entropy(scores, 0)
    return total / max(1, rows)


def alignment(
    f: Features, layout: Layout, align: str = "paraphrase", mask_duplicates: bool = False
) -> Tensor:
    images = range(layout.images)
    caption = [caption_of(layout, i) for i in images]
    rows = [i for i in images if texts_of(layout, i, POSITIVE)]
    paraphrase = {i: texts_of(layout, i, POSITIVE)[0] for i in rows}
    total = ZERO
    for i in rows:
        if align == "paraphrase":
            anchor, columns = paraphrase[i], {j: caption[j] for j in images}
        else:
            anchor, columns = caption[i], paraphrase
        kept = [
            j for j in columns if j == i or not (mask_duplicates and is_true(layout, i, columns[j]))
        ]
        scores = [f.logit_scale * (f.text[anchor] @ f.text[columns[j]]) for j in kept]
        total = total + cross_entropy(scores, kept.index(i))
    return total / max(1, len(rows))
