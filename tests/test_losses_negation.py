"""Counterfactual pairs, negated captions with distractors, and SemCLIP's projected cosines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import losses_loops as loops
from compoclip.losses import (
    Features,
    Layout,
    conclip_loss,
    denial_loss,
    grouping_loss,
    paraphrase_loss,
    projected_negation_loss,
    separation_loss,
    triplet_clip_loss,
)
from compoclip.losses.negation import fixed_directions
from losses_loops import ZERO, neg, sides, texts_of
from losses_oracle import (
    CAPTION,
    CASES,
    NEGATIVE,
    POSITIVE,
    assert_equal,
    caption_of,
    cross_entropy,
    layout_of,
)

LossFn = Callable[[Features, Layout], Tensor]


def _layout(pair: list[int], negatives: list[int]) -> Layout:
    """Captions of all images, negatives of some; an image is generated if `pair` names another."""
    texts = [(i, CAPTION, -1) for i in range(len(pair))]
    layout = layout_of([*texts, *((i, NEGATIVE, 0) for i in negatives)])
    at = torch.tensor(pair)
    return replace(layout, pair=at, side=(at != torch.arange(len(pair))).long())


BATCHES = {
    "full": _layout([0, 1, 2, 0, 1, 2], []),
    "texts beside images": _layout([0, 1, 2, 0, 1, 2], [0, 1, 1, 4]),
    "ragged rows": _layout([0, 1, 0, 3, 4, 4], [1, 1, 4, 5]),
    "one generated": _layout([0, 1, 2, 1], [0]),
    "generated first": _layout([1, 1, 2, 2], []),
    "no generated": _layout([0, 1, 2], [0, 2]),
    "one row": _layout([0, 0], []),
    **{name: layout_of(CASES[name]) for name in ("ragged", "no negative", "bags", "positives")},
}


# --- The losses again, as plain loops. ---


def grouping(f: Features, layout: Layout) -> Tensor:
    images = list(range(layout.images))
    return neg(f, images, [caption_of(layout, i) for i in images], sides(layout)[2])


def conclip(f: Features, layout: Layout, distractor_weight: float = 1.0) -> Tensor:
    data, beside, lone = sides(layout)
    right, wrong = ([caption_of(layout, i) for i in part] for part in (data, beside))
    total = ZERO
    for k, i in enumerate(data):
        row = [f.logit_scale * (f.image[i] @ f.text[t]) for t in right + wrong + lone]
        column = [f.logit_scale * (f.text[right[k]] @ f.image[j]) for j in data + beside]
        total = total + (cross_entropy(row, k) + cross_entropy(column, k)) / len(data)
    for k, i in enumerate(beside):
        row = [f.logit_scale * (f.image[i] @ f.text[t]) for t in wrong + right + lone]
        total = total + distractor_weight * cross_entropy(row, k) / len(beside)
    return total / 3


def projected(f: Features, layout: Layout, role: int, directions: int = 2, seed: int = 0) -> Tensor:
    onto = fixed_directions(f.text.shape[1], directions, seed, f.text.device, f.text.dtype)
    terms = []
    for i in range(layout.images):
        others = texts_of(layout, i, role)
        if not others:
            continue
        a, b = (
            [
                sum((f.text[t][d] * onto[d, k] for d in range(len(onto))), ZERO)
                for k in range(directions)
            ]
            for t in (caption_of(layout, i), others[0])
        )
        dot = sum((x * y for x, y in zip(a, b)), ZERO)
        length = sum((x * x for x in a), ZERO).sqrt() * sum((y * y for y in b), ZERO).sqrt()
        cosine = dot / length
        terms.append(1 - cosine if role == POSITIVE else cosine.clamp_min(0))
    return sum(terms, ZERO) / max(1, len(terms))


def denial(f: Features, layout: Layout) -> Tensor:
    assert layout.text_id is not None
    images = [i for i in range(layout.images) if texts_of(layout, i, NEGATIVE)]
    texts = [texts_of(layout, i, NEGATIVE)[0] for i in images]
    total = ZERO
    for k, i in enumerate(images):
        kept = [j for j, t in enumerate(texts) if layout.text_id[t] != layout.text_id[texts[k]]]
        own, others = len(kept), [*kept, k]
        to_text = [-f.logit_scale * (f.image[i] @ f.text[texts[j]]) for j in others]
        to_image = [-f.logit_scale * (f.text[texts[k]] @ f.image[images[j]]) for j in others]
        total = total + cross_entropy(to_text, own) + cross_entropy(to_image, own)
    return total / max(1, 2 * len(images))


def separation(f: Features, layout: Layout, margin: float = 0.9) -> Tensor:
    total, count = ZERO, 0
    for i in range(layout.images):
        if others := texts_of(layout, i, POSITIVE):
            cosine = f.text[caption_of(layout, i)] @ f.text[others[0]]
            total, count = total + torch.clamp(cosine + margin, min=0), count + 1
    return total / max(1, count)


PAIRS: dict[str, tuple[LossFn, LossFn]] = {
    "separation": (separation_loss, separation),
    "separation 0.1": (partial(separation_loss, margin=0.1), partial(separation, margin=0.1)),
    "grouping": (grouping_loss, grouping),
    "triplet": (triplet_clip_loss, loops.triplet),
    "conclip": (conclip_loss, conclip),
    "conclip 0.25": (
        partial(conclip_loss, distractor_weight=0.25),
        partial(conclip, distractor_weight=0.25),
    ),
    "conclip 0": (
        partial(conclip_loss, distractor_weight=0.0),
        partial(conclip, distractor_weight=0.0),
    ),
    "paraphrase": (paraphrase_loss, partial(projected, role=POSITIVE)),
    "paraphrase 3": (
        partial(paraphrase_loss, directions=3, seed=5),
        partial(projected, role=POSITIVE, directions=3, seed=5),
    ),
    "negation": (projected_negation_loss, partial(projected, role=NEGATIVE)),
    "denial": (denial_loss, denial),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", PAIRS)
def test_equals_loop(name: str, batch: str) -> None:
    assert_equal(*PAIRS[name], BATCHES[batch], seed=len(batch))


def test_directions_are_fixed_by_their_seed() -> None:
    place = torch.device("cpu"), torch.float64
    first = fixed_directions(8, 2, 0, *place).clone()
    torch.testing.assert_close(first.T @ first, torch.eye(2).double())
    fixed_directions.cache_clear()
    torch.testing.assert_close(fixed_directions(8, 2, 0, *place), first, atol=0, rtol=0)
    assert not torch.equal(fixed_directions(8, 2, 1, *place), first)
    single = fixed_directions(8, 2, 0, torch.device("cpu"), torch.float32)
    torch.testing.assert_close(single.double(), first)
    with pytest.raises(ValueError, match="--directions 9: the text space has only 8 dimensions"):
        fixed_directions(8, 9, 0, *place)
